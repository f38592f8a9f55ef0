"""Movies in files: TIFF stacks, npy, npz, Zarr and NetCDF."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cstformer.data.grids import axis_numbers, open_xarray
from cstformer.errors import CSTError, unknown
from cstformer.system.files import MAX_BYTES, check_bytes, check_tiff, npy_header, npz_headers, read_npz, readable
from cstformer.system.zarr_files import open_zarr


def load_movie(
    path: str | os.PathLike[str], key: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a movie (T, H, W) or (T, H, W, C), and the times of its frames if the file has them.

    Parameters
    ----------
    path : TIFF stack or `.npy`; or `.npz`, Zarr or NetCDF with one array of three or four dimensions.
    key : name of the movie, if the file has several such arrays.
    max_bytes : files that declare larger arrays are refused.

    Returns
    -------
    The movie and its times (T,) or None. Times are an array `times`, `time` or `t` of length T. In NetCDF, and in Zarr
    written by xarray, they are the coordinate of the first dimension; dates become hours since the first.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise unknown("kind of movie file", suffix, _READERS)
    with readable(path, f"a {suffix} movie") as source:
        arrays, movie_key = _READERS[suffix](source, key, max_bytes), key
        if movie_key is None:
            candidates = [k for k, a in arrays.items() if a.ndim in (3, 4) and a.dtype.kind in "fiub"]
            if len(candidates) != 1:
                shapes = ", ".join(f"{k} {a.shape}" for k, a in arrays.items())
                raise CSTError(
                    f"{path} must have one array of shape (T, H, W[, C]), found {len(candidates)} "
                    f"in: {shapes}" + ("; choose one by key=" if candidates else "")
                )
            movie_key = candidates[0]
        if movie_key not in arrays:
            raise unknown(f"array in {path}", movie_key, arrays)
        movie = arrays[movie_key]
        if movie.ndim not in (3, 4):
            raise CSTError(f"{path}: {movie_key!r} has shape {movie.shape}; a movie is (T, H, W[, C])")
        times = next((arrays[k] for k in ("times", "time", "t") if k in arrays and k != movie_key), None)
        return movie, times if times is not None and times.shape == movie.shape[:1] else None


def is_movie(path: str | os.PathLike[str], gridded: bool = False) -> bool:
    """Whether `path` is clearly a movie, judged by its name and headers alone.

    True for TIFF, a Zarr array, and a `.npy` or `.npz` that has a numeric array of 3 or 4 dimensions and no `coords`.
    A NetCDF file or a Zarr group can also hold gridded samples; for these the answer is `gridded`.
    """
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix in (".tif", ".tiff"):
        return True
    if suffix in (".npz", ".npy"):
        with readable(source, suffix):
            if suffix == ".npz":
                headers = npz_headers(source)
            else:
                with source.open("rb") as stream:
                    headers = {"movie": npy_header(source, stream, "movie")}
        numeric = any(len(shape) in (3, 4) and dtype.kind in "fiub" for shape, dtype in headers.values())
        return numeric and "coords" not in headers
    if suffix == ".zarr":
        meta = source / "zarr.json"
        with readable(source, "Zarr"):
            node = json.loads(meta.read_text()).get("node_type") if meta.exists() else None
        return gridded or node == "array" or (source / ".zarray").exists()
    return gridded and suffix == ".nc"


# --- readers: arrays by name ---


def _tiff(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    import tifffile

    check_tiff(path)
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        check_bytes(path, series.nbytes, max_bytes)
        axes, movie = series.axes, series.asarray()
    colour = next((axes.index(a) for a in "SC" if a in axes), None)
    if colour is not None and movie.ndim == 3:
        raise CSTError(f"{path} is one picture with colours {movie.shape}, not a movie; save a stack of frames")
    return {"movie": movie if colour is None else np.moveaxis(movie, colour, -1)}


def _npy(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    # NumPy refuses to map a file that is shorter than its header says.
    mapped = np.load(path, allow_pickle=False, mmap_mode="r")
    check_bytes(path, mapped.nbytes, max_bytes)
    return {"movie": np.array(mapped)}


def _npz(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    return read_npz(path, max_bytes)


def _zarr(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    import zarr

    node = open_zarr(path)
    if isinstance(node, zarr.Array):
        check_bytes(path, node.nbytes, max_bytes)
        return {"movie": np.asarray(node[...])}
    try:
        return _xarray(path, key, max_bytes)
    except KeyError:  # a group without dimension names, not written by xarray
        arrays = dict(node.arrays())
        check_bytes(path, sum(a.nbytes for a in arrays.values()), max_bytes)
        return {name: np.asarray(array[...]) for name, array in arrays.items()}


def _xarray(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    data = open_xarray(path, max_bytes)
    arrays = {str(name): data[name].values for name in data.data_vars}
    movies = [name for name in ([key] if key in arrays else arrays) if data[name].ndim in (3, 4)]
    if len(movies) == 1 and data[movies[0]].dims[0] in data.coords:
        arrays["times"] = axis_numbers(data, str(data[movies[0]].dims[0]))[0]
    return arrays


_READERS: dict[str, Callable[[Path, str | None, int], dict[str, np.ndarray]]] = {
    ".tif": _tiff,
    ".tiff": _tiff,
    ".npy": _npy,
    ".npz": _npz,
    ".zarr": _zarr,
    ".nc": _xarray,
}
