"""Small movies as batches, for tests of frames."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import ArrayLike

from cstformer import Samples, frames_to_samples
from cstformer.data.batch import Batch
from cstformer.data.frame_grid import FrameGrid
from cstformer.data.units import Scaling


@dataclasses.dataclass(frozen=True)
class MovieBatch:
    """A movie as samples and as a located batch in float64; only the coordinates are scaled."""

    samples: Samples
    scaling: Scaling
    grid: FrameGrid
    batch: Batch

    def scaled(self, at: ArrayLike) -> torch.Tensor:
        """Coordinates (m, 3) in frames and pixels as queries (N, m, 3) in the model's units."""
        return torch.tensor(self.scaling.coords(np.asarray(at, dtype=float))).expand(len(self.samples), -1, -1)


def movie_batch(
    movie: np.ndarray, patch: tuple[int, int] = (4, 4), times: ArrayLike | None = None, periodic: bool = False
) -> MovieBatch:
    """Cut a movie (T, H, W[, C]) or movies (N, T, H, W, C) into patches and locate them; values keep their units."""
    samples = frames_to_samples(movie, patch, times=times, periodic=periodic).sorted()
    zero, one = np.zeros(samples.c), np.ones(samples.c)
    scaling = dataclasses.replace(Scaling.of(samples), mean=zero, sd=one)
    grid = FrameGrid.of(samples.layout, scaling)
    batch = grid.locate(scaling.batch(samples, torch.float64, torch.device("cpu")))
    return MovieBatch(samples, scaling, grid, batch)


def ripples(frames: int, height: int, width: int) -> np.ndarray:
    """A movie (T, H, W) of a few waves that continue at the opposite edge."""
    t, r, c = np.meshgrid(np.arange(frames), np.arange(height) / height, np.arange(width) / width, indexing="ij")
    return np.sin(2 * np.pi * r + t) * np.cos(2 * np.pi * (2 * c - r)) + 0.3 * np.cos(2 * np.pi * c)
