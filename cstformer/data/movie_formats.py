"""Open files of movies and recordings: arrays by name, large ones unread. There is one reader for each format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.nwb_files import read_nwb
from cstformer.data.svd_files import is_svd, read_svd
from cstformer.data.unread import Hdf5Array, Joined, MappedArray, Reordered, TiffArray, Unread, ZarrArray, whole
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_hdf5, check_tiff, npy_header, read_npz
from cstformer.system.zarr_files import open_zarr

TIME_KEYS = ("times", "time", "t", "t_s")
"""Names of the array with the times of the frames; ``times_NAME`` belongs to the movie NAME."""
RAW_TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
"""Types of number that the name of a ``.dat`` file may give."""

FILMS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".webm", ".wmv")
"""Compressed films, which no reader takes."""


def open_arrays(path: str | os.PathLike[str], key: str | None = None) -> dict[str, Any]:
    """Arrays of a file by name, unread except those of an `.npz`; movies are (T, H, W) or (T, H, W, C).

    ``key`` chooses among what a reader would otherwise choose by itself (components, series of NWB).
    """
    kind = file_kind(path)
    if kind not in READERS:
        raise unknown_kind(kind, READERS)
    return READERS[kind](Path(path), key)


def unknown_kind(kind: str, valid: Iterable[str]) -> CSTError:
    """Error for a suffix that no reader of movies knows; compressed films become a folder of TIFF files first."""
    if kind in FILMS:
        command = f"ffmpeg -i film{kind} -pix_fmt gray -compression_algo raw film/%05d.tif"
        return CSTError(f"films ({kind}) are not read; write the frames into a folder, which is read: {command}")
    return unknown("kind of movie file", kind, valid)


def file_kind(path: str | os.PathLike[str]) -> str:
    """What chooses the reader: the suffix; ``svd`` for U and SVT, ``.tif`` for any other folder.

    >>> file_kind("cortex_2_540_640_uint16.dat"), file_kind("animal1/SVTcorr.npy")
    ('.dat', 'svd')
    """
    source = Path(path)
    if is_svd(source):
        return "svd"
    suffix = source.suffix.lower()
    return ".tif" if source.is_dir() and suffix != ".zarr" else suffix


def stored_times(arrays: Mapping[str, Any], movie: str) -> np.ndarray | None:
    """Times of a movie among the arrays of its file: ``times_NAME``, ``times_575`` for a ``NAME_575``, or ``times``."""
    tails = [f"_{movie}", *(m[0] for m in [re.search(r"_\d{3,4}$", movie)] if m), ""]
    names = [f"{name}{tail}" for tail in tails for name in TIME_KEYS]
    found = next((arrays[name] for name in names if name in arrays and name != movie), None)
    return None if found is None else as_floats("times", whole(found)).reshape(-1)


def read_hdf5(path: Path, key: str | None = None) -> dict[str, Any]:
    """All numeric datasets of an HDF5 file."""
    import h5py

    arrays: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiub":
            arrays[name.replace("/", "_")] = Hdf5Array.of(node)

    check_hdf5(path)
    with h5py.File(path, "r") as file:
        file.visititems(visit)
        arrays |= {name: np.asarray(value) for name, value in file.attrs.items() if name == "pixel_mm"}
    return arrays


def read_mat(path: Path, key: str | None = None) -> dict[str, Any]:
    """Arrays of a MAT file of version 7.3, which is HDF5: MATLAB's (H, W, T) is stored as (T, W, H)."""
    return {name: Reordered(a, (0, 2, 1)) if a.ndim == 3 else a for name, a in read_hdf5(path).items()}


def read_zarr(path: Path, key: str | None = None) -> dict[str, Any]:
    """A Zarr array, or all arrays of a group."""
    import zarr

    node = open_zarr(path)
    if isinstance(node, zarr.Array):
        return {"frames": ZarrArray(path, node)}
    arrays: dict[str, Any] = {name: ZarrArray(path, array) for name, array in node.arrays()}
    return arrays | {name: np.asarray(node.attrs[name]) for name in ("pixel_mm",) if name in node.attrs}


def read_npz_arrays(path: Path, key: str | None = None) -> dict[str, Any]:
    """All arrays of an `.npz`, in memory."""
    return dict(read_npz(path))


def read_npy(path: Path, key: str | None = None) -> dict[str, Any]:
    """A memory map; NumPy refuses to map a file that is shorter than its header says."""
    with path.open("rb") as stream:
        npy_header(path, stream, "frames")
    return {"frames": np.load(path, mmap_mode="r", allow_pickle=False)}


