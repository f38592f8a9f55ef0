"""Tensors on disk: one safetensors file with a JSON description and a checksum, written atomically.

Reading such a file cannot run code.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cstformer.errors import CSTError
from cstformer.system.atomic import atomic_path


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> str:
    """Write tensors and a JSON description with a checksum to one safetensors file, atomically; return the checksum."""
    plain, text = {k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, json.dumps(meta)
    found = checksum(plain, text)
    with atomic_path(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the umask allows; the library would allow the owner alone
        try:
            save_file(plain, temporary, {"json": text, "sha256": found})
            temporary.chmod(mode)
        except SafetensorError as error:  # how the library reports a full disk
            raise OSError(None, str(error).rpartition("I/O error: ")[2]) from error
    return found


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; a damaged file raises an error of one line."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
            text = about.get("json", "{}")
            if about.get("sha256", found := checksum(tensors, text)) != found:
                raise ValueError("its numbers are not those that were written")
            if not isinstance(meta := json.loads(text), dict):
                raise ValueError("its description is not a JSON object")
            return tensors, meta
    except (FileNotFoundError, PermissionError):  # the library reports both as the first
        why = "does not exist" if not path.exists() else "may not be read: this user has no permission"
        raise CSTError(f"{path} {why}") from None
    except MemoryError:
        raise CSTError(f"{path} cannot be read: there is not enough memory") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CSTError(f"{path} is damaged or not a safetensors file ({reason}); remove it or save it again") from None


def checksum(tensors: dict[str, Tensor], text: str = "{}") -> str:
    """SHA-256 of all names, dtypes, shapes and values, and of the description."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
