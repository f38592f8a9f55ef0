"""One training step of CST: hide and disturb points, start the queries, let them read, compare."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from cstformer.data.batch import PAIRS_PER_PASS, Batch, widen
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.curves import Start
from cstformer.starts.kind import Corruption, DataKind
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.training import losses, sampling, sharing
from cstformer.training.disturbance import Disturbance, hide_for_validation
from cstformer.training.settings import Settings
from cstformer.training.sharing import draw

TOKENS_PER_STEP = 2**12  # context tokens of one training step: large samples come in smaller batches
MAX_QUERIES = 128  # real points of a sample that a training step asks about


class SobolevObjective:
    """The Sobolev loss of a random training step, and the same loss on a fixed validation set.

    Parameters
    ----------
    network : ContinuousTransformer
    kind : DataKind
        Gives the start of a context, and what differs between points and frames.
    settings : Settings
    noise : float, or one for each channel
        Standard deviation of the noise put on context values, in standardised units.
    data_noise : float, or one for each channel
        Estimated noise already in the data, same units.
    mu : float
        Weight of the Sobolev term.
    corruption : callable, optional
        Draws what the model is given of a batch, anew in every step and in the place of noise. The batch itself is
        then the target.
    cells : float
        Share of the samples of a step that hide single cells instead of whole points.
    """

    def __init__(
        self,
        network: ContinuousTransformer,
        kind: DataKind,
        settings: Settings,
        noise: float | tuple[float, ...],
        data_noise: float | tuple[float, ...],
        mu: float,
        corruption: Corruption | None = None,
        cells: float = 0.0,
    ):
        self.network, self.kind, self.settings = network, kind, settings
        self.mu, self.corruption = mu, corruption
        noise = 0.0 if corruption is not None else noise
        self.disturbance = Disturbance(settings.hide, noise, data_noise, settings.p == 2, cells)
        self.cleans = corruption is None and settings.p == 2  # denoised targets keep the mean, not other moments
        self.shifts = kind.shifts and settings.pattern == "context"
        indices = up_to(network.architecture.d, settings.order) if mu > 0 and settings.dummies > 0 else []
        self.plan = plan(network.architecture.d, indices)

    def loss(self, batch: Batch, generator: Generator) -> Tensor:
        """Loss of a training step; everything random comes from ``generator``."""
        s, batch = self.settings, trimmed(batch)
        weights = None
        keep = self.disturbance.keep(batch.observed, batch.exists, generator, batch.frame)
        context, target = self.disturb(batch, keep, generator)
        if self.cleans:
            target = self.kind.clean(batch, target)
        low, high = sampling.box(batch.coords, batch.exists)
        dummies = sampling.dummy_coords(s.dummy_law, low, high, s.dummies, generator)
        if s.visible != 1:
            weights = torch.where(context.observed, s.visible, 1.0).to(target)
        points = batch
        if self.shifts and int(torch.randint(2, (), generator=generator)) == 0:
            points, target = self.kind.shift(batch, target, generator)
        if points.coords.shape[1] > MAX_QUERIES and s.pattern == "context":
            some = self._some_queries(points.exists, context.exists, generator)
            points = points.pick(some)
            pick = lambda x: x.gather(1, some[..., None].expand(-1, -1, x.shape[-1]))  # noqa: E731
            target, weights = pick(target), None if weights is None else pick(weights)
        every = self._every()
        order = self.plan.order if every == 1 or int(torch.randint(every, (), generator=generator)) == 0 else 0
        at_real, at_dummies = self.answers(context, points, dummies, order, generator)
        return self.combine(at_real, target, points.observed, at_dummies, every * self.mu, weights)

    def disturb(self, batch: Batch, keep: Tensor, generator: Generator) -> tuple[Batch, Tensor]:
        """The context of a step, and the targets of all real points."""
        if self.corruption is not None:
            values, target = self.kind.corrupt(batch, self.corruption, generator), batch.values
        elif self.settings.noise_on == "tokens":  # `answers` adds it, after the start
            values, target = batch.values, batch.values
        else:
            values, target = self.disturbance.add_noise(batch.values, keep, generator)
        coords = batch.coords
        if self.settings.coord_noise > 0:
            coords = coords + self.settings.coord_noise * draw(torch.randn, coords.shape, generator).to(coords)
        return batch.replace(coords=coords, values=values, observed=batch.observed & widen(keep, values)), target

    def _some_queries(self, exists: Tensor, visible: Tensor, generator: Generator) -> Tensor:
        """Points (B, `MAX_QUERIES`) that a step asks about; queries do not read each other, so a few are enough."""
        scores = draw(torch.rand, exists.shape, generator).to(exists.device)
        scores = torch.where(visible, scores, scores / self.kind.hidden_first)
        return scores.masked_fill(~exists, 2).argsort(1)[:, :MAX_QUERIES]

    def _every(self) -> int:
        """How rarely the Sobolev term is computed; a root or a maximum would not average to the same loss."""
        s = self.settings
        return 1 if s.root or math.isinf(s.p) or self.plan.order == 0 else s.sobolev_every

    def combine(
        self,
        at_real: Tensor,
        target: Tensor,
        observed: Tensor,
        at_dummies: series.Series | None,
        mu: float,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Data term at real points, of cells with these weights, plus μ times the Sobolev term at dummy points."""
        s = self.settings
        data = losses.data_term(at_real, target, observed, s.p, s.channel_weights, weights)
        sobolev = data.new_zeros(()) if at_dummies is None else losses.sobolev_term(at_dummies, self.plan, s.p)
        return losses.combine(data, sobolev, mu, s.p, s.root)

    def start(self, context: Batch) -> Start:
        """Initial values of the queries of a context."""
        with torch.no_grad():
            return self.kind.initial(self.settings.start, context, self.network.architecture.bounded)

    def answers(
        self, context: Batch, points: Batch, dummies: Tensor, order: int, generator: Generator | None = None
    ) -> tuple[Tensor, series.Series | None]:
        """The model at all real points (B, n, c), and its series to this order at the dummy points, if not 0.

        In a training step, ``generator`` draws the noise of all tokens, if they have any.
        """
        network, start = self.network, self.start(context)
        if self.settings.noise_on == "tokens" and generator is not None:
            context = context.replace(values=self._noisy(series.constant(context.values), generator).value)
            clean = start
            start = lambda x: self._noisy(clean(x), generator)  # noqa: E731
        context = network.prepare(context, start)
        real = series.constant(points.coords)
        dummy = series.straight_line(dummies, self.plan.directions, order)
        if network.architecture.pattern == "context":
            encoded = network.encode(context)
            at_real = network.read(encoded, real, start(real)).value
            return at_real, network.read(encoded, dummy, start(dummy)) if order else None
        # joint: hidden points are queries beside the dummy points; visible ones answer for themselves.
        visible = context.exists
        if bool((visible == points.exists).all()):
            at_context, at_dummies = network(context, dummy, start(dummy))
            return at_context, at_dummies if order else None
        queries = series.concatenate([real, dummy], 1)
        exists = torch.cat([points.exists & ~visible, visible.new_ones(dummies.shape[:2])], 1)
        at_context, at_queries = network(context, queries, start(queries), exists=exists)
        n = visible.shape[1]
        at_real = torch.where(visible[..., None], at_context, at_queries.value[:, :n])
        return at_real, at_queries.map(lambda c: c[:, :, n:]) if order else None

    def _noisy(self, values: series.Series, generator: Generator) -> series.Series:
        """Values (J, B, m, c) plus noise, which does not change their derivatives."""
        noise = draw(torch.randn, values.value.shape, generator, dtype=torch.float64).to(values.coefs)
        return values + series.constant(noise * values.coefs.new_tensor(self.disturbance.noise))


