r"""Waves of frames: how a field and its noise are told apart in space and, wave by wave, in time.

A frame is a sum of waves: sines and cosines where it is periodic, else cosines that mirror it at its edges. White noise
has the same power :math:`\sigma^2` in each, a field has most of it in its long waves; the shortest waves tell
:math:`\sigma^2`. From the power P of waves of one length follows Wiener's gain :math:`1 - \sigma^2 / P`, the best
linear estimate from one frame. From several frames the best one is Gaussian-process regression in time, of variance
:math:`P - \sigma^2`, with noise :math:`\sigma^2` and a lengthscale for each band of waves: short ones live shorter.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cstformer.starts.gaussian_process import MIN_NOISE, Kernel, log_likelihood

EDGES = (0, 2, 3, 4, 5, 8)  # first wave number of each band; the last band has no end
LENGTHSCALES = torch.logspace(math.log10(0.01), math.log10(3.0), 70).tolist()  # a coarser grid costs up to 4 % of error
SHORTEST = 0.375  # cycles a pixel: waves above are noise
FAINT = 0.02  # share of a band's power below which it counts as noise alone


@dataclass(frozen=True)
class Waves:
    """What is known of the waves of a set of frames, in the units of their values."""

    gains: tuple[float, ...]
    """Wiener's gain of each wave number."""
    kernels: tuple[Kernel | None, ...]
    """Covariance in time of each band of `EDGES`; None where nothing but noise was found."""
    noise: float
    """Standard deviation of the noise of a pixel."""
    periodic: bool = False

    def wiener(self, frames: Float[Tensor, "*n H W C"]) -> Float[Tensor, "*n H W C"]:
        """Filter each frame for itself."""
        gains = frames.new_tensor(self.gains)[self._numbers(frames)]
        return self._synthesis(self._analysis(frames) * gains[..., None])

    @property
    def loud(self) -> list[Kernel]:
        """The kernels of the bands that are more than noise."""
        return [kernel for kernel in self.kernels if kernel is not None]

    def split(self, frames: Float[Tensor, "*n H W C"]) -> list[Float[Tensor, "*n K C"]]:
        """Amplitudes of the waves of each loud band."""
        x = self._analysis(frames).flatten(-3, -2)
        height, width = frames.shape[-3:-1]
        return [x.index_select(-2, place) for place in self._places(height, width, frames.device)[0]]

    def join(self, parts: list[Float[Tensor, "*n K C"]], height: int, width: int) -> Float[Tensor, "*n H W C"]:
        """Frames of the amplitudes that `split` gave."""
        loud, quiet = self._places(height, width, parts[0].device)
        *n, _, channels = parts[0].shape
        zeros = parts[0].new_zeros(*n, sum(map(len, quiet)), channels)
        x = torch.cat([*parts, zeros], -2).index_select(-2, torch.cat([*loud, *quiet]).argsort())
        return self._synthesis(x.unflatten(-2, (height, width)))

    def bands(self, frames: Float[Tensor, "*n H W C"]) -> list[Float[Tensor, "*n H W C"]]:
        """The part of the frames that lies in each loud band."""
        height, width = frames.shape[-3:-1]
        parts = self.split(frames)
        alone = [[x if i == j else torch.zeros_like(x) for j, x in enumerate(parts)] for i in range(len(parts))]
        return [self.join(some, height, width) for some in alone]

    def _places(self, height: int, width: int, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Places of the waves of loud and of quiet bands among the H·W of a frame."""
        places = list(zip(self.kernels, _places_of_bands(height, width, self.periodic), strict=False))
        return [p.to(device) for k, p in places if k is not None], [p.to(device) for k, p in places if k is None]

    def _numbers(self, frames: Tensor) -> Tensor:
        height, width = frames.shape[-3:-1]
        return wave_numbers(height, width, self.periodic).to(frames.device)

    def _analysis(self, frames: Tensor) -> Tensor:
        rows, cols = (wave_basis(size, self.periodic).to(frames) for size in frames.shape[-3:-1])
        return torch.einsum("ih,...hwc,jw->...ijc", rows, frames, cols)

    def _synthesis(self, waves: Tensor) -> Tensor:
        rows, cols = (wave_basis(size, self.periodic).to(waves) for size in waves.shape[-3:-1])
        return torch.einsum("ih,...ijc,jw->...hwc", rows, waves, cols)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_description(cls, d: dict[str, Any]) -> Waves:
        """From JSON."""
        kernels = [k and Kernel(**{**k, "lengthscales": tuple(k["lengthscales"])}) for k in d["kernels"]]
        return cls(tuple(d["gains"]), tuple(kernels), float(d["noise"]), bool(d["periodic"]))


def fit_waves(
    times: Float[Tensor, "N T"],
    frames: Float[Tensor, "N T H W C"],
    exists: Bool[Tensor, "N T"],
    periodic: bool = False,
    max_samples: int = 100,
) -> Waves:
    """Noise, gains and covariances in time of noisy frames; nothing clean is needed.

    Parameters
    ----------
    times : scaled to [0, 1]
    frames : of mean zero
    exists : False where a sample has no such frame
    periodic : whether frames continue at their opposite edges
    max_samples : samples used for the lengthscales
    """
    height, width = frames.shape[2:4]
    rows, cols = (wave_basis(size, periodic).to(frames) for size in (height, width))
    x = torch.einsum("ih,nthwc,jw->ntijc", rows, frames, cols)
    numbers = wave_numbers(height, width, periodic).to(frames.device)
    squares = x[exists].double().square().mean((0, -1))  # (H, W)
    count = torch.bincount(numbers.flatten()).clamp_min(1)
    power = torch.bincount(numbers.flatten(), squares.flatten()) / count
    short = torch.arange(len(power), device=power.device) >= SHORTEST * max(height, width)
    # The lowest power bounds the noise where frames are too small to have short waves.
    floor = float(power[short].median()) if bool(short.any()) else float(power[power > 0].min())
    gains = (1 - floor / power.clamp_min(1e-30)).clamp(0, 1)
    kernels: list[Kernel | None] = []
    at, some = times[:max_samples, :, None].double(), exists[:max_samples]
    for band in range(len(EDGES)):
        inside = _band(numbers) == band
        signal = float(squares[inside].mean()) - floor if bool(inside.any()) else 0.0
        if signal <= FAINT * (signal + floor) and (band > 0 or not bool(inside.any())):
            kernels.append(None)
            continue
        signal = max(signal, FAINT * floor, 1e-12)  # the first band stays, so that there is always a start
        values = x[:max_samples, :, inside].double().flatten(2)
        values = values[..., torch.linspace(0, values.shape[-1] - 1, min(48, values.shape[-1])).long()]
        amplitude, noise = math.sqrt(signal), max(math.sqrt(floor), MIN_NOISE * math.sqrt(signal))
        trials = [Kernel((scale,), amplitude, 1e-3 * amplitude, noise) for scale in LENGTHSCALES]
        kernels.append(max(trials, key=lambda kernel: log_likelihood(kernel, at, values, some)))
    return Waves(tuple(gains.tolist()), tuple(kernels), math.sqrt(floor), periodic)


@functools.lru_cache(maxsize=32)
def wave_basis(size: int, periodic: bool) -> Float[Tensor, "size size"]:
    """Orthonormal waves along an axis, one a row, by increasing frequency.

    >>> wave_basis(2, True).mul(2**0.5).round(decimals=6).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    place = torch.arange(size, dtype=torch.float64)
    if periodic:
        k = torch.arange(size)
        phase = ((k + 1) // 2)[:, None] * place * (2 * math.pi / size)
        waves = torch.where((k % 2 == 1)[:, None] | (k == 0)[:, None], phase.cos(), phase.sin())
    else:
        waves = torch.cos(math.pi * place[:, None] * (place + 0.5) / size)
    return waves / waves.norm(dim=1, keepdim=True)


def wave_numbers(height: int, width: int, periodic: bool) -> Int[Tensor, "height width"]:
    """Cycles of each product of waves along the longer side of the frame, rounded.

    >>> wave_numbers(3, 4, True).tolist()
    [[0, 1, 1, 2], [1, 2, 2, 2], [1, 2, 2, 2]]
    """
    row, col = (
        ((torch.arange(n) + 1) // 2 if periodic else torch.arange(n) / 2) * max(height, width) / n
        for n in (height, width)
    )
    return torch.hypot(row[:, None], col).round().long()


@functools.lru_cache(maxsize=32)
def _places_of_bands(height: int, width: int, periodic: bool) -> tuple[Tensor, ...]:
    band = _band(wave_numbers(height, width, periodic)).flatten()
    return tuple((band == i).nonzero()[:, 0] for i in range(len(EDGES)))


def _band(numbers: Tensor) -> Tensor:
    """Which of the `EDGES` a wave number lies above."""
    return torch.bucketize(numbers, torch.tensor(EDGES[1:], device=numbers.device), right=True)
