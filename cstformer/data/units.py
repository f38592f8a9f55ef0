r"""Between the user's units and the model's: coordinates in [0,1]^d, standardised values.

A channel is scaled linearly, :math:`z = (y - m) / s` with its mean m and standard deviation s, or robustly:

.. math:: z = (\operatorname{asinh}(v) - a) / b, \qquad v = (y - m) / s,

where m is the median, s the inter-quartile range over 1.349 (of a normal distribution: its standard deviation), and a
and b are mean and standard deviation of asinh(v). The map is linear for \|v\| < 1 and logarithmic in the tails, so that
a few extreme values no longer decide the scale of a channel and its share of the loss. It is inverted exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.samples import Samples
from cstformer.system.described import LARGEST, TINY, numbers

NORMAL_IQR = 1.3489795003921634  # inter-quartile range of the standard normal distribution
# Tails are heavy above this excess kurtosis. It is 0 for a normal, 3 for a Laplace and 6 for an exponential
# distribution; at most 4 for the channels of ETTh1; 13 for lactate, 37 for glucose and 280 for urine of ICU patients.
HEAVY_KURTOSIS = 10.0
FEWEST_FOR_TAILS = 100  # cells of a channel that say something about its tails


@dataclass(frozen=True)
class Scaling:
    """Box of the training coordinates, centre and unit of the training values.

    Attributes
    ----------
    low, span : (d,)
    mean, sd : (c,)
        Mean and standard deviation; of a robust channel the median and the scaled inter-quartile range.
    asinh : (2, c), optional
        Mean and standard deviation of asinh((y − mean) / sd) of each robust channel, zeros for linear ones. None if all
        channels are linear.
    """

    low: np.ndarray
    span: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    asinh: np.ndarray | None = None

    @classmethod
    def of(cls, samples: Samples, pooled: int | None = None, how: str = "linear") -> Scaling:
        """Measure the observed points; an axis or channel that never changes keeps its unit.

        Parameters
        ----------
        samples : Samples
        pooled : int, optional
            For patches of frames, the number of image channels: all pixels of a patch then share one mean and one
            standard deviation per image channel.
        how : {"linear", "robust", "auto"}
            Which channels are robust: none, all, or those with `heavy_tails`. A channel whose quartiles are equal, such
            as an indicator that is mostly 0, is always linear.
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
        linear = cls(low, np.where(span > 0, span, 1.0), mean, np.where(sd > tiny, sd, 1.0))
        return linear if how == "linear" else linear._with_robust_channels(samples, how)

    def _with_robust_channels(self, samples: Samples, how: str) -> Scaling:
        mean, sd, asinh = self.mean.copy(), self.sd.copy(), np.zeros((2, len(self.mean)))
        for k in range(samples.c):
            y = samples.values[..., k][samples.observed[..., k]]
            if len(y) == 0 or (how == "auto" and not heavy_tails(y)):
                continue
            low, median, high = np.quantile(y, (0.25, 0.5, 0.75))
            if high - low > 1e-12 * abs(median):
                mean[k], sd[k] = median, (high - low) / NORMAL_IQR
                bent = np.arcsinh((y - mean[k]) / sd[k])
                asinh[:, k] = bent.mean(), bent.std()
        return replace(self, mean=mean, sd=sd, asinh=asinh) if asinh.any() else self

    @property
    def robust(self) -> np.ndarray:
        """Which channels (c,) are robust."""
        return np.zeros(len(self.mean), dtype=bool) if self.asinh is None else self.asinh[1] > 0

    def coords(self, x: np.ndarray) -> np.ndarray:
        """Coordinates in the model's units."""
        return (x - self.low) / self.span

    def user_coords(self, x: np.ndarray) -> np.ndarray:
        """Coordinates in the user's units from those in the model's."""
        return x * self.span + self.low

    def standardised(self, y: np.ndarray) -> np.ndarray:
        """Values in the model's units."""
        y = (y - self.mean) / self.sd
        return y if self.asinh is None else _bend(np, y, *self.asinh)

    def values(self, y: np.ndarray) -> np.ndarray:
        """Values in the user's units from standardised ones.

        >>> line = Scaling(np.zeros(1), np.ones(1), np.array([5.0]), np.array([2.0]))
        >>> float(line.values(np.array([3.0]))[0])
        11.0
        >>> bent = replace(line, asinh=np.array([[0.0], [1.0]]))
        >>> float(bent.values(bent.standardised(np.array([1e6]))).round(6)[0])
        1000000.0
        """
        y = y if self.asinh is None else _unbend(np, y, *self.asinh)
        return y * self.sd + self.mean

    def slope(self, z: np.ndarray) -> np.ndarray:
        """Derivative of `values` at standardised values (…, c): by how much a user's value changes with z.

        >>> bent = Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.array([2.0]), np.array([[0.0], [1.0]]))
        >>> bent.slope(np.array([[0.0]])).tolist()
        [[2.0]]
        """
        if self.asinh is None:
            return np.broadcast_to(self.sd, z.shape)
        mean, sd = self.asinh
        return self.sd * np.where(sd > 0, np.cosh(np.where(sd > 0, z * sd + mean, 0.0)) * sd, 1.0)

    def derivative(self, y: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
        """D^q in the user's units by the chain rule, from D^q of (value − mean) / sd in the model's coordinates.

        This is D^q of standardised values for linear channels. Robust ones have to be unbent before derivatives are
        taken (`models.reader`).
        """
        if sum(index) == 0:
            return y * self.sd + self.mean
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
        if self.asinh is None:
            return (change(x * sd + mean) - mean) / sd
        asinh = torch.as_tensor(self.asinh).to(x)
        changed = (change(_unbend(torch, x, *asinh) * sd + mean) - mean) / sd
        return _bend(torch, changed, *asinh)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        asinh = None if self.asinh is None else self.asinh.tolist()
        return {k: getattr(self, k).tolist() for k in ("low", "span", "mean", "sd")} | {"asinh": asinh}

    @classmethod
    def from_description(cls, d: dict[str, Any]) -> Scaling:
        """From JSON."""
        asinh = d.get("asinh")  # version 0.1.0 had linear channels alone
        lowest = {"low": -LARGEST, "span": TINY, "mean": -LARGEST, "sd": TINY}
        found = {k: np.array(numbers(f"{k} of the scaling", d[k], low)) for k, low in lowest.items()}
        if asinh is not None:
            asinh = np.array([numbers("asinh of the scaling", row) for row in asinh])
            if asinh.shape != (2, len(d["mean"])):
                raise ValueError(f"asinh has shape {asinh.shape} for {len(d['mean'])} channels")
        return cls(**found, asinh=asinh)


def heavy_tails(y: np.ndarray) -> bool:
    """Whether the excess kurtosis of values (n,) exceeds `HEAVY_KURTOSIS`; False for few values and for constants.

    >>> rng = np.random.default_rng(0)
    >>> heavy_tails(rng.laplace(size=5000)), heavy_tails(np.exp(rng.normal(size=5000)))
    (False, True)
    """
    sd = y.std()
    if len(y) < FEWEST_FOR_TAILS or not sd > 0:
        return False
    return bool((((y - y.mean()) / sd) ** 4).mean() - 3 > HEAVY_KURTOSIS)


def _bend(library: Any, v: Any, mean: Any, sd: Any) -> Any:
    """(asinh(v) − mean) / sd in the channels whose sd is not 0; v in the others. ``library`` is NumPy or PyTorch."""
    return library.where(sd > 0, (library.arcsinh(v) - mean) / library.where(sd > 0, sd, 1.0), v)


def _unbend(library: Any, z: Any, mean: Any, sd: Any) -> Any:
    """Inverse of `_bend`."""
    return library.where(sd > 0, library.sinh(z * sd + mean), z)
