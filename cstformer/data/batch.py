"""The batch that a network sees: points in the model's units."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Context:
    """Observed points of a batch, in the model's units: coordinates in [0,1]^d, standardised values.

    ``observed`` is per channel; a point with no observed channel is no token. ``guess`` is the start at these points,
    for networks that want it (`ContinuousTransformer.prepare`).
    """

    coords: Float[Tensor, "B n d"]
    values: Float[Tensor, "B n c"]
    observed: Bool[Tensor, "B n c"]
    guess: Float[Tensor, "B n seen"] | None = None

    @property
    def known(self) -> Float[Tensor, "B n c"]:
        """The values, with zeros where nothing was observed."""
        return self.values.masked_fill(~self.observed, 0)

    @property
    def tokens(self) -> Bool[Tensor, "B n"]:
        """True where a token exists."""
        return self.observed.any(-1)


@dataclass(frozen=True)
class Batch:
    """Samples in the model's units: coordinates in [0,1]^d, standardised values.

    ``groups`` (N, n), if present, numbers the points that are hidden together (the patches of a frame).
    """

    points: Context
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.points.coords)

    def __getitem__(self, index: Tensor) -> Batch:
        p = self.points
        index = index.to(p.coords.device)
        groups = None if self.groups is None else self.groups[index]
        return Batch(Context(p.coords[index], p.values[index], p.observed[index]), groups)


def split_samples(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation samples of a data set; with fewer than five samples the same ones serve both.

    >>> training, held_out = split_samples(10, 0.2, seed=0)
    >>> len(training), len(held_out), sorted(torch.cat([training, held_out]).tolist()) == list(range(10))
    (8, 2, True)
    """
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * count)) if count >= 5 and fraction > 0 else 0
    return (shuffled[held:], shuffled[:held]) if held else (shuffled, shuffled)


def fingerprint(data: Batch) -> str:
    """Hash all numbers of a data set: a resumed training must meet the same ones."""
    digest = hashlib.sha256()
    for x in (data.points.coords, data.points.values, data.points.observed):
        digest.update(np.ascontiguousarray(x.cpu().numpy()).tobytes())
    return digest.hexdigest()
