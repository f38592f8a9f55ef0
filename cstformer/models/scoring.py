"""How good answers are: what to hide from a model, and R² at what was hidden."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float

from cstformer.data.checks import check_context, date_queries
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.starts.kinds import kind_of
from cstformer.training.disturbance import hide_for_validation

HIDE = 0.5  # largest share of a sample's points that is hidden, as in validation


def hide_part(samples: Samples, hide: float = HIDE, seed: int = 0) -> tuple[Samples, Samples]:
    """Hide some points of each sample: what stays visible, and what was hidden.

    Each sample hides a random share of its points, between one point and ``hide``; of a movie, whole frames. Where the
    data miss single cells, a part of the samples hides single cells instead. Training hides in the same way. Points of
    identical coordinates are averaged first, so that none of them gives another away. Samples of which nothing was
    hidden, such as those of two points, are left out of both.

    >>> context, truth = hide_part(Samples(np.arange(6.0), np.arange(12.0).reshape(2, 6)))
    >>> bool((context.observed ^ truth.observed).all()), bool(truth.observed.any((1, 2)).all())
    (True, True)
    """
    samples = check_context(samples).merged().sorted()
    kind = kind_of(samples)
    batch = kind.batch(samples, torch.float64, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    cells = kind.cell_gaps(batch)
    keep = hide_for_validation(batch.observed, batch.exists, hide, cells, generator, batch.frame).numpy()
    hidden = samples.observed & ~keep
    asked = np.flatnonzero(hidden.any((1, 2)))
    if not len(asked):
        raise CSTError("nothing can be hidden from samples of one or two points; give samples with three or more")
    samples, keep, hidden = samples[asked], keep[asked], hidden[asked]
    return samples.replace(observed=samples.observed & keep), samples.replace(observed=hidden)


def queries(context: Samples, truth: Samples) -> Float[np.ndarray, "N m d"]:
    """Coordinates of the truth, counted as those of the context; padding repeats a point that exists."""
    if not isinstance(truth, Samples):
        raise CSTError(f"truth must be Samples, got {type(truth).__name__}; wrap arrays as Samples(coords, values)")
    if check_context(context).sample_ids != truth.sample_ids or context.c != truth.c:
        raise CSTError(f"truth must have the samples and channels of the context, {context}, got {truth}")
    at, exists = date_queries(context, truth).coords, truth.point_observed
    first = at[np.arange(len(at)), exists.argmax(1)]
    return np.where(exists[..., None], at, first[:, None])


def r_squared(
    answer: Float[np.ndarray, "N m c"], truth: Float[np.ndarray, "N m c"], observed: Bool[np.ndarray, "N m c"]
) -> float:
    """Mean over channels of 1 − Σ(y − ŷ)² / Σ(y − ȳ)², over observed cells.

    A channel whose truth is constant scores 1 if all answers are right and 0 otherwise, as in scikit-learn. Channels
    with fewer than two observed cells are left out.

    >>> truth = np.array([[[0.0], [1.0], [2.0]]])
    >>> r_squared(truth + [[[1.0], [0.0], [0.0]]], truth, np.ones_like(truth, dtype=bool))
    0.5
    """
    count = observed.sum((0, 1))
    if not (count >= 2).any():
        raise CSTError("R² needs at least two observed cells of truth in a channel; give more samples or points")
    mean = np.where(observed, truth, 0.0).sum((0, 1)) / np.maximum(count, 1)
    error = np.square(np.where(observed, truth - answer, 0.0)).sum((0, 1))
    spread = np.square(np.where(observed, truth - mean, 0.0)).sum((0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(spread > 0, 1 - error / spread, error == 0)
    return float(score[count >= 2].mean())
