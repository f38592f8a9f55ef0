"""Readers of video files: each finds the recordings in a file or folder and reads any range of frames from disk.

Only one frame at a time is kept in memory, so that an hour of video opens as fast as a second of it.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_hdf5, npz_headers, readable

Frames = Iterator[UInt8[np.ndarray, "h w 3"]]
Found = tuple[str, int, Callable[[int, int], Frames]]
"""Name of a recording, its number of frames, and a reader of the frames start to stop."""

IMAGES = (".png", ".jpg", ".jpeg")
REORDERED = 16
"""Codecs store frames in another order than they show them; no codec moves a frame further than this."""


def find_recordings(path: Path) -> list[Found]:
    """All recordings of a file or folder, with a reader for each."""
    if path.is_dir():
        return _folder(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise unknown("kind of video file", suffix, _READERS)
    with readable(path, f"a {suffix} video") as source:
        return _READERS[suffix](source)


def _colour(frame: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    """Repeat a grey frame as three equal colours."""
    return np.repeat(frame[..., None], 3, axis=-1) if frame.ndim == 2 else frame


# --- PredNet's files: one HDF5 array of all frames, and one list that names the drive of each frame ---


def _hickle(path: Path) -> list[Found]:
    h5py = _needed("h5py")
    beside = path.with_name(path.name.replace("X_", "sources_", 1))
    if not path.name.startswith("X_") or not beside.exists():
        raise CSTError(
            f"{path} must be called X_NAME.hkl and have sources_NAME.hkl beside it, which tells where one "
            "recording ends and the next begins"
        )
    for part in (path, beside):
        check_hdf5(part)
    with h5py.File(path, "r") as file:
        nodes = [(key, node) for key, node in file.items() if isinstance(node, h5py.Dataset)]
        arrays = [key for key, node in nodes if _is_video(node.shape, node.dtype)]
        if len(arrays) != 1:
            raise CSTError(f"{path} must hold one uint8 array (frames, height, width[, 3]), found {len(arrays)}")
        count = len(file[arrays[0]])
    with readable(beside, "a list of sources"), h5py.File(beside, "r") as file:
        sources = _strings(file)
    if len(sources) != count:
        raise CSTError(f"{beside} names {len(sources)} frames, but {path.name} has {count}; they belong together")
    starts = [i for i in range(count) if i == 0 or sources[i] != sources[i - 1]]
    return [
        (sources[first], last - first, partial(_hickle_frames, path, arrays[0], first))
        for first, last in zip(starts, [*starts[1:], count], strict=True)
    ]


def _hickle_frames(path: Path, key: str, first: int, start: int, stop: int) -> Frames:
    with readable(path, "HDF5"), _needed("h5py").File(path, "r") as file:
        yield from map(_colour, file[key][first + start : first + stop])


def _strings(file: Any) -> list[str]:
    """Strings of a list: an array, or a group of numbered items in which repeats are references to the first."""
    h5py = _needed("h5py")
    node = file[next(key for key in file if key.startswith("data"))]
    if not isinstance(node, h5py.Group):
        return [item.decode() if isinstance(item, bytes) else str(item) for item in node[()].ravel()]
    texts = []
    for key in sorted(node, key=_number):
        item = node[key][()]
        item = file[item][()] if isinstance(item, h5py.Reference) else item
        texts.append(np.asarray(item).tobytes().decode())
    return texts


# --- NumPy arrays ---


def _npz(path: Path) -> list[Found]:
    headers = npz_headers(path)
    chosen = [key for key, (shape, dtype) in headers.items() if _is_video(shape, dtype)]
    if not chosen:
        shapes = ", ".join(f"{key} {dtype} {shape}" for key, (shape, dtype) in headers.items())
        raise CSTError(f"{path} must hold uint8 arrays (frames, height, width[, 3]), found {shapes}")
    return [(key, headers[key][0][0], partial(_npz_frames, path, key, headers[key][0])) for key in chosen]


def _is_video(shape: Sequence[int], dtype: np.dtype) -> bool:
    return dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3))


def _npz_frames(path: Path, key: str, shape: Sequence[int], start: int, stop: int) -> Frames:
    size = int(np.prod(shape[1:]))
    with readable(path, ".npz"), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        if read(stream)[1]:
            raise CSTError(f"{path}: {key!r} is stored column by column; save np.ascontiguousarray of it")
        header, info = stream.tell(), archive.getinfo(f"{key}.npy")
        source: Any = stream
        if info.compress_type == zipfile.ZIP_STORED:  # the array is a contiguous part of the file
            source = path.open("rb")
            source.seek(info.header_offset + 26)
            name, extra = np.frombuffer(source.read(4), "<u2").tolist()
            header += info.header_offset + 30 + name + extra
        with source:
            source.seek(header + start * size)
            for _ in range(start, stop):
                yield _colour(np.frombuffer(source.read(size), np.uint8).reshape(shape[1:]))


# --- Films ---


def _film(path: Path) -> list[Found]:
    av = _needed("av")
    with av.open(path) as container:
        if not container.streams.video:
            raise CSTError(f"{path} has no video stream; give a film")
        shown = [packet.pts for packet in container.demux(container.streams.video[0]) if packet.size]
    # Without time stamps, frames can only be counted from the start.
    stamps = None if None in shown else np.sort(np.array(shown))
    return [(path.stem, len(shown), partial(_film_frames, path, stamps))]


def _film_frames(path: Path, stamps: np.ndarray | None, start: int, stop: int) -> Frames:
    with readable(path, "a film"), _needed("av").open(path) as container:
        stream = container.streams.video[0]
        if stamps is not None and start > REORDERED:
            container.seek(int(stamps[start - REORDERED]), stream=stream)  # the last key frame before that
        wanted = start
        for count, frame in enumerate(container.decode(stream)):
            number = count if stamps is None else int(np.searchsorted(stamps, frame.pts))
            if number == wanted:
                yield frame.to_ndarray(format="rgb24")
                wanted += 1
            if wanted == stop or number > wanted:
                break
        if wanted < stop:
            raise CSTError(f"{path}: frame {wanted} cannot be decoded; the film is cut off or damaged")


# --- Folders of pictures, or of films and arrays ---


def _folder(path: Path) -> list[Found]:
    folders: dict[Path, list[Path]] = {}
    for file in sorted(path.rglob("*"), key=lambda f: _natural(str(f))):
        if file.suffix.lower() in IMAGES:
            folders.setdefault(file.parent, []).append(file)
    found: list[Found] = [
        (str(folder.relative_to(path)) if folder != path else path.name, len(files), partial(_pictures, files))
        for folder, files in folders.items()
    ]
    if not found:
        raise CSTError(f"{path} has no pictures ({', '.join(IMAGES)}) in it; give a folder of frames or a video file")
    return found


def _pictures(files: list[Path], start: int, stop: int) -> Frames:
    image = _needed("PIL.Image")
    for file in files[start:stop]:
        with readable(file, "a picture"), image.open(file) as picture:
            if picture.mode[0] in "IF":
                raise CSTError(f"{file} has more than 8 bits per colour; convert it to 8 bits")
            frame = np.asarray(picture.convert("RGB"))
        yield frame


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key that puts frame 10 after frame 9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


def _number(key: str) -> int:
    return int(re.findall(r"\d+", key)[-1])


def _needed(module: str) -> Any:
    """Import a library of the extra ``video``."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CSTError(f'reading this video needs {module}; pip install "cstformer[video]"') from error


_READERS: dict[str, Callable[[Path], list[Found]]] = {
    ".hkl": _hickle,
    ".npz": _npz,
    ".mp4": _film,
    ".avi": _film,
    ".mov": _film,
    ".mkv": _film,
}
