"""Windows of long recordings: where they begin, and which points belong to which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cstformer.data.arrays import check_size, pad
from cstformer.errors import CSTError

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

Window = tuple[float, float, int]
"""Length and stride of windows in coordinate units, and the axis along which recordings are cut."""

MOST_STRIDE, LEAST_STRIDE = 0.6, 0.25
"""Bounds of the stride of windows that are blended, over the extent of a window. At 0.6 a query lies within the middle
80 % of one window at least; a stride below 0.25 multiplies the work and hardly changes the answers."""


MOST_WINDOWS = 100
"""Windows for each point of a recording: more would repeat each other."""


def checked_window(given: Any) -> Window:
    """Check the length, stride and axis of windows, as `Samples.windows` takes them."""
    try:
        length, stride, axis = float(given[0]), float(given[1]), int(given[2])
    except (TypeError, ValueError, LookupError):
        raise CSTError(f"window must be (length, stride, axis), got {given!r}") from None
    for name, number in (("length", length), ("stride", stride)):
        if not (np.isfinite(number) and number > 0):
            raise CSTError(f"{name} must be a positive number in coordinate units, got {number!r}")
    if axis < 0:
        raise CSTError(f"axis must be 0 or more, got {axis}")
    return length, stride, axis


def places(samples: Samples, i: int, axis: int) -> tuple[Float[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """Sorted coordinates along ``axis`` of the observed points of sample i, and the numbers of these points."""
    at = np.flatnonzero(samples.point_observed[i])
    at = at[np.argsort(samples.coords[i, at, axis], kind="stable")]
    return samples.coords[i, at, axis], at


def _slack(here: np.ndarray, window: Window) -> float:
    """A point that lies before a boundary only by rounding belongs to the window behind it."""
    return 1e-9 * min(window[:2]) + 4 * np.spacing(np.abs(here).max() + window[0])


def training_starts(here: Float[np.ndarray, " p"], window: Window) -> Float[np.ndarray, " k"]:
    """Where windows begin: at the first point, then a stride later each, as long as they end within the recording.

    The last point is taken to last one median step.
    """
    length, stride, _ = window
    step = float(np.median(np.diff(here))) if len(here) > 1 else 0.0
    room = max(0.0, here[-1] + step - here[0] - length + _slack(here, window))
    if room > MOST_WINDOWS * len(here) * stride:
        raise CSTError(
            f"stride={stride:g} cuts more than {MOST_WINDOWS} windows for each of the {len(here)} points of a "
            f"recording, which are {step:g} apart; choose a longer one"
        )
    return here[0] + stride * np.arange(int(room // stride) + 1)


def from_beginning(samples: Samples, axis: int = 0) -> Samples:
    """Let a coordinate count from the first observed point of each sample, which is added to `origin`.

    >>> from cstformer import Samples
    >>> late = from_beginning(Samples([[5.0, 6.0], [1005.0, 1007.0]], [[1.0, 2.0], [3.0, 4.0]]))
    >>> late.coords[..., 0].tolist(), late.origin[:, 0].tolist()
    ([[0.0, 1.0], [0.0, 2.0]], [5.0, 1005.0])
    """
    begin = np.where(samples.point_observed, samples.coords[..., axis], np.inf).min(1)
    begin = np.where(np.isfinite(begin), begin, 0.0)  # a sample without points
    coords, origin = samples.coords.copy(), samples.origin.copy()
    coords[..., axis] -= begin[:, None]
    origin[:, axis] += begin
    return samples.replace(coords=coords, origin=origin)


def covering_starts(here: Float[np.ndarray, " p"], window: Window, low: float, high: float) -> Float[np.ndarray, " k"]:
    """Where windows begin that overlap and reach from the first point to the last.

    A window that begins at s answers from s + low to s + high, the training domain of the model. The stride is that of
    the training, divided or multiplied by an integer until it lies within its bounds, so that points on a regular grid
    lie in these windows as they did in those of the training.

    >>> covering_starts(np.arange(0.0, 31.0), (15.0, 7.5, 0), 0.0, 14.0).tolist()
    [0.0, 7.5, 16.0]
    """
    extent, stride = high - low, window[1]
    if stride > MOST_STRIDE * extent:
        stride /= np.ceil(stride / (MOST_STRIDE * extent))
    else:
        stride *= np.ceil(LEAST_STRIDE * extent / stride)
    first, last = here[0] - low, here[-1] - high
    if last <= first:
        return np.array([first])
    # A quarter of a stride before the last window there is none: two windows that nearly agree would change over within
    # that distance, and the derivatives of their weights would be large.
    return np.append(first + stride * np.arange(max(1, np.ceil((last - first) / stride - 0.25))), last)


def cut(
    samples: Samples, starts: Sequence[Float[np.ndarray, " k"]], window: Window
) -> tuple[Samples, Int[np.ndarray, " W"], Float[np.ndarray, " W"]]:
    """Windows [start, start + length) of each recording, without those that have no observed point.

    Coordinates become relative to the start, which is added to `origin`; ids become "id@start".

    Returns
    -------
    The windows, and for each the number of its recording and its start.
    """
    length, _, axis = window
    rows, begins, indices = [], [], []
    for i, start in enumerate(starts):
        here, at = places(samples, i, axis)
        slack = _slack(here, window)
        first, last = (np.searchsorted(here, start + shift - slack) for shift in (0.0, length))
        kept = np.flatnonzero(last > first)
        rows.append(np.full(len(kept), i))
        begins.append(start[kept])
        indices += [at[first[k] : last[k]] for k in kept]
    row, begin = np.concatenate(rows), np.concatenate(begins)
    check_size(len(indices), max(map(len, indices)), samples.d, samples.c, sum(map(len, indices)))
    point: Int[np.ndarray, "W p"] = pad(indices, max(map(len, indices)), -1)
    coords, origin = samples.coords[row[:, None], point], samples.origin[row]
    coords[..., axis] = np.maximum(coords[..., axis] - begin[:, None], 0.0)
    origin[:, axis] += begin
    exists: Bool[np.ndarray, "W p"] = point >= 0
    windows = samples.replace(
        coords=coords,
        values=samples.values[row[:, None], point],
        observed=samples.observed[row[:, None], point] & exists[..., None],
        origin=origin,
        covariates=samples.covariates[row],
        sample_ids=[f"{samples.sample_ids[i]}@{start:.12g}" for i, start in zip(row, begin, strict=True)],
        window=window,
    )
    return windows, row, begin
