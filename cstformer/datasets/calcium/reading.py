"""Open a recording without reading its frames: one movie for each wavelength, with its own times.

Files are opened as `load_movie` does. NWB describes its contents; elsewhere arrays are recognised by their names:

| name | contents |
|---|---|
| the only array (T, H, W), or ``key=`` | interleaved frames, or those of one wavelength |
| the only array (T, H, W, C) | C wavelengths, recorded in this order, in TIFF, ``.dat`` and ``SVT.npy`` |
| ``NAME_575``, ``NAME_395``, all (T, H, W) | frames of two wavelengths, already separated |
| ``times``, ``time``, ``t``, ``t_s`` (or ``times_575``) | seconds, one per frame; else pass ``rate=`` |
| ``wavelengths`` | nm, one per frame, or the order of the lamps |
| ``mask``, ``dark``, ``pixel_mm`` | cortex (H, W), dark level of the camera, side of a pixel |
| ``stimulus_start``, ``stimulus_stop``, ``stimulus_contrast`` | seconds, seconds, per cent |
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.data.movie_files import raw_clock
from cstformer.data.movie_formats import READERS, file_kind, open_arrays, stored_times
from cstformer.data.svd_files import read_svd
from cstformer.data.table_files import read_table
from cstformer.data.unread import whole
from cstformer.datasets.calcium.recording import Channel, Recording, Stimuli, split_channels
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_bytes, readable

CHUNK_BYTES = 32 * 2**20
"""Frames are read in pieces of about this size."""
MOST_PIECES = 2**20
"""A file that declares more pieces than this is damaged."""


def open_recording(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    wavelengths: Sequence[int] | None = None,
    rate: float | None = None,
    times: ArrayLike | None = None,
    pixel_mm: float | None = None,
    stimuli: Stimuli | None = None,
    only: int | None = None,
) -> Recording:
    """Open the channels of a recording; frames are read from disk when they are needed.

    Parameters
    ----------
    path : file, Zarr folder, folder of TIFF files (in natural order), or folder with `U.npy` and `SVT.npy`, of which
        1 + U @ SVT is taken, the fluorescence relative to the mean frame. An `.npz` is read at once.
    key : name of the array (of the series in NWB) with the frames, if there are several; two names separated by a comma
        if each wavelength has an array of its own.
    wavelengths : nm in the order of the lamps, or of the names in ``key``, or one per frame; the file's own by default.
    rate : raw frames per second, all lamps together, if the file has no times.
    times : seconds of each raw frame, instead of those of the file; see `cstformer.data.clocks.load_times`.
    pixel_mm, stimuli : replace those of the file, or add them.
    only : wavelength in nm of a recording of one colour, if neither ``wavelengths`` nor the file says it.
    """
    source, kind = Path(path), file_kind(path)
    if kind not in READERS:
        raise unknown("kind of recording", kind, READERS)
    if rate is not None and not (np.isfinite(rate) and rate > 0):
        raise CSTError(f"rate must be frames per second, a positive number, got {rate!r}")
    require("dask", *(["pynwb"] if kind == ".nwb" else []))
    with readable(source, f"a {kind} recording"):
        arrays = read_svd(source, key or "SVT", base=1.0) if kind == "svd" else open_arrays(source, key)
        if pixel_mm is None and "pixel_mm" in arrays:
            pixel_mm = float(whole(arrays["pixel_mm"]).reshape(-1)[0])
        return Recording(
            _channels(arrays, key, wavelengths, only, _Clock(arrays, times, rate)),
            pixel_mm,
            stimuli or _stimuli(arrays),
            None if "mask" not in arrays else whole(arrays["mask"]).astype(bool),
            None if "dark" not in arrays else np.atleast_2d(np.squeeze(as_floats("dark", whole(arrays["dark"])))),
        )


def require(*packages: str) -> None:
    """Raise an error that names a missing package and how to install it."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise CSTError(f'calcium recordings need {name}; pip install "cstformer[neuro]"')


def read_stimuli(path: str | os.PathLike[str]) -> Stimuli:
    """Read a table (csv, tsv, parquet) with the columns start, stop (seconds) and contrast (per cent)."""
    table = read_table(path)
    table.columns = [str(c).split("[")[0].strip().casefold() for c in table.columns]
    if missing := [c for c in ("start", "stop", "contrast") if c not in table.columns]:
        raise CSTError(f"{path} has no column {missing[0]!r} but {', '.join(table.columns)}")
    return Stimuli(*(as_floats(name, table[name]) for name in ("start", "stop", "contrast")))


