"""One training step of CST: hide and disturb points, seat the queries, let them read, compare."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from cstformer.data.batch import Batch, Context
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.curves import Start
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.training import losses, sampling
from cstformer.training.settings import Settings
from cstformer.training.sharing import draw

Starter = Callable[[Context], Start]
Mover = Callable[[Context, Tensor, Generator], tuple[Context, Tensor]]
Cleaner = Callable[[Context, Tensor], Tensor]
Giver = Callable[[Context, Generator], Tensor]
TOKENS_PER_STEP = 2**12  # context tokens of one training step: large samples come in smaller batches
MAX_QUERIES = 128  # real points of a sample that a training step asks about
HIDDEN_FIRST = 4  # how many times as likely it asks about a patch of a hidden frame


class SobolevObjective:
    """The Sobolev loss of a random training step, and the same loss on a fixed validation set.

    Parameters
    ----------
    network : ContinuousTransformer
    starter : callable from a `Context` to its start
    settings : Settings
    noise : float
        Standard deviation of the noise put on context values, in standardised units.
    data_noise : float
        Estimated noise already in the data, same units.
    mu : float
        Weight of the Sobolev term.
    mover : callable, optional
        From points, their targets and a generator to other points of the same groups, asked for in every second step.
    cleaner : callable, optional
        From points and their targets to targets with less noise of the same mean; for the squared loss alone.
    giver : callable, optional
        From points and a generator to the values that are given of them, drawn anew in every step; the points' own
        values are then the targets, and ``noise`` is not used.
    """

    def __init__(
        self,
        network: ContinuousTransformer,
        starter: Starter,
        settings: Settings,
        noise: float,
        data_noise: float,
        mu: float,
        mover: Mover | None = None,
        cleaner: Cleaner | None = None,
        giver: Giver | None = None,
    ):
        self.giver = giver
        self.mover, self.cleaner = mover, cleaner if settings.p == 2 else None
        self.network, self.starter, self.settings = network, starter, settings
        self.noise, self.data_noise, self.mu = noise, data_noise, mu
        indices = up_to(network.architecture.d, settings.order) if mu > 0 and settings.dummies > 0 else []
        self.plan = plan(network.architecture.d, indices)

    def loss(self, batch: Batch, generator: Generator) -> Tensor:
        """Loss of a training step; everything random comes from ``generator``."""
        s, points = self.settings, batch.points
        keep = sampling.hide_points(points.tokens, s.hide, generator, batch.groups)
        context, target = self._disturb(points, keep, generator)
        if self.cleaner is not None:
            target = self.cleaner(points, target)
        low, high = sampling.box(points.coords, points.tokens)
        dummies = sampling.dummy_coords(s.dummy_law, low, high, s.dummies, generator)
        if self.mover is not None and int(torch.randint(2, (), generator=generator)) == 0:
            points, target = self.mover(points, target, generator)
        if points.tokens.shape[1] > MAX_QUERIES and self.network.architecture.pattern == "context":
            # Queries do not read each other: of large samples a few random points are enough a step.
            some = draw(torch.rand, points.tokens.shape, generator).to(keep.device)
            if batch.groups is not None:
                some = torch.where(keep, some, some / HIDDEN_FIRST)
            some = some.masked_fill(~points.tokens, 2).argsort(1)[:, :MAX_QUERIES]
            take = lambda x: x.gather(1, some[..., None].expand(-1, -1, x.shape[-1]))  # noqa: E731
            points = Context(take(points.coords), take(points.values), take(points.observed))
            target, keep = take(target), keep.gather(1, some)
        every = self._every()
        order = self.plan.order if every == 1 or int(torch.randint(every, (), generator=generator)) == 0 else 0
        at_real, at_dummies = self._answers(context, points, keep, dummies, order)
        return self._combine(at_real, target, points.observed, at_dummies, every * self.mu)

    def _every(self) -> int:
        """How rarely the Sobolev term is computed; a root or a maximum would not average to the same loss."""
        s = self.settings
        return 1 if s.root or math.isinf(s.p) or self.plan.order == 0 else s.sobolev_every

    def _combine(
        self, at_real: Tensor, target: Tensor, observed: Tensor, at_dummies: series.Series | None, mu: float
    ) -> Tensor:
        s = self.settings
        data = losses.data_term(at_real, target, observed, s.p)
        sobolev = data.new_zeros(()) if at_dummies is None else losses.sobolev_term(at_dummies, self.plan, s.p)
        return losses.combine(data, sobolev, mu, s.p, s.root)

    def _disturb(self, points: Context, keep: Tensor, generator: Generator) -> tuple[Context, Tensor]:
        """Context with noise on it, and the targets of all real points.

        A visible point's target carries the *opposite* noise, scaled so that the errors of input and target are
        independent (recorrupted-to-recorrupted, Pang et al. 2021): without it the model would learn to copy the
        noise of the data. Only the squared loss allows this.
        """
        values, coords, target = points.values, points.coords, points.values
        if self.giver is not None:
            values = self.giver(points, generator)
        elif self.noise > 0:
            noise = self.noise * draw(torch.randn, values.shape, generator, dtype=torch.float64).to(values)
            values = values + noise
            if self.settings.p == 2 and self.data_noise > 0:
                ratio = (self.data_noise / self.noise) ** 2
                target = target - torch.where(keep[..., None], ratio * noise, torch.zeros_like(noise))
        if self.settings.coord_noise > 0:
            coords = coords + self.settings.coord_noise * draw(torch.randn, coords.shape, generator).to(coords)
        return Context(coords, values, points.observed & keep[..., None]), target

    def _answers(
        self, context: Context, points: Context, keep: Tensor, dummies: Tensor, order: int
    ) -> tuple[Tensor, series.Series | None]:
        """The model at all real points (B, n, c), and its series to this order at the dummy points, if not 0."""
        network, start = self.network, self.starter(context)
        context = network.prepare(context, start)
        real = series.constant(points.coords)
        dummy = series.straight_line(dummies, self.plan.directions, order)
        if network.architecture.pattern == "context":
            encoded = network.encode(context)
            at_real = network.read(encoded, real, start(real)).value
            return at_real, network.read(encoded, dummy, start(dummy)) if order else None
        # joint: hidden points are queries beside the dummy points; visible ones answer for themselves.
        if bool((keep == points.tokens).all()):
            at_context, at_dummies = network(context, dummy, start(dummy))
            return at_context, at_dummies if order else None
        queries = series.concatenate([real, dummy], 1)
        exists = torch.cat([points.tokens & ~keep, keep.new_ones(dummies.shape[:2])], 1)
        at_context, at_queries = network(context, queries, start(queries), exists=exists)
        n = keep.shape[1]
        at_real = torch.where(keep[..., None], at_context, at_queries.value[:, :n])
        return at_real, at_queries.map(lambda c: c[:, :, n:]) if order else None


class Validation:
    """A fixed validation set: which points are hidden and where the dummy points fall never changes.

    The score is the data term at hidden real points, without any added noise, plus μ times the Sobolev term. Where
    nothing is hidden (``hide`` = 0, the paper's training), all real points count. What is given of them, if that is
    drawn, is drawn once.
    """

    def __init__(self, objective: SobolevObjective, batch: Batch, seed: int, patterns: int = 1, hide: float = 0.5):
        self.objective = objective
        generator = torch.Generator().manual_seed(seed)
        index = torch.arange(len(batch)).repeat(patterns)
        self.batch = batch[index]
        points = self.batch.points
        # At least one point is hidden wherever a sample has three or more.
        keep = points.tokens
        for _ in range(20):
            drawn = sampling.hide_points(points.tokens, hide, generator, self.batch.groups)
            untouched = (keep == points.tokens).all(1, keepdim=True)
            keep = torch.where(untouched, drawn, keep)
        self.keep = keep
        low, high = sampling.box(points.coords, points.tokens)
        self.dummies = sampling.dummy_coords("regular", low, high, max(1, objective.settings.dummies))
        self.given = points.values if objective.giver is None else objective.giver(points, generator)

    @torch.no_grad()
    def score(self) -> float:
        """Validation loss of the network as it is now."""
        o, total, weight = self.objective, 0.0, 0
        size = max(1, 4 * o.settings.batch)
        for first in range(0, len(self.batch), size):
            index = torch.arange(first, min(first + size, len(self.batch)))
            part, keep = self.batch[index], self.keep[index.to(self.keep.device)]
            points = part.points
            given = self.given[index.to(keep.device)]
            context = Context(points.coords, given, points.observed & keep[..., None])
            at_real, at_dummies = o._answers(context, points, keep, self.dummies[index.to(keep.device)], o.plan.order)
            hidden = points.observed & ~keep[..., None]
            if not bool(hidden.any()):
                hidden = points.observed
            total += float(o._combine(at_real, points.values, hidden, at_dummies, o.mu)) * len(index)
            weight += len(index)
        return total / weight
