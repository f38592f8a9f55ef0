"""Open a recording without reading it: NWB, TIFF stacks and folders, HDF5, MAT v7.3, Zarr, npz and npy.

Apart from NWB, which says by itself what is what, arrays are known by their names:

| name | what |
|---|---|
| the only array (T, H, W), or ``key=`` | interleaved frames, or those of one wavelength |
| ``NAME_575``, ``NAME_395``, all (T, H, W) | frames of two wavelengths, already apart |
| ``times``, ``time``, ``t``, ``t_s`` (or ``times_575``) | seconds, one a frame; else ``rate=`` |
| ``wavelengths`` | nm, one a frame, or the order of the lamps |
| ``mask``, ``dark``, ``pixel_mm`` | cortex (H, W), camera without light, side of a pixel |
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

from cstformer.data.arrays import as_floats
from cstformer.data.tables import read_table
from cstformer.datasets.calcium.recording import Channel, Recording, Stimuli, split_channels
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_bytes, check_hdf5, check_tiff, read_npz, readable
from cstformer.system.zarr_files import open_zarr

SUFFIXES = (".nwb", ".tif", ".tiff", ".h5", ".hdf5", ".mat", ".npz", ".npy", ".zarr")
CHUNK_BYTES = 32 * 2**20
"""Frames are read in pieces of about this size."""
MOST_PIECES = 2**20
"""A file that declares more pieces than this is damaged."""

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
    """Find the channels of a recording; frames are read from disk only when a step asks for them.

    Parameters
    ----------
    path : file, Zarr folder or folder of TIFF files (in natural order). An `.npz` is read at once.
    key : name of the array (of the series in NWB) with the frames, where there are several.
    wavelengths : the order of the lamps in nm, or one a frame; the file's own by default.
    rate : frames a second of the camera, all lamps together, where the file has no times.
    pixel_mm, stimuli : what the file does not say, or says wrongly.
    """
    source = Path(path)
    folder = source.is_dir() and source.suffix.lower() != ".zarr"
    suffix = ".tif" if folder else source.suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown("kind of recording", suffix, SUFFIXES)
    if rate is not None and not (np.isfinite(rate) and rate > 0):
        raise CSTError(f"rate must be frames a second, a positive number, got {rate!r}")
    require("dask", *(["pynwb"] if suffix == ".nwb" else []))
    with readable(source, f"a {suffix} recording"):
        reader = {".nwb": _nwb, ".tif": _tiff, ".tiff": _tiff, ".npz": _npz, ".npy": _npy, ".zarr": _zarr}
        arrays = reader.get(suffix, _hdf5)(source)
        if suffix == ".mat":  # MATLAB writes (H, W, T) with its last axis first
            arrays = {name: _transposed(a) if a.ndim == 3 else a for name, a in arrays.items()}
        if pixel_mm is None and "pixel_mm" in arrays:
            pixel_mm = float(_whole(arrays["pixel_mm"]).reshape(-1)[0])
        return Recording(
            _channels(arrays, key, wavelengths, rate),
            pixel_mm,
            stimuli or _stimuli(arrays),
            None if "mask" not in arrays else _whole(arrays["mask"]).astype(bool),
            None if "dark" not in arrays else np.atleast_2d(np.squeeze(as_floats("dark", _whole(arrays["dark"])))),
        )


def require(*packages: str) -> None:
    """Say which package is missing and how to get it."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise CSTError(f"calcium recordings need {name}; pip install cstformer[neuro]")


def read_stimuli(path: str | os.PathLike[str]) -> Stimuli:
    """Table (csv, tsv, parquet) with the columns start, stop (seconds) and contrast (per cent)."""
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
        return {nm: Channel(_lazy(movies[n]), _times(arrays, n, movies[n].shape[0], rate)) for nm, n in apart.items()}
    if len(movies) != 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items()) or "nothing"
        raise CSTError(f"one array of shape (T, H, W) is needed, found {len(movies)} in: {shapes}; choose by key=")
    name, movie = next(iter(movies.items()))
    stored = None if "wavelengths" not in arrays else _whole(arrays["wavelengths"]).reshape(-1)
    labels = stored if wavelengths is None else np.asarray(wavelengths)
    if labels is None and name not in apart.values():
        raise CSTError("nothing says which wavelength a frame has; pass wavelengths=(575, 395), the order of the lamps")
    order = labels if labels is not None else np.array(list(apart))
    return split_channels(_lazy(movie), _times(arrays, name, movie.shape[0], rate), order)


