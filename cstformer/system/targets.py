"""Places to write to: what may be replaced, and what must not be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from cstformer.errors import CSTError

_ZARR_FILES = {"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"}
Paths = Iterable[str | os.PathLike[str] | None]


def check_output(
    path: str | os.PathLike[str], mark: str, sources: Paths = (), overwrite: bool = False, option: str = "--out"
) -> Path:
    """Refuse an output of a command that is one of its inputs, or a folder that it must not replace.

    Parameters
    ----------
    path : the output. A file that exists is replaced.
    mark : attribute of the Zarr groups that the command writes, see `check_replaceable`.
    sources : files and folders that the command reads; None and texts that are no paths are skipped.
    overwrite : whether a folder of the command's own may be replaced.
    option : how messages name the output.
    """
    target = Path(path)
    check_sources(target, sources, option)
    if target.is_dir() and any(target.iterdir()):
        check_replaceable(target, mark)
        if not overwrite:
            raise CSTError(f"{option} {path} exists already; give --overwrite to replace it, or choose another name")
    return target


def check_sources(path: str | os.PathLike[str], sources: Paths, option: str = "--out") -> None:
    """Refuse to write to what is read: the same file or folder, one around it, or one inside a Zarr or model folder.

    Other folders, such as one of TIFF files, may hold the output beside what is read.

    >>> check_sources("movies", ["movies/raw.tif"])
    Traceback (most recent call last):
    ...
    cstformer.errors.CSTError: --out movies would change the input movies/raw.tif; choose another name
    """
    target = Path(os.path.realpath(path))
    for source in sources:
        if source is None:
            continue
        read = Path(os.path.realpath(source))
        # os.path.exists, because a text that is no path may be too long for one; samefile sees hard links.
        same = os.path.exists(target) and os.path.exists(read) and target.samefile(read)
        inside = read in target.parents and any((read / name).is_file() for name in (*_ZARR_FILES, "model.json"))
        if same or inside or read == target or target in read.parents:
            raise CSTError(f"{option} {path} would change the input {source}; choose another name")


def check_replaceable(path: str | os.PathLike[str], mark: str) -> None:
    """Refuse to replace a folder, unless it is empty or a Zarr group with the attribute `mark` and nothing else.

    Folders that hold anything but arrays of Zarr are refused as well: somebody may have put notes there. So are files,
    and links that lead nowhere.
    """
    target = Path(path)
    if target.is_symlink() and not target.exists():
        raise CSTError(f"{path} is a link to something that does not exist; remove the link or choose another name")
    if target.is_file():
        raise CSTError(f"{path} is a file, not a folder; remove it or choose another name")
    if not target.is_dir() or not (entries := sorted(target.iterdir())):
        return
    others = [e.name for e in entries if e.name not in _ZARR_FILES and not any((e / f).is_file() for f in _ZARR_FILES)]
    if mark not in _attributes(target) or others:
        held = f" ({others[0]})" if others else ""
        raise CSTError(
            f"{path} is a folder with other data{held}; it is left as it is, choose another name or remove it"
        )


def _attributes(group: Path) -> dict[str, object]:
    """Attributes of a Zarr group of format 3 or 2; none if this is not a readable group."""
    for name, key in (("zarr.json", "attributes"), (".zattrs", None)):
        try:
            found = json.loads((group / name).read_text())
            found = found.get(key, {}) if key else found
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError, AttributeError):
            continue
    return {}
