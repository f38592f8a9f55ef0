"""From raw frames to z-scored neural activity: pure functions on arrays, and the chain of them on disk.

The chain never holds a whole recording. It goes over it by time (dark level, binning, cropping) into a temporary Zarr
folder, then over that by strips of pixels with all their frames (clock, ΔF/F, hemodynamics, z-score).
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cstformer.datasets.calcium.bars import dask_bar
from cstformer.datasets.calcium.baseline import BASELINES, delta_f
from cstformer.datasets.calcium.hemodynamics import TILE, regress_out, remove_hemodynamics
from cstformer.datasets.calcium.recording import Channel, Recording, contrast_label
from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path, scratch_folder
from cstformer.system.cluster import dask_cluster

CORRECTIONS = ("estimator", "regression", "none")
PAPER_CROP = (32, 40, 24, 24)
"""Rows and columns that the paper takes off 256 × 256 frames: top, bottom, left, right; 184 × 208 remain."""
STRIP_BYTES = 96 * 2**20
"""Size of one channel of a strip of pixels; a worker needs about eight times as much."""

_FRAMES = 256  # frames in a stored chunk


@dataclass(frozen=True)
class Preprocessing:
    """Settings of the chain; the defaults are the paper's, with the baseline that its words describe."""

    signal: int = 575
    """Wavelength of the signal in nm."""
    control: int = 395
    """Wavelength of the isosbestic control in nm."""
    binning: int = 2
    """Side of the squares of pixels that are averaged."""
    crop: tuple[int, int, int, int] | None = None
    """Pixels to take off after binning: top, bottom, left, right. None: the paper's from 256 × 256 frames only."""
    baseline: str = "smooth"
    """``smooth`` or ``literal``, see `baseline`."""
    cutoff: float = 0.001
    """Of the baseline, in Hz."""
    correction: str = "estimator"
    """``estimator``, ``regression`` or ``none``."""
    components: int = 0
    """Principal components to store besides the frames."""

    def __post_init__(self) -> None:
        if self.baseline not in BASELINES:
            raise unknown("baseline", self.baseline, BASELINES)
        if self.correction not in CORRECTIONS:
            raise unknown("correction", self.correction, CORRECTIONS)
        for name, least in (("binning", 1), ("components", 0)):
            if getattr(self, name) < least:
                raise CSTError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        if self.crop is not None and (len(self.crop) != 4 or min(self.crop) < 0):
            raise CSTError(f"crop must be four numbers (top, bottom, left, right), 0 or more, got {self.crop!r}")

    def margins(self, height: int, width: int) -> tuple[int, int, int, int]:
        """The crop of binned frames of this size."""
        margins = self.crop or (0, 0, 0, 0)
        if self.crop is None and (height, width) == (256, 256):
            margins = PAPER_CROP
        if margins[0] + margins[1] >= height or margins[2] + margins[3] >= width:
            raise CSTError(f"crop={margins} leaves nothing of frames of {height} × {width} pixels; take off less")
        return margins


# --- steps ---


