"""Frames on a finer pixel grid, without seams between the patches.

A model of patches answers at any patch centre. Overlapping patches are blended with weights that fall towards their
edges, which hides the seams; centres between those of the grid give pixels between the pixels of the data.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.data.layout import PatchLayout
from cstformer.errors import CSTError

Ask = Callable[[np.ndarray], np.ndarray]


def fine_frames(
    ask: Ask, layout: PatchLayout, times: ArrayLike, *, zoom: int = 1, overlap: int = 2
) -> Float[np.ndarray, "N T rows cols C"]:
    """Frames at ``times`` with ``zoom`` pixels for each pixel of the data along both axes.

    Parameters
    ----------
    ask : maps coordinates (m, 3) of patch centres to values (N, m, c), e.g. ``lambda at: model.predict(context, at)``
        or a derivative of the model.
    layout : layout of the samples that the model was fitted on.
    times : (T,).
    zoom : fine pixel i has its centre at i / zoom. Periodic frames become zoom · H × zoom · W; others end at their last
        pixel and become (zoom · (H − 1) + 1) × (zoom · (W − 1) + 1).
    overlap : patches that cover a pixel along each axis; 1 puts them side by side.

    Examples
    --------
    >>> layout = PatchLayout((4, 4), (2, 2), periodic=True)
    >>> pixel = np.array([-0.5, 0.5])
    >>> ask = lambda at: np.add.outer(at[:, 1], pixel).repeat(2, axis=1)[None]  # a field whose value is its row
    >>> fine_frames(ask, layout, [0.0], zoom=2, overlap=1)[0, 0, :5, 0, 0].tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    for name, number, highest in (("zoom", zoom, 64), ("overlap", overlap, min(layout.patch))):
        if not isinstance(number, int) or not 1 <= number <= highest:
            raise CSTError(f"{name} must be a whole number from 1 to {highest}, got {number!r}")
    clock = np.atleast_1d(as_floats("times", times))
    rows, cols = (_corners(layout, axis, zoom, overlap) for axis in (0, 1))
    corner = np.stack(np.meshgrid(rows, cols, indexing="ij"), -1).reshape(-1, 2)  # in fine pixels
    centre = corner / zoom + layout.half
    size = [_fine(layout, axis, zoom) for axis in (0, 1)]
    # Weights fall linearly from the centre of a patch to its edges.
    hats = [np.minimum(np.arange(p) + 0.5, p - np.arange(p) - 0.5) if overlap > 1 else np.ones(p) for p in layout.patch]
    weight = np.outer(*hats)[..., None]
    at = np.column_stack([np.repeat(clock, len(centre)), np.tile(centre, (len(clock), 1))])
    answers = ask(at)
    answers = answers.reshape(len(answers), len(clock), len(centre), *layout.patch, layout.channels)
    total, count = np.zeros((*answers.shape[:2], *size, layout.channels)), np.zeros((*size, 1))
    for i, (row, col) in enumerate(corner):
        r, c = (x + zoom * np.arange(p) for x, p in zip((row, col), layout.patch, strict=True))
        if layout.periodic:
            r, c = r % size[0], c % size[1]
        inside = np.ix_(r < size[0], c < size[1])  # a patch larger than the frame extends past it
        place = np.ix_(r[r < size[0]], c[c < size[1]])
        total[:, :, *place] += (weight * answers[:, :, i])[:, :, *inside]
        count[place] += weight[inside]
    return total / count


def _fine(layout: PatchLayout, axis: int, zoom: int) -> int:
    """Number of fine pixels along an axis."""
    size = layout.frame[axis]
    return zoom * size if layout.periodic else zoom * (size - 1) + 1


def _corners(layout: PatchLayout, axis: int, zoom: int, overlap: int) -> np.ndarray:
    """First fine pixel of each patch along an axis: one tiling for each of the `zoom` subpixel shifts."""
    size, patch = layout.frame[axis], layout.patch[axis]
    stride = max(1, patch // overlap)
    corners = []
    for shift in range(zoom):
        count = size if layout.periodic or shift == 0 else size - 1  # pixels at this shift
        if layout.periodic:
            starts = set(range(0, size, stride))
        else:
            starts = {*range(0, max(1, count - patch), stride), max(0, count - patch)}
        corners += [shift + zoom * start for start in sorted(starts)]
    return np.array(corners)
