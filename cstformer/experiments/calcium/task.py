"""Data of the calcium experiment: simulated animals beside the run, cleaned as a recording would be, and segments.

An animal is a simulated two-channel recording that went through the whole chain of `datasets.calcium.preprocess`.
Its first 70 % may train a model; everything is measured on the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.preprocess import Preprocessing, crop, preprocess
from cstformer.datasets.calcium.reading import require
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.errors import CSTError
from cstformer.system.files import readable
from cstformer.system.zarr_files import open_zarr

TRAINING_SHARE = 0.7


@dataclass(frozen=True)
class Animals:
    """The simulated recordings of a run: how they are made, and how they are cut."""

    folder: Path
    count: int
    training: int
    """The first so many train the models; all are tested."""
    minutes: float
    camera: int
    """Rows and columns of the camera."""
    electrons: float
    """Light of a bright pixel in a frame."""
    spontaneous: float
    """Times the simulator's usual height of spontaneous waves."""
    cleaning: Preprocessing
    patch: tuple[int, int]
    window: int
    """Frames of a segment."""
    stride: int
    """Frames from one training segment to the next."""
    seed: int

    def simulation(self, animal: int) -> CalciumSimulation:
        """The truth about an animal."""
        names = ("minutes", "electrons", "spontaneous")
        settings = {name: getattr(self, name) for name in names}
        return CalciumSimulation(size=self.camera, seed=1000 * self.seed + animal, **settings)

    def path(self, animal: int) -> Path:
        """Where its cleaned recording is."""
        return self.folder / f"animal{animal}.zarr"


@dataclass(frozen=True)
class Animal:
    """One cleaned recording."""

    frames: Float[np.ndarray, "T H W"]
    """z-scored activity, NaN outside the cortex."""
    clock: Float[np.ndarray, " T"]
    label: Float[np.ndarray, " T"]
    """2 √contrast − 1 at each frame, −1 between stimuli."""
    mask: Bool[np.ndarray, "H W"]
    sd: Float[np.ndarray, "H W"]
    """Of ΔF/F, by which the z-score divided: z-scores times it are ΔF/F again."""

    @property
    def first_test(self) -> int:
        """First frame of the last 30 %."""
        return -int(-TRAINING_SHARE * len(self.clock) // 1)


def make_animals(animals: Animals, progress: bool) -> None:
    """Simulate and clean the recordings that are not there yet."""
    require("dask", "zarr")
    animals.folder.mkdir(exist_ok=True)
    for i in range(animals.count):
        if not animals.path(i).exists():
            preprocess(animals.simulation(i).recording(), animals.path(i), animals.cleaning, progress=progress)


@lru_cache(maxsize=2)
def load_animal(animals: Animals, number: int) -> Animal:
    """Read one recording."""
    with readable(animals.path(number), "a cleaned recording") as path:
        group = open_zarr(path)
        read = {name: np.asarray(group[name]) for name in ("frames", "time", "label", "mask", "sd")}
    mask = read["mask"].astype(bool)
    return Animal(np.where(mask, read["frames"], np.nan), read["time"], read["label"], mask, read["sd"])


def segments(animals: Animals, animal: Animal, starts: Int[np.ndarray, " N"], name: str = "") -> Samples:
    """Patch tokens of the segments that begin at frames ``starts``; time is relative to their first frame."""
    length = animals.window
    index = np.asarray(starts)[:, None] + np.arange(length)
    if index.min() < 0 or index.max() >= len(animal.clock):
        raise CSTError(f"segments of {length} frames do not fit into {len(animal.clock)}; begin them inside")
    times = animal.clock[:length] - animal.clock[0]
    some = frames_to_samples(animal.frames[index][..., None], animals.patch, times=times, time_unit="s")
    origin = np.zeros((len(index), 3))
    origin[:, 0] = animal.clock[index[:, 0]]
    return Samples(
        some.coords,
        some.values,
        some.observed,
        coord_names=some.coord_names,
        units=some.units,
        sample_ids=[f"{name}@{t:.6g}" for t in origin[:, 0]],
        origin=origin,
        layout=some.layout,
    )


def training_samples(animals: Animals) -> Samples:
    """Segments of the first 70 % of the training animals."""
    parts = []
    for i in range(animals.training):
        animal = load_animal(animals, i)
        starts = np.arange(0, animal.first_test - animals.window + 1, animals.stride)
        parts.append(segments(animals, animal, starts, f"animal {i}"))
    return Samples.concatenate(parts)


def shown_starts(animals: Animals, animal: Animal, count: int) -> Int[np.ndarray, " count"]:
    """First frames of segments spread evenly over the last 30 %, apart from each other if there is room."""
    return np.linspace(animal.first_test, len(animal.clock) - animals.window, count).astype(int)


def drawn_starts(
    animals: Animals, animal: Animal, count: int, seed: int, training: bool = False
) -> Int[np.ndarray, " count"]:
    """First frames of segments drawn at random from the last 30 %, or from the training part, in order of time."""
    low, high = (0, animal.first_test) if training else (animal.first_test, len(animal.clock))
    possible = np.arange(low, high - animals.window + 1)
    drawn = np.random.default_rng([animals.seed, seed]).permutation(possible)[:count]
    return np.sort(drawn)


def last_labels(animals: Animals, animal: Animal, starts: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Label of the last frame of each segment."""
    return animal.label[np.asarray(starts) + animals.window - 1]


def true_frames(
    animals: Animals, number: int, starts: Int[np.ndarray, " N"], times: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "N m H W"]:
    """The noise-free neural signal at ``times`` of each segment, in ΔF/F, NaN outside the cortex.

    The mean over the last 30 % is taken off, as ΔF/F and z-score take off that of the recording.
    """
    animal, made = load_animal(animals, number), animals.simulation(number)
    clock = (animal.clock[np.asarray(starts)][:, None] + times).ravel()
    level = np.mean(_neural(animals, made, animal.clock[animal.first_test :: 5]), 0)
    truth = np.where(animal.mask, _neural(animals, made, clock) - level, np.nan)
    return truth.reshape(len(starts), len(times), *truth.shape[1:])


def _neural(animals: Animals, made: CalciumSimulation, clock: np.ndarray) -> np.ndarray:
    size = animals.camera // animals.cleaning.binning
    return crop(made.neural(clock, size), animals.cleaning.margins(size, size))


def movie_scores(y: Float[np.ndarray, "frames pixels"], truth: Float[np.ndarray, "frames pixels"]) -> dict[str, float]:
    """R² of all numbers together, of the median frame (over its pixels) and of the mean pixel (over the frames)."""
    error = np.square(y - truth)
    frame = 1 - error.sum(1) / np.square(truth - truth.mean(1, keepdims=True)).sum(1)
    pixel = 1 - error.sum(0) / np.square(truth - truth.mean(0)).sum(0)
    return {"R²": r_squared(y, truth), "R² of a frame": float(np.median(frame)), "R² of a pixel": float(pixel.mean())}


def r_squared(y: np.ndarray, truth: np.ndarray) -> float:
    """Coefficient of determination of all numbers together.

    >>> r_squared(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    0.5
    """
    return float(1 - np.square(y - truth).sum() / np.square(truth - truth.mean()).sum())
