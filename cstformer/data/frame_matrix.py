"""A movie as a matrix with one row for each frame, read in blocks of frames, so that it need not fit in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from cstformer.data.lazy import LazyFrames
from cstformer.data.movie_files import load_movie
from cstformer.errors import CSTError

BLOCK_BYTES = 2**25  # size of a block of frames


def open_frames(frames: Any) -> tuple[Any, np.ndarray | None]:
    """Frames as an array (T, H, W[, C]) that can be sliced, and their times, if known.

    Parameters
    ----------
    frames : array of NumPy, Dask or Zarr; `LazyFrames`; or the path of a movie, of which a Zarr stays on disk
    """
    times = None
    if isinstance(frames, str | os.PathLike):
        if Path(frames).suffix == ".zarr":
            frames = LazyFrames(frames, window=1, stride=1)
        else:
            frames, times = load_movie(frames)
    if isinstance(frames, LazyFrames):
        frames, times = frames.frames, frames.times
    if not hasattr(frames, "shape") or not hasattr(frames, "dtype"):
        frames = np.asarray(frames)
    if len(frames.shape) not in (3, 4) or 0 in frames.shape:
        raise CSTError(f"frames must be (T, H, W) or (T, H, W, C), got shape {tuple(frames.shape)}")
    if np.dtype(frames.dtype).kind not in "fiub":
        raise CSTError(f"frames must be real numbers, got dtype {frames.dtype}; convert them to float")
    return frames, times


@dataclass(frozen=True)
class FrameMatrix:
    """Frames (T, H, W[, C]) as a matrix (rows, columns) without its mean; missing values are 0, the mean.

    Examples
    --------
    >>> frames = np.array([[[1.0, 5.0, np.nan]], [[3.0, 5.0, np.nan]]])
    >>> matrix = FrameMatrix.of(frames)
    >>> matrix.shape, matrix.mean.tolist(), next(matrix.blocks())[1].tolist()
    ((2, 2), [2.0, 5.0], [[-1.0, 0.0], [1.0, 0.0]])
    """

    source: Any
    """Array (T, H, W[, C]) that is sliced along its first axis."""
    rows: Int[np.ndarray, " rows"]
    """Numbers of the frames."""
    columns: Int[np.ndarray, " columns"]
    """Places of the values in a flattened frame."""
    mean: Float[np.ndarray, " columns"]
    """Mean of each column over the frames in which it was observed."""

    @classmethod
    def of(cls, source: Any, mask: ArrayLike | None = None) -> Self:
        """The matrix of a movie.

        A pixel is left out where ``mask`` (H, W) is False, and where it is missing (NaN) in more than half of the
        frames. A frame without any value is left out too.
        """
        count, height, width, *_ = source.shape
        size = int(np.prod(source.shape[1:]))
        every = cls(source, np.arange(count), np.arange(size), np.zeros(size))
        total, seen, exists = np.zeros(size), np.zeros(size), np.zeros(count, dtype=bool)
        inside = np.ones(size, dtype=bool) if mask is None else _flat_mask(mask, source.shape)
        for rows, x in every.raw_blocks():
            here = np.isfinite(x) & inside
            total += np.where(here, x, 0).sum(0, dtype=np.float64)
            seen += here.sum(0)
            exists[rows] = here.any(1)
        if not exists.any():
            raise CSTError("frames has no observed pixel; check its NaN and the mask")
        # All channels of a pixel are kept, or none.
        kept = ((seen >= exists.sum() / 2) & inside).reshape(height * width, -1)
        columns = np.flatnonzero(np.repeat(kept.all(1), kept.shape[1]))
        if len(columns) == 0:
            raise CSTError("frames has no pixel that was observed in half of the frames; check its NaN and the mask")
        return cls(source, np.flatnonzero(exists), columns, total[columns] / seen[columns])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return len(self.rows), len(self.columns)

    def part(self, rows: Bool[np.ndarray, " rows"], columns: Bool[np.ndarray, " columns"]) -> Self:
        """The rows and columns where a mask is True."""
        return replace(self, rows=self.rows[rows], columns=self.columns[columns], mean=self.mean[columns])

    def raw_blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "t columns"]]]:
        """Blocks of rows as they were recorded, NaN where missing: their places among the rows, and their values."""
        step = max(1, BLOCK_BYTES // (8 * int(np.prod(self.source.shape[1:]))))
        whole = len(self.columns) == np.prod(self.source.shape[1:])
        for first in range(0, self.source.shape[0], step):
            begin, end = np.searchsorted(self.rows, (first, first + step))
            if begin == end:
                continue
            x = np.asarray(self.source[first : first + step])
            x = x.reshape(len(x), -1)[self.rows[begin:end] - first]
            yield slice(begin, end), _as_floats(x if whole else x[:, self.columns])

    def blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "t columns"]]]:
        """Blocks of rows: their places among the rows, and their values minus the mean."""
        for rows, x in self.raw_blocks():
            yield rows, np.nan_to_num(x - self.mean.astype(x.dtype), copy=False, posinf=0, neginf=0)


def _as_floats(x: np.ndarray) -> np.ndarray:
    """Numbers of up to 16 bits fit into float32 exactly; others keep their digits."""
    small = x.dtype == np.float32 or x.dtype.itemsize <= 2
    return x.astype(np.float32 if small else np.float64, copy=False)


def _flat_mask(mask: ArrayLike, shape: tuple[int, ...]) -> Bool[np.ndarray, " size"]:
    inside = np.asarray(mask)
    if inside.shape != tuple(shape[1:3]) or inside.dtype != bool:
        raise CSTError(f"mask must be bool of shape {tuple(shape[1:3])}, got {inside.dtype} of shape {inside.shape}")
    return np.repeat(inside.reshape(-1), int(np.prod(shape[3:])))
