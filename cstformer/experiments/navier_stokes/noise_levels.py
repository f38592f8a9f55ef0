"""CST for samples whose noise differs from one to the next.

Training puts noise on the context and its opposite on the targets, so that copying the noise of the data is never
rewarded; that needs the noise of each sample. Frames tell it: `Frames.noise` of the sample's own frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from cstformer.data.batch import Batch
from cstformer.models.cst import CST
from cstformer.starts.frames import Frames
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import Settings


@dataclass(kw_only=True, eq=False, repr=False)
class CSTOfLevels(CST):
    """CST on frames, trained with the noise of each sample in place of that of all."""

    def _objective(self, mu: float, run: Settings) -> SobolevObjective:
        assert self.kernel_ is not None
        return _Objective(self.network_, self.kind_, run, self.noise_, self.kernel_.noise, mu)


class _Objective(SobolevObjective):
    def disturb(self, batch: Batch, keep: Tensor, generator: Generator) -> tuple[Batch, Tensor]:
        """As for samples of equal noise, in units in which they have it."""
        assert isinstance(self.kind, Frames)
        levels = [self.kind.noise(batch[i]) for i in torch.arange(len(batch))[:, None]]
        unit = batch.values.new_tensor(levels)[:, None, None] / self.disturbance.data_noise  # (B, 1, 1)
        context, target = super().disturb(batch.replace(values=batch.values / unit), keep, generator)
        return context.replace(values=context.values * unit), target * unit
