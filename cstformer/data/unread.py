"""Arrays in files, unread: shape and type are known, and an index reads only what it asks for.

Each array opens its file for every read. No file stays open, and an array can be sent to other processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.system.files import check_bytes, readable

PIECE_BYTES = 2**25
"""Frames that `ReadAhead` reads at once; up to four times as many, if these are one chunk of the file."""


class Unread:
    """What NumPy, Dask and `LazyFrames` need of an array besides reading by an index."""

    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read frames by the first part of the index, then take the rest of it in memory."""
        first, *rest = index if isinstance(index, tuple) else (index,)
        if first is Ellipsis:
            first, rest = slice(None), []
        single = isinstance(first, int | np.integer)
        if single:
            place = range(self.shape[0])[first]
            first = slice(place, place + 1)
        frames = self._frames(first)[(slice(None), *rest)]
        return frames[0] if single else frames

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        """Read some frames with all other axes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Hdf5Array(Unread):
    """A dataset of an HDF5 file."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None

    @classmethod
    def of(cls, dataset: Any) -> Hdf5Array:
        """The same dataset, to be read after its file was closed."""
        return cls(dataset.file.filename, dataset.name, dataset.shape, dataset.dtype, dataset.chunks)

    def __getitem__(self, index: Any) -> np.ndarray:
        import h5py

        with readable(self.path, "HDF5"), h5py.File(self.path, "r") as file:
            return np.asarray(file[self.name][index])


class ZarrArray(Unread):
    """A Zarr array whose errors name the file, e.g. if a chunk is damaged."""

    def __init__(self, path: Path, array: Any):
        self.path, self.array = path, array
        self.shape, self.dtype, self.chunks = array.shape, np.dtype(array.dtype), array.chunks

    def __getitem__(self, index: Any) -> np.ndarray:
        with readable(self.path, "Zarr"):
            return np.asarray(self.array[index])


@dataclass(frozen=True)
class MappedArray(Unread):
    """A file that holds nothing but the numbers of one array, in the order of its axes."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        with readable(self.path, "raw frames"):
            return np.array(np.memmap(self.path, self.dtype, "r", shape=self.shape)[index])


@dataclass(frozen=True)
class TiffArray(Unread):
    """The first series of a TIFF file: read through a memory map if the file allows it, else page by page."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    pages: int
    """Pages of a frame; 0 if frames are no runs of whole pages."""

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        import tifffile

        with readable(self.path, "TIFF"):
            try:
                return np.array(tifffile.memmap(self.path, mode="r").reshape(self.shape)[frames])
            except ValueError:  # compressed, or not contiguous
                pass
            with tifffile.TiffFile(self.path) as file:
                if not self.pages:
                    check_bytes(self.path, file.series[0].nbytes)
                    return file.series[0].asarray().reshape(self.shape)[frames]
                pages = np.arange(self.shape[0] * self.pages).reshape(-1, self.pages)[frames]
                return file.asarray(key=pages.ravel().tolist(), series=0).reshape(-1, *self.shape[1:])


class Reordered(Unread):
    """An array with its axes in another order: axis i is axis ``order[i]`` of ``array``.

    >>> movie = Reordered(np.arange(12).reshape(2, 2, 3), (0, 2, 1))
    >>> movie.shape, movie[1].tolist(), movie[:, 0, 1].tolist()
    ((2, 3, 2), [[6, 9], [7, 10], [8, 11]], [3, 9])
    """

    def __init__(self, array: Any, order: tuple[int, ...]):
        self.array, self.order = array, order
        stored = getattr(array, "chunks", None)
        self.shape = tuple(array.shape[axis] for axis in order)
        self.dtype = np.dtype(array.dtype)
        self.chunks = None if stored is None else tuple(stored[axis] for axis in order)

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        chosen: list[Any] = [slice(None)] * self.ndim
        chosen[self.order[0]] = frames
        return np.asarray(self.array[tuple(chosen)]).transpose(self.order)


