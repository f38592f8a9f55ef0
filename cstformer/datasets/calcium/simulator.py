"""Simulated widefield recording whose parts are all known, at any time and on any pixel grid.

Two lamps take turns, and the camera records

    F(r, t) = B(r) · bleaching(t) · (1 + s(r, t)) + shot noise,      s₅₇₅ = x + z,   s₃₉₅ = A z

- x, the neural signal as jRCaMP1b shows it: each drive of some seconds convolved with e^{−t/decay} − e^{−t/rise}, in
  closed form. Gratings of six contrasts on the right drive the left V1 and, after a travel time, the higher visual
  areas; spontaneous waves start anywhere on both hemispheres and spread.
- z, the hemodynamic signal: slow vasomotion in a few smooth maps, a small breathing rhythm, and a delayed darkening
  where the stimulus drove neurons (``coupling``). The last part violates the assumption of the correction that x and z
  are uncorrelated.
- A, unknown to the correction: a blur and a gain that varies over the cortex.

Amplitudes and time constants have typical sizes; they are not fitted to an animal.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.datasets.calcium.bars import dask_bar
from cstformer.datasets.calcium.cortex import FIELD_MM, LEFT_AREAS, SmoothMaps, blob, outline, positions
from cstformer.datasets.calcium.recording import CONTRASTS, Recording, Stimuli, split_channels
from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.cluster import dask_cluster
from cstformer.system.extras import need
from cstformer.system.files import readable
from cstformer.system.targets import check_replaceable
from cstformer.system.zarr_files import open_zarr

SIGNAL, CONTROL = 575, 395
"""Excitation wavelengths in nm: the signal shows calcium and hemodynamics, the control hemodynamics alone."""
DARK = 100
"""Camera counts without light."""
MARK = "simulation"
"""Attribute of the Zarr groups that `CalciumSimulation.save` writes: the settings."""

_ON, _BETWEEN = 2.0, 5.0  # the paper's stimulus, in seconds
_HIGHER = {"LM": 0.7, "AL": 0.55, "RL": 0.45, "AM": 0.4, "PM": 0.5}  # drive relative to V1
_LATENCY = 0.08
_SPARK = 0.3  # seconds of drive of a spontaneous wave
_BLUR = 0.15  # mm, blur of the control relative to the signal


@dataclass(frozen=True)
class CalciumSimulation:
    """Settings of a simulated recording, and its exact signals.

    >>> made = CalciumSimulation(minutes=0.5, size=32, seed=1)
    >>> print(made.recording().describe())
    575 nm: 300 × 32 × 32 frames at 10 Hz, 0 dropped
    395 nm: 300 × 32 × 32 frames at 10 Hz, 0 dropped
    >>> made.neural([10.0, 10.05]).shape
    (2, 32, 32)
    """

    minutes: float = 10.0
    size: int = 512
    """Rows and columns of the camera."""
    seed: int = 0
    rate: float = 10.0
    """Frames per second of each channel; the camera takes twice as many."""
    noise: float = 1.0
    """Factor on the shot noise that ``electrons`` implies."""
    electrons: float = 6000.0
    """Electrons per frame in a bright pixel of the signal channel."""
    spontaneous: float = 1.0
    """Factor on the height of spontaneous waves, whose median is 0.06 in ΔF/F."""
    hemodynamics: float = 0.012
    """Standard deviation of vasomotion in ΔF/F."""
    coupling: float = 0.3
    """Darkening after a stimulus, relative to its neural response."""
    bleaching: float = 0.15
    """Fraction of the light that is lost in the end, with a time constant of five minutes."""
    dropped: float = 0.0
    """Fraction of the camera's frames that are dropped."""
    jitter: float = 0.0
    """Largest delay of a frame, drawn evenly from 0, as a fraction of the time between two frames of the camera."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value, least = getattr(self, f.name), 0 if f.name not in ("minutes", "size", "rate", "electrons") else 1e-9
            kind = int | np.integer if f.name in ("size", "seed") else int | float | np.number
            if not isinstance(value, kind) or isinstance(value, bool) or not least <= value < np.inf:
                raise CSTError(f"{f.name} must be a {'positive' if least else 'non-negative'} number, got {value!r}")
        for name in ("bleaching", "dropped", "jitter"):
            if not getattr(self, name) < 1:
                raise CSTError(f"{name} must be below 1, got {getattr(self, name)!r}")
        if self.size < 8 or self.minutes * 60 * self.rate < 2:
            raise CSTError(f"size={self.size} and minutes={self.minutes} are too small; choose at least 8 and 2 frames")

    # --- signals ---

    @cached_property
    def stimuli(self) -> Stimuli:
        """A grating for two of every seven seconds; all six contrasts appear, shuffled, before one is repeated."""
        start = np.arange(_BETWEEN, self.minutes * 60 - _ON, _ON + _BETWEEN)
        rng = self._rng(0)
        order = [rng.permutation(CONTRASTS) for _ in range(-(-len(start) // len(CONTRASTS)))]
        return Stimuli(start, start + _ON, np.concatenate([*order, []])[: len(start)])

    def neural(self, times: ArrayLike, size: int | None = None) -> Float[np.ndarray, "T H W"]:
        """Noise-free neural signal x in ΔF/F, at any times in seconds and on any grid of ``size``² pixels."""
        clock, shape = self._clock(times), self._shape(size)
        out = np.zeros((len(clock), *shape), np.float32)
        right, anterior = positions(shape)
        rows, cols, place, delay = _visual(shape)
        for start, height in zip(self.stimuli.start, self._peaks, strict=True):
            if len(now := _felt(clock, start, _ON + 1)):
                shown = kinetics(_since(clock[now], start + _LATENCY, delay), _ON)
                out[np.ix_(now, rows, cols)] += shown * (height * place).astype(np.float32)
        for start, height, width, speed, *centre in self._waves:
            if len(now := _felt(clock, start, _SPARK + 5 * width / speed)):
                for side, share in ((1, 1.0), (-1, 0.8)):  # the other hemisphere follows its mirror image
                    rows = np.abs(anterior[:, 0] - centre[1]) < 3 * width
                    cols = (np.abs(right[0] - side * centre[0]) < 3 * width) & (right[0] * side * centre[0] > 0)
                    distance = np.hypot(right[:, cols] - side * centre[0], anterior[rows] - centre[1])
                    spread = share * height * np.exp(-(distance**2) / (2 * width**2))
                    shown = kinetics(_since(clock[now], start, distance / speed), _SPARK)
                    out[np.ix_(now, rows, cols)] += shown * spread.astype(np.float32)
        return out * outline(shape)

    def hemodynamic(
        self, times: ArrayLike, size: int | None = None, wavelength: int = SIGNAL
    ) -> Float[np.ndarray, "T H W"]:
        """Hemodynamic signal in ΔF/F: z in the signal channel, A z in the control."""
        clock, shape = self._clock(times), self._shape(size)
        maps = _hemodynamic_maps(self, shape, wavelength)
        frequency, phase, weight = self._rhythms
        course = (weight * np.sin(2 * np.pi * frequency * clock[:, None, None] + phase)).sum(axis=-1)
        driven = kinetics(clock[:, None] - self.stimuli.start - 0.5, _ON, rise=0.8, decay=1.6)
        darkening = self.coupling * driven @ self._peaks
        course = np.column_stack([self.hemodynamics * course, -darkening]).astype(np.float32)
        return (course @ maps.reshape(len(maps), -1)).reshape(len(clock), *shape)

    def fluorescence(
        self, times: ArrayLike, wavelength: int = SIGNAL, size: int | None = None
    ) -> Float[np.ndarray, "T H W"]:
        """Expected electrons in each pixel: what the camera would record without noise."""
        clock = self._clock(times)
        change = self.hemodynamic(clock, size, wavelength)
        if wavelength == SIGNAL:
            change += self.neural(clock, size)
        fading = 1 - self.bleaching * (1 - np.exp(-clock / 300))
        return self.brightness(size, wavelength) * fading[:, None, None].astype(np.float32) * (1 + change)

    def brightness(self, size: int | None = None, wavelength: int = SIGNAL) -> Float[np.ndarray, "H W"]:
        """Electrons in each pixel at the start: a lamp brightest at the centre, dark vessels, little light outside."""
        return _brightness(self, self._shape(size), wavelength)

    def contrast(self, times: ArrayLike) -> Float[np.ndarray, " T"]:
        """Contrast on the screen, in per cent; 0 between stimuli."""
        return self.stimuli.contrast_at(times)

    @property
    def mask(self) -> Bool[np.ndarray, "H W"]:
        """True where there is cortex."""
        return outline(self._shape(None))

    # --- recorded frames ---

    @cached_property
    def camera_times(self) -> Float[np.ndarray, " frames"]:
        """Times of all recorded frames; before frames are dropped, even ones are 575 nm and odd ones 395 nm."""
        return self._all_times[self._kept]

    @property
    def dropped_times(self) -> Float[np.ndarray, " lost"]:
        """Times at which frames of the signal were dropped."""
        return self._all_times[::2][~self._kept[::2]]

    @cached_property
    def camera_wavelengths(self) -> np.ndarray:
        """Wavelength of each frame in nm."""
        return np.where(np.flatnonzero(self._kept) % 2 == 0, SIGNAL, CONTROL)

    def camera(self, index: ArrayLike) -> np.ndarray:
        """Frames ``index`` (n,) in camera counts, with the dark level; the same for the same seed."""
        chosen = np.atleast_1d(np.asarray(index, dtype=int))
        out = np.empty((len(chosen), self.size, self.size), np.uint16)
        for nm in (SIGNAL, CONTROL):
            mine = np.flatnonzero(self.camera_wavelengths[chosen] == nm)
            expected = self.fluorescence(self.camera_times[chosen[mine]], nm)
            for i, mean in zip(mine, expected, strict=True):
                # With hundreds of electrons or more, the Poisson distribution is nearly normal.
                shot = self._rng(5, int(chosen[i])).standard_normal(mean.shape, np.float32) * np.sqrt(mean)
                out[i] = np.clip(np.rint(mean + self.noise * shot + DARK), 0, 65535)
        return out

    def movie(self) -> Any:
        """All frames of the camera, interleaved, as a Dask array that computes them when needed."""
        import dask.array as da

        frames = max(2, min(64, 2**22 // self.size**2))  # small arrays, whose memory is reused
        return da.from_array(_Camera(self), chunks=(frames, self.size, self.size), asarray=True)

    def recording(self) -> Recording:
        """The recording as `open_recording` would find it on disk."""
        channels = split_channels(self.movie(), self.camera_times, self.camera_wavelengths)
        return Recording(channels, FIELD_MM / self.size, self.stimuli, self.mask, np.array([[float(DARK)]]))

    def save(self, path: str | os.PathLike[str], progress: bool = False, scheduler: str | None = None) -> None:
        """Write a Zarr folder that `open_recording` reads; it includes the settings, which `load` needs.

        ``scheduler`` is the address of a Dask cluster that computes the frames.
        """
        need("dask", "zarr", for_what="a simulated recording")
        import zarr

        if Path(path).suffix != ".zarr":
            raise CSTError(f"{path}: a simulated recording is written as .zarr")
        check_replaceable(path, MARK)
        with atomic_path(path) as temporary:
            group = zarr.open_group(temporary, mode="w")
            small = {"times": self.camera_times, "wavelengths": self.camera_wavelengths, "mask": self.mask}
            small |= {f"stimulus_{n}": getattr(self.stimuli, n) for n in ("start", "stop", "contrast")}
            for name, array in (small | {"dark": np.array([float(DARK)])}).items():
                group.create_array(name, data=array)
            group.attrs.update({"pixel_mm": FIELD_MM / self.size, MARK: json.dumps(dataclasses.asdict(self))})
            movie = self.movie()
            frames = group.create_array("frames", shape=movie.shape, dtype=movie.dtype, chunks=movie.chunksize)
            with dask_cluster(scheduler), dask_bar("making frames", progress and scheduler is None):
                movie.store(frames, lock=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalciumSimulation:
        """The simulation behind a file that `save` wrote."""
        with readable(path, "a simulated recording") as source:
            settings = open_zarr(source).attrs.get(MARK)
            if settings is None:
                raise CSTError("this recording was not made by `cst data make calcium`")
            return cls(**json.loads(str(settings)))

    # --- random draws; each part has its own stream ---

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *stream])

    @cached_property
    def _kept(self) -> np.ndarray:
        kept = self._rng(1).uniform(size=2 * int(self.minutes * 60 * self.rate)) >= self.dropped
        kept[:2] = True
        return kept

    @cached_property
    def _all_times(self) -> np.ndarray:
        """Times of all frames, dropped ones included."""
        late = self.jitter * self._rng(8).uniform(size=len(self._kept)) if self.jitter else 0.0
        return (np.arange(len(self._kept)) + late) / (2 * self.rate)

    @cached_property
    def _waves(self) -> np.ndarray:
        """Rows of start, height, width (mm), speed (mm/s), place (mm): one wave per second, starting before time 0."""
        rng, seconds = self._rng(2), self.minutes * 60 + 10
        count = rng.poisson(seconds)
        angle, radius = rng.uniform(0, 2 * np.pi, count), np.sqrt(rng.uniform(size=count))
        return np.column_stack(
            [
                np.sort(rng.uniform(-10, seconds - 10, count)),
                0.06 * self.spontaneous * rng.lognormal(sigma=0.5, size=count),
                rng.uniform(0.5, 1.2, count),
                rng.uniform(3, 12, count),
                3.8 * radius * np.cos(angle),
                3.4 * radius * np.sin(angle),
            ]
        )

    @cached_property
    def _peaks(self) -> np.ndarray:
        """Steady-state neural response to each stimulus in ΔF/F."""
        return 0.05 * _saturating(self.stimuli.contrast)

    @cached_property
    def _rhythms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frequency (Hz), phase and weight (maps, 13): vasomotion about 0.1 Hz, a breathing rhythm near 2.5 Hz."""
        rng, shape = self._rng(4), (5, 12)
        frequency = np.column_stack([0.1 * rng.lognormal(sigma=0.5, size=shape), rng.uniform(2.4, 2.6, 5)])
        share = np.array([1.0, 0.6, 0.5, 0.4, 0.3])  # standard deviation of the maps
        weight = np.full((5, 13), np.sqrt(2 / 12)) * (share / np.linalg.norm(share))[:, None]
        weight[:, -1] = [0.2, 0, 0, 0, 0]
        return frequency, rng.uniform(0, 2 * np.pi, (5, 13)), weight

    def _shape(self, size: int | None) -> tuple[int, int]:
        return (self.size, self.size) if size is None else (size, size)

    def _clock(self, times: ArrayLike) -> np.ndarray:
        return np.atleast_1d(as_floats("times", times))


