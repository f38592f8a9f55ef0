"""CST for samples whose noise differs from one to the next.

Training puts noise on the context and its opposite on the targets, so that copying the noise of the data is never
rewarded; that needs the noise of each sample. Frames tell it: `frame_noise` of the sample's own frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from cstformer.data.batch import Batch, Context
from cstformer.models.cst import CST
from cstformer.starts.frames import frame_noise
from cstformer.training.objective import SobolevObjective, Validation
from cstformer.training.settings import Settings


@dataclass(kw_only=True, eq=False, repr=False)
class CSTOfLevels(CST):
    """CST on frames, trained with the noise of each sample in place of that of all."""

    def _validation(self, mu: float, held_out: Batch, run: Settings, hide: float) -> Validation:
        validation = super()._validation(mu, held_out, run, hide)
        o = validation.objective
        objective = _Objective(o.network, o.starter, o.settings, o.noise, o.data_noise, o.mu, o.mover, o.cleaner)
        objective.sample_noise = self._sample_noise
        validation.objective = objective
        return validation

    def _sample_noise(self, points: Context) -> Tensor:
        """Standard deviation of the noise of each sample, (B, 1, 1)."""
        assert self.layout_ is not None
        batch, each = Batch(points), torch.arange(len(points.coords))[:, None]
        levels = [frame_noise(batch[i], self.layout_, self._pixels()) for i in each]
        return points.values.new_tensor(levels)[:, None, None]


class _Objective(SobolevObjective):
    sample_noise: Callable[[Context], Tensor]

    def _disturb(self, points: Context, keep: Tensor, generator: Generator) -> tuple[Context, Tensor]:
        """As for samples of equal noise, in units in which they have it."""
        unit = self.sample_noise(points) / self.data_noise
        equal = Context(points.coords, points.values / unit, points.observed)
        context, target = super()._disturb(equal, keep, generator)
        return Context(context.coords, context.values * unit, context.observed), target * unit
