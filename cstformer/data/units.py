"""Between the user's units and the model's: coordinates in [0,1]^d, standardised values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cstformer.data.batch import Batch, Context
from cstformer.data.samples import Samples


@dataclass(frozen=True)
class Scaling:
    """Box of the training coordinates, mean and sd of the training values; arrays of shape (d,) and (c,)."""

    low: np.ndarray
    span: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    @classmethod
    def of(cls, samples: Samples) -> Scaling:
        """From the observed points; an axis or channel that never changes keeps its unit."""
        points = samples.coords[samples.point_observed]
        low, span = points.min(0), np.ptp(points, axis=0)
        count = np.maximum(samples.observed.sum((0, 1)), 1)
        total = np.where(samples.observed, samples.values, 0.0).sum((0, 1))
        if samples.layout is not None:  # the pixels of a patch share one mean and one sd per image channel
            count, total = _per_image_channel(count, samples), _per_image_channel(total, samples)
        mean = total / count
        square = np.where(samples.observed, (samples.values - mean) ** 2, 0.0).sum((0, 1))
        if samples.layout is not None:
            square = _per_image_channel(square, samples)
        sd = np.sqrt(square / count)
        tiny = 1e-12 * np.maximum(np.abs(mean), 1e-300)
        return cls(low, np.where(span > 0, span, 1.0), mean, np.where(sd > tiny, sd, 1.0))

    def coords(self, x: np.ndarray) -> np.ndarray:
        """Coordinates in the model's units."""
        return (x - self.low) / self.span

    def values(self, y: np.ndarray) -> np.ndarray:
        """Values in the user's units from standardised ones."""
        return y * self.sd + self.mean

    def derivative(self, y: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
        """Chain rule: D^q in the user's units."""
        if sum(index) == 0:
            return self.values(y)
        return y * self.sd / np.prod(self.span ** np.array(index))

    def batch(self, samples: Samples, dtype: torch.dtype, device: torch.device) -> Batch:
        """Turn samples into tensors in the model's units; points that are no tokens are zero."""
        tokens = samples.point_observed[..., None]
        coords = np.where(tokens, self.coords(samples.coords), 0.0)
        values = np.where(samples.observed, (samples.values - self.mean) / self.sd, 0.0)
        groups = None
        if samples.layout is not None:
            groups = torch.as_tensor(_time_ranks(samples), device=device)
        return Batch(
            Context(
                torch.as_tensor(coords, dtype=dtype, device=device),
                torch.as_tensor(values, dtype=dtype, device=device),
                torch.as_tensor(samples.observed, device=device),
            ),
            groups,
        )

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {k: getattr(self, k).tolist() for k in ("low", "span", "mean", "sd")}

    @classmethod
    def from_description(cls, d: dict[str, Any]) -> Scaling:
        """From JSON."""
        return cls(*(np.asarray(d[k], dtype=float) for k in ("low", "span", "mean", "sd")))


def _per_image_channel(x: np.ndarray, samples: Samples) -> np.ndarray:
    """Sum over the pixels of a patch, repeated for each of them: (c,) → (c,)."""
    channels = samples.layout.channels  # type: ignore[union-attr]
    return np.tile(x.reshape(-1, channels).sum(0), len(x) // channels)


def _time_ranks(samples: Samples) -> np.ndarray:
    """(N, n) integers: the rank of each token's time among the distinct times of its sample."""
    ranks = np.zeros(samples.point_observed.shape, dtype=np.int64)
    for i, (t, exists) in enumerate(zip(samples.coords[..., 0], samples.point_observed, strict=True)):
        ranks[i, exists] = np.unique(t[exists], return_inverse=True)[1]
    return ranks


def as_batches(count: int, size: int) -> list[Tensor]:
    """Sample numbers 0..count−1 in runs of at most ``size``."""
    return list(torch.arange(count).split(max(1, size)))
