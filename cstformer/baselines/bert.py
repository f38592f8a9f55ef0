"""The paper's Transformer: the same network as CST, trained by masking as BERT is.

Each step picks 30 % of a sample's points. Of these 80 % get a constant in place of their value, 10 % that of
another random point, and 10 % stay; the loss is the squared error at the picked points. There are no dummy
points, no interpolated start and no Sobolev term: what the network knows of a masked point is its coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool
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
from cstformer.training.settings import PRESETS, NetworkSettings, TrainingSettings, setting, setting_fields

TO_CONSTANT, TO_OTHER = 0.8, 0.1  # fates of a picked point; the remaining tenth stays as it is
TOKENS_PER_PASS = 2**15  # tokens of one pass when predicting: bounds the memory


def _presets() -> dict[str, dict[str, Any]]:
    """The presets of CST, without the settings that only CST has."""
    known = {*setting_fields(NetworkSettings), *setting_fields(TrainingSettings)}
    return {name: {k: v for k, v in changes.items() if k in known} for name, changes in PRESETS.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class BertTransformer(NetworkSettings, NeuralBaseline):
    """Transformer with BERT masking; all settings are keyword arguments.

    With ``augmentation`` > 0 it is the paper's control, the Transformer with Gaussian augmentation.

    At prediction the observed points keep their values and a query has the constant and its coordinate. Each
    query is asked alone: attention is joint, so hundreds of queries at once would drown ten points in
    constants, which no training step ever showed. That is the fairer choice towards this rival, and makes an
    answer independent of the other queries. ``together`` asks several at once where one sequence per query
    costs too much (patches of frames).
    """

    name: ClassVar[str] = "transformer"
    label: ClassVar[str] = "Transformer"
    presets: ClassVar[dict[str, dict[str, Any]]] = _presets()

    pattern: str = setting("joint", "who reads whom: all tokens attend to all", ("joint",))
    readout: str = setting("plain", "plain: decoder alone; skip: A·token value + decoder", ("plain", "skip"))
    picked: float = setting(0.3, "fraction of a sample's points picked per step", low=0.01, high=0.95)
    mask_constant: float = setting(0.5, "value of masked points and of queries, in standardised units")
    augmentation: float = setting(0.0, "sd of the noise on values while training, standardised units", low=0)
    together: int = setting(1, "queries asked in one sequence", low=1)

    def _network(self, d: int, c: int) -> ContinuousTransformer:
        sizes = {name: getattr(self, name) for name in setting_fields(NetworkSettings) if name != "optimiser"}
        network = ContinuousTransformer(Architecture(d=d, c=c, **sizes))
        network.fit_axes(self.kind_.periods)  # as CST: the opposite edge of a periodic frame is near
        return network

    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        points = seen = batch
        picked = pick_points(points.exists, self.picked, generator)
        if self.augmentation > 0:  # on what the network sees, never on its target
            noise = torch.randn(points.values.shape, generator=generator, dtype=torch.float64)
            noisy = points.values + self.augmentation * noise.to(points.values)
            seen = batch.replace(values=noisy)
        return self._error(disguise(seen, picked, self.mask_constant, generator), points, picked)

    def _error(self, shown: Batch, points: Batch, picked: Tensor) -> Tensor:
        """Mean squared error at the observed channels of the picked points."""
        no_queries = (series.constant(x[:, :0]) for x in (points.coords, points.values))
        answers, _ = self.network_(shown, *no_queries)
        return data_term(answers, points.values, points.observed & picked[..., None], 2.0)

    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Error on fixed picked points, all of them constants: nothing to copy, as at prediction."""
        generator = torch.Generator().manual_seed(self.seed)
        count, n = held_out.exists.shape
        points = held_out[torch.arange(count).repeat(validation_patterns(count, n, TOKENS_PER_STEP))]
        picked = pick_points(points.exists, self.picked, generator)
        shown = disguise(points, picked, self.mask_constant, generator, shares=(1.0, 0.0))
        indices = as_batches(len(picked), TOKENS_PER_PASS // picked.shape[1])

        @torch.no_grad()
        def score() -> float:
            errors = [float(self._error(shown[i], points[i], picked[i])) for i in indices]
            return float(np.average(errors, weights=[len(i) for i in indices]))

        return score

    @torch.no_grad()
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self._batch(context)
        x = torch.as_tensor(self.scaling_.coords(queries)).to(data.coords)
        batch, m, _ = x.shape
        size = min(self.together, m)
        order = torch.arange(-(-m // size) * size).reshape(-1, size)  # one row a sequence, the last filled up
        exists = (order < m).to(x.device)
        row = torch.arange(batch).repeat_interleave(len(order))
        column = torch.arange(len(order)).repeat(batch)
        answers = []
        for index in as_batches(len(row), TOKENS_PER_PASS // (context.n + size)):
            at = x[row[index, None], order[column[index]].clamp_max(m - 1)]  # (sequences, size, d)
            constant = series.constant(at.new_full((*at.shape[:2], context.c), self.mask_constant))
            points, real = data[row[index]], exists[column[index]]
            answers.append(self.network_(points, series.constant(at), constant, exists=real)[1].value)
        y = torch.cat(answers).reshape(batch, -1, context.c)[:, :m]
        return self.scaling_.values(y.cpu().double().numpy())


@dataclass(kw_only=True, eq=False, repr=False)
class TransformerLinear(BertTransformer):
    """The Transformer's output at the given points, interpolated linearly: the paper's "Linear" of Navier–Stokes."""

    name: ClassVar[str] = "transformer-linear"
    label: ClassVar[str] = "Transformer + linear"
    curve: ClassVar[type[LinearInterpolation | CubicSpline]] = LinearInterpolation

    @classmethod
    def of(cls, trained: BertTransformer) -> Self:
        """Take the network of another one that is fitted: one training serves all ways between the points."""
        trained._fitted()
        model = cls(**trained.settings())
        model.__dict__.update(trained.__dict__)
        return model

    @torch.no_grad()
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self._batch(context)
        outputs = []
        for index in as_batches(len(data), TOKENS_PER_PASS // context.n):
            points = data[index]
            no_queries = (series.constant(x[:, :0]) for x in (points.coords, points.values))
            outputs.append(self.network_(points, *no_queries)[0])
        values = self.scaling_.values(torch.cat(outputs).cpu().double().numpy())
        given = Samples(context.coords, values, context.point_observed, layout=context.layout)
        curve = self.curve()
        curve.kind_ = self.kind_
        return curve._predict(given, queries)


@dataclass(kw_only=True, eq=False, repr=False)
class TransformerSpline(TransformerLinear):
    """The same by a cubic spline: the paper's "Spline" of Navier–Stokes."""

    name: ClassVar[str] = "transformer-spline"
    label: ClassVar[str] = "Transformer + spline"
    curve: ClassVar[type[LinearInterpolation | CubicSpline]] = CubicSpline


def pick_points(exists: Bool[Tensor, "B n"], fraction: float, generator: Generator) -> Bool[Tensor, "B n"]:
    """Pick a random ``fraction`` of each sample's points: at least one, never all of two or more.

    A count that is no integer is rounded up or down at random, so that the mean is right for any n.
    """
    count = exists.sum(1, keepdim=True)
    chance = torch.rand(len(exists), 1, generator=generator, dtype=torch.float64).to(exists.device)
    wanted = torch.floor(fraction * count.double() + chance).long()
    wanted = torch.minimum(wanted, count - 1).clamp_min(1)
    scores = torch.rand(exists.shape, generator=generator).to(exists.device)
    rank = scores.masked_fill(~exists, 2.0).argsort(1).argsort(1)
    return (rank < wanted) & exists


def disguise(
    points: Batch,
    picked: Bool[Tensor, "B n"],
    constant: float,
    generator: Generator,
    shares: tuple[float, float] = (TO_CONSTANT, TO_OTHER),
) -> Batch:
    """Make what the network sees: picked points become the constant, another point's value, or stay.

    A constant fills every channel, also unobserved ones, exactly as a query does; another point brings its
    missing channels along.
    """
    fate = torch.rand(picked.shape, generator=generator).to(picked.device)
    to_constant = (picked & (fate < shares[0]))[..., None]
    to_other = (picked & (fate >= shares[0]) & (fate < sum(shares)))[..., None]
    other = _random_points(points.exists, generator)
    values = torch.where(to_other, points.values[other], points.values)
    observed = torch.where(to_other, points.observed[other], points.observed)
    return points.replace(values=values.masked_fill(to_constant, constant), observed=observed | to_constant)


def _random_points(exists: Bool[Tensor, "B n"], generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw an existing point of a random sample for each place: sample and point numbers, (B, n) each."""
    sample = torch.randint(len(exists), exists.shape, generator=generator).to(exists.device)
    chance = torch.rand(exists.shape, generator=generator, dtype=torch.float64).to(exists.device)
    number = (chance * exists.sum(1)[sample]).long()
    existing = (~exists).long().argsort(dim=1, stable=True)  # the existing points of each sample come first
    return sample, existing[sample, number]