def lazy(array: Any) -> Any:
    """Dask array in pieces of whole frames, aligned with the chunks of the file."""
    import dask.array as da

    frame = math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize
    check_bytes("one frame", frame)
    frames = max(1, CHUNK_BYTES // max(1, frame))
    stored = int((getattr(array, "chunks", None) or (1,))[0])
    if stored < frames:
        frames -= frames % stored
    if array.shape[0] > frames * MOST_PIECES:
        raise CSTError(f"it declares {array.shape[0]:,} frames of {frame:,} bytes, which no file holds; it is damaged")
    return da.from_array(array, chunks=(frames, *array.shape[1:]), asarray=True)


def _channels(
    arrays: Mapping[str, Any],
    key: str | None,
    wavelengths: Sequence[int] | None,
    only: int | None,
    clock: _Clock,
) -> dict[int, Channel]:
    movies = {name: a for name, a in arrays.items() if a.ndim in (3, 4) and np.dtype(a.dtype).kind in "fiu"}
    named = [] if key is None else key.split(",")
    for name in named:
        if name not in movies:
            raise unknown("array of shape (T, H, W)", name, movies)
    movies = {name: movies[name] for name in named or movies}
    own = {name: nm for name in movies if (nm := _own_wavelength(arrays, name)) is not None}
    if len(named) > 1 and wavelengths is not None and len(wavelengths) == len(named):
        own = dict(zip(named, map(int, wavelengths), strict=True))
    if len(movies) > 1 and len(set(own.values())) == len(movies):
        if clock.times is not None:
            raise CSTError(
                f"{', '.join(movies)} have frames of their own; store their clocks as times_NAME, one for each"
            )
        return {own[n]: Channel(lazy(a), clock.of(n, a.shape[0])) for n, a in movies.items()}
    if len(movies) != 1:
        shapes = ", ".join(f"{name} {tuple(a.shape)}" for name, a in arrays.items()) or "nothing"
        raise CSTError(
            f"one array of shape (T, H, W) is needed, found {len(movies)} in: {shapes}; choose by key= (--key), "
            "two of them together with wavelengths= if each has one colour"
        )
    name, movie = next(iter(movies.items()))
    stored = None if "wavelengths" not in arrays else whole(arrays["wavelengths"]).reshape(-1)
    labels = stored if wavelengths is None else np.asarray(wavelengths)
    colour = own.get(name, only if movie.ndim == 3 else None)
    if labels is None and colour is None:
        raise CSTError(
            "nothing says which wavelength a frame has; give them in the order of the lamps, wavelengths=(470, 405) "
            "(--wavelengths 470,405), or say that there is one colour (--signal 470 --correction none)"
        )
    order = labels if labels is not None else np.array([colour])
    if movie.ndim == 3:
        return split_channels(lazy(movie), clock.of(name, movie.shape[0]), order)
    colours = movie.shape[3]
    if len(order) != colours:
        raise CSTError(f"the frames have {colours} colours; wavelengths must name as many, got {order.tolist()}")
    raw = clock.of(name, movie.shape[0], colours)
    return {int(nm): Channel(lazy(movie)[..., c], raw[c::colours]) for c, nm in enumerate(order)}


def _own_wavelength(arrays: Mapping[str, Any], movie: str) -> int | None:
    """Wavelength of a movie in nm, from ``wavelengths_NAME`` or the end of its name."""
    told = arrays.get(f"wavelengths_{movie}")
    at_the_end = re.search(r"(\d{3,4})$", movie)
    return int(told) if told is not None else int(at_the_end[1]) if at_the_end else None


@dataclass(frozen=True)
class _Clock:
    """Where the times of raw frames come from: what the caller gave, the file, or a rate, in this order."""

    arrays: Mapping[str, Any]
    times: ArrayLike | None
    rate: float | None

    def of(self, movie: str, frames: int, colours: int = 1) -> np.ndarray:
        """Seconds (T · C,) of the raw frames of a movie; raw frame i shows colour i modulo C."""
        found = stored_times(self.arrays, movie) if self.times is None else as_floats("times", self.times)
        if found is not None:
            return raw_clock(found, frames, colours)
        if self.rate is None:
            raise CSTError(
                "nothing says when the frames were taken; give the raw frames per second (rate=, --rate) or the "
                "seconds of each raw frame (times=, --times)"
            )
        check_bytes("the clock of the recording", 16 * frames * colours)
        return np.arange(frames * colours) / self.rate


def _stimuli(arrays: Mapping[str, Any]) -> Stimuli | None:
    names = [f"stimulus_{n}" for n in ("start", "stop", "contrast")]
    if not all(n in arrays for n in names):
        return None
    return Stimuli(*(as_floats(n, whole(arrays[n])).reshape(-1) for n in names))
