"""Open a recording without reading its frames: NWB, TIFF stacks and folders, HDF5, MAT v7.3, Zarr, npz and npy.

NWB describes its contents. In all other formats arrays are recognised by their names:

| name | contents |
|---|---|
| the only array (T, H, W), or ``key=`` | interleaved frames, or those of one wavelength |
| ``NAME_575``, ``NAME_395``, all (T, H, W) | frames of two wavelengths, already separated |
| ``times``, ``time``, ``t``, ``t_s`` (or ``times_575``) | seconds, one per frame; else pass ``rate=`` |
| ``wavelengths`` | nm, one per frame, or the order of the lamps |
| ``mask``, ``dark``, ``pixel_mm`` | cortex (H, W), dark level of the camera, side of a pixel |
| ``stimulus_start``, ``stimulus_stop``, ``stimulus_contrast`` | seconds, seconds, per cent |
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.tables import read_table
from cstformer.datasets.calcium.formats import (
    lazy,
    read_hdf5,
    read_npy,
    read_npz_arrays,
    read_nwb,
    read_tiff,
    read_zarr,
    transposed,
    whole,
)
from cstformer.datasets.calcium.recording import Channel, Recording, Stimuli, split_channels
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_bytes, readable

_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".nwb": read_nwb,
    ".tif": read_tiff,
    ".tiff": read_tiff,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".mat": read_hdf5,
    ".npz": read_npz_arrays,
    ".npy": read_npy,
    ".zarr": read_zarr,
}
_TIMES = ("times", "time", "t", "t_s")


def open_recording(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    wavelengths: Sequence[int] | None = None,
    rate: float | None = None,
    pixel_mm: float | None = None,
    stimuli: Stimuli | None = None,
) -> Recording:
    """Open the channels of a recording; frames are read from disk when they are needed.

    Parameters
    ----------
    path : file, Zarr folder or folder of TIFF files (in natural order). An `.npz` is read at once.
    key : name of the array (of the series in NWB) with the frames, if there are several.
    wavelengths : the order of the lamps in nm, or one per frame; the file's own by default.
    rate : frames per second of the camera, all lamps together, if the file has no times.
    pixel_mm, stimuli : replace those of the file, or add them.
    """
    source = Path(path)
    folder = source.is_dir() and source.suffix.lower() != ".zarr"
    suffix = ".tif" if folder else source.suffix.lower()
    if suffix not in _READERS:
        raise unknown("kind of recording", suffix, _READERS)
    if rate is not None and not (np.isfinite(rate) and rate > 0):
        raise CSTError(f"rate must be frames per second, a positive number, got {rate!r}")
    require("dask", *(["pynwb"] if suffix == ".nwb" else []))
    with readable(source, f"a {suffix} recording"):
        arrays = _READERS[suffix](source)
        if suffix == ".mat":  # MATLAB's (H, W, T) is (T, W, H) in HDF5
            arrays = {name: transposed(a) if a.ndim == 3 else a for name, a in arrays.items()}
        if pixel_mm is None and "pixel_mm" in arrays:
            pixel_mm = float(whole(arrays["pixel_mm"]).reshape(-1)[0])
        return Recording(
            _channels(arrays, key, wavelengths, rate),
            pixel_mm,
            stimuli or _stimuli(arrays),
            None if "mask" not in arrays else whole(arrays["mask"]).astype(bool),
            None if "dark" not in arrays else np.atleast_2d(np.squeeze(as_floats("dark", whole(arrays["dark"])))),
        )


def require(*packages: str) -> None:
    """Raise an error that names a missing package and how to install it."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise CSTError(f"calcium recordings need {name}; pip install cstformer[neuro]")


def read_stimuli(path: str | os.PathLike[str]) -> Stimuli:
    """Read a table (csv, tsv, parquet) with the columns start, stop (seconds) and contrast (per cent)."""
    table = read_table(path)
    table.columns = [str(c).split("[")[0].strip().casefold() for c in table.columns]
    if missing := [c for c in ("start", "stop", "contrast") if c not in table.columns]:
        raise CSTError(f"{path} has no column {missing[0]!r} but {', '.join(table.columns)}")
    return Stimuli(*(as_floats(name, table[name]) for name in ("start", "stop", "contrast")))


def _channels(
    arrays: Mapping[str, Any], key: str | None, wavelengths: Sequence[int] | None, rate: float | None
) -> dict[int, Channel]:
    movies = {name: a for name, a in arrays.items() if a.ndim == 3 and np.dtype(a.dtype).kind in "fiu"}
    if key is not None:
        if key not in movies:
            raise unknown("array of shape (T, H, W)", key, movies)
        movies = {key: movies[key]}
    apart = {int(m[1]): name for name in movies if (m := re.search(r"(\d{3,4})$", name))}
    if len(movies) > 1 and len(apart) == len(movies):
        return {nm: Channel(lazy(movies[n]), _times(arrays, n, movies[n].shape[0], rate)) for nm, n in apart.items()}
    if len(movies) != 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items()) or "nothing"
        raise CSTError(f"one array of shape (T, H, W) is needed, found {len(movies)} in: {shapes}; choose by key=")
    name, movie = next(iter(movies.items()))
    stored = None if "wavelengths" not in arrays else whole(arrays["wavelengths"]).reshape(-1)
    labels = stored if wavelengths is None else np.asarray(wavelengths)
    if labels is None and name not in apart.values():
        raise CSTError("nothing says which wavelength a frame has; pass wavelengths=(575, 395), the order of the lamps")
    order = labels if labels is not None else np.array(list(apart))
    return split_channels(lazy(movie), _times(arrays, name, movie.shape[0], rate), order)


def _times(arrays: Mapping[str, Any], movie: str, count: int, rate: float | None) -> np.ndarray:
    own = re.search(r"_(\d{3,4})$", movie)
    names = [f"{n}{own[0]}" for n in _TIMES] if own else []
    found = next((arrays[n] for n in [*names, *_TIMES] if n in arrays and n != movie), None)
    if found is not None:
        return as_floats("times", whole(found)).reshape(-1)
    if rate is None:
        raise CSTError("nothing says when the frames were taken; pass rate=, the frames per second of the camera")
    check_bytes("the clock of the recording", 16 * count)
    return np.arange(count) / rate


def _stimuli(arrays: Mapping[str, Any]) -> Stimuli | None:
    names = [f"stimulus_{n}" for n in ("start", "stop", "contrast")]
    if not all(n in arrays for n in names):
        return None
    return Stimuli(*(as_floats(n, whole(arrays[n])).reshape(-1) for n in names))
