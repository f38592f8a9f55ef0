"""Data sets in the model's units: tensors in memory, or windows that are read when a step asks for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from cstformer.data.batch import Batch, Context
from cstformer.data.checks import check_training
from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling


def in_memory(samples: Samples | LazyFrames, seed: int) -> Samples:
    """The samples; of frames on disk, random windows that fit in memory."""
    return samples if isinstance(samples, Samples) else samples[samples.subset(seed)]


def most(samples: Samples | LazyFrames) -> int:
    """How many samples fit in memory together."""
    return len(samples) if isinstance(samples, Samples) else samples.few


class LazyBatch:
    """A data set in the model's units that is read when it is indexed; stands where a `Batch` of all samples would."""

    def __init__(self, scaling: Scaling, frames: LazyFrames, dtype: torch.dtype, device: torch.device):
        self.frames, self.scaling, self.dtype, self.device = frames, scaling, dtype, device

    def __len__(self) -> int:
        return len(self.frames)

    def shuffle(self, windows: Tensor) -> Callable[[torch.Generator], Tensor]:
        """Make the function that orders these windows anew in every epoch; it remembers its last answers."""
        orders: OrderedDict[int, Tensor] = OrderedDict()

        def order(generator: torch.Generator) -> Tensor:
            seed = generator.initial_seed()
            if seed not in orders:
                orders[seed] = self.frames.epoch(windows, generator)
                while len(orders) > 2:
                    orders.popitem(last=False)
            return orders[seed]

        return order

    def __getitem__(self, index: Tensor) -> Batch:
        samples = check_training(self.frames[index.cpu().numpy()])
        batch, missing = self.scaling.batch(samples, self.dtype, self.device), self.frames.n - samples.n
        if not missing:
            return batch
        # All batches have one size, so that random numbers do not depend on what else was read.
        pad = torch.nn.functional.pad
        p, groups = batch.points, batch.groups
        points = Context(*(pad(x, (0, 0, 0, missing)) for x in (p.coords, p.values, p.observed)))
        return Batch(points, None if groups is None else pad(groups, (0, missing)))


def as_data(
    scaling: Scaling, samples: Samples | LazyFrames, dtype: torch.dtype, device: torch.device
) -> Batch | LazyBatch:
    """Data in the model's units: tensors, or windows that are read when asked for."""
    if isinstance(samples, Samples):
        return scaling.batch(samples, dtype, device)
    return LazyBatch(scaling, samples, dtype, device)
