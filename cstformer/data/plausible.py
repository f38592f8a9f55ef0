"""Numbers that cannot be meant: marks of missing values, scales beyond floating point, samples on far-apart clocks."""

from __future__ import annotations

import warnings

import numpy as np

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning

LARGEST, SMALLEST = 1e150, 1e-150
"""Bounds of values and of their standard deviation: the squares of others overflow or vanish in float64."""
MARKS = (-9999.0, -999.0, -99999.0, -99.0, 9999.0, 99999.0, 1e20, 1e30, 9.969209968386869e36)
"""Numbers that files hold in the place of missing values; the last is NetCDF's."""
FAR = 10.0  # standard deviations of the other values, by which a mark of missing values lies outside their range
LEAST_COVER = 0.05  # of an axis that the median sample covers, below which the samples share no clock


def check_numbers(samples: Samples, stacklevel: int = 4) -> None:
    """Refuse values whose squares overflow or vanish; warn of marks of missing values and of far-apart clocks."""
    for k, name in enumerate(samples.value_names):
        y = samples.values[..., k][samples.observed[..., k]]
        if not len(y):
            continue
        top = float(np.abs(y).max())
        sd = top * float((y / top).std()) if top > 0 else 0.0  # scaled first: the squares of y may not exist
        if top > LARGEST or 0 < sd < SMALLEST:
            what = f"values up to {top:.3g}" if top > LARGEST else f"a standard deviation of {sd:.3g}"
            raise CSTError(f"{name!r} has {what}, beyond what can be squared; give it in another unit, or mark it NaN")
        if (mark := missing_mark(y)) is not None:
            warnings.warn(
                f"{name!r} is {mark:g} at {int((y == mark).sum())} points, far from its other values; if that marks "
                "missing values, replace it by NaN (an empty cell)",
                CSTWarning,
                stacklevel=stacklevel,
            )
    if samples.layout is None:
        _check_clocks(samples, stacklevel + 1)


def missing_mark(y: np.ndarray) -> float | None:
    """The number among values (n,) that seems to mark missing ones: usual for it, repeated, and far from the others.

    >>> missing_mark(np.array([1.0, 2.0, -9999.0, 3.0, -9999.0])), missing_mark(np.array([-999.0, -998.0, -999.0]))
    (-9999.0, None)
    """
    for mark in MARKS:
        here = y == mark
        if 1 < here.sum() < len(y):
            others = y[~here]
            gap = max(others.min() - mark, mark - others.max())
            if gap > FAR * max(float(others.std()), 1e-3 * abs(mark)):
                return mark
    return None


def _check_clocks(samples: Samples, stacklevel: int) -> None:
    """Warn where the samples lie far apart on an axis, so that the model sees each of them as a point."""
    exists = samples.point_observed[..., None]
    low = np.where(exists, samples.coords, np.inf).min(1)  # (N, d)
    high = np.where(exists, samples.coords, -np.inf).max(1)
    extent, span = np.median(high - low, axis=0), high.max(0) - low.min(0)
    for name, cover in zip(samples.coord_names, extent / np.where(span > 0, span, np.inf), strict=True):
        if 0 < cover < LEAST_COVER:
            warnings.warn(
                f"the median sample covers {cover:.2%} of the range of {name!r}: the samples lie far apart. If it "
                "should count from the beginning of each sample, make it relative: --relative, or in Python "
                "cstformer.data.windows.from_beginning(samples)",
                CSTWarning,
                stacklevel=stacklevel,
            )
