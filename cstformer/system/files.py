"""Files that are whole or absent, and errors that say which file is wrong: for all readers and writers."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import secrets
import shutil
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.errors import CSTError

MAX_BYTES = 16 * 2**30
"""Arrays that declare more than this are refused before any memory is taken."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary sibling of `path` to write to; it becomes `path` only if the block ends well.

    Works for a file and for a directory. After a failure the old `path` is untouched and nothing is left
    behind; an `OSError` (full disk, no permission) becomes a `CSTError` with the path and the reason.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder, "note.txt")) as tmp:
    ...         _ = tmp.write_text("done")
    ...     print([f.name for f in Path(folder).iterdir()])
    ['note.txt']
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise CSTError(f"cannot write {target}: the folder {target.parent} does not exist; make it first")
    # The suffix stays last, because many writers choose the format by it.
    tmp = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        yield tmp
        for file in [tmp] if tmp.is_file() else [f for f in tmp.rglob("*") if f.is_file()]:
            _fsync(file)
        _replace(tmp, target)
        _fsync(target.parent)
    except OSError as error:
        raise CSTError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        _remove(tmp, failed=sys.exc_info()[0] is not None)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """An empty hidden folder beside a path, gone at the end of the block: also when threads still write into it.

    >>> with scratch_folder(Path("movie.zarr")) as folder:
    ...     print(list(folder.iterdir()))
    []
    >>> folder.exists()
    False
    """
    folder = Path(tempfile.mkdtemp(dir=beside.absolute().parent, prefix=".stage"))
    try:
        yield folder
    finally:
        _remove(folder, failed=sys.exc_info()[0] is not None)


def _replace(tmp: Path, target: Path) -> None:
    """Put `tmp` in the place of `target`."""
    if not target.is_dir() or target.is_symlink():
        if tmp.is_dir() and target.exists():
            target.unlink()
        os.replace(tmp, target)
        return
    if not tmp.is_dir():
        raise IsADirectoryError(None, "it is a folder, not a file", str(target))
    if _exchange(tmp, target):  # the old folder is now `tmp`, which the caller removes
        return
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    os.replace(target, old)
    try:
        os.replace(tmp, target)
    except OSError:
        os.replace(old, target)
        raise
    _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Two folders take each other's names in one step, where the system can: Linux, on most file systems."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path, failed: bool = False) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        gone = 0
        for _ in range(60 if failed else 0):  # threads of a Zarr writer that failed may still be at work in it
            time.sleep(0.05)
            gone = 0 if path.exists() else gone + 1
            if gone == 6:
                return
            shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # a read-only disk does not even forget what it never had
            path.unlink()


@contextmanager
def readable(path: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """Turn whatever goes wrong while reading `path` as a `kind` into one line that names the file.

    The libraries underneath raise a dozen unrelated classes for a damaged file, hence the wide net.
    """
    source = Path(path)
    if not source.exists():
        raise CSTError(f"cannot read {source}: there is no such file")
    try:
        yield source
    except CSTError as error:
        if str(source) in str(error):
            raise
        raise CSTError(f"{source}: {error}") from error
    except ImportError as error:
        raise CSTError(f"{source}: reading {kind} needs {error.name}; pip install cstformer[files]") from error
    except Exception as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise CSTError(f"cannot read {source} as {kind}: {reason[0]}") from error


def check_bytes(path: str | os.PathLike[str], declared: int, max_bytes: int = MAX_BYTES) -> None:
    """Refuse a file whose arrays declare more than `max_bytes`, or more than there is memory for."""
    if declared > max_bytes:
        raise CSTError(
            f"{path} declares {declared:,} bytes of arrays, more than max_bytes={max_bytes:,}; "
            "pass a larger max_bytes if that is right"
        )
    if declared > 2**20 and declared > (left := memory_left()):
        raise CSTError(f"{path} declares {declared:,} bytes of arrays, but only {left:,} bytes of memory are free")


def memory_left() -> int:
    """Bytes that this process can still take: what the machine has free, or what the limit of the process leaves."""
    left = sys.maxsize
    try:
        free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        left = 1024 * int(free.split()[1])
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            left = min(left, limit - taken)
    except (OSError, ImportError, StopIteration, ValueError):  # a system that does not tell
        pass
    return max(0, left)


def open_zarr(path: Path) -> Any:
    """Zarr array or group for reading; one whose numbers would be unpickled is refused."""
    import zarr

    node = zarr.open(path, mode="r")
    arrays = {"": node} if isinstance(node, zarr.Array) else dict(node.members(max_depth=None))
    for name, array in arrays.items():
        if "pickle" in json.dumps(array.metadata.to_dict() | {"attributes": {}}, default=str):
            raise CSTError(f"{path}: array {name!r} is stored by pickle, which could run code; save numbers")
    return node


def check_hdf5(path: Path) -> None:
    """Refuse a heap of strings without end, on which the HDF5 library (2.0 and before) turns in circles for ever.

    A heap is a list of entries (number, count, size, bytes); one of size zero never reaches the next. Only the
    first 256 MB are looked at: heaps are written with the first attributes.
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
                    raise CSTError(f"{path}: the list of texts at byte {heap} is damaged; write the file again")
                place += step
            heap = data.find(b"GCOL\x01\0\0\0", heap + 8)


def check_tiff(path: Path) -> None:
    """Refuse a chain of pages that leads back to itself, which readers would follow for ever."""
    with path.open("rb") as stream:
        order = {b"II": "<", b"MM": ">"}.get(stream.read(2), "<")
        big = struct.unpack(f"{order}H", stream.read(2))[0] == 43
        count, link, entry = ("Q", "Q", 20) if big else ("H", "I", 12)

        def number(kind: str, place: int) -> int:
            try:
                stream.seek(place)
                return struct.unpack(order + kind, stream.read(struct.calcsize(kind)))[0]
            except (struct.error, OSError, OverflowError):  # beyond the end of the file: no page, and no circle
                return 0

        page, seen = number(link, 8 if big else 4), set[int]()
        while page:
            if page in seen:
                raise CSTError(f"{path}: page {len(seen)} leads back to an earlier one; the file is damaged")
            seen.add(page)
            page = number(link, page + struct.calcsize(count) + entry * number(count, page))


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of each array in an `.npz`, from the headers alone; refuses sizes that disagree."""
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


def read_npz(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """All arrays of an `.npz`, without pickle and only after their declared sizes were checked."""
    with readable(path, ".npz") as source:
        headers = npz_headers(source)
        check_bytes(source, sum(math.prod(s) * t.itemsize for s, t in headers.values()), max_bytes)
        with np.load(source, allow_pickle=False) as archive:
            return {key: archive[key] for key in headers}
