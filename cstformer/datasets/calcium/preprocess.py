"""From raw frames to z-scored neural activity, in two passes over files; the steps are in `steps`.

Memory never holds a whole recording. The first pass goes by time (dark level, binning, cropping) and writes a temporary
Zarr folder. The second pass reads it by strips of pixels with all their frames (ΔF/F, hemodynamics, z-score).
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from cstformer.datasets.calcium.bars import dask_bar
from cstformer.datasets.calcium.baseline import BASELINES, baseline, relative_change
from cstformer.datasets.calcium.hemodynamics import TILE, regress_out, remove_hemodynamics
from cstformer.datasets.calcium.recording import Channel, Recording, contrast_label
from cstformer.datasets.calcium.steps import (
    bin_pixels,
    brightness_mask,
    crop,
    principal_components,
    regular_clock,
    resample,
    z_score,
)
from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path, scratch_folder
from cstformer.system.cluster import dask_cluster
from cstformer.system.targets import check_replaceable

MARK = "preprocessing"
"""Attribute of the Zarr groups that `preprocess` writes: the settings."""
CORRECTIONS = ("estimator", "regression", "none")
PAPER_CROP = (32, 40, 24, 24)
"""Rows and columns that the paper removes from 256 × 256 frames: top, bottom, left, right; 184 × 208 remain."""
STRIP_BYTES = 96 * 2**20
"""Bytes of one channel of a strip of pixels; a worker needs about eight times as many."""

_FRAMES = 256  # frames in a stored chunk


@dataclass(frozen=True)
class Preprocessing:
    """Settings of preprocessing; the defaults are the paper's, with the cutoff that its text gives."""

    signal: int = 575
    """Wavelength of the signal in nm."""
    control: int = 395
    """Wavelength of the isosbestic control in nm."""
    binning: int = 2
    """Side in pixels of the squares that are averaged."""
    crop: tuple[int, int, int, int] | None = None
    """Pixels to remove after binning: top, bottom, left, right. None removes the paper's from 256 × 256 frames only."""
    baseline: str = "smooth"
    """``smooth`` or ``literal``, see `baseline`."""
    cutoff: float = 0.001
    """Cutoff of the baseline in Hz."""
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
        """Pixels to remove from binned frames of this size: top, bottom, left, right."""
        margins = self.crop or (0, 0, 0, 0)
        if self.crop is None and (height, width) == (256, 256):
            margins = PAPER_CROP
        if margins[0] + margins[1] >= height or margins[2] + margins[3] >= width:
            raise CSTError(f"crop={margins} leaves nothing of frames of {height} × {width} pixels; remove fewer")
        return margins


