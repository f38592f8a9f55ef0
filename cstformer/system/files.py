"""Read files from elsewhere safely: errors that name the file, and checks before a library or memory can suffer."""

from __future__ import annotations

import math
import mmap
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.errors import CSTError
from cstformer.system.extras import missing
from cstformer.system.memory import memory_left

MAX_BYTES = 16 * 2**30
"""Arrays that declare more than this are refused before any memory is taken."""


@contextmanager
def readable(path: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """Turn any error while reading `path` as a `kind` into a `CSTError` of one line that names the file.

    It catches every `Exception`, because the libraries raise a dozen unrelated classes for a damaged file.
    """
    source = Path(path)
    if not source.exists():
        raise CSTError(f"cannot read {source}: there is no such file")
    try:
        yield source
    except CSTError as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error
    except ImportError as error:
        found = missing(error, f"{source}: reading {kind}")
        if found is None:
            raise
        raise found from error
    except Exception as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise CSTError(f"cannot read {source} as {kind}: {reason[0]}") from error


def check_bytes(path: str | os.PathLike[str], declared: int, max_bytes: int = MAX_BYTES) -> None:
    """Refuse a file whose arrays declare more bytes than `max_bytes` or than the free memory."""
    if declared > max_bytes:
        raise CSTError(
            f"{path} declares {declared:,} bytes of arrays, more than max_bytes={max_bytes:,}; "
            "pass a larger max_bytes if that is right"
        )
    if declared > 2**20 and declared > (left := memory_left()):
        raise CSTError(f"{path} declares {declared:,} bytes of arrays, but only {left:,} bytes of memory are free")


def check_hdf5(path: Path) -> None:
    """Refuse an HDF5 file on which its library would not return, or that would show the content of other files.

    Call it before any library opens the file. Other files, such as NetCDF 3, pass.
    """
    _check_heaps(path)
    _check_own_data(path)


def _check_own_data(path: Path) -> None:
    """Refuse data outside of the file: external storage, virtual datasets and links to other files.

    The library reads any local file as the numbers of such a dataset, e.g. a private key as bytes.
    """
    import h5py

    if not path.is_file() or not h5py.is_hdf5(path):
        return

    def is_elsewhere(name: str, node: Any) -> str | None:
        outside = isinstance(node, h5py.Dataset) and (node.is_virtual or node.external)
        return name if outside else None

    def leads_elsewhere(name: bytes, link: Any) -> bytes | None:
        return name if link.type == h5py.h5l.TYPE_EXTERNAL else None

    with h5py.File(path, "r") as file:
        found = file.id.links.visit(leads_elsewhere, info=True) or file.visititems(is_elsewhere)
    if found is not None:
        name = found.decode(errors="replace") if isinstance(found, bytes) else found
        raise CSTError(f"{path}: {name!r} takes its data from other files; copy them into one file")


def _check_heaps(path: Path) -> None:
    """Refuse a damaged string heap, on which the HDF5 library (up to version 2.0) loops forever.

    A global heap ("GCOL") is a list of entries (number, count, size, bytes). A reader that meets an entry of size zero
    never reaches the next one. Only the first 256 MB are searched, because heaps are written with the first attributes.
    """
    if not path.is_file() or not (length := min(path.stat().st_size, 2**28)):
        return
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), length, access=mmap.ACCESS_READ) as data:
        heap = data.find(b"GCOL\x01\0\0\0")
        while heap >= 0:
            place, end = heap + 16, heap + int.from_bytes(data[heap + 8 : heap + 16], "little")
            while place + 16 <= end <= length:
                number, size = (int.from_bytes(data[place + a : place + b], "little") for a, b in ((0, 2), (8, 16)))
                step = 16 + 8 * -(-size // 8) if number else size
                if step == 0 or place + step > end:
                    raise CSTError(f"{path}: the string heap at byte {heap} is damaged; write the file again")
                place += step
            heap = data.find(b"GCOL\x01\0\0\0", heap + 8)


def check_tiff(path: Path) -> None:
    """Refuse a chain of pages that leads back to itself: readers would follow it forever."""
    with path.open("rb") as stream:
        order = {b"II": "<", b"MM": ">"}.get(stream.read(2), "<")
        big = struct.unpack(f"{order}H", stream.read(2))[0] == 43
        count, link, entry = ("Q", "Q", 20) if big else ("H", "I", 12)

        def number(kind: str, place: int) -> int:
            try:
                stream.seek(place)
                return struct.unpack(order + kind, stream.read(struct.calcsize(kind)))[0]
            except (struct.error, OSError, OverflowError):  # beyond the end of the file: the chain ends there
                return 0

        page, seen = number(link, 8 if big else 4), set[int]()
        while page:
            if page in seen:
                raise CSTError(f"{path}: page {len(seen)} leads back to an earlier one; the file is damaged")
            seen.add(page)
            page = number(link, page + struct.calcsize(count) + entry * number(count, page))


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each array in an `.npz`, from the headers alone; refuse sizes that disagree with them."""
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise CSTError(f"{path}: the member {info.filename!r} is not a NumPy array")
            key = info.filename.removesuffix(".npy")
            with archive.open(info) as stream:
                shape, dtype = npy_header(path, stream, key)
                # zipfile tells how far the *uncompressed* stream has been read: the length of the header.
                expected = stream.tell() + math.prod(shape) * dtype.itemsize
            if info.file_size != expected:
                raise CSTError(
                    f"{path}: array {key!r} should take {expected:,} bytes but has {info.file_size:,}; "
                    "the file is damaged, write it again"
                )
            headers[key] = (shape, dtype)
    return headers


def npy_header(path: Path, stream: Any, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype at the start of a `.npy` stream; pickled (object) arrays are refused."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise CSTError(f"{path}: array {key!r} holds Python objects, which are not read; save numbers")
    return shape, dtype


def read_npy(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> np.ndarray:
    """The array of an `.npy`, without pickle; its declared size is checked before it is read."""
    with readable(path, ".npy") as source:
        with source.open("rb") as stream:
            shape, dtype = npy_header(source, stream, source.stem)
        check_bytes(source, math.prod(shape) * dtype.itemsize, max_bytes)
        return np.load(source, allow_pickle=False)


def read_npz(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """All arrays of an `.npz`, without pickle; their declared sizes are checked before any is read."""
    with readable(path, ".npz") as source:
        headers = npz_headers(source)
        check_bytes(source, sum(math.prod(s) * t.itemsize for s, t in headers.values()), max_bytes)
        with np.load(source, allow_pickle=False) as archive:
            return {key: archive[key] for key in headers}
