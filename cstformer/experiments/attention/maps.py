"""Attention maps at new coordinates: told the values there, up-sampled by CST, and interpolated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.samples import Samples
from cstformer.datasets.spirals import regular_indices
from cstformer.experiments.spirals.task import SpiralTask
from cstformer.models.cst import CST

JOINT, CONTEXT, PAPER = "joint", "context", "joint, paper preset"
"""The systems: two patterns of CST, and the paper's model."""
UPSAMPLED, LINEAR, NORMALISED = "CST", "linear", "linear, rows summing to one"
METHODS = (UPSAMPLED, LINEAR, NORMALISED)
TRUTH, GIVEN = "told the values", "given points alone"


@dataclass(frozen=True)
class Maps:
    """Attention maps of the test curves, tokens in the order of time."""

    all: dict[str, Float[np.ndarray, "N layers heads _m _n"]]
    """By name: the methods, the truth, and the map of the given points."""
    rows: Float[np.ndarray, " m"]
    """Times of the tokens that read."""
    columns: Float[np.ndarray, " n"]
    """Times of the tokens that are read."""
    given: Float[np.ndarray, " given"]
    """Times of the observed points."""
    new: Bool[np.ndarray, "m n"]
    """True for entries that involve a new coordinate."""

    @property
    def methods(self) -> list[str]:
        """Names of the maps that are compared with the truth."""
        return [name for name in METHODS if name in self.all]


def compare_maps(model: CST, data: SpiralTask) -> Maps:
    """Attention maps of all test curves by every method, and the true ones.

    ``joint``: 20 tokens read each other, and the map of 10 tokens is interpolated along rows and columns. ``context``:
    10 new coordinates read the 10 given points, and the rows of the given points are interpolated.
    """
    index, extra = regular_indices(len(data.times)), extra_indices(len(data.times))
    given, new = data.times[index], data.times[extra]
    known, unknown = data.test.values, data.values[:, extra]
    told = model.attention(data.test, new, values=unknown).maps
    asked = model.attention(data.test, new).maps
    weights = linear_weights(given, new)
    if model.pattern == "context":
        coarse = model.attention(data.test, given, values=known).maps
        maps = {TRUTH: told, GIVEN: coarse, UPSAMPLED: asked, LINEAR: weights @ coarse}
        return Maps(maps, new, given, given, np.ones((len(new), len(given)), dtype=bool))
    # The map of ten tokens alone: nine given points, and the tenth as a query whose value the model is told.
    nine = Samples(given[:-1], known[:, :-1])
    coarse = model.attention(nine, given[-1:], values=known[:, -1:]).maps
    times = np.concatenate([given, new])
    order = np.argsort(times)
    by_time = np.ix_(order, order)
    full = np.concatenate([np.eye(len(given)), weights])[order]  # (20, 10)
    linear = full @ coarse @ full.T
    is_new = np.arange(len(times)) >= len(given)
    maps = {
        TRUTH: told[..., by_time[0], by_time[1]],
        GIVEN: coarse,
        UPSAMPLED: asked[..., by_time[0], by_time[1]],
        LINEAR: linear,
        NORMALISED: linear / linear.sum(-1, keepdims=True),
    }
    return Maps(maps, times[order], times[order], given, (is_new[:, None] | is_new)[by_time])


def extra_indices(n: int = 100, count: int = 10) -> np.ndarray:
    """Indices of the new coordinates: halfway between the given ones, and one more in the first gap.

    >>> extra_indices().tolist()
    [3, 6, 17, 28, 39, 50, 61, 72, 83, 94]
    """
    given = regular_indices(n, count)
    return np.concatenate([[given[1] // 4 + 1], (given[1:] + given[:-1] + 1) // 2])


def linear_weights(x: Float[np.ndarray, " n"], at: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m n"]:
    """Matrix of linear interpolation from values at ``x`` to values at ``at``.

    >>> linear_weights(np.array([0.0, 1.0]), np.array([0.25])).tolist()
    [[0.75, 0.25]]
    """
    return np.stack([np.interp(at, x, unit) for unit in np.eye(len(x))], axis=1)


def map_error(
    maps: Float[np.ndarray, "*batch m n"], truth: Float[np.ndarray, "*batch m n"], new: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, "*batch"]:
    """L2 norm of the difference over the entries that involve new coordinates."""
    return np.sqrt((((maps - truth) * new) ** 2).sum((-2, -1)))