class _Camera:
    """Array-like that computes frames of the camera when Dask indexes it."""

    ndim, dtype = 3, np.dtype(np.uint16)

    def __init__(self, simulation: CalciumSimulation) -> None:
        self.simulation = simulation
        self.shape = (len(simulation.camera_times), simulation.size, simulation.size)

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        frames, *pixels = index
        return self.simulation.camera(range(self.shape[0])[frames])[(slice(None), *pixels)]


def kinetics(
    t: np.ndarray, duration: float | int, rise: float | int = 0.1, decay: float | int = 0.7
) -> Float[np.ndarray, "*shape"]:
    """Response of an indicator t seconds after the start of a constant drive of ``duration`` seconds; at most 1.

    It is the box convolved with (e^{−t/decay} − e^{−t/rise}) / (decay − rise), continuous with a continuous slope.

    >>> kinetics(np.array([-1.0, 0.0, 60.0]), duration=100.0).round(6).tolist()
    [0.0, 0.0, 1.0]
    """
    since, after = np.maximum(t, 0), np.maximum(t - duration, 0)

    def charge(tau: float | int) -> np.ndarray:
        return tau * (np.exp(-after / tau) - np.exp(-since / tau))

    return (charge(decay) - charge(rise)) / (decay - rise)


def _saturating(contrast: np.ndarray) -> np.ndarray:
    """Response to a contrast in per cent relative to the largest one; one half at 20 %."""
    return contrast**1.2 / (contrast**1.2 + 20.0**1.2)


