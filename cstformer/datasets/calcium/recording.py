"""A widefield recording: a movie for each excitation wavelength, with its own times, and the stimuli."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.errors import CSTError, CSTWarning, unknown

CONTRASTS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Contrasts of the paper's gratings in per cent."""


def contrast_label(contrast: ArrayLike) -> np.ndarray:
    """The paper's label of a contrast in per cent: 2 √(contrast / 100) − 1 in [−1, 1], −1 without a stimulus.

    >>> contrast_label([0, 25, 100]).tolist()
    [-1.0, 0.0, 1.0]
    """
    percent = as_floats("contrast", contrast)
    if not ((percent >= 0) & (percent <= 100)).all():
        raise CSTError(f"contrast must be in per cent, 0 to 100, got {percent.min():g} to {percent.max():g}")
    return 2 * np.sqrt(percent / 100) - 1


@dataclass(frozen=True)
class Stimuli:
    """Start and end of each stimulus in seconds, and its contrast in per cent.

    >>> table = Stimuli([1.0, 8.0], [3.0, 10.0], [50.0, 2.0])
    >>> table.contrast_at([0.0, 1.0, 3.0, 9.0]).tolist()
    [0.0, 50.0, 0.0, 2.0]
    """

    start: Float[np.ndarray, " n"]
    stop: Float[np.ndarray, " n"]
    contrast: Float[np.ndarray, " n"]

    def __post_init__(self) -> None:
        columns = {name: np.atleast_1d(as_floats(name, getattr(self, name))) for name in ("start", "stop", "contrast")}
        shapes = {name: column.shape for name, column in columns.items()}
        if len(set(shapes.values())) != 1 or columns["start"].ndim != 1:
            raise CSTError(f"start, stop and contrast need one number per stimulus each, got shapes {shapes}")
        if not all(np.isfinite(column).all() for column in columns.values()):
            raise CSTError("start, stop and contrast must be finite; drop stimuli without times")
        order = np.argsort(columns["start"], kind="stable")
        start, stop = columns["start"][order], columns["stop"][order]
        if (stop <= start).any() or (start[1:] < stop[:-1]).any():
            raise CSTError("stimuli must end after they start and must not overlap; check start and stop")
        contrast_label(columns["contrast"])
        for name, column in columns.items():
            object.__setattr__(self, name, column[order])

    def __len__(self) -> int:
        return len(self.start)

    def contrast_at(self, times: ArrayLike) -> Float[np.ndarray, " T"]:
        """Contrast on the screen at each time, 0 between stimuli."""
        clock = np.atleast_1d(as_floats("times", times))
        if not len(self):
            return np.zeros(len(clock))
        last = np.searchsorted(self.start, clock, side="right") - 1
        shown = (last >= 0) & (clock < self.stop[last])
        return np.where(shown, self.contrast[last], 0.0)


@dataclass(frozen=True)
class Channel:
    """Frames of one wavelength, a Dask array (T, H, W), and their times (T,) in seconds; gaps are dropped frames."""

    frames: Any
    times: Float[np.ndarray, " T"]

    def __post_init__(self) -> None:
        clock = as_floats("times", self.times)
        if self.frames.ndim != 3 or clock.shape != self.frames.shape[:1]:
            raise CSTError(f"frames must be (T, H, W) with T times, got {self.frames.shape} and {clock.shape}")
        if not np.isfinite(clock).all() or (np.diff(clock) <= 0).any():
            raise CSTError("times must be finite and increase from frame to frame")
        object.__setattr__(self, "times", clock)

    @property
    def step(self) -> float:
        """Median time between frames, in seconds."""
        if len(self.times) < 2:
            raise CSTError("one frame has no frame rate; a recording needs at least two")
        return float(np.median(np.diff(self.times)))

    @property
    def dropped(self) -> int:
        """Number of missing frames, from the gaps between the times."""
        return int(_slots(self.times, self.step)[-1]) + 1 - len(self.times)