def preprocess(
    recording: Recording,
    out: str | os.PathLike[str],
    settings: Preprocessing | None = None,
    *,
    mask: Bool[np.ndarray, "H W"] | str | None = None,
    progress: bool = False,
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Write z-scored activity to the Zarr folder ``out``.

    Parameters
    ----------
    recording : both channels, and perhaps stimuli, mask and dark level.
    out : ends in ``.zarr``.
    mask : bool in raw or binned pixels, ``"auto"`` for the bright region, ``"none"``; the recording's own by default.
    progress : show progress bars.
    scheduler : address of a Dask cluster to compute on; its workers must see the same files.

    Returns
    -------
    Summary of the result; the folder has it in its attributes.

    Notes
    -----
    The folder has ``frames`` (time, row, col), ``time``, ``mask``, and ``mean`` and ``sd`` of ΔF/F before the z-score.
    With stimuli it also has ``contrast`` and ``label`` of each frame; with components, ``pca_scores``,
    ``pca_components`` (k, pixels) and ``pca_explained``.

    Frames keep the times of the signal: a dropped frame is a gap in ``time``, and jitter stays. Only the control, which
    is recorded at other times, is interpolated, linearly to the times of the signal.
    """
    import zarr

    settings = settings or Preprocessing()
    if Path(out).suffix != ".zarr":
        raise CSTError(f"{out}: preprocessed recordings are written as .zarr")
    check_replaceable(out, MARK)
    channels = _chosen_channels(recording, settings)
    clock = channels[0].times
    progress = progress and not scheduler
    with (
        atomic_path(Path(out).absolute()) as temporary,
        scratch_folder(Path(out)) as folder,
        dask_cluster(scheduler),
    ):
        small, margins = _reduce(recording, channels, settings, folder, progress)
        height, width = small[0].shape[1:]
        exists = _mask(recording if mask is None else mask, small[0], settings, margins)
        group = zarr.open_group(temporary, mode="w")
        movie, still = _clean(group, channels, small, exists, settings, progress)
        exists &= still["sd"] > 0
        for name, image in (still | {"mask": exists}).items():
            _array(group, name, image, dims=("row", "col"))
        _array(group, "time", clock, dims=("time",))
        if recording.stimuli is not None:
            contrast = recording.stimuli.contrast_at(clock)
            _array(group, "contrast", contrast, dims=("time",))
            _array(group, "label", contrast_label(contrast), dims=("time",))
        if settings.components:
            _write_components(group, movie, settings.components, progress)
        done = {"frames": len(clock), "height": height, "width": width, "pixels": int(exists.sum())}
        done |= {"dropped": channels[0].dropped, "crop": list(margins), "rate": 1 / channels[0].step}
        if recording.pixel_mm is not None:
            done["pixel_mm"] = recording.pixel_mm * settings.binning
        group.attrs.update(done | {MARK: json.dumps(dataclasses.asdict(settings))})
    return done


def _chosen_channels(recording: Recording, settings: Preprocessing) -> list[Channel]:
    """The signal and, if a correction needs it, the control."""
    channels = [recording.channel(settings.signal)]
    if settings.correction != "none":
        if settings.control not in recording.channels:
            raise CSTError(
                f"the recording has no control at {settings.control} nm; pass correction='none' (or control=)"
            )
        channels.append(recording.channel(settings.control))
    return channels


def _clean(
    group: Any,
    channels: list[Channel],
    small: list[Any],
    exists: np.ndarray,
    settings: Preprocessing,
    progress: bool,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Second pass, by strips of pixels: write the z-scored frames; return their array, and mean and sd of ΔF/F."""
    import dask
    from threadpoolctl import threadpool_limits

    height, width = exists.shape
    clock, even = channels[0].times, regular_clock(channels[0])
    rows, cols = _strip(max(len(even), *(s.shape[0] for s in small)), height, width)
    chunks = (min(_FRAMES, len(clock)), min(rows, height), min(cols, width))
    movie = _array(group, "frames", (len(clock), height, width), np.float32, ("time", "row", "col"), chunks)
    times = [channel.times for channel in channels]
    filter_by = (1 / channels[0].step, settings.baseline, settings.cutoff)

    @dask.delayed(pure=False)
    def clean(top: int, left: int) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
        bottom, right = min(top + rows, height), min(left + cols, width)
        rim = (int(top > 0), int(bottom < height), int(left > 0), int(right < width))
        box = slice(top - rim[0], bottom + rim[1]), slice(left - rim[2], right + rim[3])
        pieces = []
        for moments, stored in zip(times, small, strict=True):
            raw = resample(stored[(slice(None), *box)], moments, clock)
            # The filter needs even steps; the slow baseline loses nothing on its way there and back.
            slow = resample(baseline(resample(raw, clock, even), *filter_by), even, clock)
            pieces.append(relative_change(raw, slow))
        scores, mean, sd = z_score(_corrected(pieces, exists[box], rim, settings.correction))
        movie[:, top:bottom, left:right] = scores
        return (slice(top, bottom), slice(left, right)), mean, sd

    still = {name: np.full((height, width), np.nan, np.float32) for name in ("mean", "sd")}
    # Dask's threads already use all cores; threads of the linear algebra would compete with them.
    with dask_bar("cleaning pixels", progress), threadpool_limits(1):
        strips = [clean(top, left) for top in range(0, height, rows) for left in range(0, width, cols)]
        for box, mean, sd in dask.compute(strips)[0]:
            still["mean"][box], still["sd"][box] = mean, sd
    return movie, still


def _write_components(group: Any, movie: Any, count: int, progress: bool) -> None:
    import dask.array as da

    with dask_bar("principal components", progress):
        scores, parts, share = principal_components(da.from_array(movie, chunks=movie.chunks), count)
    _array(group, "pca_scores", scores, dims=("time", "component"))
    _array(group, "pca_components", parts.reshape(count, -1), dims=("component", "pixel"))
    _array(group, "pca_explained", share, dims=("component",))


def _reduce(
    recording: Recording, channels: list[Channel], settings: Preprocessing, folder: Path, progress: bool
) -> tuple[list[Any], tuple[int, int, int, int]]:
    """First pass, by time: subtract the dark level, bin, crop, and store in chunks that suit the second pass."""
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
    """Rows and columns of a strip of pixels with all its frames; multiples of a tile."""
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
    """Mask in binned and cropped pixels; a binned pixel exists if more than half of it does."""
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
    """Create an array from its data or its shape, with the names of its axes for xarray."""
    if isinstance(data, tuple):
        return group.create_array(name, shape=data, dtype=dtype, chunks=chunks, dimension_names=dims)
    return group.create_array(name, data=np.ascontiguousarray(data), dimension_names=dims)
