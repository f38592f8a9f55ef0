"""Measures of intervals: coverage, width, Winkler score and CRPS, overall and in strata."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from cstformer.data.units import Scaling
from cstformer.experiments.intervals.task import IntervalTask

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SHOWN = LEVELS.index(0.9)
GROUPS = ("gap", "channel", "noise")  # strata by distance to the nearest observation, by channel, by noise
BINS = 6  # strata by distance and by noise
FEWEST = 500  # cells of a stratum that says something about coverage


@dataclass(frozen=True)
class Predicted:
    """What a model says about observations, in its own units.

    Attributes
    ----------
    values, variance : mean and variance of an observation
    factors : half width of an interval over the standard deviation, for each of `LEVELS` and each channel
    """

    values: Float[np.ndarray, "N m c"]
    variance: Float[np.ndarray, "N m c"]
    factors: Float[np.ndarray, "L c"]


def measure(task: IntervalTask, predicted: Predicted, scaling: Scaling) -> dict[str, np.ndarray]:
    """Measures of each sample and of each stratum, in the user's units.

    Channels with too few held-out samples for some level are left out.

    ``coverage``, ``width`` and ``winkler`` are (L, N) means over the asked cells of a sample, ``crps`` is (N,). Of the
    strata by distance there are ``gap`` (their mean distance), ``gap_cells``, ``gap_coverage`` (L, bins) and
    ``gap_width`` (bins,) at 90 %; of the channels ``channel_cells`` and ``channel_coverage`` (L, c); of the strata by
    noise, where it is known, ``noise_cells`` and ``noise_coverage`` (L, bins).
    """
    asked, sd = task.asked & np.isfinite(predicted.factors).all(0), np.sqrt(predicted.variance)
    count = np.maximum(asked.sum((1, 2)), 1)
    mean = lambda x: np.where(asked, x, 0.0).sum((1, 2)) / count  # noqa: E731
    distance = np.broadcast_to(task.distance.round(9)[..., None], asked.shape)  # equal but for rounding: one stratum
    stratum = strata(distance[asked])
    cells = np.bincount(stratum)
    groups = {"gap": stratum, "channel": np.broadcast_to(np.arange(asked.shape[-1]), asked.shape)[asked]}
    if task.noise is not None:
        groups["noise"] = strata(task.noise[asked])
    names = ("coverage", "width", "winkler", *(f"{name}_coverage" for name in groups))
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for level, factor in zip(LEVELS, predicted.factors, strict=True):
        half = np.where(np.isfinite(factor), factor, 0.0) * sd
        low, high = scaling.values(predicted.values - half), scaling.values(predicted.values + half)
        inside = (low <= task.truth) & (task.truth <= high)
        beyond = np.maximum(low - task.truth, 0) + np.maximum(task.truth - high, 0)
        found["coverage"].append(mean(inside))
        found["width"].append(mean(high - low))
        found["winkler"].append(mean(high - low + 2 / (1 - level) * beyond))
        for name, group in groups.items():
            share = np.bincount(group, inside[asked]) / np.maximum(np.bincount(group), 1)
            found[f"{name}_coverage"].append(share)
        if level == LEVELS[SHOWN]:
            gap_width = np.bincount(stratum, (high - low)[asked]) / np.maximum(cells, 1)
    values = scaling.values(predicted.values)
    return {
        **{name: np.stack(x) for name, x in found.items()},
        **{f"{name}_cells": np.bincount(group) for name, group in groups.items()},
        "crps": mean(normal_crps(task.truth - values, scaling.slope(predicted.values) * sd)),
        "gap": np.bincount(stratum, distance[asked]) / np.maximum(cells, 1),
        "gap_width": gap_width,
    }


def strata(x: Float[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
    """Number of the stratum of each value: at most `BINS`, about equally many values in each, equal ones together.

    >>> strata(np.array([3.0, 1.0, 1.0, 2.0])).tolist()
    [2, 0, 0, 1]
    """
    edges = np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)))
    stratum = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    return np.unique(stratum, return_inverse=True)[1]  # without empty ones


def normal_crps(error: np.ndarray, sd: np.ndarray) -> np.ndarray:
    r"""Continuous ranked probability score of a normal distribution (Gneiting & Raftery, 2007); lower is better.

    :math:`\sigma \bigl( z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt\pi \bigr)` with :math:`z` the error over σ.

    >>> float(normal_crps(np.array(0.0), np.array(1.0)).round(4))  # √(2/π) − √(1/π)
    0.2337
    """
    z = error / sd
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return sd * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def worst_stratum(arrays: dict[str, np.ndarray]) -> float:
    """Coverage at 90 % of the stratum (`GROUPS`) that is furthest from it; NaN if all are small."""
    names = [name for name in GROUPS if f"{name}_cells" in arrays]
    coverage = np.concatenate([arrays[f"{name}_coverage"][SHOWN] for name in names])
    cells = np.concatenate([arrays[f"{name}_cells"] for name in names])
    large = coverage[cells >= FEWEST]
    return float(large[np.abs(large - LEVELS[SHOWN]).argmax()]) if len(large) else float("nan")


def width_that_covers(arrays: dict[str, np.ndarray], share: float) -> float:
    """Mean width of the intervals that do cover this share, between those of `LEVELS`.

    >>> coverage, width = np.array([[0.4], [0.5], [0.6], [0.7], [0.8], [1.0]]), np.arange(6.0)[:, None]
    >>> width_that_covers({"coverage": coverage, "width": width}, 0.9)
    4.5
    """
    return float(np.interp(share, arrays["coverage"].mean(1), arrays["width"].mean(1)))
