"""Learning rates, batches and random numbers of a training, as functions of the step alone.

Everything random in step s comes from a generator seeded by (seed, s), and the batches are a fixed stream of shuffled
epochs. A run is so a function of its seed, and resuming at step s needs no generator state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

Shuffle = Callable[[Generator], Tensor]
"""A random order of all samples."""


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then a cosine to zero.

    >>> [round(learning_rate_factor(s, 10, 0.2), 3) for s in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))


def batch_indices(step: int, batch: int, count: int, seed: int, shuffle: Shuffle | None = None) -> Tensor:
    """Sample numbers of step ``step``: a fixed stream of shuffled epochs, cut into full batches.

    >>> sorted(torch.cat([batch_indices(s, 2, 4, seed=0) for s in (0, 1)]).tolist())
    [0, 1, 2, 3]
    """
    first, last = step * batch, (step + 1) * batch
    epochs = range(first // count, (last - 1) // count + 1)
    shuffle = shuffle or (lambda generator: torch.randperm(count, generator=generator))
    shuffled = [shuffle(generator_for(seed, -1 - epoch)) for epoch in epochs]
    offset = epochs[0] * count
    return torch.cat(shuffled)[first - offset : last - offset]


def generator_for(seed: int, step: int) -> Generator:
    """Make the generator of one step (or, with negative numbers, of one epoch)."""
    return Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
