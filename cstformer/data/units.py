"""Between the user's units and the model's: coordinates in [0,1]^d, standardised values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.samples import Samples


@dataclass(frozen=True)
class Scaling:
    """Box of the training coordinates, mean and standard deviation of the training values.

    Attributes
    ----------
    low, span : (d,)
    mean, sd : (c,)
    """

    low: np.ndarray
    span: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    @classmethod
    def of(cls, samples: Samples, pooled: int | None = None) -> Scaling:
        """Measure the observed points; an axis or channel that never changes keeps its unit.

        ``pooled``, for patches of frames, is the number of image channels: all pixels of a patch then share one mean
        and one standard deviation per image channel.
        """

        def total(x: np.ndarray) -> np.ndarray:
            x = x.sum((0, 1))  # (c,)
            return x if pooled is None else np.tile(x.reshape(-1, pooled).sum(0), len(x) // pooled)

        points = samples.coords[samples.point_observed]
        low, span = points.min(0), np.ptp(points, axis=0)
        count = total(samples.observed)
        count = np.maximum(count, 1)
        mean = total(np.where(samples.observed, samples.values, 0.0)) / count
        sd = np.sqrt(total(np.where(samples.observed, (samples.values - mean) ** 2, 0.0)) / count)
        tiny = 1e-12 * np.maximum(np.abs(mean), 1e-300)  # a spread at the rounding error of the mean is no spread
        return cls(low, np.where(span > 0, span, 1.0), mean, np.where(sd > tiny, sd, 1.0))

    def coords(self, x: np.ndarray) -> np.ndarray:
        """Coordinates in the model's units."""
        return (x - self.low) / self.span

    def user_coords(self, x: np.ndarray) -> np.ndarray:
        """Coordinates in the user's units from those in the model's."""
        return x * self.span + self.low

    def standardised(self, y: np.ndarray) -> np.ndarray:
        """Values in the model's units."""
        return (y - self.mean) / self.sd

    def values(self, y: np.ndarray) -> np.ndarray:
        """Values in the user's units from standardised ones."""
        return y * self.sd + self.mean

    def derivative(self, y: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
        """Chain rule: D^q in the user's units."""
        if sum(index) == 0:
            return self.values(y)
        return y * self.sd / np.prod(self.span ** np.array(index))

    def batch(self, samples: Samples, dtype: torch.dtype, device: torch.device) -> Batch:
        """Turn samples into tensors in the model's units; padding is zero."""
        coords = np.where(samples.point_observed[..., None], self.coords(samples.coords), 0.0)
        values = np.where(samples.observed, self.standardised(samples.values), 0.0)
        return Batch(
            torch.as_tensor(coords, dtype=dtype, device=device),
            torch.as_tensor(values, dtype=dtype, device=device),
            torch.as_tensor(samples.observed, device=device),
        )

    def in_user_units(self, change: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply ``change``, a function of values in the user's units, to standardised values (…, channels)."""
        mean, sd = (torch.as_tensor(a[: x.shape[-1]]).to(x) for a in (self.mean, self.sd))
        return (change(x * sd + mean) - mean) / sd

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {k: getattr(self, k).tolist() for k in ("low", "span", "mean", "sd")}

    @classmethod
    def from_description(cls, d: dict[str, Any]) -> Scaling:
        """From JSON."""
        return cls(*(np.asarray(d[k], dtype=float) for k in ("low", "span", "mean", "sd")))
