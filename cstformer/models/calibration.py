r"""Calibration: how far predictions are from values that were held out, and so how wide intervals must be.

Held-out samples are asked about points of their own that are hidden, and the error of a value is compared with the
variance :math:`s^2` that a Gaussian process has at the same place (`starts.spread`). In the model's units the variance
of the error of an observation is taken to be

.. math:: v(x) = \alpha\, s^2(x) + \beta,

with :math:`\alpha, \beta` of each channel from the errors themselves (`conformal.fit_shares`): CST knows more about a
gap than the process does, and reads other channels. Of v the smaller of :math:`\beta` and :math:`\sigma^2`, the noise
of the data, is the noise of the observation; the rest is the variance of the function,

.. math:: v_f(x) = \alpha\, s^2(x) + \max(0, \beta - \sigma^2).

Intervals are as many :math:`\sqrt v` wide as the scores :math:`|y - \hat y| / \sqrt v` say (`conformal.quantile`).

Patterns of hiding: hiding one point in `FINE` leaves gaps that are close to those of the question, and gives the
scores. `COARSE` patterns leave larger gaps, without which α and β cannot be told apart: points on a regular grid all
have the same distance to their neighbours. On spirals with noise, α and β of gaps of two and more steps are 6 to
15 % below the mean squared error within gaps of one step (three seeds, 52 held-out curves, which also chose the step of
the training), and intervals of 90 % cover 88 to 89 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from cstformer.data.batch import Batch, widen
from cstformer.errors import CSTError
from cstformer.models.conformal import (
    check_level,
    fewest_samples,
    fit_shares,
    highest_level,
    quantile,
    sample_weights,
)

Answer = Callable[[Batch, Tensor], tuple[Tensor, Tensor]]
"""From a context and queries (B, m, d) to answers and variances s² (B, m, c), all in the model's units."""

FINE, COARSE = 8, (2, 3)  # a pattern of K hides each point once, in K folds
MAX_SAMPLES = 512  # held-out samples that are asked
MAX_SCORES = 256  # scores that are kept of a channel of a sample
USUAL_LEVEL, LEAST_LEVEL = 0.9, 0.8
SMALLEST_VARIANCE = 1e-12  # of β: channels that never change have errors of 0
SMALLEST_NOISE = 1e-3  # of σ in `fit_shares`, in standardised units; only the odds of process and noise depend on it


@dataclass(frozen=True)
class Calibration:
    """Variances of errors and scores of held-out samples, of C channels (of movies: image channels).

    Attributes
    ----------
    process : (C,)
        α, the factor of s².
    error : (C,)
        β, the variance of an observation that does not depend on the place.
    noise : (C,)
        The part of β that is noise.
    scores, sample, channel : (M,)
        Errors over √v, and where they come from.
    """

    process: Float[np.ndarray, " C"]
    error: Float[np.ndarray, " C"]
    noise: Float[np.ndarray, " C"]
    scores: Float[np.ndarray, " M"]
    sample: Int[np.ndarray, " M"]
    channel: Int[np.ndarray, " M"]

    def variance(self, process: Float[np.ndarray, "*n c"], noise: bool) -> Float[np.ndarray, "*n c"]:
        """Variance of an observation, or without ``noise`` of the function, where the process has the variance s²."""
        rest = self.error if noise else self.error - self.noise
        return self._spread(self.process, process) * process + self._spread(rest, process)

    def factor(self, level: float, names: list[str], like: np.ndarray) -> Float[np.ndarray, " c"]:
        """Half width of an interval over the standard deviation, of each channel of ``like`` (…, c)."""
        check_level(level)
        found, samples, needed = self.quantiles(level), self.samples, fewest_samples(level)
        for k in np.flatnonzero(np.isinf(found))[:1]:
            of = f" of {names[k]!r}" if len(found) > 1 and len(names) == len(found) else ""
            raise CSTError(
                f"an interval of level {level:g} needs {needed} held-out samples, but {samples[k]}{of} were there; "
                f"choose a level up to {highest_level(samples[k]):g}, fit with a larger validation= (--validation), or "
                "use calibrate(samples) of Python with new samples"
            )
        return self._spread(found, like)

    @property
    def usual_level(self) -> float | None:
        """Level of intervals where nobody chose one: 0.9, or what the samples allow, if that is at least 0.8."""
        level = min(USUAL_LEVEL, highest_level(int(self.samples.min())))
        return level if level >= LEAST_LEVEL else None

    @property
    def samples(self) -> Int[np.ndarray, " C"]:
        """Number of samples with scores of each channel."""
        return np.array([len(np.unique(self.sample[self.channel == k])) for k in range(len(self.process))])

    def quantiles(self, level: float) -> Float[np.ndarray, " C"]:
        """`quantile` of the scores of each channel: infinite where there are too few samples."""
        mine = [self.channel == k for k in range(len(self.process))]
        return np.array([quantile(self.scores[i], self.sample[i], level) for i in mine])

    @staticmethod
    def _spread(x: np.ndarray, like: np.ndarray) -> np.ndarray:
        """One number for each entry of the last axis; pixels of patches have their image channel last."""
        return np.tile(x, like.shape[-1] // len(x))

    def tensors(self) -> dict[str, Tensor]:
        """For a model file."""
        return {name: torch.as_tensor(x) for name, x in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], channels: int) -> Calibration:
        """The inverse of `tensors`."""
        found = cls(**{name: x.numpy() for name, x in tensors.items()})
        sizes = {name: x.shape for name, x in vars(found).items()}
        if any(sizes[k] != (channels,) for k in ("process", "error", "noise")) or len(found.scores.shape) != 1:
            raise ValueError(f"calibration has the sizes {sizes} for {channels} channels")
        if sizes["sample"] != sizes["scores"] or sizes["channel"] != sizes["scores"]:
            raise ValueError(f"calibration has the sizes {sizes}")
        return found


