"""Write files and folders atomically: the target is complete or absent, never half written."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cstformer.errors import CSTError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; it replaces `path` when the block ends without an error.

    Works for files and directories. After an error the old `path` is untouched and the temporary one is removed; an
    `OSError` (full disk, no permission) becomes a `CSTError` with the path and the reason.

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
    # Keep the suffix: many writers choose the format by it.
    tmp = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        yield tmp
        for file in [tmp] if tmp.is_file() else [f for f in tmp.rglob("*") if f.is_file()]:
            fsync(file)
        move_into_place(tmp, target)
    except OSError as error:
        raise CSTError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        _remove(tmp, failed=sys.exc_info()[0] is not None)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside a path; it is removed at the end, even if threads still write into it.

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


def move_into_place(path: Path, target: Path) -> None:
    """Move a file or folder that is complete to its place, where an older one may be; what it replaces is removed."""
    _replace(path, target)
    fsync(target.parent)
    if path.is_dir():  # the older folder, which took its name
        _remove(path)


def _replace(tmp: Path, target: Path) -> None:
    """Move `tmp` to `target`, which may exist."""
    if tmp.is_dir() and target.is_symlink() and target.is_dir():
        target.unlink()  # the link alone: the folder that it leads to stays
    if not target.is_dir() or target.is_symlink():
        os.replace(tmp, target)  # fails where a folder would take the place of a file
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
    """Exchange the names of two folders in one step; False where the system cannot (Linux can, on most disks)."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def fsync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path, failed: bool = False) -> None:
    """Remove a file or folder; after a failure keep trying for up to 3 s, until it stays away for 0.3 s."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        gone = 0
        for _ in range(60 if failed else 0):  # threads of a failed Zarr writer may still write
            time.sleep(0.05)
            gone = 0 if path.exists() else gone + 1
            if gone == 6:
                return
            shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # it does not exist, or the disk is read-only
            path.unlink()
