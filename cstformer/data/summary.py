"""Readable summary of `Samples`, as `cst data show` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cstformer.data.names import heading

if TYPE_CHECKING:
    from cstformer.data.samples import Samples


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
    if samples.origin.any():
        lines.append("origin: coordinates are relative to the start of each window")
    if samples.layout is not None:
        lines.append(f"layout: {samples.layout}")
    return "\n".join(lines)
