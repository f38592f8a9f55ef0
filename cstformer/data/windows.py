"""Which points of long recordings belong to which window."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from cstformer.data.arrays import pad
from cstformer.errors import CSTError


def window_points(
    place: Float[np.ndarray, "N n"], exists: Bool[np.ndarray, "N n"], length: float, stride: float
) -> tuple[Int[np.ndarray, " W"], Float[np.ndarray, " W"], Int[np.ndarray, "W p"]]:
    """Recording, beginning and points of each window; -1 stands where a window has fewer points than others.

    ``place`` is the coordinate along which the recordings are cut; see `Samples.windows`.
    """
    for name, number in (("length", length), ("stride", stride)):
        if not (np.isfinite(number) and number > 0):
            raise CSTError(f"{name} must be a positive number in coordinate units, got {number!r}")
    rows, starts, indices = [], [], []
    for i in range(len(place)):
        at = np.flatnonzero(exists[i])
        at = at[np.argsort(place[i, at], kind="stable")]
        here = place[i, at]
        # A point that lies before a boundary only by rounding belongs to the window behind it.
        slack = 1e-9 * min(length, stride) + 4 * np.spacing(np.abs(here).max() + length)
        step = float(np.median(np.diff(here))) if len(here) > 1 else 0.0
        count = max(0, int((here[-1] + step - here[0] - length + slack) // stride)) + 1
        start = here[0] + stride * np.arange(count)
        first = np.searchsorted(here, start - slack)
        last = np.searchsorted(here, start + length - slack)
        start, first, last = (a[last > first] for a in (start, first, last))
        index = first[:, None] + np.arange((last - first).max())
        indices += list(np.where(index < last[:, None], at[np.minimum(index, len(at) - 1)], -1))
        rows.append(np.full(len(start), i))
        starts.append(start)
    return np.concatenate(rows), np.concatenate(starts), pad(indices, max(map(len, indices)), -1)
