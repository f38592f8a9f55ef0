"""Curves of the explorer: CST and two interpolants with two derivatives, computed from a disturbed sample."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.interpolate
from jaxtyping import Float

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.cst import CST
from cstformer.models.reader import Reader

BAND_LEVELS = (0.9, 0.8)  # the first for which the model was calibrated on enough samples
POINTS = 401  # times at which a curve is drawn
CROWD = 200  # points that the first view of a long series shows
ORDERS = ((0,), (1,), (2,))


@dataclass(frozen=True)
class Changes:
    """Changes to a sample before the model sees it."""

    noise: float = 0.0
    """Standard deviation of the added noise, over that of the training values."""
    removed: int = 0
    """Number of inner points that are removed at random."""
    clicked: frozenset[int] = frozenset()
    """Points removed by hand, or restored if they were removed at random."""
    seed: int = 0


def disturbed(sample: Samples, how: Changes, sd: Float[np.ndarray, " c"]) -> Samples:
    """Add noise to a sample and remove some of its points; deterministic in `how`.

    Removing more points keeps the earlier ones removed, and more noise scales the same random draw. So a slider changes
    the curve gradually instead of drawing a new one.

    >>> curve = Samples([0.0, 1.0, 2.0, 3.0], [[1.0, 2.0, 3.0, 4.0]])
    >>> disturbed(curve, Changes(clicked=frozenset({1})), np.ones(1)).point_observed.tolist()
    [[True, False, True, True]]
    """
    keep = kept(sample, how)
    draw = np.random.default_rng([how.seed, 1]).standard_normal(sample.values.shape)
    values = np.where(sample.observed, sample.values + how.noise * sd * draw, np.nan)
    return sample.replace(values=values).subset_points(keep[None])


def kept(sample: Samples, how: Changes) -> np.ndarray:
    """Mask (n,) of the remaining points of a sample, at least two."""
    real = sample.point_observed[0]
    inner = np.flatnonzero(real)[1:-1]
    keep = real.copy()
    keep[np.random.default_rng([how.seed, 0]).permutation(inner)[: how.removed]] = False
    for point in how.clicked:
        if 0 <= point < len(real):
            keep[point] = real[point] and not keep[point]
    if keep.sum() < 2:
        raise CSTError("a curve needs two points at least; restore one before you remove this one")
    return keep


def curves(reader: Reader, at: Float[np.ndarray, " m"]) -> dict[str, Float[np.ndarray, "3 m c"]]:
    """Value, first and second derivative at these times of CST, linear interpolation and the cubic spline."""
    cst = np.concatenate(reader.partials(at[:, None], ORDERS))
    return {"CST": cst, **interpolants(reader.context, at)}


def band(
    model: CST, sample: Samples, at: np.ndarray
) -> tuple[float, Float[np.ndarray, "m c"], Float[np.ndarray, "m c"]] | None:
    """Level, lower and upper bounds of a new observation at times (m,) or coordinates (m, d).

    None if the model has too few scores.
    """
    for level in BAND_LEVELS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CSTWarning)  # the page draws the whole range of the training data
                low, high = model.interval(sample, at, level, extrapolate=True)
        except CSTError:
            continue
        return level, low[0], high[0]
    return None


def interpolants(sample: Samples, at: Float[np.ndarray, " m"]) -> dict[str, Float[np.ndarray, "3 m c"]]:
    """Linear interpolation and the cubic spline of one sample, constant outside of its points.

    The second derivative of linear interpolation is not drawn, so it is NaN.

    >>> line = interpolants(Samples([0.0, 2.0], [[1.0, 5.0]]), np.array([1.0, 3.0]))["linear"]
    >>> line[:2, :, 0].tolist()
    [[3.0, 5.0], [2.0, 0.0]]
    """
    found = {name: np.full((3, len(at), sample.c), np.nan) for name in ("linear", "cubic")}
    for k in range(sample.c):
        seen = sample.observed[0, :, k]
        order = np.argsort(sample.coords[0, seen, 0])
        t, y = sample.coords[0, seen, 0][order], sample.values[0, seen, k][order]
        if len(t) < 2:
            continue
        inside = (at >= t[0]) & (at <= t[-1])
        x = np.clip(at, t[0], t[-1])
        spline = scipy.interpolate.CubicSpline(t, y)
        lines = scipy.interpolate.PPoly(np.stack([np.diff(y) / np.diff(t), y[:-1]]), t)
        for name, curve, highest in (("linear", lines, 1), ("cubic", spline, 2)):
            found[name][0, :, k] = curve(x)
            for j in range(1, highest + 1):
                found[name][j, :, k] = np.where(inside, curve(x, j), 0.0)
    return found


def time_range(reader: Reader) -> tuple[float, float]:
    """First and last time of the training data and this sample together; of a recording in windows, its own."""
    low, high = reader.domain
    return float(low[0]), float(high[0])


def first_view(sample: Samples, t: float, low: float, high: float) -> tuple[float, float]:
    """Times that a page opens with: all from ``low`` to ``high``, or of a long series about `CROWD` points around t.

    >>> long, short = (Samples(np.arange(n), np.zeros((1, n))) for n in (1000, 9))
    >>> first_view(long, 500.0, 0.0, 999.0), first_view(long, 999.0, 0.0, 999.0), first_view(short, 4.0, 0.0, 8.0)
    ((400.0, 600.0), (799.0, 999.0), (0.0, 8.0))
    """
    x = np.sort(sample.coords[0, sample.point_observed[0], 0])
    if len(x) <= 2 * CROWD:
        return low, high
    first = int(np.clip(np.searchsorted(x, t) - CROWD // 2, 0, len(x) - CROWD - 1))
    return float(x[first]), float(x[first + CROWD])


def as_samples(at: Float[np.ndarray, " m"], orders: Float[np.ndarray, "3 m c"], like: Samples) -> Samples:
    """A curve and its derivatives as samples that can be saved; the derivatives of y are called y_t and y_tt."""
    t = like.coord_names[0]
    names = [f"{name}{suffix}" for suffix in ("", f"_{t}", f"_{t}{t}") for name in like.value_names]
    time = like.units.get(t, "")
    units = {t: time}
    for j, suffix in enumerate(("", f"_{t}", f"_{t}{t}")):
        units |= {f"{name}{suffix}": per(like.units.get(name, ""), time, j) for name in like.value_names}
    values = np.concatenate(list(orders), axis=-1)
    return Samples(
        at,
        values[None],
        coord_names=[t],
        value_names=names,
        units=units,
        sample_ids=like.sample_ids,
        origin=like.origin,
    )


def per(unit: str, time: str, order: int) -> str:
    """Unit of a time derivative; empty if the unit of time is unknown. Of dates, the epoch is left out.

    >>> per("mV", "s", 0), per("mV", "s", 1), per("mV", "s", 2), per("", "s", 1), per("mV", "hours since 2024-05-01", 1)
    ('mV', 'mV/s', 'mV/s²', '1/s', 'mV/hours')
    """
    time = time.split(" since ")[0]
    if order == 0:
        return unit
    if not time:
        return ""
    return f"{unit or '1'}/{time}{'²' if order == 2 else ''}"


def unit_of(sample: Samples, name: str) -> str:
    """Unit of an axis or channel; empty if it is unknown or "1".

    >>> unit_of(Samples([0.0, 1.0], [[1.0, 2.0]], units={"t": "1", "value": "mV"}), "t")
    ''
    """
    unit = sample.units.get(name, "")
    return "" if unit == "1" else unit
