"""Rivals for movies that need no training: copy the input, median filters, non-local means.

Each filters the frames of the context. Between them frames are interpolated linearly in time; `CopyInput` takes the
nearest frame instead. Medians ignore unobserved pixels. A pixel that a filter leaves undefined gets its mean over the
frames of the sample.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cstformer.baselines.sequences import TimeSeries, answer, between
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.model import Model
from cstformer.starts.frames import Frames
from cstformer.training.settings import setting

Movie = Float[np.ndarray, "T H W C"]


@dataclass(kw_only=True, eq=False, repr=False)
class FrameFilter(Model):
    """A filter of whole movies (T, H, W, C) in standardised units, NaN where a pixel was not observed."""

    frames_only: ClassVar[bool] = True

    @abstractmethod
    def _filter(self, movie: Movie) -> Movie:
        """Filtered frames at the same times, of the same shape; NaN in the result is filled in afterwards."""

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        pass

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self.kind_.batch(context, torch.float64, torch.device("cpu"))
        at = torch.as_tensor(self.scaling_.coords(queries))
        rows = []
        for i in range(len(data)):  # one movie at a time bounds the memory
            frames = TimeSeries.of(data[torch.tensor([i])], self.kind_)
            seen = frames.observed[0].numpy()
            movie = np.where(seen, frames.values[0].numpy(), np.nan)
            filtered = torch.as_tensor(_fill(self._filter(movie), movie))[None]
            network = functools.partial(self._between, filtered)
            rows.append(answer(network, frames, at[i : i + 1], self.kind_))
        return self.scaling_.values(torch.cat(rows).numpy())

    def _between(self, filtered: Tensor, frames: TimeSeries, at: Tensor) -> Tensor:
        """Interpolate filtered frames (1, T, H, W, C) at times (1, M)."""
        return between("linear", frames, filtered, at)


@dataclass(kw_only=True, eq=False, repr=False)
class CopyInput(FrameFilter):
    """The context frame nearest in time, unchanged."""

    name: ClassVar[str] = "copy"
    label: ClassVar[str] = "Copy input"

    def _filter(self, movie: Movie) -> Movie:
        return movie

    def _between(self, filtered: Tensor, frames: TimeSeries, at: Tensor) -> Tensor:
        nearest = (frames.times[:, None] - at[..., None]).abs().argmin(-1)  # (1, M); the earlier one in a tie
        return filtered[torch.zeros_like(nearest), nearest]


@dataclass(kw_only=True, eq=False, repr=False)
class MedianFilter(FrameFilter):
    """Median over windows of 3 frames × 3 rows × 3 columns, cropped at the edges; see `median_filter`."""

    name: ClassVar[str] = "median"
    label: ClassVar[str] = "Median filter"

    def _filter(self, movie: Movie) -> Movie:
        return median_filter(movie)


@dataclass(kw_only=True, eq=False, repr=False)
class SwitchingMedian(FrameFilter):
    """Replace pixels that are far from the median of their neighbourhood by that median, and keep the others."""

    name: ClassVar[str] = "switching-median"
    label: ClassVar[str] = "Switching median"

    threshold: float = setting(
        0.25, "keep a pixel that is at most this far from the median, in units of the values' sd", low=0
    )

    def _filter(self, movie: Movie) -> Movie:
        median = median_filter(movie)
        return np.where(np.abs(movie - median) <= self.threshold, movie, median)


@dataclass(kw_only=True, eq=False, repr=False)
class NonLocalMeans(FrameFilter):
    """Non-local means over space and time (Buades et al. 2005), by scikit-image.

    `pixel_noise` estimates the noise from the training frames. Missing pixels are refused, because they would be
    averaged into every similar patch.
    """

    name: ClassVar[str] = "nlm"
    needs: ClassVar[tuple[str, ...]] = ("skimage",)
    label: ClassVar[str] = "Non-local means"

    strength: float = setting(0.8, "width of the weights, as a multiple of the noise", low=0.01)
    patch_size: int = setting(3, "side of the compared patches, in pixels and frames", low=1)
    distance: int = setting(3, "largest distance of compared patches, in pixels and frames", low=1)

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        _scikit_image()
        data = self.kind_.batch(samples, torch.float64, torch.device("cpu"))
        assert isinstance(self.kind_, Frames)  # frames_only
        self.noise_ = self.kind_.noise(data)
        if not math.isfinite(self.noise_):
            size = self.kind_.layout.frame
            raise CSTError(f"NonLocalMeans needs frames of at least 3 × 3 observed pixels, got {size}")

    def _filter(self, movie: Movie) -> Movie:
        if np.isnan(movie).any():
            raise CSTError("NonLocalMeans cannot use missing pixels; fill them first or use median, which can")
        noise = max(self.noise_, 1e-6)
        sizes = {"patch_size": self.patch_size, "patch_distance": self.distance}
        filtered = _scikit_image().denoise_nl_means(
            movie, h=self.strength * noise, sigma=noise, fast_mode=True, channel_axis=-1, **sizes
        )
        return filtered.reshape(movie.shape)  # scikit-image drops the axis of a single channel

    def _description(self) -> dict[str, Any]:
        return {"noise": self.noise_}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.noise_ = float(about["noise"])


def median_filter(movie: Movie) -> Movie:
    """Median of the observed pixels in each 3 × 3 × 3 neighbourhood (frames, rows, columns); NaN if there are none.

    >>> movie = np.array([1.0, 9.0, np.nan, 2.0]).reshape(1, 1, 4, 1)
    >>> median_filter(movie).ravel().tolist()
    [5.0, 5.0, 5.5, 2.0]
    """
    length, height, width, _ = movie.shape
    padded = np.pad(movie, ((1, 1), (1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    shifts = itertools.product(range(3), repeat=3)
    around = np.stack([padded[a : a + length, b : b + height, c : c + width] for a, b, c in shifts])
    around.sort(axis=0)  # (27, T, H, W, C), NaN last
    count = (~np.isnan(around)).sum(axis=0, keepdims=True)
    middle = [np.take_along_axis(around, k, axis=0)[0] for k in (np.maximum(count - 1, 0) // 2, count // 2)]
    return (middle[0] + middle[1]) / 2


def _fill(filtered: Movie, movie: Movie) -> Movie:
    """Replace NaN by the pixel's mean over the observed frames of ``movie``, or by 0 where there are none."""
    seen = ~np.isnan(movie)
    mean = np.where(seen, movie, 0.0).sum(0) / np.maximum(seen.sum(0), 1)
    return np.where(np.isnan(filtered), mean, filtered)


def _scikit_image() -> Any:
    try:
        from skimage import restoration
    except ImportError:
        raise CSTError('NonLocalMeans needs scikit-image; pip install "cstformer[video]"') from None
    return restoration