def trimmed(batch: Batch) -> Batch:
    """Cut off points that are padding in every sample of the batch; in the whole batch, if processes share it."""
    return batch.cut(int(sharing.maximum(batch.lengths.to(torch.float32))))


class Validation:
    """A fixed validation set: which points are hidden and where the dummy points fall never changes.

    The score is the data term at hidden real points, without added noise, plus μ times the Sobolev term. Where nothing
    is hidden (``hide`` = 0, the paper's training), all real points count. A corruption is drawn once.
    """

    def __init__(self, objective: SobolevObjective, batch: Batch, seed: int, patterns: int = 1, hide: float = 0.5):
        self.objective = objective
        generator = torch.Generator().manual_seed(seed)
        index = torch.arange(len(batch)).repeat(patterns)
        index = index[batch.lengths.cpu()[index].argsort(stable=True)]  # samples of similar length are scored together
        self.batch = batch = batch[index]
        cells = objective.disturbance.cells
        self.keep = hide_for_validation(batch.observed, batch.exists, hide, cells, generator, batch.frame)
        low, high = sampling.box(batch.coords, batch.exists)
        self.dummies = sampling.dummy_coords("regular", low, high, max(1, objective.settings.dummies))
        self.given = batch.values
        if objective.corruption is not None:
            self.given = objective.kind.corrupt(batch, objective.corruption, generator)

    @torch.no_grad()
    def score(self) -> float:
        """Validation loss of the network as it is now."""
        o, total = self.objective, 0.0
        for index in torch.arange(len(self.batch)).split(max(1, 4 * o.settings.batch)):
            place = index.to(self.keep.device)
            points = trimmed(self.batch[index])
            n = points.coords.shape[1]
            keep, given, dummies = self.keep[place, :n], self.given[place, :n], self.dummies[place]
            context = points.replace(values=given, observed=points.observed & keep)
            parts = [  # a few long samples at a time
                o.answers(context[i], points[i], dummies[i.to(place.device)], o.plan.order)
                for i in torch.arange(len(index)).split(max(1, PAIRS_PER_PASS // n**2))
            ]
            at_real = torch.cat([real for real, _ in parts])
            slopes = [part for _, part in parts if part is not None]
            at_dummies = series.concatenate(slopes, 0) if slopes else None
            hidden = points.observed & ~keep
            if not bool(hidden.any()):
                hidden = points.observed
            total += float(o.combine(at_real, points.values, hidden, at_dummies, o.mu)) * len(index)
        return total / len(self.batch)
