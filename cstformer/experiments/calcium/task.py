"""Data of the calcium experiment: simulated animals and segments of their recordings.

An animal is a simulated two-channel recording, preprocessed by `datasets.calcium.preprocess` like a real one and kept
in the run directory. The first 70 % of some animals train the models; everything is measured on the rest of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.preprocess import Preprocessing, preprocess
from cstformer.datasets.calcium.reading import require
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.calcium.steps import crop
from cstformer.errors import CSTError
from cstformer.system.files import readable
from cstformer.system.zarr_files import open_zarr

TRAINING_SHARE = 0.7
FRESH = 100  # number of the first scored animal: settings were once chosen on animals with smaller numbers


@dataclass(frozen=True)
class Animals:
    """The simulated recordings of a run: how they are made, and how they are cut into segments."""

    folder: Path
    training: int
    """Number of animals that train the models, the first ones."""
    scored: int
    """Number of animals that are scored, after these."""
    minutes: float
    camera: int
    """Rows and columns of the camera."""
    electrons: float
    """Electrons of a bright pixel in a frame."""
    spontaneous: float
    """Height of spontaneous waves, relative to the simulator's default."""
    cleaning: Preprocessing
    patch: tuple[int, int]
    window: int
    """Frames of a segment."""
    stride: int
    """Frames from one training segment to the next."""
    seed: int

    @property
    def test(self) -> range:
        """Numbers of the scored animals."""
        return range(self.training, self.training + self.scored)

    def simulation(self, animal: int) -> CalciumSimulation:
        """The simulation of an animal, which knows the noise-free signal."""
        number = animal if animal < self.training else FRESH + animal - self.training
        names = ("minutes", "electrons", "spontaneous")
        settings = {name: getattr(self, name) for name in names}
        return CalciumSimulation(size=self.camera, seed=1000 * self.seed + number, **settings)

    def path(self, animal: int) -> Path:
        """Path of the preprocessed recording."""
        return self.folder / f"animal{animal}.zarr"

    def layout(self, animal: Animal) -> PatchLayout:
        """Patches of a frame."""
        height, width = animal.mask.shape
        return PatchLayout((height, width), self.patch)


@dataclass(frozen=True)
class Animal:
    """One preprocessed recording."""

    frames: Float[np.ndarray, "T H W"]
    """z-scored activity, NaN outside the cortex."""
    clock: Float[np.ndarray, " T"]
    label: Float[np.ndarray, " T"]
    """2 √contrast − 1 at each frame, −1 between stimuli."""
    mask: Bool[np.ndarray, "H W"]
    sd: Float[np.ndarray, "H W"]
    """Standard deviation of ΔF/F at each pixel: z-score times ``sd`` is ΔF/F again."""

    @property
    def first_test(self) -> int:
        """First frame of the last 30 %."""
        return -int(-TRAINING_SHARE * len(self.clock) // 1)


def make_animals(animals: Animals, progress: bool) -> None:
    """Simulate and preprocess the recordings that are not there yet."""
    require("dask", "zarr")
    animals.folder.mkdir(exist_ok=True)
    for i in (*range(animals.training), *animals.test):
        if not animals.path(i).exists():
            preprocess(animals.simulation(i).recording(), animals.path(i), animals.cleaning, progress=progress)


@lru_cache(maxsize=2)
def load_animal(animals: Animals, number: int) -> Animal:
    """Read one recording."""
    with readable(animals.path(number), "a preprocessed recording") as path:
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
    """First frames of segments spread evenly over the last 30 %; they overlap only if there is no room."""
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

    Its mean over the last 30 % is subtracted, as ΔF/F and z-score subtract that of the recording.
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
    """R² of all values together, median over frames of their R², and mean over pixels of their R²."""
    error = np.square(y - truth)
    frame = 1 - error.sum(1) / np.square(truth - truth.mean(1, keepdims=True)).sum(1)
    pixel = 1 - error.sum(0) / np.square(truth - truth.mean(0)).sum(0)
    return {"R²": r_squared(y, truth), "R² of a frame": float(np.median(frame)), "R² of a pixel": float(pixel.mean())}


def r_squared(y: np.ndarray, truth: np.ndarray) -> float:
    """Coefficient of determination of all values together.

    >>> r_squared(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    0.5
    """
    return float(1 - np.square(y - truth).sum() / np.square(truth - truth.mean()).sum())
