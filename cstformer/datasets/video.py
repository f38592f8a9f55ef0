"""Video files as recordings, and recordings as clips: 128 × 160 pixels, three colours, values in [0, 1].

Frames are prepared as PredNet (Lotter et al., 2016) prepared KITTI: resized to a height of 128, keeping the aspect
ratio, and cropped to the centre 160 columns. A clip never crosses from one recording into another, and training and
test sets never share a recording. Frames are read when they are needed: an hour of video does not fill memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from cstformer.data.patches import window_starts
from cstformer.datasets.video_files import Frames, find_recordings
from cstformer.errors import CSTError

SIZE = (128, 160)
"""Height and width of the frames of the paper's video experiment."""
LENGTH = 10
"""Frames per clip."""


def fit_frame(frame: UInt8[np.ndarray, "h w 3"], size: tuple[int, int] = SIZE) -> UInt8[np.ndarray, "H W 3"]:
    """Resize a frame (bilinear, antialiased) to the height of `size` and keep its centre columns.

    >>> fit_frame(np.zeros((375, 1242, 3), np.uint8)).shape
    (128, 160, 3)
    """
    height, width = size
    wide = round(frame.shape[1] * height / frame.shape[0])
    if wide < width:
        raise CSTError(
            f"a frame of {frame.shape[0]} × {frame.shape[1]} pixels is {wide} columns wide at height {height}, "
            f"fewer than {width}; choose another size"
        )
    if (height, wide) != frame.shape[:2]:
        from PIL import Image

        frame = np.asarray(Image.fromarray(frame).resize((wide, height), Image.Resampling.BILINEAR))
    first = (wide - width) // 2
    return frame[:, first : first + width]


@dataclass(frozen=True)
class Recording:
    """Consecutive frames of one camera."""

    name: str
    length: int
    """Number of frames."""
    read: Callable[[int, int], Frames]
    """Reads the frames from start to stop: uint8, of any size."""
    size: tuple[int, int] = SIZE
    """Height and width that `frames` resizes to."""

    def __repr__(self) -> str:
        return f"Recording({self.name!r}, {self.length} frames)"

    def frames(self, start: int, stop: int) -> Float[np.ndarray, "n H W 3"]:
        """Frames start to stop, float32 in [0, 1]."""
        if not 0 <= start < stop <= self.length:
            raise CSTError(f"frames {start} to {stop} of {self.name} do not exist; it has {self.length}")
        out = np.empty((stop - start, *self.size, 3), np.float32)
        for place, frame in zip(out, self.read(start, stop), strict=True):
            place[:] = fit_frame(frame, self.size)
        out /= 255
        return out


def open_videos(
    *paths: str | os.PathLike[str], size: tuple[int, int] = SIZE, only: str | None = None
) -> list[Recording]:
    """Recordings of video files and folders; no frame is read yet.

    Parameters
    ----------
    paths : any of

        - PredNet's ``X_NAME.hkl`` with ``sources_NAME.hkl`` beside it: one recording per source;
        - a folder with PNG or JPEG frames, in itself or in subfolders: one recording per folder;
        - mp4, avi, mov, mkv: one recording;
        - ``.npz`` with uint8 arrays (T, H, W, 3) or (T, H, W): one recording per array. Save long ones by
          ``np.savez``: in a compressed file every read starts at the first frame.
    size : height and width to resize frames to
    only : pattern of names to keep, e.g. ``"*image_03*"`` for one of KITTI's cameras. Two cameras of one drive are two
        recordings, and a split could put them on different sides.
    """
    found = [(name, count, read) for path in paths for name, count, read in find_recordings(Path(path))]
    chosen = [Recording(*each, size) for each in found if only is None or fnmatch(each[0], only)]
    names = [recording.name for recording in chosen]
    if not names:
        raise CSTError(f"no recording in {', '.join(map(str, paths)) or 'no path'} is called like {only!r}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CSTError(f"two recordings are called {twice[0]!r}; rename one, so that a split can tell them apart")
    return chosen


@dataclass(frozen=True)
class Clips:
    """Clips of `length` frames, `stride` apart, each within one recording; recordings that are too short have none.

    >>> one = Recording("a", 25, lambda start, stop: iter(np.full((stop - start, 2, 4, 3), 255, np.uint8)), (2, 2))
    >>> clips = Clips([one], length=10)
    >>> len(clips), clips.names, clips[1].shape, clips[1].max()
    (2, ['a@0', 'a@10'], (10, 2, 2, 3), np.float32(1.0))
    """

    recordings: Sequence[Recording]
    length: int = LENGTH
    stride: int | None = None
    """Frames from one clip to the next; `length` by default."""

    @cached_property
    def starts(self) -> list[tuple[Recording, int]]:
        """Recording and first frame of each clip."""
        stride = self.length if self.stride is None else self.stride
        long = [r for r in self.recordings if r.length >= self.length]
        if not long:
            raise CSTError(
                f"none of {len(self.recordings)} recordings has {self.length} frames; choose a shorter length"
            )
        return [(r, int(start)) for r in long for start in window_starts(r.length, self.length, stride)]

    @property
    def names(self) -> list[str]:
        """Name of each clip: recording@first frame."""
        return [f"{recording.name}@{start}" for recording, start in self.starts]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> Float[np.ndarray, "T H W 3"]:
        recording, start = self.starts[i]
        return recording.frames(start, start + self.length)


def split_recordings(
    recordings: Sequence[Recording], fraction: float = 0.7, seed: int | None = 0
) -> tuple[list[Recording], list[Recording]]:
    """Split whole recordings into two sets, the first with about `fraction` of all frames.

    Recordings are drawn at random; with ``seed=None`` the first set gets the longest ones.
    """
    if len(recordings) < 2 or not 0 < fraction < 1:
        raise CSTError(
            f"fraction={fraction} of {len(recordings)} recordings is no split; give two or more and 0 < fraction < 1"
        )
    if seed is None:
        order = sorted(recordings, key=lambda r: -r.length)
    else:
        order = [recordings[i] for i in np.random.default_rng(seed).permutation(len(recordings))]
    share = np.cumsum([r.length for r in order]) / sum(r.length for r in order)
    first = int(np.abs(share[:-1] - fraction).argmin()) + 1
    return order[:first], order[first:]
