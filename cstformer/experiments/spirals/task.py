"""Data of the spirals experiment: three conditions of the same curves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.samples import Samples
from cstformer.datasets.spirals import Spirals, irregular_indices, make_spirals, regular_indices, split

CLEAN, IRREGULAR, NOISY = "clean, regular", "clean, irregular", "noise 0.1, regular"
CONDITIONS = (CLEAN, IRREGULAR, NOISY)
NOISE = 0.1  # standard deviation of the noise that NOISY adds to the observed points
OBSERVED = 10  # observed points of a curve
TRAINING_SHARE = 0.7
FINE = 1000  # coordinates on which curves are drawn and their roughness is measured


@dataclass(frozen=True)
class SpiralTask:
    """One condition: training samples, test context, and the values to compare with."""

    train: Samples
    test: Samples
    times: Float[np.ndarray, " n"]
    """Grid of the data."""
    fine: Float[np.ndarray, " m"]
    """Fine grid of `FINE` coordinates."""
    values: Float[np.ndarray, "N n 2"]
    """Test curves as in the file, without the noise that the condition adds."""
    clean: Float[np.ndarray, "N n 2"]
    """Noise-free test curves on the grid."""
    clean_fine: Float[np.ndarray, "N m 2"]
    unseen: Bool[np.ndarray, "N n"]
    """True where the test context has no point."""


@lru_cache(maxsize=4)
def spiral_task(curves: int, condition: str, seed: int, observed: int = OBSERVED) -> SpiralTask:
    """Data of a condition, with ``observed`` points of each curve; all conditions share the curves and their split."""
    spirals = _spirals(curves, seed)
    train, test = split(curves, TRAINING_SHARE, seed)
    if condition == IRREGULAR:
        index = irregular_indices(curves, len(spirals.times), observed, seed)
    else:
        index = np.tile(regular_indices(len(spirals.times), observed), (curves, 1))
    values = np.take_along_axis(spirals.values, index[..., None], 1)
    if condition == NOISY:
        values = values + NOISE * np.random.default_rng([seed, 10]).normal(size=values.shape)
    samples = Samples(spirals.times[index], values, coord_names=["t"], value_names=["y1", "y2"])
    unseen = np.ones(spirals.values.shape[:2], dtype=bool)
    np.put_along_axis(unseen, index, False, 1)
    fine = np.linspace(0, 1, FINE)
    return SpiralTask(
        samples[train],
        samples[test],
        spirals.times,
        fine,
        spirals.values[test],
        spirals.clean[test],
        spirals.clean_at(fine)[test],
        unseen[test],
    )


@lru_cache(maxsize=2)
def _spirals(curves: int, seed: int) -> Spirals:
    return make_spirals(curves, seed=seed)