def _visual_place(shape: tuple[int, int], blur: float = 0.0) -> np.ndarray:
    """Response map of V1 and the higher areas, blurred by ``blur`` mm."""
    place = blob(shape, LEFT_AREAS["V1"], 0.6, blur)
    for name, weight in _HIGHER.items():
        place = place + weight * blob(shape, LEFT_AREAS[name], 0.3, blur)
    return place


@lru_cache(maxsize=4)
def _visual(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of the left visual cortex, the response of each pixel and its delay in seconds (20 mm/s)."""
    right, anterior = positions(shape)
    place = np.where(right < 0, _visual_place(shape), 0.0)
    delay = np.hypot(right - LEFT_AREAS["V1"][0], anterior - LEFT_AREAS["V1"][1]) / 20
    rows, cols = (np.asarray((place > 1e-4).any(axis=axis)) for axis in (1, 0))
    return rows, cols, place[rows][:, cols], delay[rows][:, cols]


@lru_cache(maxsize=8)
def _hemodynamic_maps(made: CalciumSimulation, shape: tuple[int, int], wavelength: int) -> np.ndarray:
    """Maps of the five rhythms and of the darkening at a wavelength; the control is blurred and has a gain."""
    blur = 0.0 if _known(wavelength) == SIGNAL else _BLUR
    maps = SmoothMaps.draw(made._rng(3), 5, scale=1.5).on(shape, blur)
    maps[0] = 1.0  # the first rhythm is everywhere
    place = _visual_place(shape, blur)
    gain = outline(shape).astype(float)
    if wavelength == CONTROL:
        gain *= 0.8 + 0.2 * np.tanh(SmoothMaps.draw(made._rng(6), 1, scale=1.5).on(shape)[0])
    return (gain * np.concatenate([maps, place[None]])).astype(np.float32)


@lru_cache(maxsize=8)
def _brightness(made: CalciumSimulation, shape: tuple[int, int], wavelength: int) -> np.ndarray:
    right, anterior = positions(shape)
    lamp = np.exp(-(right**2 + anterior**2) / (2 * 4.5**2))
    vessels = 1 - 0.5 * np.exp(-((SmoothMaps.draw(made._rng(7), 1, scale=0.7).on(shape)[0] / 0.08) ** 2))
    cortex = np.where(outline(shape), vessels, 0.1)
    return (made.electrons * (1.0 if _known(wavelength) == SIGNAL else 0.6) * lamp * cortex).astype(np.float32)


def _known(wavelength: int) -> int:
    if wavelength not in (SIGNAL, CONTROL):
        raise unknown("wavelength", str(wavelength), (str(SIGNAL), str(CONTROL)))
    return wavelength


def _since(clock: np.ndarray, start: float, delay: np.ndarray) -> np.ndarray:
    """Seconds (T, H, W) since an event reached each pixel; float32 is precise enough after the subtraction."""
    return ((clock - start)[:, None, None] - delay).astype(np.float32)


def _felt(clock: np.ndarray, start: float, last: float) -> np.ndarray:
    """Indices of the times at which an event is visible: until 12 time constants after it reached the last pixel."""
    return np.flatnonzero((clock > start) & (clock < start + last + 12 * 0.7))
