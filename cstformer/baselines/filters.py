"""Rivals without training for movies: copy the input, median filters, non-local means.

Each makes a frame at every given time; between them frames are interpolated linearly in time, except that
`CopyInput` takes the nearest. A pixel that was not observed counts for nothing in a median; what has no observed
neighbour, and what copying lacks, is the pixel's mean over the sample's other frames.
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
    """A filter of whole movies in standardised units, NaN where a pixel was not observed."""

    frames_only: ClassVar[bool] = True

    @abstractmethod
    def _filter(self, movie: Movie) -> Movie:
        """Make the frames at the given times; what is NaN here is filled in afterwards."""

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
            made = torch.as_tensor(_fill(self._filter(movie), movie))[None]
            network = functools.partial(self._between, made)
            rows.append(answer(network, frames, at[i : i + 1], self.kind_))
        return self.scaling_.values(torch.cat(rows).numpy())

    def _between(self, made: Tensor, frames: TimeSeries, at: Tensor) -> Tensor:
        return between("linear", frames, made, at)


@dataclass(kw_only=True, eq=False, repr=False)
class CopyInput(FrameFilter):
    """The given frame nearest in time, as it is."""

    name: ClassVar[str] = "copy"
    label: ClassVar[str] = "Copy input"

    def _filter(self, movie: Movie) -> Movie:
        return movie

    def _between(self, made: Tensor, frames: TimeSeries, at: Tensor) -> Tensor:
        nearest = (frames.times[:, None] - at[..., None]).abs().argmin(-1)  # (1, M); of two the earlier
        return made[torch.zeros_like(nearest), nearest]


@dataclass(kw_only=True, eq=False, repr=False)
class MedianFilter(FrameFilter):
    """Median of the 3 × 3 × 3 observed neighbours in frame number, row and column; fewer at the edges."""

    name: ClassVar[str] = "median"
    label: ClassVar[str] = "Median filter"

    def _filter(self, movie: Movie) -> Movie:
        return median_filter(movie)


@dataclass(kw_only=True, eq=False, repr=False)
class SwitchingMedian(FrameFilter):
    """Keeps pixels close to the median of their neighbours and replaces the others by it."""

    name: ClassVar[str] = "switching-median"
    label: ClassVar[str] = "Switching median"

    threshold: float = setting(0.25, "largest distance from the median at which a pixel is kept, in sd", low=0)

    def _filter(self, movie: Movie) -> Movie:
        median = median_filter(movie)
        return np.where(np.abs(movie - median) <= self.threshold, movie, median)


@dataclass(kw_only=True, eq=False, repr=False)
class NonLocalMeans(FrameFilter):
    """Non-local means over space and time (Buades et al. 2005), by scikit-image.

    The noise is estimated on the training frames by `pixel_noise`. Missing pixels are refused: they would be
    averaged into every similar patch.
    """

    name: ClassVar[str] = "nlm"
    label: ClassVar[str] = "Non-local means"

    strength: float = setting(0.8, "width of the weights over the noise", low=0.01)
    patch_size: int = setting(3, "side of the compared patches, in pixels and frames", low=1)
    distance: int = setting(3, "how far away patches are looked for, in pixels and frames", low=1)

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
        made = _scikit_image().denoise_nl_means(
            movie, h=self.strength * noise, sigma=noise, fast_mode=True, channel_axis=-1, **sizes
        )
        return made.reshape(movie.shape)  # scikit-image drops the axis of a single channel

    def _description(self) -> dict[str, Any]:
        return {"noise": self.noise_}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.noise_ = float(about["noise"])


def median_filter(movie: Movie) -> Movie:
    """Median of the observed ones among 27 neighbours; NaN where there is none.

    >>> movie = np.array([1.0, 9.0, np.nan, 2.0]).reshape(1, 1, 4, 1)
    >>> median_filter(movie).ravel().tolist()
    [5.0, 5.0, 5.5, 2.0]
    """
    length, height, width, _ = movie.shape
    padded = np.pad(movie, ((1, 1), (1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    shifts = itertools.product(range(3), repeat=3)
    around = np.stack([padded[a : a + length, b : b + height, c : c + width] for a, b, c in shifts])
    around.sort(axis=0)  # NaN last
    count = (~np.isnan(around)).sum(axis=0, keepdims=True)
    middle = [np.take_along_axis(around, k, axis=0)[0] for k in (np.maximum(count - 1, 0) // 2, count // 2)]
    return (middle[0] + middle[1]) / 2


def _fill(made: Movie, given: Movie) -> Movie:
    """Put the mean of a pixel over the given frames where nothing was made, else 0, the mean of all."""
    seen = ~np.isnan(given)
    mean = np.where(seen, given, 0.0).sum(0) / np.maximum(seen.sum(0), 1)
    return np.where(np.isnan(made), mean, made)


def _scikit_image() -> Any:
    try:
        from skimage import restoration
    except ImportError:
        raise CSTError("NonLocalMeans needs scikit-image; install cstformer[video]") from None
    return restoration