class Joined(Unread):
    """Arrays one after the other along the first axis.

    >>> movie = Joined([np.zeros((2, 1, 1)), np.ones((3, 1, 1))])
    >>> movie.shape, movie[1:4].ravel().tolist()
    ((5, 1, 1), [0.0, 1.0, 1.0])
    """

    def __init__(self, parts: Sequence[Any]):
        self.parts = list(parts)
        self.ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (int(self.ends[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*{np.dtype(part.dtype) for part in parts})

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        chosen = np.arange(self.shape[0])[frames]
        owner = np.searchsorted(self.ends, chosen, side="right")
        out = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        for k in np.unique(owner):
            local = chosen[owner == k] - (self.ends[k] - self.parts[k].shape[0])
            run = (np.diff(local) == 1).all()  # files read a slice faster than a list of frames
            out[owner == k] = self.parts[k][slice(int(local[0]), int(local[-1]) + 1) if run else local]
        return out


class LowRankFrames(Unread):
    """Frames of spatial and temporal components: frame t of colour c is ``base + U @ SVT[:, t, c]``.

    ``U`` is (H, W, K), ``SVT`` is (K, T, C), ``base`` a number or a frame. The frames are (T, H, W), with C behind it
    if there are several colours.

    >>> U, SVT = np.array([[[1.0], [2.0]]]), np.array([[[3.0], [5.0]]])
    >>> LowRankFrames(U, SVT)[:].tolist()
    [[[3.0, 6.0]], [[5.0, 10.0]]]
    """

    def __init__(self, U: np.ndarray, SVT: np.ndarray, base: float | np.ndarray = 0.0):
        self.U, self.SVT, self.base = U, SVT, base
        colours = SVT.shape[2:] if SVT.shape[2] > 1 else ()
        self.shape = (SVT.shape[1], *U.shape[:2], *colours)
        self.dtype = np.result_type(U.dtype, SVT.dtype, np.float32)

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        flat = self.U.reshape(-1, self.U.shape[2])  # (H W, K)
        out = np.tensordot(self.SVT[:, frames], flat, axes=(0, 1))  # (n, C, H W)
        return (out.swapaxes(1, 2).reshape(-1, *self.shape[1:]) + self.base).astype(self.dtype, copy=False)


class ReadAhead:
    """Runs of frames of an unread movie, read in pieces, so that overlapping windows do not read a chunk each.

    >>> movie = ReadAhead(np.arange(6).reshape(6, 1, 1), stop=5)
    >>> movie(0, 2).ravel().tolist(), movie(1, 4).ravel().tolist()
    ([0, 1], [1, 2, 3])
    """

    def __init__(self, movie: Any, stop: int):
        self.movie, self.stop, self.first, self.frames = movie, stop, 0, np.empty((0,))
        frame = math.prod(movie.shape[1:]) * np.dtype(movie.dtype).itemsize
        stored = getattr(movie, "chunks", None) or (1,)
        check_frames("the movie", movie)
        most = max(1, PIECE_BYTES // frame)
        self.ahead = max(1, most // stored[0]) * stored[0] if stored[0] <= 4 * most else most

    def __call__(self, first: int, last: int) -> np.ndarray:
        """Frames first to last − 1."""
        if first < self.first or last > self.first + len(self.frames):
            self.frames = np.empty((0,))  # before the next piece takes memory
            # A piece ends where a chunk does, except if it must reach farther.
            end = (first + self.ahead) // self.ahead * self.ahead
            self.frames, self.first = np.asarray(self.movie[first : max(last, min(end, self.stop))]), first
        return self.frames[first - self.first : last - self.first]


def check_frames(name: Any, movie: Any) -> None:
    """Refuse a movie of which a frame, or a stored chunk, which is unpacked as a whole, does not fit into memory."""
    pieces = (movie.shape[1:], getattr(movie, "chunks", None) or ())
    check_bytes(name, max(map(math.prod, pieces)) * np.dtype(movie.dtype).itemsize)


def whole(array: Any) -> np.ndarray:
    """Read all of a small array, such as a clock."""
    check_bytes("an array that is no movie", math.prod(array.shape) * np.dtype(array.dtype).itemsize)
    return np.asarray(array[...])
