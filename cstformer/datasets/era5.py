"""ERA5: hourly temperature over the United Kingdom in March 2019, of which every sixth hour is given.

Fields of 33 × 49 pixels are standardised by the training hours, and white noise of a tenth of their standard deviation
is added. Models learn from the given hours of the first 70 % of the month. Errors are measured against the noise-free
fields at the other hours of the last 30 %.

Hersbach et al., Quarterly Journal of the Royal Meteorological Society (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.gaps import check_part
from cstformer.datasets.published import published_file
from cstformer.system.files import read_npz

FILE = "era5_uk/t2m_744x33x49_f32.npz"
SOURCE = "https://cds.climate.copernicus.eu (2 m temperature; array t2m (hours, rows, columns))"
EVERY = 6  # hours from one given frame to the next
SHARE = 0.7  # of the hours that are learned from
NOISE = 0.1  # sd of the added noise, over that of the training frames
PATCH, WINDOW, STRIDE = (8, 8), 10, 3  # how training frames become samples; windows count given frames


@dataclass(frozen=True)
class FieldTask:
    """Frames of one recording: some hours given, the hours between them asked for.

    Attributes
    ----------
    train : given training frames as windows of patches
    learned : the same frames as one curve with a channel for each pixel, for models of curves
    given, hours : noisy frames of the scored hours and their times
    asked : hours between the given ones
    truth : noise-free frames at these hours
    """

    train: Samples
    learned: Samples
    given: Float[np.ndarray, "T H W"]
    hours: Float[np.ndarray, " T"]
    asked: Float[np.ndarray, " m"]
    truth: Float[np.ndarray, "m H W"]

    @property
    def flat(self) -> Samples:
        """The given frames as one curve with a channel for each pixel."""
        return _flat(self.hours, self.given)


def era5_file() -> Path:
    """Path of the file, or a `CSTError` that says where to get it."""
    return published_file("ERA5", FILE, SOURCE)


def era5_task(part: str = "test", seed: int = 0) -> FieldTask:
    """Hourly fields of which every sixth is given.

    Parameters
    ----------
    part : ``test``; or ``validation``, which divides the training hours again in the same way
    seed : of the noise
    """
    check_part(part)
    return field_task(read_npz(era5_file())["t2m"].astype(np.float64), part, seed)


def field_task(movie: Float[np.ndarray, "T H W"], part: str = "test", seed: int = 0) -> FieldTask:
    """The task on frames that are one hour apart."""
    cut = _first_test_hour(len(movie))
    if part == "validation":
        movie = movie[:cut]
        cut = _first_test_hour(cut)
    hours = np.arange(len(movie), dtype=float)
    movie = (movie - movie[:cut].mean()) / movie[:cut].std()
    noisy = movie + NOISE * np.random.default_rng(seed).normal(size=movie.shape)
    learn, given = slice(0, cut, EVERY), slice(cut, None, EVERY)
    asked = np.setdiff1d(hours[cut : int(hours[given][-1]) + 1], hours[given])
    train = frames_to_samples(noisy[learn], PATCH, window=WINDOW, stride=STRIDE, times=hours[learn])
    learned = _flat(hours[learn], noisy[learn])
    return FieldTask(train, learned, noisy[given], hours[given], asked, movie[asked.astype(int)])


def _flat(hours: np.ndarray, frames: np.ndarray) -> Samples:
    return Samples(hours, frames.reshape(1, len(hours), -1))


def _first_test_hour(count: int) -> int:
    return int(SHARE * count) // EVERY * EVERY
