"""The paper's Transformer: the network of CST, trained with the masking of BERT (Devlin et al. 2019).

Each training step picks 30 % of a sample's points. Of the picked points, 80 % are masked: a constant replaces their
value. Another 10 % get the value of a random other point, and 10 % keep their own. The loss is the squared error at the
picked points. There are no dummy points, no start and no Sobolev term: all that the network knows of a masked point is
its coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from cstformer.baselines.interpolation import CubicSpline, LinearInterpolation
from cstformer.baselines.neural import NeuralBaseline
from cstformer.data.batch import Batch, as_batches
from cstformer.data.samples import Samples
from cstformer.network.architecture import Architecture
from cstformer.network.transformer import ContinuousTransformer
from cstformer.taylor import series
from cstformer.training.disturbance import validation_patterns
from cstformer.training.losses import data_term
from cstformer.training.objective import TOKENS_PER_STEP
from cstformer.training.settings import (
    PRESETS,
    NetworkSettings,
    OptimiserSettings,
    TrainingSettings,
    setting,
    setting_fields,
)

MASKED, REPLACED = 0.8, 0.1  # shares of the picked points; the remaining tenth keeps its value
TOKENS_PER_PASS = 2**15  # tokens of one pass without gradients: bounds the memory


def _presets() -> dict[str, dict[str, Any]]:
    """The presets of CST, reduced to the settings of this model."""
    groups = (NetworkSettings, OptimiserSettings, TrainingSettings)
    known = {name for group in groups for name in setting_fields(group)}
    return {name: {k: v for k, v in changes.items() if k in known} for name, changes in PRESETS.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class BertTransformer(NetworkSettings, OptimiserSettings, NeuralBaseline):
    """Transformer with BERT masking; all settings are keyword arguments.

    With ``augmentation`` > 0 it is the paper's control, the Transformer with Gaussian augmentation.

    At prediction a query is a masked point: it carries the constant and its coordinate. Attention is joint, so hundreds
    of queries in one sequence would outnumber ten observed points with constants, which no training step shows. By
    default each query therefore gets a sequence of its own. This favours the rival, and it makes an answer independent
    of the other queries. ``together`` puts several queries into one sequence where one sequence per query costs too
    much (patches of frames).
    """

    name: ClassVar[str] = "transformer"
    label: ClassVar[str] = "Transformer"
    presets: ClassVar[dict[str, dict[str, Any]]] = _presets()

    pattern: str = setting("joint", "who reads whom: all tokens attend to all", ("joint",))
    optimiser: str = setting(
        "auto", "muon: orthogonalised steps for the matrices of the blocks; auto: adamw", ("auto", "adamw", "muon")
    )
    readout: str = setting("plain", "plain: decoder alone; skip: A·token value + decoder", ("plain", "skip"))
    picked: float = setting(0.3, "fraction of a sample's points picked per step", low=0.01, high=0.95)
    mask_constant: float = setting(0.5, "value of masked points and of queries, in standardised units")
    augmentation: float = setting(0.0, "sd of the noise on values in training, in standardised units", low=0)
    together: int = setting(1, "queries in one sequence", low=1)

    def _network(self, d: int, c: int) -> ContinuousTransformer:
        sizes = {name: getattr(self, name) for name in setting_fields(NetworkSettings)}
        network = ContinuousTransformer(Architecture(d=d, c=c, **sizes))
        network.fit_axes(self.kind_.periods)  # as in CST, opposite edges of a periodic frame are neighbours
        return network

    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        picked = pick_points(batch.exists, self.picked, generator)
        context = batch
        if self.augmentation > 0:  # on the input only, never on the targets
            noise = torch.randn(batch.values.shape, generator=generator, dtype=torch.float64).to(batch.values)
            context = batch.replace(values=batch.values + self.augmentation * noise)
        return self._error(mask_points(context, picked, self.mask_constant, generator), batch, picked)

    def _error(self, context: Batch, truth: Batch, picked: Bool[Tensor, "B n"]) -> Tensor:
        """Mean squared error at the observed channels of the picked points."""
        observed = truth.observed & picked[..., None]
        return data_term(self._at_points(context), truth.values, observed, 2.0, self.channel_weights)

    def _at_points(self, context: Batch) -> Float[Tensor, "B n c"]:
        """Output of the network at the tokens of its context, without any queries."""
        no_queries = (series.constant(x[:, :0]) for x in (context.coords, context.values))
        return self.network_(context, *no_queries)[0]

    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Error at fixed picked points. All of them are masked, as queries are at prediction."""
        generator = torch.Generator().manual_seed(self.seed)
        count, n = held_out.exists.shape
        points = held_out[torch.arange(count).repeat(validation_patterns(count, n, TOKENS_PER_STEP))]
        picked = pick_points(points.exists, self.picked, generator)
        masked = mask_points(points, picked, self.mask_constant, generator, shares=(1.0, 0.0))
        indices = as_batches(len(picked), TOKENS_PER_PASS // picked.shape[1])

        @torch.no_grad()
        def score() -> float:
            errors = [float(self._error(masked[i], points[i], picked[i])) for i in indices]
            return float(np.average(errors, weights=[len(i) for i in indices]))

        return score

    @torch.no_grad()
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self._batch(context)
        x = torch.as_tensor(self.scaling_.coords(queries)).to(data.coords)
        batch, m, _ = x.shape
        size = min(self.together, m)
        groups = torch.arange(-(-m // size) * size).reshape(-1, size)  # query numbers (groups, size), the last padded
        exists = (groups < m).to(x.device)
        # One sequence for each sample and group of queries.
        sample = torch.arange(batch).repeat_interleave(len(groups))
        group = torch.arange(len(groups)).repeat(batch)
        answers = []
        for index in as_batches(len(sample), TOKENS_PER_PASS // (context.n + size)):
            at = x[sample[index, None], groups[group[index]].clamp_max(m - 1)]  # (sequences, size, d)
            constant = series.constant(at.new_full((*at.shape[:2], context.c), self.mask_constant))
            points, real = data[sample[index]], exists[group[index]]
            answers.append(self.network_(points, series.constant(at), constant, exists=real)[1].value)
        y = torch.cat(answers).reshape(batch, -1, context.c)[:, :m]
        return self.scaling_.values(y.cpu().double().numpy())


@dataclass(kw_only=True, eq=False, repr=False)
class TransformerLinear(BertTransformer):
    """The Transformer's output at the observed points, interpolated linearly: "Linear" in the paper's Navier–Stokes."""

    name: ClassVar[str] = "transformer-linear"
    label: ClassVar[str] = "Transformer + linear"
    curve: ClassVar[type[LinearInterpolation | CubicSpline]] = LinearInterpolation

    @classmethod
    def of(cls, trained: BertTransformer) -> Self:
        """Make a fitted model that shares the network of ``trained``, so that one training serves several rows."""
        trained._fitted()
        model = cls(**trained.settings())
        model.__dict__.update(trained.__dict__)
        return model

    @torch.no_grad()
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self._batch(context)
        outputs = [self._at_points(data[i]) for i in as_batches(len(data), TOKENS_PER_PASS // context.n)]
        values = self.scaling_.values(torch.cat(outputs).cpu().double().numpy())
        knots = Samples(context.coords, values, context.point_observed, layout=context.layout)
        curve = self.curve()
        curve.kind_ = self.kind_
        return curve._predict(knots, queries)


@dataclass(kw_only=True, eq=False, repr=False)
class TransformerSpline(TransformerLinear):
    """The same with a cubic spline: "Spline" in the paper's Navier–Stokes."""

    name: ClassVar[str] = "transformer-spline"
    label: ClassVar[str] = "Transformer + spline"
    curve: ClassVar[type[LinearInterpolation | CubicSpline]] = CubicSpline


def pick_points(exists: Bool[Tensor, "B n"], fraction: float, generator: Generator) -> Bool[Tensor, "B n"]:
    """Pick a random ``fraction`` of each sample's points: at least one, and not all where there are two or more.

    The number of picked points is rounded up or down at random, so that its mean is ``fraction`` · n for any n.
    """
    count = exists.sum(1, keepdim=True)
    chance = torch.rand(len(exists), 1, generator=generator, dtype=torch.float64).to(exists.device)
    wanted = torch.floor(fraction * count.double() + chance).long()
    wanted = torch.minimum(wanted, count - 1).clamp_min(1)
    scores = torch.rand(exists.shape, generator=generator).to(exists.device)
    rank = scores.masked_fill(~exists, 2.0).argsort(1).argsort(1)
    return (rank < wanted) & exists


def mask_points(
    points: Batch,
    picked: Bool[Tensor, "B n"],
    constant: float,
    generator: Generator,
    shares: tuple[float, float] = (MASKED, REPLACED),
) -> Batch:
    """Mask some of the picked points, replace others by random points, and leave the rest as they are.

    ``shares`` are the probabilities of masking and of replacing. A masked point carries the constant in every channel,
    unobserved ones included, as a query does. A replaced point takes over the observed channels of the other point.
    """
    chance = torch.rand(picked.shape, generator=generator).to(picked.device)
    masked = (picked & (chance < shares[0]))[..., None]
    replaced = (picked & (chance >= shares[0]) & (chance < sum(shares)))[..., None]
    other = _random_points(points.exists, generator)
    values = torch.where(replaced, points.values[other], points.values)
    observed = torch.where(replaced, points.observed[other], points.observed)
    return points.replace(values=values.masked_fill(masked, constant), observed=observed | masked)


def _random_points(exists: Bool[Tensor, "B n"], generator: Generator) -> tuple[Tensor, Tensor]:
    """For each point draw a random sample and an existing point of it: sample and point numbers, (B, n) each."""
    sample = torch.randint(len(exists), exists.shape, generator=generator).to(exists.device)
    chance = torch.rand(exists.shape, generator=generator, dtype=torch.float64).to(exists.device)
    number = (chance * exists.sum(1)[sample]).long()
    existing = (~exists).long().argsort(dim=1, stable=True)  # the existing points of each sample come first
    return sample, existing[sample, number]
