"""Movies larger than memory: windows of frames that are read from disk when a training step asks for them.

Frames are read in blocks of neighbouring windows, and a few blocks stay in memory. An epoch takes a few random blocks
at a time and shuffles their windows: every window comes once, and a block is read about once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cstformer.data.arrays import check_size
from cstformer.data.layout import PatchLayout
from cstformer.data.movie_files import one_colour, open_movie
from cstformer.data.movie_formats import file_kind
from cstformer.data.patches import frame_queries, frames_to_samples, window_starts
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.system.files import check_bytes, readable

LAZY_FROM = 2**28  # bytes; `cst fit` reads larger movies lazily
IN_MEMORY = (".npz",)  # formats that are read whole
BLOCK_BYTES = 2**25  # size of a block of frames, unless one chunk of the file is larger
POOL = 4  # blocks whose windows are shuffled together
SUBSET_VALUES = 2**23  # values in the random windows that scaling, noise and prior are estimated from


class LazyFrames:
    """Windows of a movie in a file, as `frames_to_samples` would make them, read when they are indexed.

    Parameters
    ----------
    path : any file that `load_movie` reads, except `.npz`
    patch : as in `frames_to_samples`
    window : as in `frames_to_samples`
    stride : as in `frames_to_samples`
    key, channel, times, rate : as in `load_movie`

    Examples
    --------
    >>> import tempfile, zarr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zarr.save_array(f"{folder}/movie.zarr", np.arange(96.0).reshape(6, 4, 4))
    ...     lazy = LazyFrames(f"{folder}/movie.zarr", patch=(2, 2), window=3, stride=1)
    ...     print(lazy, lazy[[3]].values[0, 0].tolist())
    LazyFrames(4 windows of 3 frames of 4 × 4 pixels) [48.0, 49.0, 52.0, 53.0]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        patch: tuple[int, int] = (8, 8),
        window: int = 10,
        stride: int = 5,
        key: str | None = None,
        channel: int | None = None,
        times: ArrayLike | None = None,
        rate: float | None = None,
    ):
        self.path, self.window, self.stride = Path(path).absolute(), window, stride
        self.key, self.channel = key, channel
        with readable(path, "a movie"):
            self._frames, self.times = _open(self.path, key, channel, times, rate)
        shape = self._frames.shape
        channels = shape[3] if len(shape) == 4 else 1
        self.layout = PatchLayout((shape[1], shape[2]), patch, channels)
        self.starts = window_starts(shape[0], window, stride)
        # A window as samples; and what the library unpacks to read any part of a stored chunk.
        with readable(path, "a movie"):
            check_size(1, window * math.prod(self.layout.grid), 3, self.layout.c)
        stored = getattr(self._frames, "chunks", None) or (1,)
        check_bytes(path, math.prod(stored) * np.dtype(self._frames.dtype).itemsize)
        # A block is made of the windows that start in a run of whole chunks of the file.
        most, chunk = max(window, BLOCK_BYTES // (4 * shape[1] * shape[2] * channels)), _chunk(self._frames)
        length = max(1, most // chunk) * chunk if chunk <= 4 * most else most
        self.block = self.starts // length
        self._blocks: OrderedDict[int, np.ndarray] = OrderedDict()
        like = frames_to_samples(np.zeros((1, window, shape[1], shape[2], channels)), patch)
        self.n, self.d, self.c = like.n, like.d, like.c
        self.coord_names, self.value_names = like.coord_names, like.value_names
        self.units = {k: v for k, v in like.units.items() if k != "t" or self.times is None}
        self.clock = np.arange(shape[0], dtype=np.float64) if self.times is None else self.times

    @property
    def frames(self) -> Any:
        """The whole movie (T, H, W[, C]), unread."""
        return self._frames

    def __len__(self) -> int:
        return len(self.starts)

    def __repr__(self) -> str:
        height, width = self.layout.frame
        return f"LazyFrames({len(self)} windows of {self.window} frames of {height} × {width} pixels)"

    def __getitem__(self, index: Any) -> Samples:
        """Read windows; a window without an observed pixel is replaced by the next one that has some."""
        chosen = np.arange(len(self))[np.asarray(index)].reshape(-1)
        scattered = len(np.unique(self.block[chosen])) > 2 * POOL  # more blocks than are kept: read single windows
        frames = []
        for k, i in enumerate(chosen):
            after = ((i + s) % len(self) for s in range(len(self)))
            read = ((j, self._read(j, 1) if scattered else self._window(j)) for j in after)
            found = next(((j, x) for j, x in read if not np.isnan(x).all()), None)
            if found is None:
                raise CSTError(f"{self.path} has no observed pixel; check its NaN")
            chosen[k] = found[0]
            frames.append(found[1])
        first = self.starts[chosen]
        samples = frames_to_samples(np.stack(frames), self.layout.patch)
        relative = self.clock[first[:, None] + np.arange(self.window)] - self.clock[first, None]
        coords = np.stack([frame_queries(self.layout, t) for t in relative])
        origin = np.zeros((len(chosen), 3))
        origin[:, 0] = self.clock[first]
        ids = [f"0@{t:.12g}" for t in self.clock[first]] if len(set(chosen)) == len(chosen) else None
        return samples.replace(coords=coords, origin=origin, sample_ids=ids, units=self.units)

    def subset(self, seed: int) -> np.ndarray:
        """Indices of random windows that fit in memory together, in order; of all windows, if they do."""
        return np.sort(np.random.default_rng(seed).permutation(len(self))[: self.few])

    @property
    def few(self) -> int:
        """How many windows fit in memory together."""
        return max(8, SUBSET_VALUES // (self.n * self.c))

    def epoch(self, windows: Tensor, generator: torch.Generator) -> Tensor:
        """Random order of ``windows``, a few blocks at a time, as positions in ``windows``."""
        shuffled = torch.randperm(len(windows), generator=generator)
        numbers, block = torch.as_tensor(self.block)[windows].unique(return_inverse=True)
        pool = torch.randperm(len(numbers), generator=generator)[block] // POOL
        return shuffled[pool[shuffled].argsort(stable=True)]

    def describe(self) -> dict[str, Any]:
        """Arguments that open it again, for JSON."""
        return {
            "path": str(self.path),
            "patch": list(self.layout.patch),
            "window": self.window,
            "stride": self.stride,
            "key": self.key,
            "channel": self.channel,
            "times": None if self.times is None else self.times.tolist(),
        }

    def fingerprint(self, seed: int) -> str:
        """Hash of the shape, the layout, the times and the values of a few windows."""
        digest = hashlib.sha256(json.dumps([list(self._frames.shape), self.layout.to_dict()]).encode())
        digest.update(np.ascontiguousarray(self.starts).tobytes() + np.ascontiguousarray(self.clock).tobytes())
        for i in self.subset(seed)[:8]:
            digest.update(np.ascontiguousarray(self._read(i, 1)).tobytes())
        return digest.hexdigest()

    def _window(self, i: int) -> np.ndarray:
        """Frames (window, H, W, C) of window i."""
        first, last = np.searchsorted(self.block, [self.block[i], self.block[i] + 1])
        if first not in self._blocks:
            while len(self._blocks) >= 2 * POOL:
                self._blocks.popitem(last=False)
            self._blocks[first] = self._read(first, last - first)
        self._blocks.move_to_end(first)
        begin = self.starts[i] - self.starts[first]
        return self._blocks[first][begin : begin + self.window]

    def _read(self, i: int, count: int) -> np.ndarray:
        """Frames of ``count`` windows, starting with window i, from disk."""
        first, last = int(self.starts[i]), int(self.starts[i + count - 1]) + self.window
        with readable(self.path, "a movie"):
            frames = np.asarray(self._frames[first:last])
        # Integers of up to 16 bits fit into float32 exactly; other numbers keep their digits.
        small = frames.dtype.kind != "f" and frames.dtype.itemsize <= 2
        frames = frames.astype(np.float32 if small or frames.dtype == np.float32 else np.float64, copy=False)
        return frames if frames.ndim == 4 else frames[..., None]


def lazy_movie(
    path: str | os.PathLike[str], patch: tuple[int, int], window: int, stride: int, **options: Any
) -> LazyFrames | None:
    """The movie as `LazyFrames` if it has at least `LAZY_FROM` bytes and its format can be read in pieces; else None.

    ``options`` are ``key``, ``channel``, ``times`` and ``rate`` of `LazyFrames`.
    """
    if file_kind(path) in IN_MEMORY:
        return None
    with readable(path, "a movie"):
        frames, _ = _open(Path(path), **options)
    if frames.nbytes < LAZY_FROM:
        return None
    return LazyFrames(path, patch, min(window, frames.shape[0]), stride, **options)


def _open(
    path: Path,
    key: str | None = None,
    channel: int | None = None,
    times: ArrayLike | None = None,
    rate: float | None = None,
) -> tuple[Any, np.ndarray | None]:
    """The array of frames, unread, and the times."""
    if file_kind(path) in IN_MEMORY:
        raise CSTError(f"a {path.suffix} file cannot be read in pieces; convert it to .zarr, or use load_movie")
    movie, clock = open_movie(path, key)
    if movie.ndim not in (3, 4) or 0 in movie.shape:
        raise CSTError(f"has shape {movie.shape}; a movie is (T, H, W[, C])")
    movie, clock = one_colour(movie, clock, channel, times, rate)
    if clock is not None and (not np.isfinite(clock).all() or (np.diff(clock) <= 0).any()):
        raise CSTError("its times must be finite and increasing")
    return movie, clock


def _chunk(frames: Any) -> int:
    """Frames in a stored piece of the file."""
    return int((getattr(frames, "chunks", None) or (1,))[0])
