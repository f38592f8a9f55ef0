"""Models and resume states on disk: safetensors for numbers, JSON for the rest, written whole or not at all.

Nothing here can run code from a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cstformer.errors import CSTError
from cstformer.files import atomic_path

FORMAT = 1
"""Version of the model directory; raised when an older reader could not understand a newer directory."""

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """One safetensors file with a JSON description and a checksum inside, replaced atomically."""
    plain, text = {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, json.dumps(meta)
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, {"json": text, "sha256": _checksum(plain, text)})
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(None, str(error).rpartition("I/O error: ")[2]) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; a damaged file gets a one-line error."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            text = about.get("json", "{}")
            if about.get("sha256", _checksum(tensors, text)) != _checksum(tensors, text):
                raise ValueError("its numbers are not those that were written")
            if not isinstance(meta := json.loads(text), dict):
                raise ValueError("its description is no description")
            return tensors, meta
    except FileNotFoundError:
        raise CSTError(f"{path} does not exist") from None
    except MemoryError:
        raise CSTError(f"{path} cannot be read: there is not enough memory") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CSTError(f"{path} is damaged or not a safetensors file ({reason}); remove it or save it again") from None


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of all names, shapes and numbers, and of the description."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_model(folder: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a model directory: weights and a description, both or none."""
    folder = check_target(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CSTError(f"cannot make the folder {folder.parent}: {error.strerror or error}") from None
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        write_tensors(temporary / WEIGHTS, tensors, {})
        text = json.dumps({"format": FORMAT, "versions": versions(), **description}, indent=1)
        (temporary / DESCRIPTION).write_text(text)


def check_target(folder: str | os.PathLike[str]) -> Path:
    """Say where a model may be written: where nothing is, or an older model and nothing else."""
    target = Path(os.path.abspath(folder))
    if target.is_dir():
        strange = sorted({f.name for f in target.iterdir()} - {WEIGHTS, DESCRIPTION})
        if strange or (target / WEIGHTS).exists() != (target / DESCRIPTION).exists():
            what = f"is a directory with other files ({strange[0]})" if strange else "is not a cstformer model"
            raise CSTError(f"{folder} {what}; choose another place for the model, it is left as it is")
    elif target.exists():
        raise CSTError(f"{folder} is a file; choose another place for the model, it is left as it is")
    return target


def load_model(folder: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model directory of this kind; a foreign, damaged or newer one gets a one-line error."""
    folder = Path(folder)
    path = folder / DESCRIPTION
    if not path.is_file():
        what = "does not exist" if not folder.exists() else f"has no {DESCRIPTION}, so it is not a cstformer model"
        raise CSTError(f"{folder} {what}; give a directory written by `cst fit` or `model.save`")
    try:
        description = json.loads(path.read_text())
        found, format_ = description["kind"], description["format"]
    except (ValueError, KeyError, TypeError, OSError):
        raise CSTError(f"{path} is damaged; save the model again") from None
    if not isinstance(format_, int) or isinstance(format_, bool) or format_ < 1:
        raise CSTError(f"{path} is damaged (format {format_!r}); save the model again")
    if format_ > FORMAT:
        raise CSTError(
            f"{folder} was written by a newer cstformer (format {format_}, this one reads {FORMAT}); upgrade"
        )
    if found != kind:
        raise CSTError(f"{folder} holds a {found!r} model, not {kind!r}")
    tensors, _ = read_tensors(folder / WEIGHTS)
    return tensors, description


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    names = ("cstformer", "torch", "lightning", "numpy", "scipy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
