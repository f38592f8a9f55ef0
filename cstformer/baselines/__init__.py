"""Rivals of CST: one file a family, one contract (`base.Baseline`), one line each in `BASELINES`."""

from __future__ import annotations

from cstformer.baselines.base import Baseline
from cstformer.baselines.bert import BertTransformer
from cstformer.baselines.interpolation import (
    CopyNearest,
    CubicSpline,
    GaussianProcess,
    LinearInterpolation,
    Mean,
)

BASELINES: dict[str, type[Baseline]] = {
    "mean": Mean,
    "nearest": CopyNearest,
    "linear": LinearInterpolation,
    "cubic": CubicSpline,
    "gp": GaussianProcess,
    "transformer": BertTransformer,
}
"""All rivals by name."""

__all__ = [
    "BASELINES",
    "Baseline",
    "BertTransformer",
    "CopyNearest",
    "CubicSpline",
    "GaussianProcess",
    "LinearInterpolation",
    "Mean",
]
