"""Simulated recordings with dropped frames and jitter, and ways to fill their gaps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.modes import Modes
from cstformer.datasets.calcium.preprocess import Preprocessing, preprocess
from cstformer.datasets.calcium.reading import require
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.calcium.steps import resample
from cstformer.system.files import readable
from cstformer.system.zarr_files import open_zarr

CLEANING = Preprocessing(binning=1, crop=(0, 0, 0, 0), correction="none")


@dataclass(frozen=True)
class Gaps:
    """One colour of a recording with gaps, in ΔF/F, NaN outside the cortex."""

    made: CalciumSimulation
    frames: Float[np.ndarray, "T H W"]
    times: Float[np.ndarray, " T"]
    """Times of the frames: with gaps where frames were dropped, and jitter."""
    mask: Bool[np.ndarray, "H W"]

    @property
    def missing(self) -> Float[np.ndarray, " m"]:
        """Times of the dropped frames between the first frame and the last."""
        lost = self.made.dropped_times
        return lost[(lost > self.times[0]) & (lost < self.times[-1])]

    def truth(self, at: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m H W"]:
        """Noise-free signal; its mean over the recording is 0, as that of ΔF/F."""
        return np.where(self.mask, self.made.neural(at) - self._level, np.nan)

    @property
    def _level(self) -> Float[np.ndarray, "H W"]:
        return _level(self.made)

    def error(self, frames: Float[np.ndarray, "m H W"], at: Float[np.ndarray, " m"]) -> float:
        """Mean squared error over the cortex, relative to the variance of the truth; 0 is exact."""
        truth = self.truth(at)[:, self.mask]
        return float(np.square(frames[:, self.mask] - truth).mean() / np.square(truth).mean())


@lru_cache(maxsize=4)
def _level(made: CalciumSimulation) -> Float[np.ndarray, "H W"]:
    return made.neural(np.arange(0, 60 * made.minutes, 0.5)).mean(0)


def make_gaps(made: CalciumSimulation, path: Path, progress: bool) -> None:
    """Simulate and preprocess the recording, unless it is there."""
    require("dask", "zarr")
    if not path.exists():
        preprocess(made.recording(), path, CLEANING, progress=progress)


def load_gaps(made: CalciumSimulation, path: Path) -> Gaps:
    """Read the preprocessed recording."""
    with readable(path, "a preprocessed recording"):
        group = open_zarr(path)
        read = {name: np.asarray(group[name]) for name in ("frames", "time", "mask", "mean", "sd")}
    mask = read["mask"].astype(bool)
    change = read["frames"] * read["sd"] + read["mean"]  # ΔF/F, before it was z-scored
    return Gaps(made, np.where(mask, change, np.nan), read["time"], mask)


def linear(gaps: Gaps, at: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m H W"]:
    """Straight lines between neighbouring frames, pixel by pixel."""
    return resample(gaps.frames, gaps.times, at)


def by_index(gaps: Gaps, at: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m H W"]:
    """Straight lines between frames that were put on a regular clock one by one, as if none had been dropped.

    >>> made = CalciumSimulation(minutes=0.01, size=8)
    >>> times = np.array([0.0, 0.1, 0.2, 0.4])  # the last frame is taken for the one at 0.3
    >>> gaps = Gaps(made, times[:, None, None] * np.ones((4, 1, 1)), times, np.ones((1, 1), bool))
    >>> at = np.array([0.3])
    >>> by_index(gaps, at).ravel().round(6).tolist(), linear(gaps, at).ravel().round(6).tolist()
    ([0.4], [0.3])
    """
    step = float(np.median(np.diff(gaps.times)))
    return resample(gaps.frames, gaps.times[0] + step * np.arange(len(gaps.times)), at)


def modes_linear(gaps: Gaps, at: Float[np.ndarray, " m"], modes: Modes) -> Float[np.ndarray, "m H W"]:
    """Straight lines between the coefficients of spatial modes."""
    series = modes.coefficients(gaps.frames, gaps.times).values[0]
    return modes.frames(resample(series, gaps.times, at))


def projected(gaps: Gaps, at: Float[np.ndarray, " m"], modes: Modes) -> Float[np.ndarray, "m H W"]:
    """The noise-free signal itself, as far as the modes can show it."""
    return modes.frames(modes.coefficients(gaps.truth(at)).values[0])
