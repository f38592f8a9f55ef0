"""CST for frames whose noise differs from sample to sample.

Training adds noise to the context and subtracts it, scaled, from the targets, so that copying the noise of the data
does not lower the loss. The scale depends on the noise of the data. Here each sample has its own, estimated from its
frames by `Frames.noise`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from cstformer.data.batch import Batch
from cstformer.errors import CSTError
from cstformer.models.cst import CST
from cstformer.starts.frames import Frames
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import Settings


@dataclass(kw_only=True, eq=False, repr=False)
class CSTOfLevels(CST):
    """CST for frames, trained with the noise level of each sample instead of one level for all."""

    def _objective(self, mu: float, run: Settings) -> SobolevObjective:
        added, believed = self.noises_
        return _Objective(self.network_, self.kind_, run, added, believed, mu)


class _Objective(SobolevObjective):
    def disturb(self, batch: Batch, keep: Tensor, generator: Generator) -> tuple[Batch, Tensor]:
        """Divide the values of each sample by its noise level, disturb all samples alike, and multiply again."""
        unit = self.sample_noise(batch) / float(np.max(self.disturbance.data_noise))  # (B, 1, 1)
        context, target = super().disturb(batch.replace(values=batch.values / unit), keep, generator)
        return context.replace(values=context.values * unit), target * unit

    def sample_noise(self, batch: Batch) -> Tensor:
        """Standard deviation of the noise of each sample, (B, 1, 1)."""
        if not isinstance(self.kind, Frames):
            raise CSTError("CSTOfLevels needs frames to estimate the noise of a sample; fit CST to curves instead")
        levels = [self.kind.noise(batch[i]) for i in torch.arange(len(batch))[:, None]]
        return batch.values.new_tensor(levels)[:, None, None]
