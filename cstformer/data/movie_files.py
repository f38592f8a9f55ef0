"""Movies in files: which array of a file is the movie, the times of its frames, and its colours."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.data.grids import GridArray, axis_numbers, open_unread
from cstformer.data.movie_formats import READERS, file_kind, open_arrays, stored_times, unknown_kind
from cstformer.data.unread import Unread
from cstformer.errors import CSTError, unknown
from cstformer.system.files import MAX_BYTES, check_bytes, npy_header, npz_headers, read_npz, readable
from cstformer.system.zarr_files import open_zarr

CAMERA_KINDS = ("svd", ".dat", ".nwb", ".tif", ".tiff")
"""Files of recordings, in which two colours are two lamps that took turns."""


def load_movie(
    path: str | os.PathLike[str],
    key: str | None = None,
    max_bytes: int = MAX_BYTES,
    channel: int | None = None,
    times: ArrayLike | None = None,
    rate: float | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a movie (T, H, W) or (T, H, W, C), and the times of its frames if the file has them.

    Parameters
    ----------
    path : file or folder
        TIFF stack or a folder of them, `.npy`, raw frames of wfield (`NAME_CHANNELS_H_W_DTYPE.dat`), a folder with
        `U.npy` and `SVT.npy`, NWB; or `.npz`, Zarr, NetCDF or HDF5 with one array of three or four dimensions.
    key : name of the movie, if the file has several such arrays; `SVT` or `SVTcorr`; the name of a series in NWB.
    max_bytes : files that declare larger arrays are refused; 16 GiB by default.
    channel : the colour to read, from 0, if the movie has several; all by default.
    times : (T,) of the frames, or (T · C,) of all raw frames if C colours alternate; replaces the times of the file.
    rate : (raw) frames per second, if neither `times` nor the file says when frames were taken.

    Returns
    -------
    The movie and its times (T,) or None. Times are an array `times`, `time`, `t` or `t_s`, the clock of NWB, or the
    frame rate of ImageJ and wfield. In NetCDF, and in Zarr written by xarray, they are the coordinate of the first
    dimension; dates become hours since the first. If colours alternate, the times are those of the chosen colour, or of
    the first one.
    """
    movie, clock = open_movie(path, key, max_bytes)
    movie, clock = one_colour(movie, clock, channel, times, rate)
    check_bytes(path, movie.nbytes, max_bytes)
    with readable(path, "a movie"):
        return np.array(movie[...]), clock


