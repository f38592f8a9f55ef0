"""The real recording: every third frame is given, with noise, and models predict the frames in between.

The recording shows a seizure under jRGECO1a, 200 frames at one frame a second. It is read from ``widefield_jrgeco/`` in
the folder that the environment variable ``CST_DATA`` names. Models train on the given frames of the first 70 % only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.interpolate
from jaxtyping import Bool, Float, Int
from scipy.ndimage import gaussian_filter

from cstformer.data.fine_frames import fine_frames
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.experiments.calcium.task import movie_scores
from cstformer.models.cst import CST
from cstformer.system.files import read_npz
from cstformer.taylor.wave_speed import difference_velocity, flow_velocity, wave_velocity

FILE = Path("widefield_jrgeco", "dff_bin4_128x128_f16.npz")
NOISE = 0.3
EVERY = 3
TRAINING_SHARE = 0.7
BLUR = 1.5  # pixels
PATCH, WINDOW = (8, 8), 6
MARGIN = 4  # pixels around the cortex
PARTS = ("all", "last 30 %")


@dataclass(frozen=True)
class Cortex:
    """The recording, cropped to the cortex, each pixel z-scored; ``noisy`` is ``clean`` with added noise."""

    clean: Float[np.ndarray, "T H W"]
    noisy: Float[np.ndarray, "T H W"]
    mask: Bool[np.ndarray, "H W"]
    times: Float[np.ndarray, " T"]

    @property
    def given(self) -> Int[np.ndarray, " G"]:
        """Indices of the given frames."""
        return np.arange(0, len(self.times), EVERY)

    @property
    def between(self) -> Int[np.ndarray, " B"]:
        """Indices of the frames in between, up to the last given frame."""
        return np.setdiff1d(np.arange(self.given[-1]), self.given)

    @property
    def late(self) -> Bool[np.ndarray, " B"]:
        """Which of the frames in between lie in the last 30 %, where models have seen no given frame either."""
        return self.between >= TRAINING_SHARE * len(self.times)

    @property
    def layout(self) -> PatchLayout:
        """Patches of a frame."""
        height, width = self.mask.shape
        return PatchLayout((height, width), PATCH)

    def blurred(self) -> Float[np.ndarray, "G H W"]:
        """The given frames after a Gaussian blur."""
        return np.stack([gaussian_filter(frame, BLUR) for frame in self.noisy[self.given]])


def recording_file() -> Path | None:
    """Path of the recording, or None if it is not there."""
    folder = os.environ.get("CST_DATA")
    path = None if not folder else Path(folder) / FILE
    return path if path is not None and path.is_file() else None


@lru_cache(maxsize=1)
def load_cortex(seed: int) -> Cortex:
    """Read the recording, z-score each pixel, add the noise, and crop the frames to the cortex."""
    path = recording_file()
    if path is None:
        raise CSTError(f"the recording {FILE} is not there; set CST_DATA to the folder that has it")
    arrays = read_npz(path)
    frames, mask = arrays["jrgeco_dff"].astype(np.float64), arrays["mask_greencam"].astype(bool)
    sd = frames.std(0)
    clean = (frames - frames.mean(0)) / np.where(sd > 0, sd, 1.0)
    noisy = clean + NOISE * np.random.default_rng([seed, 7]).standard_normal(clean.shape)
    box = tuple(
        slice(max(0, int(at.min()) - MARGIN), min(size, int(at.max()) + 1 + MARGIN))
        for at, size in zip(np.nonzero(mask), mask.shape, strict=True)
    )
    return Cortex(clean[:, *box], noisy[:, *box], mask[box], arrays["t_s"].astype(np.float64))


def given_samples(cortex: Cortex, frames: Float[np.ndarray, "G H W"]) -> Samples:
    """Training windows: given frames of the first 70 %."""
    train = cortex.given[cortex.given < TRAINING_SHARE * len(cortex.times)]
    times = cortex.times[train]
    return frames_to_samples(frames[: len(train)], PATCH, window=WINDOW, stride=1, times=times, time_unit="s")


def around(cortex: Cortex, frames: Float[np.ndarray, "G H W"], number: int) -> tuple[Samples, float]:
    """The window of given frames around a frame, and the time of that frame in the window."""
    after = int(np.searchsorted(cortex.given, number))
    first = min(max(after - WINDOW // 2, 0), len(cortex.given) - WINDOW)
    index = slice(first, first + WINDOW)
    times = cortex.times[cortex.given[index]]
    context = frames_to_samples(frames[index], PATCH, times=times - times[0], time_unit="s")
    return context, float(cortex.times[number] - times[0])


def ask_model(
    model: Any, cortex: Cortex, frames: Float[np.ndarray, "G H W"], overlap: int
) -> Float[np.ndarray, "B H W"]:
    """The frames in between, predicted by a model of windows; patches overlap for CST."""
    overlap = overlap if isinstance(model, CST) else 1
    made = []
    for number in cortex.between:
        context, time = around(cortex, frames, int(number))
        ask = partial(model.predict, context)
        made.append(fine_frames(ask, cortex.layout, [time], overlap=overlap)[0, 0, ..., 0])
    return np.stack(made)


def interpolated(cortex: Cortex, kind: str) -> Float[np.ndarray, "B H W"]:
    """The frames in between by interpolation in time: ``linear``, ``cubic`` (spline) or ``blur`` and then linear."""
    frames = cortex.blurred() if kind == "blur" else cortex.noisy[cortex.given]
    knots, at = cortex.times[cortex.given], cortex.times[cortex.between]
    curve = scipy.interpolate.CubicSpline if kind == "cubic" else scipy.interpolate.make_interp_spline
    return curve(knots, frames)(at) if kind == "cubic" else curve(knots, frames, k=1)(at)


def between_scores(cortex: Cortex, made: Float[np.ndarray, "B H W"]) -> dict[str, np.ndarray]:
    """`movie_scores` inside the mask, of all frames in between and of those in the last 30 %."""
    truth, y = cortex.clean[cortex.between][:, cortex.mask], made[:, cortex.mask]
    late = cortex.late
    parts = zip(PARTS, (np.ones_like(late), late), strict=True)
    return {name: np.array(list(movie_scores(y[some], truth[some]).values())) for name, some in parts}


def shown_frames(cortex: Cortex) -> Int[np.ndarray, " shown"]:
    """Indices, among the frames in between, of those that are drawn; one lies in the last 30 %."""
    return (np.array([0.25, 0.5, 0.9]) * len(cortex.between)).astype(int)


def shown(cortex: Cortex, made: Float[np.ndarray, "B H W"]) -> Float[np.ndarray, "shown H W"]:
    """The frames that are drawn."""
    return made[shown_frames(cortex)].astype(np.float32)


def recording_waves(
    model: CST, cortex: Cortex, frames: Float[np.ndarray, "G H W"], overlap: int
) -> dict[str, np.ndarray]:
    """Velocities in pixels a second at the time of the largest change, by CST's derivatives and two other methods."""
    change = np.abs(np.diff(cortex.blurred(), axis=0))[:, cortex.mask].mean(1)
    first = int(np.argmax(change))
    number = int(cortex.given[first]) + EVERY // 2
    context, time = around(cortex, frames, number)
    wanted = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ask = lambda at: np.concatenate(model.derivatives(context, at, wanted))  # noqa: E731
    u, slope, *gradient = fine_frames(ask, cortex.layout, [time], overlap=overlap)[:, 0, ..., 0]
    before, after = cortex.blurred()[first : first + 2]
    step = float(np.diff(cortex.times[cortex.given[first : first + 2]])[0])
    return {
        "time": cortex.times[[number]],
        "u": u,
        "CST": wave_velocity(slope, np.stack(gradient)),
        "differences": difference_velocity(before, after, step),
        "optical flow": flow_velocity(before, after, step),
    }
