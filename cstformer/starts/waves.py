r"""Waves of frames: separate a field from its noise by wavelength in space and, band by band, in time.

A frame is a sum of orthonormal waves (i, j): sines and cosines where it is periodic, else cosines that mirror it at its
edges (DCT-II). White noise of variance :math:`\sigma^2` per pixel has the power :math:`\sigma^2` in each wave. A
field has most of its power in long waves, so the shortest waves give :math:`\sigma^2`.

- One frame: with the mean power P of all waves of one wave number, the best linear estimate of an amplitude is
  Wiener's, its observed value times the gain :math:`1 - \sigma^2 / P`.
- Several frames: the best estimate is Gaussian-process regression of each amplitude in time, with process variance
  :math:`P - \sigma^2` and noise :math:`\sigma^2`. Each band of wave numbers has its own lengthscale, since short waves
  change faster; all have the same smoothness.

Shapes: N samples, T frames, H × W pixels, C channels, K waves of a band.
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

from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kernel_fit import MIN_NOISE, log_likelihood
from cstformer.starts.time_posterior import left_out_error, narrow_variance
from cstformer.system.described import number, numbers

EDGES = (0, 2, 3, 4, 5, 8)  # first wave number of each band (cycles along the longer side); the last band has no end
# Candidate lengthscales in units of the time axis, which is [0, 1]. 25 values instead of 70 cost up to 4 % of error.
LENGTHSCALES = torch.logspace(math.log10(0.01), math.log10(3.0), 70).tolist()
SHORTEST = 0.375  # cycles per pixel, 3/4 of the Nyquist frequency: the power above it is taken to be noise alone
FAINT = 0.02  # a band whose signal is below this share of its power counts as noise alone
# Smoothness in time that is compared, by the error of predicting each frame from the others. The likelihood would take
# ½ for ERA5's temperature, where 3/2 predicts the hours between better, and ½ has no derivative at a frame.
SMOOTHNESS = (None, 2.5, 1.5)
CLEARLY = 0.98  # error of the rougher process over that of the smooth one, below which it is chosen
MAX_WAVES = 48  # waves of a band whose likelihood chooses the lengthscale; evenly spread over the band


@dataclass(frozen=True)
class Waves:
    """Spectrum, noise and covariances in time of a set of frames, in the units of their values."""

    gains: tuple[float, ...]
    """Wiener's gain 1 − σ²/P of each wave number, in [0, 1]."""
    kernels: tuple[Kernel | None, ...]
    """Covariance in time of each band of `EDGES`; None for a band of noise alone."""
    noise: float
    """σ: standard deviation of the noise of a pixel."""
    periodic: bool = False
    narrow: float = 0.0
    """Low posterior variance of a pixel of a hidden training frame; 0: not known (0.1.0)."""

    def wiener(self, frames: Float[Tensor, "*n H W C"]) -> Float[Tensor, "*n H W C"]:
        """Multiply every wave of each frame by its gain."""
        height, width = frames.shape[-3:-1]
        numbers = wave_numbers(height, width, self.periodic).to(frames.device)
        gains = frames.new_tensor(self.gains)[numbers]  # (H, W)
        return self._synthesis(self._analysis(frames) * gains[..., None])

    @property
    def loud(self) -> list[Kernel]:
        """The kernels of the bands that are more than noise; the other methods call those bands loud."""
        return [kernel for kernel in self.kernels if kernel is not None]

    def split(self, frames: Float[Tensor, "*n H W C"]) -> list[Float[Tensor, "*n K C"]]:
        """Amplitudes of the K waves of each loud band."""
        x = self._analysis(frames).flatten(-3, -2)  # (*n, H·W, C)
        height, width = frames.shape[-3:-1]
        return [x.index_select(-2, place) for place in self._places(height, width, frames.device)[0]]

    def join(self, parts: list[Float[Tensor, "*n K C"]], height: int, width: int) -> Float[Tensor, "*n H W C"]:
        """The inverse of `split`, with zeros for the waves of the other bands."""
        loud, quiet = self._places(height, width, parts[0].device)
        *n, _, channels = parts[0].shape
        zeros = parts[0].new_zeros(*n, sum(map(len, quiet)), channels)
        # The waves come band by band; argsort of their places is the permutation back to the order of the frame.
        x = torch.cat([*parts, zeros], -2).index_select(-2, torch.cat([*loud, *quiet]).argsort())
        return self._synthesis(x.unflatten(-2, (height, width)))

    def bands(self, frames: Float[Tensor, "*n H W C"]) -> list[Float[Tensor, "*n H W C"]]:
        """The component of the frames in each loud band; their sum is the frames without the quiet bands."""
        height, width = frames.shape[-3:-1]
        parts = self.split(frames)
        alone = [[x if i == j else torch.zeros_like(x) for j, x in enumerate(parts)] for i in range(len(parts))]
        return [self.join(some, height, width) for some in alone]

    def shares(self, height: int, width: int) -> Float[Tensor, " bands"]:
        """Waves of each loud band over pixels: the variance of a pixel is the sum of shares times variances."""
        count = [len(place) for place in self._places(height, width, torch.device("cpu"))[0]]
        return torch.tensor(count, dtype=torch.float64) / (height * width)

    def _places(self, height: int, width: int, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Indices, among the H·W waves of a frame, of the waves of each loud band and of each other band."""
        places = list(zip(self.kernels, _places_of_bands(height, width, self.periodic), strict=False))
        return [p.to(device) for k, p in places if k is not None], [p.to(device) for k, p in places if k is None]

    def _analysis(self, frames: Float[Tensor, "*n H W C"]) -> Float[Tensor, "*n H W C"]:
        """Amplitudes: entry (i, j) is the inner product of a frame with wave i along rows and j along columns."""
        rows, cols = (wave_basis(size, self.periodic).to(frames) for size in frames.shape[-3:-1])
        return torch.einsum("ih,...hwc,jw->...ijc", rows, frames, cols)

    def _synthesis(self, waves: Float[Tensor, "*n H W C"]) -> Float[Tensor, "*n H W C"]:
        """The inverse of `_analysis`: the basis is orthonormal, so its transpose."""
        rows, cols = (wave_basis(size, self.periodic).to(waves) for size in waves.shape[-3:-1])
        return torch.einsum("ih,...ijc,jw->...hwc", rows, waves, cols)

    def describe(self) -> dict[str, Any]:
        """A dict for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_description(cls, d: dict[str, Any]) -> Waves:
        """The inverse of `describe`."""
        kernels = [None if k is None else Kernel.from_description(k) for k in d["kernels"]]
        if len(kernels) > len(EDGES) or {len(k.lengthscales) for k in kernels if k is not None} != {1}:
            raise ValueError(f"the waves must have a kernel in time for each of up to {len(EDGES)} bands")
        gains, noise = numbers("gains of the waves", d["gains"], 0), number("noise of the waves", d["noise"], 0)
        narrow = number("narrow of the waves", d.get("narrow", 0.0), 0)  # version 0.1.0 had none
        return cls(gains, tuple(kernels), noise, bool(d["periodic"]), narrow)


def fit_waves(
    times: Float[Tensor, "N T"],
    frames: Float[Tensor, "N T H W C"],
    exists: Bool[Tensor, "N T"],
    periodic: bool = False,
    max_samples: int = 100,
) -> Waves:
    """Estimate noise, gains and covariances in time from noisy frames; no clean frames are needed.

    Parameters
    ----------
    times : scaled to [0, 1]
    frames : of mean zero
    exists : False for the padding of samples with fewer frames
    periodic : whether frames continue at their opposite edges
    max_samples : samples used for the lengthscales
    """
    height, width = frames.shape[2:4]
    rows, cols = (wave_basis(size, periodic).to(frames) for size in (height, width))
    x = torch.einsum("ih,nthwc,jw->ntijc", rows, frames, cols)  # amplitudes (N, T, H, W, C)
    numbers = wave_numbers(height, width, periodic).to(frames.device)
    squares = x[exists].double().square().mean((0, -1))  # power of each wave (H, W)
    count = torch.bincount(numbers.flatten()).clamp_min(1)
    power = torch.bincount(numbers.flatten(), squares.flatten()) / count  # P of each wave number
    short = torch.arange(len(power), device=power.device) >= SHORTEST * max(height, width)
    # σ²: the median over the short waves, which a few lines in the spectrum do not change. Frames too small to have
    # short waves give an upper bound, their lowest power.
    floor = float(power[short].median()) if bool(short.any()) else float(power[power > 0].min())
    gains = (1 - floor / power.clamp_min(1e-30)).clamp(0, 1)  # 1e-30: no division by zero where nothing is
    at, some = times[:max_samples].double(), exists[:max_samples]
    bands: list[_Band | None] = []
    for band in range(len(EDGES)):
        inside = _band(numbers) == band  # (H, W)
        signal = float(squares[inside].mean()) - floor if bool(inside.any()) else 0.0  # P − σ²
        if signal <= FAINT * (signal + floor) and (band > 0 or not bool(inside.any())):
            bands.append(None)
            continue
        signal = max(signal, FAINT * floor, 1e-12)  # the first band always stays, so that there is a start
        values = x[:max_samples, :, inside].double().flatten(2)  # (N, T, K·C)
        few = values[..., torch.linspace(0, values.shape[-1] - 1, min(MAX_WAVES, values.shape[-1])).long()]
        bands.append(_Band(few, signal, floor, int(inside.sum()) / (height * width)))

    def fitted(smoothness: float | None) -> tuple[float, Waves]:
        """Waves of this smoothness in time, and how well they predict each frame from the others."""
        kernels = [None if band is None else band.kernel(smoothness, at, some) for band in bands]
        pairs = [(band, kernel) for band, kernel in zip(bands, kernels, strict=True) if band and kernel]
        error = sum(band.share * left_out_error(kernel, at, band.values, some) for band, kernel in pairs)
        return error, Waves(tuple(gains.tolist()), tuple(kernels), math.sqrt(floor), periodic)

    smooth, *others = (fitted(smoothness) for smoothness in SMOOTHNESS)
    rough = min(others, key=lambda found: found[0])
    waves = rough[1] if rough[0] < CLEARLY * smooth[0] else smooth[1]
    return dataclasses.replace(waves, narrow=narrow_variance(waves.loud, waves.shares(height, width), at, some))


@dataclass(frozen=True)
class _Band:
    """What the kernel of a band is fitted to."""

    values: Float[Tensor, "N T K"]
    """Amplitudes of some of its waves."""
    signal: float
    """P − σ²."""
    floor: float
    """σ²."""
    share: float
    """Waves of the band over pixels of a frame."""

    def kernel(self, smoothness: float | None, at: Float[Tensor, "N T"], exists: Bool[Tensor, "N T"]) -> Kernel:
        """The kernel of this smoothness whose lengthscale is most likely.

        Amplitude and noise are known from the spectrum, and amplitudes have mean zero (the offset is as good as none):
        the likelihood has the lengthscale alone to choose.
        """
        amplitude = math.sqrt(self.signal)
        noise = max(math.sqrt(self.floor), MIN_NOISE * amplitude)
        trials = [Kernel((scale,), amplitude, 1e-3 * amplitude, noise, smoothness) for scale in LENGTHSCALES]
        return max(trials, key=lambda kernel: log_likelihood(kernel, at[..., None], self.values, exists))


@functools.lru_cache(maxsize=32)
def wave_basis(size: int, periodic: bool) -> Float[Tensor, "size size"]:
    """Orthonormal waves along an axis, one in each row, by increasing frequency.

    Periodic: 1, cos x, sin x, cos 2x, … with x = 2π place / size. Otherwise cos(π k (place + ½) / size), the DCT-II,
    whose waves have zero slope at the edges.

    >>> wave_basis(2, True).mul(2**0.5).round(decimals=6).tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    place = torch.arange(size, dtype=torch.float64)
    if periodic:
        k = torch.arange(size)
        phase = ((k + 1) // 2)[:, None] * place * (2 * math.pi / size)
        waves = torch.where((k % 2 == 1)[:, None] | (k == 0)[:, None], phase.cos(), phase.sin())  # odd k: cosines
    else:
        waves = torch.cos(math.pi * place[:, None] * (place + 0.5) / size)
    return waves / waves.norm(dim=1, keepdim=True)


def wave_numbers(height: int, width: int, periodic: bool) -> Int[Tensor, "height width"]:
    """Wave number of each product of waves: cycles along the longer side of the frame, rounded.

    It is the length √(k_row² + k_col²) of the wave vector, so that all directions of one wavelength go together. A
    cosine of the DCT with index k has k / 2 cycles.

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
    """Indices of the waves of each band among the H·W of a frame."""
    band = _band(wave_numbers(height, width, periodic)).flatten()
    return tuple((band == i).nonzero()[:, 0] for i in range(len(EDGES)))


def _band(numbers: Tensor) -> Tensor:
    """Number of the band of `EDGES` in which each wave number lies."""
    return torch.bucketize(numbers, torch.tensor(EDGES[1:], device=numbers.device), right=True)