def calibrate(
    answer: Answer, batch: Batch, noises: tuple[float, ...], channels: int, cells: float, seed: int, given: Any = None
) -> Calibration:
    """Hide points of held-out samples, ask for them, and compare.

    Parameters
    ----------
    answer : the model
    batch : held-out samples
    noises : σ of each channel, or one for all
    channels : number of channels that are calibrated apart
    cells : share of the samples in which single cells are hidden instead of whole points
    seed : of the hidden points
    given : Tensor (B, n, c), optional
        What the model is given of the samples, where that is not their values.
    """
    generator = Generator().manual_seed(seed)
    batch = batch[torch.arange(min(len(batch), MAX_SAMPLES))]
    given = batch.values if given is None else given[:MAX_SAMPLES]
    fine = _errors(answer, batch, given, folds(batch, FINE, cells, generator), channels)
    parts = [fine, *(_errors(answer, batch, given, folds(batch, k, cells, generator), channels) for k in COARSE)]
    error, variance, sample, channel = (np.concatenate(x) for x in zip(*parts, strict=True))
    sigma = np.broadcast_to(np.asarray(noises, dtype=float), channels)
    process, rest = np.ones(channels), np.square(sigma)
    for k in range(channels):
        mine, close = channel == k, fine[3] == k
        if not close.any():
            continue
        at_least = max(float(sigma[k]), SMALLEST_NOISE)
        a, b = fit_shares(error[mine] ** 2, variance[mine], at_least, sample[mine])
        # The shares come from all patterns, the size of the variance from the gaps that are close to the question.
        size = sample_weights(fine[2][close]) @ (fine[0][close] ** 2 / (a * fine[1][close] + b))
        process[k], rest[k] = a * size, max(b * size, SMALLEST_VARIANCE)
    scores = np.abs(fine[0]) / np.sqrt(process[fine[3]] * fine[1] + rest[fine[3]])
    kept = _some(fine[2], fine[3], seed)
    noise = np.minimum(rest, np.square(sigma))
    return Calibration(process, rest, noise, scores[kept], fine[2][kept], fine[3][kept])


def folds(batch: Batch, count: int, cells: float, generator: Generator) -> Int[Tensor, "B n c"]:
    """Number 0..count−1 of the fold that hides each observed cell; −1 for cells that stay.

    Whole points are hidden, or all patches of a frame, and the first and the last of a sample stay; or single cells.
    """
    observed, exists, unit = batch.observed, batch.exists, batch.units
    there = torch.zeros_like(exists).scatter_reduce(1, unit, exists, "amax")  # points, or frames, that exist
    inner = there & (there.cumsum(1) > 1) & (there.flip(1).cumsum(1).flip(1) > 1)
    whole = _deal(inner, count, generator).gather(1, unit)[..., None].expand(observed.shape)
    whole = whole.masked_fill(~observed, -1)
    if cells == 0:
        return whole
    number = torch.arange(len(observed), device=observed.device, dtype=torch.float64)
    single = ((number + 1) * cells).floor() > (number * cells).floor()  # spread evenly over the samples
    alone = _deal(observed.flatten(1), count, generator).view_as(observed)
    return torch.where(widen(single, observed), alone, whole)


def _deal(which: Bool[Tensor, "B k"], count: int, generator: Generator) -> Int[Tensor, "B k"]:
    """Deal the marked entries of each row in random order to ``count`` folds; −1 for the others."""
    random = torch.rand(which.shape, generator=generator).to(which.device).masked_fill(~which, 2.0)
    return (random.argsort(1).argsort(1) % count).masked_fill(~which, -1)


def _errors(
    answer: Answer, batch: Batch, given: Tensor, fold: Int[Tensor, "B n c"], channels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Error, variance of the process, sample and channel of every cell that is hidden in some fold: each (M,)."""
    parts: list[list[np.ndarray]] = []
    for k in range(int(fold.max()) + 1):
        hidden = fold == k
        at = hidden.any(-1)
        index = at.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : int(at.sum(1).max())]
        context = batch.replace(values=given, observed=batch.observed & ~hidden)
        asked = batch.replace(observed=hidden).pick(index)
        values, variance = answer(context, asked.coords)
        sample, _, channel = place = asked.observed.nonzero(as_tuple=True)
        error = (asked.values - values)[place].double()
        parts.append([x.cpu().numpy() for x in (error, variance[place].double(), sample, channel % channels)])
    kinds = (float, float, int, int)  # so that samples without any hidden point give empty arrays
    found = [np.concatenate([np.empty(0, dtype=kinds[i]), *(part[i] for part in parts)]) for i in range(4)]
    return found[0], found[1], found[2], found[3]


def _some(sample: Int[np.ndarray, " M"], channel: Int[np.ndarray, " M"], seed: int) -> Int[np.ndarray, " K"]:
    """At most `MAX_SCORES` scores of each channel of each sample, at random."""
    random = np.random.default_rng(seed).random(len(sample))
    order = np.lexsort((random, channel, sample))
    group = np.flatnonzero(np.diff(sample[order], prepend=-1) | np.diff(channel[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(group, np.diff(group, append=len(order)))
    return np.sort(order[rank < MAX_SCORES])