def _times(arrays: Mapping[str, Any], movie: str, count: int, rate: float | None) -> np.ndarray:
    own = re.search(r"_(\d{3,4})$", movie)
    names = [f"{n}{own[0]}" for n in _TIMES] if own else []
    found = next((arrays[n] for n in [*names, *_TIMES] if n in arrays and n != movie), None)
    if found is not None:
        return as_floats("times", _whole(found)).reshape(-1)
    if rate is None:
        raise CSTError("nothing says when the frames were taken; pass rate=, frames a second of the camera")
    check_bytes("the clock of the recording", 16 * count)
    return np.arange(count) / rate


def _stimuli(arrays: Mapping[str, Any]) -> Stimuli | None:
    names = [f"stimulus_{n}" for n in ("start", "stop", "contrast")]
    if not all(n in arrays for n in names):
        return None
    return Stimuli(*(as_floats(n, _whole(arrays[n])).reshape(-1) for n in names))


def _whole(array: Any) -> np.ndarray:
    """All of a small array."""
    check_bytes("an array that is no movie", math.prod(array.shape) * np.dtype(array.dtype).itemsize)
    return np.asarray(array[...])


def _lazy(array: Any) -> Any:
    """Dask array in pieces of whole frames, along the pieces in which the file stores them."""
    import dask.array as da

    if isinstance(array, da.Array):
        return array
    frame = math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize
    check_bytes("one frame", frame)
    frames = max(1, CHUNK_BYTES // max(1, frame))
    stored = int((getattr(array, "chunks", None) or (1,))[0])
    if stored < frames:
        frames -= frames % stored
    if array.shape[0] > frames * MOST_PIECES:
        raise CSTError(f"it declares {array.shape[0]:,} frames of {frame:,} bytes, which no file holds; it is damaged")
    return da.from_array(array, chunks=(frames, *array.shape[1:]), asarray=True)


def _transposed(array: Any) -> Any:
    return _lazy(array).transpose(0, 2, 1)


# --- one reader a format: arrays by name, large ones unread ---


@dataclass(frozen=True)
class _Hdf5Array:
    """A dataset that opens its file for each read: nothing stays open, and it travels to other processes."""

    path: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None

    @classmethod
    def of(cls, dataset: Any) -> _Hdf5Array:
        return cls(dataset.file.filename, dataset.name, dataset.shape, dataset.dtype, dataset.chunks)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        import h5py

        with readable(self.path, "HDF5"), h5py.File(self.path, "r") as file:
            return np.asarray(file[self.name][index])


@dataclass(frozen=True)
class _ZarrArray:
    """A Zarr array that names its file when a piece of it is damaged."""

    path: Path
    array: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "array":  # asked for by a copy that has no array yet
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index: Any) -> np.ndarray:
        with readable(self.path, "Zarr"):
            return np.asarray(self.array[index])


