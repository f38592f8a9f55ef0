"""Readers of recordings, one for each file format: arrays by name, large ones unread.

Large arrays are small objects that open their file for each read, so that Dask can send them to other processes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.errors import CSTError
from cstformer.system.files import check_bytes, check_hdf5, check_tiff, read_npz, readable
from cstformer.system.zarr_files import open_zarr

CHUNK_BYTES = 32 * 2**20
"""Frames are read in pieces of about this size."""
MOST_PIECES = 2**20
"""A file that declares more pieces than this is damaged."""


def whole(array: Any) -> np.ndarray:
    """Read all of a small array."""
    check_bytes("an array that is no movie", math.prod(array.shape) * np.dtype(array.dtype).itemsize)
    return np.asarray(array[...])


def lazy(array: Any) -> Any:
    """Dask array in pieces of whole frames, aligned with the chunks of the file."""
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


def transposed(array: Any) -> Any:
    """Exchange rows and columns."""
    return lazy(array).transpose(0, 2, 1)


@dataclass(frozen=True)
class _Hdf5Array:
    """A dataset that opens its file for each read."""

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
    """A Zarr array whose errors name the file, e.g. if a chunk is damaged."""

    path: Path
    array: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "array":  # while it is unpickled, before it has an array
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index: Any) -> np.ndarray:
        with readable(self.path, "Zarr"):
            return np.asarray(self.array[index])


@dataclass(frozen=True)
class _TiffArray:
    """Frames of a TIFF file: read through a memory map if the file allows it, else decoded page by page."""

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
            except ValueError:  # compressed, or not contiguous
                with tifffile.TiffFile(self.path) as file:
                    apart = len(file.pages) == self.shape[0]
                    if not apart:
                        check_bytes(self.path, file.series[0].nbytes)
                    stack = file.asarray(key=frames) if apart else file.series[0].asarray()[frames]
                return stack.reshape(-1, *self.shape[1:])[(slice(None), *pixels)]


def read_hdf5(path: Path) -> dict[str, Any]:
    """All numeric datasets of an HDF5 file."""
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


def read_zarr(path: Path) -> dict[str, Any]:
    """A Zarr array, or all arrays of a group."""
    import zarr

    node = open_zarr(path)
    if isinstance(node, zarr.Array):
        return {"frames": _ZarrArray(path, node)}
    arrays: dict[str, Any] = {name: _ZarrArray(path, array) for name, array in node.arrays()}
    return arrays | {name: np.asarray(node.attrs[name]) for name in ("pixel_mm",) if name in node.attrs}


def read_npz_arrays(path: Path) -> dict[str, Any]:
    """All arrays of an `.npz`, in memory."""
    return dict(read_npz(path))


def read_npy(path: Path) -> dict[str, Any]:
    """A memory map."""
    return {"frames": np.load(path, mmap_mode="r", allow_pickle=False)}


def read_tiff(path: Path) -> dict[str, Any]:
    """A TIFF stack, or a folder of them in natural order."""
    import dask.array as da
    import tifffile

    found = [f for f in path.iterdir() if f.suffix.lower() in (".tif", ".tiff")] if path.is_dir() else [path]
    if not found:
        raise CSTError(f"{path} has no .tif file")
    # Natural order puts frame 10 after frame 9.
    parts = lambda f: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", f.name)]  # noqa: E731
    files = [_TiffArray.of(f) for f in sorted(found, key=parts)]
    if len({f.shape[1:] for f in files}) > 1:
        raise CSTError(f"{path}: the files have frames of different sizes")
    arrays: dict[str, Any] = {"frames": da.concatenate([lazy(f) for f in files])}
    with tifffile.TiffFile(files[0].path) as file:
        unit = (file.imagej_metadata or {}).get("unit")
        resolution = file.pages.first.tags.get("XResolution")
        scale = {"mm": 1.0, "micron": 1e-3, "um": 1e-3, "µm": 1e-3, "\\u00B5m": 1e-3, "cm": 10.0}.get(str(unit))
        if scale and resolution and resolution.value[0]:
            arrays["pixel_mm"] = np.asarray(scale * resolution.value[1] / resolution.value[0])
    return arrays


def read_nwb(path: Path) -> dict[str, Any]:
    """One- and two-photon series of an NWB file; with several, each excitation wavelength is a channel."""
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
            # NWB stores [frame][x][y], where x is the column.
            arrays[series.name + tail] = transposed(_Hdf5Array.of(series.data))
            if series.timestamps is not None:
                clock = whole(series.timestamps)
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