def open_movie(
    path: str | os.PathLike[str], key: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[Any, np.ndarray | None]:
    """Movie and stored times of a file; frames are read when indexed, except those of an `.npz`."""
    kind = file_kind(path)
    if kind not in (*READERS, ".nc"):
        raise unknown_kind(kind, (*READERS, ".nc"))
    with readable(path, f"a {kind} movie") as source:
        arrays = _arrays(source, kind, key, max_bytes)
        name = _movie_name(source, arrays, None if kind == "svd" else key)
        return arrays[name], stored_times(arrays, name)


def one_colour(
    movie: Any,
    stored: np.ndarray | None,
    channel: int | None = None,
    times: ArrayLike | None = None,
    rate: float | None = None,
) -> tuple[Any, np.ndarray | None]:
    """A colour (T, H, W) of a movie (T, H, W, C), or all of them, with its own times (T,); see `load_movie`.

    >>> movie, times = one_colour(np.zeros((2, 4, 4, 2)), np.array([0.0, 0.1, 0.2, 0.3]), channel=1)
    >>> movie.shape, times.tolist()
    ((2, 4, 4), [0.1, 0.3])
    """
    frames, colours = movie.shape[0], movie.shape[3] if movie.ndim == 4 else 1
    if channel is not None and not 0 <= channel < colours:
        raise CSTError(f"channel {channel} does not exist; the movie has {colours}, numbered from 0")
    clock = stored if times is None else as_floats("times", times)
    if clock is None and rate is not None:
        if not 0 < rate < np.inf:
            raise CSTError(f"rate must be frames per second, a positive number, got {rate!r}")
        clock = np.arange(frames * colours) / rate
    if clock is not None:
        clock = raw_clock(clock, frames, colours)[channel or 0 :: colours] if len(clock) != frames else clock
    return (movie if channel is None or movie.ndim == 3 else _Colour(movie, channel)), clock


def raw_clock(times: np.ndarray, frames: int, colours: int = 1) -> np.ndarray:
    """Check that there is a time for each raw frame; raw frame i shows colour i modulo ``colours``."""
    if times.shape != (frames * colours,):
        raw = f" of {colours} colours each, {frames * colours} raw frames" if colours > 1 else ""
        raise CSTError(
            f"there are {len(times)} times for {frames} frames{raw}; give one time for each frame that was saved. "
            "If the list also has frames that were not saved, remove these; if it is the camera's counter, "
            "give its column `frame` and the rate"
        )
    return times


class _Colour(Unread):
    """One colour of a movie (T, H, W, C), unread."""

    def __init__(self, movie: Any, channel: int):
        self.movie, self.channel = movie, channel
        self.shape, self.dtype = tuple(movie.shape[:3]), np.dtype(movie.dtype)
        self.chunks = getattr(movie, "chunks", None)

    def _frames(self, frames: slice | np.ndarray) -> np.ndarray:
        return np.asarray(self.movie[frames])[..., self.channel]


def is_movie(path: str | os.PathLike[str], gridded: bool = False) -> bool:
    """Whether `path` is clearly a movie, judged by its name and headers alone.

    True for the files of cameras (TIFF, `.dat`, NWB, `U.npy` and `SVT.npy`), HDF5, a Zarr array, and a `.npy` or `.npz`
    that has a numeric array of 3 or 4 dimensions and no `coords`. A NetCDF file or a Zarr group can also hold gridded
    samples; for these the answer is `gridded`.
    """
    source, kind = Path(path), file_kind(path)
    if kind in (*CAMERA_KINDS, ".h5", ".hdf5"):
        return True
    if kind in (".npz", ".npy"):
        with readable(source, kind):
            if kind == ".npz":
                headers = npz_headers(source)
            else:
                with source.open("rb") as stream:
                    headers = {"movie": npy_header(source, stream, "movie")}
        numeric = any(len(shape) in (3, 4) and dtype.kind in "fiub" for shape, dtype in headers.values())
        return numeric and "coords" not in headers
    if kind == ".zarr":
        meta = source / "zarr.json"
        with readable(source, "Zarr"):
            node = json.loads(meta.read_text()).get("node_type") if meta.exists() else None
        return gridded or node == "array" or (source / ".zarray").exists()
    return gridded and kind == ".nc"


def movie_names(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> list[str]:
    """Names of the movies in a file, any of which `load_movie` takes as ``key``."""
    kind = file_kind(path)
    with readable(path, f"a {kind} movie") as source:
        return _candidates(_arrays(source, kind, None, max_bytes))


def _candidates(arrays: dict[str, Any]) -> list[str]:
    return [k for k, a in arrays.items() if a.ndim in (3, 4) and np.dtype(a.dtype).kind in "fiub"]


def _movie_name(path: Path, arrays: dict[str, Any], key: str | None) -> str:
    """The name of the only movie among the arrays, or ``key``."""
    if key is not None:
        if key not in arrays:
            raise unknown(f"array in {path}", key, arrays)
        if arrays[key].ndim not in (3, 4):
            raise CSTError(f"{path}: {key!r} has shape {arrays[key].shape}; a movie is (T, H, W[, C])")
        return key
    movies = _candidates(arrays)
    if len(movies) != 1:
        shapes = ", ".join(f"{k} {tuple(a.shape)}" for k, a in arrays.items() if movies == [] or k in movies)
        colours = file_kind(path) in CAMERA_KINDS and len(movies) == 2
        raise CSTError(
            f"{path} must have one array of shape (T, H, W[, C]), found {len(movies)} in: {shapes}"
            + ("; choose one by key= (--key)" if movies else "")
            + (", or, if they are two colours, run cst data preprocess-calcium first" if colours else "")
        )
    return movies[0]


def _arrays(path: Path, kind: str, key: str | None, max_bytes: int) -> dict[str, Any]:
    """Arrays of a file by name; what xarray wrote has its dates and scaled numbers decoded."""
    if kind == ".npz":
        return dict(read_npz(path, max_bytes))
    if kind == ".nc":
        return _decoded(path, key)
    if kind == ".zarr" and not hasattr(open_zarr(path), "shape"):
        try:
            return _decoded(path, key)
        except KeyError:  # a group without dimension names, not written by xarray
            pass
    return open_arrays(path, key)


def _decoded(path: Path, key: str | None) -> dict[str, Any]:
    with open_unread(path) as data:
        arrays: dict[str, Any] = {str(name): GridArray.of(path, data[name]) for name in data.data_vars}
        movies = [name for name in ([key] if key in arrays else arrays) if arrays[name].ndim in (3, 4)]
        if len(movies) == 1 and data[movies[0]].dims[0] in data.coords:
            arrays["times"] = axis_numbers(data, str(data[movies[0]].dims[0]))[0]
        return arrays