@dataclass(frozen=True)
class _TiffArray:
    """Frames of one TIFF file: a memory map where the file allows it, else its pages, decoded when asked for."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    ndim = 3

    @classmethod
    def of(cls, path: Path) -> _TiffArray:
        import tifffile

        check_tiff(path)
        with tifffile.TiffFile(path) as file:
            shape, dtype = file.series[0].shape, file.series[0].dtype
        if len(shape) not in (2, 3):
            raise CSTError(f"{path} has shape {shape}; a stack of grey frames is (T, H, W)")
        return cls(str(path), (1, *shape) if len(shape) == 2 else tuple(shape), np.dtype(dtype))

    def __getitem__(self, index: Any) -> np.ndarray:
        import tifffile

        frames, *pixels = index if isinstance(index, tuple) else (index,)
        with readable(self.path, "TIFF"):
            try:
                mapped = tifffile.memmap(self.path, mode="r").reshape(self.shape)
                return np.array(mapped[(frames, *pixels)])
            except ValueError:  # compressed, or not in one piece
                with tifffile.TiffFile(self.path) as file:
                    apart = len(file.pages) == self.shape[0]
                    if not apart:
                        check_bytes(self.path, file.series[0].nbytes)
                    stack = file.asarray(key=frames) if apart else file.series[0].asarray()[frames]
                return stack.reshape(-1, *self.shape[1:])[(slice(None), *pixels)]


def _hdf5(path: Path) -> dict[str, Any]:
    import h5py

    arrays: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiub":
            arrays[name.replace("/", "_")] = _Hdf5Array.of(node)

    check_hdf5(path)
    with h5py.File(path, "r") as file:
        file.visititems(visit)
        arrays |= {name: np.asarray(value) for name, value in file.attrs.items() if name == "pixel_mm"}
    return arrays


def _zarr(path: Path) -> dict[str, Any]:
    import zarr

    node = open_zarr(path)
    if isinstance(node, zarr.Array):
        return {"frames": _ZarrArray(path, node)}
    arrays: dict[str, Any] = {name: _ZarrArray(path, array) for name, array in node.arrays()}
    return arrays | {name: np.asarray(node.attrs[name]) for name in ("pixel_mm",) if name in node.attrs}


def _npz(path: Path) -> dict[str, Any]:
    return dict(read_npz(path))


def _npy(path: Path) -> dict[str, Any]:
    return {"frames": np.load(path, mmap_mode="r", allow_pickle=False)}


def _tiff(path: Path) -> dict[str, Any]:
    import dask.array as da
    import tifffile

    found = [f for f in path.iterdir() if f.suffix.lower() in (".tif", ".tiff")] if path.is_dir() else [path]
    if not found:
        raise CSTError(f"{path} has no .tif file")
    # Natural order: frame 10 after frame 9.
    parts = lambda f: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", f.name)]  # noqa: E731
    files = [_TiffArray.of(f) for f in sorted(found, key=parts)]
    if len({f.shape[1:] for f in files}) > 1:
        raise CSTError(f"{path}: the files have frames of different sizes")
    arrays: dict[str, Any] = {"frames": da.concatenate([_lazy(f) for f in files])}
    with tifffile.TiffFile(files[0].path) as file:
        unit = (file.imagej_metadata or {}).get("unit")
        resolution = file.pages.first.tags.get("XResolution")
        scale = {"mm": 1.0, "micron": 1e-3, "um": 1e-3, "µm": 1e-3, "\\u00B5m": 1e-3, "cm": 10.0}.get(str(unit))
        if scale and resolution and resolution.value[0]:
            arrays["pixel_mm"] = np.asarray(scale * resolution.value[1] / resolution.value[0])
    return arrays


def _nwb(path: Path) -> dict[str, Any]:
    """One- and two-photon series; a series whose plane has an excitation wavelength is a channel of its own."""
    import pynwb

    arrays: dict[str, Any] = {}
    check_hdf5(path)
    with pynwb.NWBHDF5IO(str(path), "r") as io:
        nwb = io.read()
        kinds = (pynwb.ophys.OnePhotonSeries, pynwb.ophys.TwoPhotonSeries)
        found = [s for s in nwb.acquisition.values() if isinstance(s, kinds)]
        if not found:
            raise CSTError("no OnePhotonSeries or TwoPhotonSeries among the acquisitions")
        for series in found:
            nm = series.imaging_plane.excitation_lambda
            tail = f"_{round(nm)}" if len(found) > 1 and nm and np.isfinite(nm) else ""
            # The schema stores [frame][x][y], and x is the column.
            arrays[series.name + tail] = _transposed(_Hdf5Array.of(series.data))
            if series.timestamps is not None:
                clock = _whole(series.timestamps)
            else:
                check_bytes("the clock of the recording", 16 * len(series.data))
                clock = series.starting_time + np.arange(len(series.data)) / series.rate
            arrays[f"times{tail}"] = clock
        spacing = found[0].imaging_plane.grid_spacing
        if spacing is not None:
            unit = {"meters": 1e3, "millimeters": 1.0, "micrometers": 1e-3}
            arrays["pixel_mm"] = np.asarray(spacing[0] * unit.get(found[0].imaging_plane.grid_spacing_unit, 1e3))
        for table in (nwb.trials, *(nwb.intervals or {}).values()):
            if table is not None and "contrast" in table.colnames:
                columns = {"start": "start_time", "stop": "stop_time", "contrast": "contrast"}
                arrays |= {f"stimulus_{n}": np.asarray(table[c][:], dtype=float) for n, c in columns.items()}
                break
    return arrays
