"""Data of the video experiment: training crops, test clips, their corruption, and whole clips from models of crops.

All data come from one file of frames in the run directory, which `make_data` writes before the first cell.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor

from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, stitch, window_starts
from cstformer.data.samples import Samples
from cstformer.datasets.corruption import corrupt_frames, draw_masks
from cstformer.datasets.moving_scene import MovingScene
from cstformer.datasets.video import LENGTH, Recording, open_videos, split_recordings
from cstformer.starts.film import Film
from cstformer.starts.trust import Trust, fit_trust
from cstformer.system.atomic import atomic_path
from cstformer.system.files import read_npz

KITTI = Path("kitti", "kitti_10hz_rgb_128x160.npz")
NOISE = 0.5
CROPS_PER_PASS = 64
DRIFT = 1.5  # pixels a frame: standard deviation of the camera drift that is added to training crops
Movies = Float[np.ndarray, "N T H W 3"]


@dataclass(frozen=True)
class Videos:
    """Frames of a run and how they are cut."""

    path: Path
    """The file of `make_data`."""
    crop: tuple[int, int]
    """Height and width of the crops that a model sees."""
    frames: int
    """Frames of a crop."""
    patch: tuple[int, int]
    crops: int
    """Number of training crops."""
    test: int
    """Largest number of test clips."""
    seed: int
    swapped: bool = False
    """Whether the test recordings train and the training recordings test."""


@dataclass(frozen=True)
class Corruption:
    """Gaussian noise on 40 to 60 % of the blocks of each frame; a crop gets its part of the mask of a whole frame.

    >>> y = Corruption(16, (128, 160))(torch.zeros(1, 2, 32, 32, 3), torch.Generator().manual_seed(0))
    >>> whole = (y[0, 0, ..., 0] != 0).reshape(2, 16, 2, 16).float().mean((1, 3))  # share of each block
    >>> bool(((whole == 0) | (whole == 1)).all())
    True
    """

    block: int
    size: tuple[int, int]
    """Height and width of whole frames."""

    def __call__(self, frames: Float[Tensor, "B T h w C"], generator: Generator) -> Float[Tensor, "B T h w C"]:
        """Corrupt frames."""
        count, length, *crop = frames.shape[:4]
        whole = (crop[0], crop[1]) if self.block == 1 else self.size  # a crop has enough single pixels of its own
        masks = draw_masks(count, (length, *whole), generator, block=self.block)
        row, col = (
            self.block * int(torch.randint((side - part) // self.block + 1, (), generator=generator))
            for side, part in zip(whole, crop, strict=True)
        )
        masks = masks[:, :, row : row + crop[0], col : col + crop[1], None].to(frames.device)
        noise = torch.randn(frames.shape, generator=generator).to(frames)
        return frames + NOISE * noise * masks


def find_recordings(size: tuple[int, int], scenes: int, length: int, real: bool) -> list[Recording]:
    """The drives in the folder that ``CST_DATA`` names, or synthetic scenes if they are not there."""
    path = Path(os.environ.get("CST_DATA", ""), KITTI)
    if real and path.is_file():
        return open_videos(path, size=size)
    return [MovingScene(seed=number, size=size).recording(length) for number in range(scenes)]


def make_data(videos: Videos, find: Callable[[], list[Recording]]) -> None:
    """Write the frames of the training and test recordings, unless the file exists."""
    if videos.path.exists():
        return
    parts = zip(("train", "test"), split_recordings(find(), 0.6, seed=None), strict=True)
    arrays = {f"{part} {r.name}": np.rint(255 * r.frames(0, r.length)) for part, some in parts for r in some}
    with atomic_path(videos.path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **{name: x.astype(np.uint8) for name, x in arrays.items()})


@lru_cache(maxsize=2)
def recordings(videos: Videos) -> dict[str, dict[str, UInt8[np.ndarray, "T H W 3"]]]:
    """Frames by part (train, test) and name."""
    found: dict[str, dict[str, np.ndarray]] = {"train": {}, "test": {}}
    other = {"train": "test", "test": "train"}
    for key, frames in read_npz(videos.path).items():
        part, name = key.split(" ", 1)
        found[other[part] if videos.swapped else part][name] = frames
    return found


def frame_size(videos: Videos) -> tuple[int, int]:
    """Height and width of whole frames."""
    height, width = next(iter(recordings(videos)["train"].values())).shape[1:3]
    return height, width


def training_crops(videos: Videos) -> Movies:
    """Crops at random positions of the training recordings, augmented.

    A training recording has the motion of one drive, and test recordings have others. So crops run forwards or
    backwards, at up to three times the speed or not at all, mirrored or not, in permuted colours with another gamma,
    and half of them with a camera that drifts by a few pixels a frame.
    """
    random, found = np.random.default_rng([videos.seed, 1]), list(recordings(videos)["train"].values())
    share = np.array([max(0, len(x) - videos.frames + 1) for x in found], dtype=float)
    crops = np.empty((videos.crops, videos.frames, *videos.crop, 3), np.float32)
    for crop in crops:
        x = found[random.choice(len(found), p=share / share.sum())]
        pace = int(random.integers(1 + min(3, (len(x) - 1) // (videos.frames - 1))))
        drift = DRIFT * random.integers(2)
        first = random.integers(len(x) - pace * (videos.frames - 1))
        ways = [_drift(random, drift, n, k, videos.frames) for n, k in zip(x.shape[1:3], videos.crop, strict=True)]
        for i, (r, c) in enumerate(zip(*ways, strict=True)):
            crop[i] = x[first + pace * i, r : r + videos.crop[0], c : c + videos.crop[1]] / np.float32(255)
        y = crop[:: random.choice([-1, 1]), :, :: random.choice([-1, 1])]
        crop[:] = y[..., random.permutation(3)] ** np.exp(random.normal(0, 0.3))
    return crops


def _drift(random: np.random.Generator, drift: float, size: int, part: int, frames: int) -> Int[np.ndarray, " frames"]:
    """First pixel, in each frame, of a window of ``part`` pixels that moves steadily through ``size`` pixels."""
    way = np.rint(random.normal(0, drift) * np.arange(frames)).astype(int)
    way = way.clip(part - size, size - part)
    return way - way.min() + random.integers(size - part - np.ptp(way) + 1)


def clips_to_test(videos: Videos) -> Movies:
    """Whole clips of the test recordings, spread evenly over them."""
    found = recordings(videos)["test"].values()
    clips = [x[first : first + LENGTH] for x in found for first in window_starts(len(x), LENGTH, LENGTH)]
    chosen = np.linspace(0, len(clips) - 1, min(videos.test, len(clips))).round().astype(int)
    return np.stack([clips[i] for i in chosen]) / np.float32(255)


def corrupted(clips: Movies, videos: Videos, block: int, motion: str) -> Movies:
    """The test clips, corrupted."""
    return corrupt_frames(clips, videos.seed + 1, noise=NOISE, block=block, motion=motion)[0]


def first_guess(crops: Movies, corruption: Corruption, seed: int) -> Trust:
    """The start of CST as an input for rivals, fitted to a few training crops."""
    clean = torch.from_numpy(crops[:32])
    return fit_trust(clean, corruption(clean, torch.Generator().manual_seed(seed)))


def moved_frames(frames: Movies, times: Float[np.ndarray, " T"], at: Float[np.ndarray, " M"]) -> Movies:
    """Whole frames at the times ``at``: the start of CST between frames, alone."""
    movies = torch.from_numpy(np.asarray(frames, np.float32))
    moments, clock = (torch.as_tensor(x, dtype=movies.dtype).expand(len(movies), -1) for x in (at, times))
    found = [
        Film(clock[i : i + 1], torch.ones(1, len(times), dtype=torch.bool), movies[i : i + 1])(moments[i : i + 1])
        for i in range(len(movies))
    ]
    return torch.cat([x.value[..., :3] for x in found]).numpy()


def as_samples(movies: Movies, videos: Videos, every: int = 1) -> Samples:
    """Patch tokens of crops, of all frames or of every ``every``-th one."""
    return frames_to_samples(movies[:, ::every], videos.patch, times=np.arange(0, movies.shape[1], every))


def ask_clips(
    model: Any, given: Movies, videos: Videos, times: Float[np.ndarray, " M"], stride: tuple[int, int], every: int = 1
) -> Movies:
    """Predict whole clips with a model of crops. Crops overlap and are blended with weights that fall to their edges.

    Parameters
    ----------
    model : anything with ``predict(samples, at)``
    given : whole clips
    times : (M,), in frames of the clip
    stride : frames and pixels from one crop to the next
    every : the model is given every ``every``-th frame of a crop
    """
    count, length, height, width = given.shape[:4]
    (h, w), span, layout = videos.crop, videos.frames, PatchLayout(videos.crop, videos.patch, 3)
    total = np.zeros((count, len(times), height, width, 3))
    weight = np.zeros((len(times), height, width, 1))
    hat = [np.minimum(np.arange(n) + 0.5, n - np.arange(n) - 0.5) for n in (h, w)]
    sizes = ((length, span, stride[0]), (height, h, stride[1]), (width, w, stride[1]))
    starts = [window_starts(*each, cover=True) for each in sizes]
    for t in starts[0]:
        here = np.flatnonzero((times >= t) & (times <= t + span - 1))
        middle = 1 + np.minimum(times[here] - t, t + span - 1 - times[here])  # weight of a time
        shape = middle[:, None, None, None] * np.outer(*hat)[..., None]
        at = frame_queries(layout, times[here] - t)
        places = [(r, c) for r in starts[1] for c in starts[2]]
        crops = np.concatenate([given[:, t : t + span, r : r + h, c : c + w] for r, c in places])
        parts = []
        for first in range(0, len(crops), CROPS_PER_PASS):
            some = as_samples(crops[first : first + CROPS_PER_PASS], videos, every)
            parts.append(stitch(model.predict(some, at), layout))
        answers = np.concatenate(parts).reshape(len(places), count, len(here), h, w, 3)
        for (r, c), y in zip(places, answers, strict=True):
            total[:, here, r : r + h, c : c + w] += shape * y
            weight[here, r : r + h, c : c + w] += shape
    return total / weight