def bin_pixels(frames: np.ndarray, factor: int) -> Float[np.ndarray, "T h w"]:
    """Average squares of ``factor`` × ``factor`` pixels.

    >>> bin_pixels(np.arange(8).reshape(1, 2, 4), 2).tolist()
    [[[2.5, 4.5]]]
    """
    count, height, width = frames.shape
    if height % factor or width % factor:
        raise CSTError(f"binning={factor} does not divide frames of {height} × {width} pixels; choose another")
    squares = frames.reshape(count, height // factor, factor, width // factor, factor)
    return squares.mean(axis=(2, 4), dtype=np.float32)


def crop(frames: np.ndarray, margins: tuple[int, int, int, int]) -> np.ndarray:
    """Take off rows and columns: top, bottom, left, right; the last two axes are the pixels."""
    top, bottom, left, right = margins
    return frames[..., top : frames.shape[-2] - bottom, left : frames.shape[-1] - right]


def regular_clock(channel: Channel) -> tuple[Float[np.ndarray, " T"], Bool[np.ndarray, " T"]]:
    """Evenly spaced times from the first frame to the last, and which of them have a frame within 0.35 steps.

    >>> channel = Channel(np.zeros((4, 1, 1)), np.array([0.0, 0.1, 0.2, 0.4]))
    >>> clock, seen = regular_clock(channel)
    >>> clock.round(3).tolist(), seen.tolist()
    ([0.0, 0.1, 0.2, 0.3, 0.4], [True, True, True, False, True])
    """
    times = channel.times
    count = int(np.rint((times[-1] - times[0]) / channel.step)) + 1
    clock = np.linspace(times[0], times[-1], count)
    right = np.clip(np.searchsorted(times, clock), 1, len(times) - 1)
    nearest = np.minimum(np.abs(clock - times[right - 1]), np.abs(times[right] - clock))
    return clock, nearest <= 0.35 * channel.step


def resample(frames: Float[np.ndarray, "n ..."], times: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Frames at the times of ``clock``, linear between their own times and constant beyond.

    This gives the two interleaved channels one clock, and fills dropped frames.

    >>> resample(np.array([[0.0], [2.0]]), np.array([0.5, 1.5]), np.array([0.0, 1.0])).ravel().tolist()
    [0.0, 1.0]
    """
    if np.array_equal(times, clock):
        return frames
    right = np.clip(np.searchsorted(times, clock), 1, len(times) - 1)
    share = np.clip((clock - times[right - 1]) / (times[right] - times[right - 1]), 0, 1).astype(frames.dtype)
    share = share.reshape(-1, *[1] * (frames.ndim - 1))
    out = frames[right - 1] * (1 - share)
    out += frames[right] * share
    return out


def z_score(
    frames: Float[np.ndarray, "T ..."],
) -> tuple[Float[np.ndarray, "T ..."], np.ndarray, np.ndarray]:
    """Each pixel with mean 0 and standard deviation 1 over time, and what they were; NaN where nothing changes.

    >>> scores, mean, sd = z_score(np.array([[1.0, 2.0], [3.0, 2.0]]))
    >>> scores.tolist(), mean.tolist(), sd.tolist()
    ([[-1.0, nan], [1.0, nan]], [2.0, 2.0], [1.0, 0.0])
    """
    mean, sd = frames.mean(axis=0), frames.std(axis=0)
    return (frames - mean) / np.where(sd > 0, sd, np.nan), mean, sd


def brightness_mask(image: Float[np.ndarray, "H W"]) -> Bool[np.ndarray, "H W"]:
    """The bright region of a mean frame: above Otsu's threshold of log brightness, without small islands and holes."""
    from scipy import ndimage

    log = np.log(np.maximum(image, np.finfo(np.float32).tiny))
    level = np.sort(log[np.isfinite(image) & (image > 0)])
    if len(level) < 2 or level[0] == level[-1]:
        raise CSTError("the mean frame has no bright and dark part; pass a mask, or none")
    count = np.arange(1, len(level))
    total = np.cumsum(level)
    below, above = total[:-1] / count, (total[-1] - total[:-1]) / (len(level) - count)
    cut = int(np.argmax(count * (len(level) - count) * (above - below) ** 2))
    parts, found = ndimage.label(log > level[cut])
    size = ndimage.sum_labels(np.ones_like(log), parts, np.arange(1, found + 1))
    large = np.isin(parts, 1 + np.flatnonzero(size >= 0.1 * size.max()))
    return ndimage.binary_fill_holes(large)


def principal_components(frames: Any, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (T, k), components (k, H, W) and explained share (k,) of z-scored Dask frames; NaN counts as 0."""
    import dask.array as da

    flat = da.nan_to_num(frames.rechunk({1: -1, 2: -1}).reshape(len(frames), -1))
    if not 0 < count <= min(flat.shape):
        raise CSTError(f"components={count} must be between 1 and {min(flat.shape)}, the number of frames or pixels")
    u, s, v = da.linalg.svd_compressed(flat, k=count, n_power_iter=3, seed=seed)
    u, s, v, power = da.compute(u, s, v, (flat.astype(np.float64) ** 2).sum())
    return u * s, v.reshape(count, *frames.shape[1:]), s**2 / power


# --- the chain ---


def preprocess(
    recording: Recording,
    out: str | os.PathLike[str],
    settings: Preprocessing | None = None,
    *,
    mask: Bool[np.ndarray, "H W"] | str | None = None,
    progress: bool = False,
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Write the Zarr folder ``out``: frames (time, row, col) of z-scored activity, and everything to read them with.

    ``mask`` is bool in raw or binned pixels, ``"auto"`` for the bright region, ``"none"``, or by default the
    recording's own. ``scheduler`` is the address of a Dask cluster to work on, whose workers see the same files.
    Also written: time, observed (False: a dropped frame that was filled), mask, mean and sd of ΔF/F before the z-score,
    contrast and label of each frame; pca_scores, pca_components (k, pixels), pca_explained.

    Returns what was done, for people: the same words as in the attributes of the folder.
    """
    import dask
    import dask.array as da
    import zarr
    from threadpoolctl import threadpool_limits

    settings = settings or Preprocessing()
    if Path(out).suffix != ".zarr":
        raise CSTError(f"{out}: preprocessed recordings are written as .zarr")
    channels = [recording.channel(settings.signal)]
    if settings.correction != "none":
        if settings.control not in recording.channels:
            raise CSTError(
                f"the recording has no control at {settings.control} nm; pass correction='none' (or control=)"
            )
        channels.append(recording.channel(settings.control))
    clock, observed = regular_clock(channels[0])
    times, rate, progress = [channel.times for channel in channels], 1 / channels[0].step, progress and not scheduler
    with (
        atomic_path(Path(out).absolute()) as temporary,
        scratch_folder(Path(out)) as folder,
        dask_cluster(scheduler),
    ):
        small, margins = _reduce(recording, channels, settings, folder, progress)
        height, width = small[0].shape[1:]
        exists = _mask(recording if mask is None else mask, small[0], settings, margins)
        rows, cols = _strip(max(len(clock), *(s.shape[0] for s in small)), height, width)
        group = zarr.open_group(temporary, mode="w")
        chunks = (min(_FRAMES, len(clock)), min(rows, height), min(cols, width))
        movie = _array(group, "frames", (len(clock), height, width), np.float32, ("time", "row", "col"), chunks)
        still = {name: np.full((height, width), np.nan, np.float32) for name in ("mean", "sd")}

        @dask.delayed(pure=False)
        def clean(top: int, left: int) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
            bottom, right = min(top + rows, height), min(left + cols, width)
            rim = (int(top > 0), int(bottom < height), int(left > 0), int(right < width))
            box = slice(top - rim[0], bottom + rim[1]), slice(left - rim[2], right + rim[3])
            inside = exists[box]
            pieces = []
            for moments, stored in zip(times, small, strict=True):
                raw = resample(stored[(slice(None), *box)], moments, clock)
                pieces.append(delta_f(raw, rate, settings.baseline, settings.cutoff))
            scores, mean, sd = z_score(_corrected(pieces, inside, rim, settings.correction))
            movie[:, top:bottom, left:right] = scores
            return (slice(top, bottom), slice(left, right)), mean, sd

        # Dask's threads share the cores already; those of the linear algebra would only get in their way.
        with dask_bar("cleaning pixels", progress), threadpool_limits(1):
            strips = [clean(top, left) for top in range(0, height, rows) for left in range(0, width, cols)]
            for box, mean, sd in dask.compute(strips)[0]:
                still["mean"][box], still["sd"][box] = mean, sd
        exists &= still["sd"] > 0
        for name, image in (still | {"mask": exists}).items():
            _array(group, name, image, dims=("row", "col"))
        _array(group, "time", clock, dims=("time",))
        _array(group, "observed", observed, dims=("time",))
        if recording.stimuli is not None:
            contrast = recording.stimuli.contrast_at(clock)
            _array(group, "contrast", contrast, dims=("time",))
            _array(group, "label", contrast_label(contrast), dims=("time",))
        if settings.components:
            with dask_bar("principal components", progress):
                scores, parts, share = principal_components(da.from_array(movie, chunks=movie.chunks), settings.components)
            _array(group, "pca_scores", scores, dims=("time", "component"))
            _array(group, "pca_components", parts.reshape(settings.components, -1), dims=("component", "pixel"))
            _array(group, "pca_explained", share, dims=("component",))
        done = {"frames": len(clock), "height": height, "width": width, "pixels": int(exists.sum())}
        done |= {"filled": int((~observed).sum()), "crop": list(margins)}
        done |= {"rate": float((len(clock) - 1) / (clock[-1] - clock[0]))}
        if recording.pixel_mm is not None:
            done["pixel_mm"] = recording.pixel_mm * settings.binning
        group.attrs.update(done | {"preprocessing": json.dumps(dataclasses.asdict(settings))})
    return done


def _reduce(
    recording: Recording, channels: list[Channel], settings: Preprocessing, folder: Path, progress: bool
) -> tuple[list[Any], tuple[int, int, int, int]]:
    """First pass, by time: dark level off, binned, cropped, on disk in chunks that suit the second pass."""
    import dask.array as da
    import zarr

    raw = channels[0].frames.shape[1:]
    dark = np.zeros((1, 1)) if recording.dark is None else recording.dark
    dark = np.broadcast_to(dark, raw).astype(np.float32)[None]
    size = bin_pixels(dark, settings.binning).shape[1:]
    margins = settings.margins(*size)
    shape = crop(np.empty(size), margins).shape
    little_dark = bin_pixels(dark, settings.binning)

    def step(block: np.ndarray) -> np.ndarray:
        return crop(bin_pixels(block, settings.binning) - little_dark, margins)

    movies: list[Any] = []
    stores: list[Any] = []
    for i, channel in enumerate(channels):
        frames = channel.frames.rechunk({1: -1, 2: -1})
        reduced = frames.map_blocks(step, dtype=np.float32, chunks=(frames.chunks[0], *((n,) for n in shape)))
        count = min(_FRAMES, len(reduced))
        movies.append(reduced.rechunk({0: count}))
        cols = _strip(len(reduced), *shape)[1]
        chunks = (count, min(TILE, shape[0]), min(cols, shape[1]))
        stores.append(
            zarr.create_array(folder / f"{i}.zarr", shape=reduced.shape, dtype="f4", chunks=chunks, compressors=None)
        )
    with dask_bar("reading frames", progress):
        da.store(movies, stores, lock=False)
    return stores, margins


def _strip(frames: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a strip with all its frames, multiples of a tile."""
    pixels = STRIP_BYTES // (4 * frames)
    if pixels >= TILE * width:
        return min(pixels // width // TILE * TILE, -(-height // TILE) * TILE), width
    return TILE, max(TILE, pixels // TILE // TILE * TILE)


def _corrected(
    pieces: list[np.ndarray], inside: np.ndarray, rim: tuple[int, int, int, int], correction: str
) -> np.ndarray:
    if correction == "estimator":
        return remove_hemodynamics(pieces[0], pieces[1], inside, rim)
    if correction == "regression":
        return crop(regress_out(pieces[0], pieces[1], inside), rim)
    return crop(np.where(inside, pieces[0], np.nan), rim)


def _mask(
    given: Any, small: Any, settings: Preprocessing, margins: tuple[int, int, int, int]
) -> Bool[np.ndarray, "h w"]:
    """The mask in binned and cropped pixels; a binned pixel counts if most of it does."""
    import dask.array as da

    if isinstance(given, Recording):
        given = "none" if given.mask is None else given.mask
    if isinstance(given, str):
        if given not in ("auto", "none"):
            raise unknown("mask", given, ("auto", "none"))
        if given == "none":
            return np.ones(small.shape[1:], bool)
        return brightness_mask(da.from_array(small, chunks=small.chunks).mean(axis=0).compute())
    size = tuple(n + m for n, m in zip(small.shape[1:], (sum(margins[:2]), sum(margins[2:])), strict=True))
    if given.shape == tuple(n * settings.binning for n in size):
        given = bin_pixels(given[None].astype(np.float32), settings.binning)[0] > 0.5
    if given.shape != size:
        raise CSTError(f"mask must have the size of raw or binned frames, {size}, got {given.shape}")
    return crop(given.astype(bool), margins)


def _array(
    group: Any, name: str, data: Any, dtype: Any = None, dims: tuple[str, ...] = (), chunks: Any = "auto"
) -> Any:
    """Array of a group, with the names of its axes, as xarray reads them; from its data or its shape."""
    if isinstance(data, tuple):
        return group.create_array(name, shape=data, dtype=dtype, chunks=chunks, dimension_names=dims)
    return group.create_array(name, data=np.ascontiguousarray(data), dimension_names=dims)