def read_dat(path: Path, key: str | None = None) -> dict[str, Any]:
    """Raw frames as wfield names them, ``NAME_CHANNELS_H_W_DTYPE.dat``: the numbers of (T, CHANNELS, H, W)."""
    parts = re.search(r"_(\d+)_(\d+)_(\d+)_([a-z]+\d+)(_\d+)?$", path.stem)
    if parts is None or parts[4] not in RAW_TYPES:
        raise CSTError(
            f"{path}: the name of a raw file must say what it holds, NAME_CHANNELS_H_W_DTYPE.dat, "
            f"e.g. cortex_2_540_640_uint16.dat, with one of the types {', '.join(RAW_TYPES)}; rename it"
        )
    channels, height, width, dtype = *(int(parts[i]) for i in (1, 2, 3)), np.dtype(parts[4])
    size, frame = path.stat().st_size, channels * height * width * dtype.itemsize
    if not frame or not size or size % frame:
        raise CSTError(
            f"{path} has {size:,} bytes, no multiple of the {frame:,} bytes of a frame of {channels} channel(s) of "
            f"{height} × {width} {dtype}; the copy is incomplete, or the name is wrong"
        )
    array = MappedArray(str(path), (size // frame, channels, height, width), dtype)
    if channels == 1:
        return {"frames": MappedArray(str(path), (size // frame, height, width), dtype)}
    return {"frames": Reordered(array, (0, 2, 3, 1))}


def read_tiff(path: Path, key: str | None = None) -> dict[str, Any]:
    """A TIFF stack, or a folder of them in natural order."""
    import tifffile

    found = [f for f in path.iterdir() if f.suffix.lower() in (".tif", ".tiff")] if path.is_dir() else [path]
    if not found:
        raise CSTError(f"{path} has no .tif file")
    # Natural order puts frame 10 after frame 9.
    parts = lambda f: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", f.name)]  # noqa: E731
    found = sorted(found, key=parts)
    files = [_tiff_frames(f) for f in found]
    if len({f.shape[1:] for f in files}) > 1:
        raise CSTError(f"{path}: the files have frames of different sizes")
    arrays: dict[str, Any] = {"frames": files[0] if len(files) == 1 else Joined(files)}
    with tifffile.TiffFile(found[0]) as file:
        arrays |= _tiff_facts(file, files[0].shape if len(files) == 1 else (0,))
    return arrays


def _tiff_frames(path: Path) -> Unread:
    """Frames (T, H, W) or (T, H, W, C) of a TIFF file; ImageJ and OME say which axis is which."""
    import tifffile

    check_tiff(path)
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        axes, shape, dtype, count = series.axes, tuple(series.shape), np.dtype(series.dtype), len(series.pages)
    colour = "".join(a for a in axes if a in "CS")
    time = "".join(a for a in axes if a not in "CSYX")
    if "Y" not in axes or "X" not in axes or len(colour) > 1 or len(time) > 1:
        raise CSTError(f"{path} has axes {axes} of sizes {shape}; a movie has time, rows, columns and perhaps colours")
    if colour and not time:
        raise CSTError(f"{path} is one picture with colours {shape}, not a movie; save a stack of frames")
    if not time:
        return TiffArray(str(path), (1, *shape), dtype, 1)
    # A page holds the rows and columns, and the colours if they are the last axis (S).
    pages = math.prod(shape[: min(axes.index("Y"), axes.index("X"))]) // shape[axes.index(time)]
    whole_pages = axes[0] == time and count == shape[0] * pages
    array = TiffArray(str(path), shape, dtype, pages if whole_pages else 0)
    order = tuple(axes.index(a) for a in f"{time}YX{colour}")
    return array if order == tuple(range(len(axes))) else Reordered(array, order)


def _tiff_facts(file: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Pixel size, and the times of the frames (T, H, W[, C]) as ImageJ or `write_movie` keeps them.

    ImageJ's frame interval is that of a frame with all its colours, which take turns in equal steps.
    """
    facts: dict[str, np.ndarray] = {}
    frames, colours = shape[0], shape[3] if len(shape) == 4 else 1
    about = file.imagej_metadata or {}
    resolution = file.pages.first.tags.get("XResolution")
    millimetres = {"mm": 1.0, "micron": 1e-3, "um": 1e-3, "µm": 1e-3, "\\u00B5m": 1e-3, "cm": 10.0}
    scale = millimetres.get(str(about.get("unit")))
    if scale and resolution and resolution.value[0]:
        facts["pixel_mm"] = np.asarray(scale * resolution.value[1] / resolution.value[0])
    shaped = file.shaped_metadata[0].get("times") if file.shaped_metadata else None
    if isinstance(shaped, list) and len(shaped) == frames:
        return facts | {"times": as_floats("times", shaped)}
    labels = about.get("Labels")
    if isinstance(labels, list) and len(labels) >= frames > 0:
        seconds = [re.fullmatch(r"t=([-+.\deE]+) s", str(label)) for label in labels[:: len(labels) // frames][:frames]]
        if all(seconds):
            return facts | {"times": np.array([float(m[1]) for m in seconds if m])}
    step = {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3}.get(str(about.get("tunit", "sec")))
    if frames and step and isinstance(about.get("finterval"), int | float) and about["finterval"] > 0:
        facts["times"] = np.arange(frames * colours) * float(about["finterval"]) * step / colours
    return facts


READERS: dict[str, Callable[[Path, str | None], dict[str, Any]]] = {
    "svd": read_svd,
    ".dat": read_dat,
    ".nwb": read_nwb,
    ".tif": read_tiff,
    ".tiff": read_tiff,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".mat": read_mat,
    ".npz": read_npz_arrays,
    ".npy": read_npy,
    ".zarr": read_zarr,
}