@dataclass(frozen=True)
class Recording:
    """What `open_recording` found in a file; frames stay on disk until they are needed."""

    channels: Mapping[int, Channel]
    """Frames by excitation wavelength in nm."""
    pixel_mm: float | None = None
    """Side of a pixel in mm, if the file says."""
    stimuli: Stimuli | None = None
    mask: Bool[np.ndarray, "H W"] | None = None
    """True where there is cortex."""
    dark: Float[np.ndarray, "#H #W"] | None = None
    """Dark level of the camera, to be subtracted; (1, 1) for a single number."""

    def __post_init__(self) -> None:
        shapes = {nm: channel.frames.shape[1:] for nm, channel in self.channels.items()}
        if len(set(shapes.values())) != 1:
            raise CSTError(f"the channels must have frames of one size, got {shapes or 'no channel'}")
        frame = next(iter(shapes.values()))
        if self.mask is not None and (self.mask.shape != frame or self.mask.dtype != bool):
            raise CSTError(f"mask must be bool of shape {frame}, got {self.mask.dtype} of shape {self.mask.shape}")
        if self.dark is not None and self.dark.shape not in (frame, (1, 1)):
            raise CSTError(f"dark must be one number or a frame of shape {frame}, got shape {self.dark.shape}")
        if self.pixel_mm is not None and not 0 < self.pixel_mm < 10:
            raise CSTError(f"pixel_mm={self.pixel_mm:g} is no size of a pixel in mm")

    def channel(self, wavelength: int) -> Channel:
        """The frames of one wavelength in nm."""
        if wavelength not in self.channels:
            raise unknown("wavelength", str(wavelength), map(str, self.channels))
        return self.channels[wavelength]

    def describe(self) -> str:
        """Readable summary, one line per channel."""
        lines = []
        for nm, channel in self.channels.items():
            size = " × ".join(map(str, channel.frames.shape))
            lines.append(f"{nm} nm: {size} frames at {1 / channel.step:.4g} Hz, {channel.dropped} dropped")
        return "\n".join(lines)


def split_channels(frames: Any, times: ArrayLike, wavelengths: Sequence[int] | np.ndarray) -> dict[int, Channel]:
    """Separate interleaved frames by wavelength.

    Parameters
    ----------
    frames : (T, H, W) Dask array in the order of recording.
    times : (T,) seconds.
    wavelengths : one per frame, (T,), or the order in which the lamps take turns, such as (575, 395). Given the order,
        gaps between the times tell how many frames are missing, so that a dropped frame does not swap the channels
        after it. The first frame must belong to the first wavelength.

    >>> import dask.array as da
    >>> movie = da.from_array(np.arange(5.0).reshape(5, 1, 1))  # the third frame, of the first lamp, was lost
    >>> parts = split_channels(movie, [0.0, 0.05, 0.15, 0.2, 0.25], (575, 395))
    >>> {nm: part.frames.compute().ravel().tolist() for nm, part in parts.items()}
    {575: [0.0, 3.0], 395: [1.0, 2.0, 4.0]}
    """
    clock, labels = as_floats("times", times), np.asarray(wavelengths)
    if labels.ndim != 1 or not 1 <= len(labels) <= len(frames):
        raise CSTError(f"wavelengths must be one per frame or the order of the lamps, got shape {labels.shape}")
    if len(labels) != len(frames):
        if len(set(labels.tolist())) != len(labels):
            raise CSTError(f"wavelengths={labels.tolist()} must name each lamp once")
        if len(clock) > 1:
            labels = labels[_slots(clock, float(np.median(np.diff(clock)))) % len(labels)]
    if not np.isfinite(as_floats("wavelengths", labels)).all():
        raise CSTError("wavelengths must be finite numbers of nm")
    rounded = np.rint(labels).astype(int)
    parts = {}
    for nm in dict.fromkeys(rounded.tolist()):
        index = np.flatnonzero(rounded == nm)
        stride = np.diff(index)
        # A slice costs Dask much less than a list of frames.
        regular = len(index) > 1 and (stride == stride[0]).all()
        chosen = frames[index[0] : index[-1] + 1 : int(stride[0])] if regular else frames[index]
        parts[nm] = Channel(chosen, clock[index])
    return parts


def _slots(times: np.ndarray, step: float) -> np.ndarray:
    """Index of each frame if none were missing; counted gap by gap, so that a slow drift does not add up."""
    gaps = np.diff(times) / step
    whole = np.rint(gaps)
    if (whole < 1).any() or (np.abs(gaps - whole) > 0.35).any():
        warnings.warn(
            "the times between frames are no multiples of the median one, so dropped frames cannot be counted "
            "reliably; give the wavelength of every frame",
            CSTWarning,
            stacklevel=3,
        )
    return np.concatenate([[0], np.cumsum(np.maximum(whole, 1))]).astype(int)
