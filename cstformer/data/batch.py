"""The batch that a network sees: points of several samples as tensors in the model's units."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

POOL = 8  # batches whose samples are sorted by length
UNEVEN = 1.25  # longest sample over the mean: below, sorting would save little
PER_SAMPLE = ("covariates", "phases")  # what has no axis of points


@dataclass(frozen=True)
class Batch:
    """Points of B samples in the model's units: coordinates in [0,1]^d, standardised values.

    Attributes
    ----------
    coords, values : (B, n, d) and (B, n, c)
    observed : (B, n, c)
        Per channel. A point with no observed channel is padding, not a token.
    frame, patch : (B, n) integers, for the patches of frames only
        Which frame of its sample and which patch of the frame a token is; see `FrameGrid`.
    initial : (B, n, ·), optional
        What the start says at these points, for networks that read it (`ContinuousTransformer.prepare`).
    covariates : (B, features), optional
        What is known of each sample at every coordinate, see `CovariateEncoder`.
    phases : (B, k), optional
        Angle of each calendar feature at coordinate 0, see `Calendar`.
    """

    coords: Float[Tensor, "B n d"]
    values: Float[Tensor, "B n c"]
    observed: Bool[Tensor, "B n c"]
    frame: Int[Tensor, "B n"] | None = None
    patch: Int[Tensor, "B n"] | None = None
    initial: Float[Tensor, "B n seen"] | None = None
    covariates: Float[Tensor, "B features"] | None = None
    phases: Float[Tensor, "B k"] | None = None

    def __len__(self) -> int:
        return len(self.coords)

    def __getitem__(self, index: Tensor) -> Batch:
        index = index.to(self.coords.device)
        return self._map(lambda x: x[index])

    @functools.cached_property
    def exists(self) -> Bool[Tensor, "B n"]:
        """True where a point is a token, False where it is padding."""
        return self.observed.any(-1)

    @property
    def known(self) -> Float[Tensor, "B n c"]:
        """The values, with zeros where nothing was observed."""
        return self.values.masked_fill(~self.observed, 0)

    def replace(self, **changes: Tensor) -> Batch:
        """Return the same batch with other tensors."""
        return dataclasses.replace(self, **changes)

    def to(self, dtype: torch.dtype, device: torch.device) -> Batch:
        """Numbers in this format, everything on this device."""
        return self._map(lambda x: x.to(device, dtype if x.is_floating_point() else x.dtype))

    def pick(self, index: Int[Tensor, "B m"]) -> Batch:
        """Choose points of each sample."""
        return self._map(lambda x: x.gather(1, widen(index, x).expand(*index.shape, *x.shape[2:])), keep=PER_SAMPLE)

    def padded(self, count: int) -> Batch:
        """Append ``count`` points that do not exist."""
        return self._map(lambda x: torch.cat([x, x.new_zeros((len(x), count, *x.shape[2:]))], 1), keep=PER_SAMPLE)

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """Number of points of each sample, up to the last that exists; of frames all of them, which have places."""
        number = torch.arange(1, self.coords.shape[1] + 1, device=self.coords.device)
        return (self.exists * number if self.frame is None else number.expand(len(self), -1)).amax(1)

    @property
    def units(self) -> Int[Tensor, "B n"]:
        """What is hidden as a whole: the number of each point or, of frames, of its frame."""
        number = torch.arange(self.coords.shape[1], device=self.coords.device)
        return number.expand(len(self), -1) if self.frame is None else self.frame

    def cut(self, n: int) -> Batch:
        """The first ``n`` points of each sample."""
        return self._map(lambda x: x[:, :n], keep=PER_SAMPLE)

    def packed(self) -> Batch:
        """The points that exist, in their order, without the gaps between them: as many as the fullest sample has.

        >>> seen = torch.tensor([[[True], [False], [True]]])
        >>> Batch(torch.tensor([[[0.0], [0.5], [1.0]]]), torch.zeros(1, 3, 1), seen).packed().coords.tolist()
        [[[0.0], [1.0]]]
        """
        most = max(1, int(self.exists.sum(1).max()))
        if most == self.exists.shape[1]:
            return self
        return self.pick(self.exists.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most])

    def shuffle(self, samples: Tensor, size: int) -> Callable[[Generator], Tensor] | None:
        """Make the function that orders these samples anew in every epoch; None where any order will do.

        A batch of ``size`` samples is as long as the longest of them. Where lengths differ, samples of similar length
        come together: of every `POOL` batches of a random order, the samples are sorted by length, up and down in turn.
        """
        lengths = self.lengths.cpu()[samples]
        if int(lengths.max()) <= UNEVEN * float(lengths.double().mean()):
            return None

        def order(generator: Generator) -> Tensor:
            pools = torch.randperm(len(lengths), generator=generator).split(POOL * size)
            up_and_down = [p[lengths[p].argsort(stable=True, descending=bool(i % 2))] for i, p in enumerate(pools)]
            return torch.cat(up_and_down)

        return order

    def fingerprint(self, seed: int) -> str:
        """Hash all numbers: a resumed training must meet the same ones."""
        digest = hashlib.sha256()
        known = [x for name in PER_SAMPLE if (x := getattr(self, name)) is not None]
        for x in (self.coords, self.values, self.observed, *known):
            digest.update(np.ascontiguousarray(x.cpu().numpy()).tobytes())
        return digest.hexdigest()

    def _map(self, change: Callable[[Tensor], Tensor], keep: tuple[str, ...] = ()) -> Batch:
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changed = {name: x if x is None or name in keep else change(x) for name, x in tensors.items()}
        return Batch(**changed)


def widen(x: Tensor, like: Tensor) -> Tensor:
    """Append axes of size 1 until ``x`` has as many axes as ``like``."""
    return x.reshape(*x.shape, *(1,) * (like.ndim - x.ndim))


PAIRS_PER_PASS = 10**7
"""Pairs of points of all samples in a pass without gradients: attention and the start need memory for each."""


def as_batches(count: int, size: int) -> list[Tensor]:
    """Sample numbers 0..count−1 in runs of at most ``size``."""
    return list(torch.arange(count).split(max(1, size)))
