"""Readable summary of `Samples`, as `cst data show` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cstformer.data.dates import dated_axis
from cstformer.data.names import heading

if TYPE_CHECKING:
    from cstformer.data.samples import Samples


def headline(samples: Samples) -> str:
    """One line, as ``repr`` gives it."""
    counts, values = samples.point_observed.sum(axis=1), samples.value_names
    points = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
    parts = [
        f"{len(samples)} samples of {points} points",
        f"coordinates {', '.join(samples.coord_names)}",
        f"values {', '.join(values) if samples.c <= 5 else f'{values[0]}...{values[-1]}'}",
    ]
    parts += [f"covariates {', '.join(samples.covariate_names)}"] if samples.covariate_names else []
    parts += [f"calendar {', '.join(samples.calendar)}"] if samples.calendar else []
    return f"Samples({', '.join(parts)})"


def _covariate(samples: Samples, name: str, x: np.ndarray) -> str:
    """What the samples have of one covariate: labels and how often, or a range; and how many miss it."""
    some = x[~np.isnan(x)]
    missing = f", missing in {len(x) - len(some)} samples" if len(some) < len(x) else ""
    if name in samples.categories:
        counts = [f"{text} ({(some == code).sum()})" for code, text in enumerate(samples.categories[name])]
        return ", ".join(counts[:8]) + (f" and {len(counts) - 8} more" if len(counts) > 8 else "") + missing
    if not len(some):
        return "never known"
    return f"mean {some.mean():.6g}, sd {some.std():.6g}, min {some.min():.6g}, max {some.max():.6g}{missing}"


def summary(samples: Samples, repeats: int) -> str:
    """Several lines: sizes, ranges, how much is observed; ``repeats`` points repeat the coordinates of another."""
    counts = samples.point_observed.sum(axis=1)
    shared = (samples.coords == samples.coords[:1]).all() and (
        samples.point_observed == samples.point_observed[:1]
    ).all()
    at_points = samples.observed[samples.point_observed]
    lines = [
        f"{len(samples)} samples, {samples.d} coordinates, {samples.c} values",
        f"points per sample: min {counts.min()}, median {np.median(counts):g}, max {counts.max()}",
        f"grid: {'the same for all samples' if shared else 'each sample has its own'}",
        f"observed: {100 * at_points.mean():.4g} % of the values at these points",
        f"repeated coordinates: {repeats or 'none'}",
    ]
    for k, name in enumerate(samples.coord_names):
        x = samples.coords[..., k][samples.point_observed]
        lines.append(f"coordinate {heading(name, samples.units)}: {x.min():.6g} to {x.max():.6g}")
    for k, name in enumerate(samples.value_names[:8]):
        y = samples.values[..., k][samples.observed[..., k]]
        numbers = f"mean {y.mean():.6g}, sd {y.std():.6g}, min {y.min():.6g}, max {y.max():.6g}" if len(y) else ""
        lines.append(f"value {heading(name, samples.units)}: {numbers or 'never observed'}")
    if samples.c > 8:
        y = samples.values[samples.observed]
        lines.append(
            f"... and {samples.c - 8} more; all together: mean {y.mean():.6g}, sd {y.std():.6g}, "
            f"min {y.min():.6g}, max {y.max():.6g}"
        )
    for k, name in enumerate(samples.covariate_names):
        lines.append(f"covariate {heading(name, samples.units)}: {_covariate(samples, name, samples.covariates[:, k])}")
    if dated := dated_axis(samples.coord_names, samples.units):
        axis, clock = dated
        x = (samples.coords[..., axis] + samples.origin[:, None, axis])[samples.point_observed]
        first, last = np.datetime_as_string(clock.dates(np.array([x.min(), x.max()])), unit="s")
        lines.append(f"dates: {first} to {last}{'' if clock.zone is None else f' ({clock.zone})'}")
    if samples.calendar:
        lines.append(f"calendar: {', '.join(samples.calendar)}")
    if samples.origin.any():
        lines.append("origin: coordinates are relative to the start of each window")
    if samples.layout is not None:
        lines.append(f"layout: {samples.layout}")
    return "\n".join(lines)
