"""Data sets in the model's units: tensors in memory, or windows that are read when a step asks for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.checks import check_training
from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples

ToBatch = Callable[[Samples], Batch]


class LazyBatch:
    """A data set that is read when it is indexed; stands where a `Batch` of all samples would.

    Parameters
    ----------
    frames : windows of a movie on disk
    to_batch : from the windows that were read to tensors in the model's units
    """

    def __init__(self, frames: LazyFrames, to_batch: ToBatch):
        self.frames, self.to_batch = frames, to_batch

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: Tensor) -> Batch:
        batch = self.to_batch(check_training(self.frames[index.cpu().numpy()]))
        # All batches have one size, so that random numbers do not depend on what else was read.
        missing = self.frames.n - batch.coords.shape[1]
        return batch.padded(missing) if missing else batch

    def shuffle(self, samples: Tensor, size: int) -> Callable[[torch.Generator], Tensor]:
        """Make the function that orders these windows anew in every epoch; it remembers its last answers."""
        orders: OrderedDict[int, Tensor] = OrderedDict()

        def order(generator: torch.Generator) -> Tensor:
            seed = generator.initial_seed()
            if seed not in orders:
                orders[seed] = self.frames.epoch(samples, generator)
                while len(orders) > 2:
                    orders.popitem(last=False)
            return orders[seed]

        return order

    def fingerprint(self, seed: int) -> str:
        """Hash the shape, the times and a few windows: a resumed training must meet the same ones."""
        return self.frames.fingerprint(seed)


def open_data(samples: Samples | LazyFrames, to_batch: ToBatch) -> Batch | LazyBatch:
    """Data in the model's units: tensors, or windows that are read when asked for."""
    return to_batch(samples) if isinstance(samples, Samples) else LazyBatch(samples, to_batch)


def in_memory(samples: Samples | LazyFrames, seed: int) -> Samples:
    """The samples; of frames on disk, random windows that fit in memory."""
    return samples if isinstance(samples, Samples) else samples[samples.subset(seed)]


def memory_limit(samples: Samples | LazyFrames) -> int:
    """How many samples fit in memory together."""
    return len(samples) if isinstance(samples, Samples) else samples.few
