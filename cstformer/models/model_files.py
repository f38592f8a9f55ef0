"""Model directories: ``model.safetensors`` for the weights, ``model.json`` for the rest, written both or not at all."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from cstformer.errors import CSTError
from cstformer.system.atomic import atomic_path
from cstformer.system.tensor_files import checksum, read_tensors, write_tensors
from cstformer.system.versions import versions

FORMAT = 2
"""Version of the model directory; raised when an older reader could not understand a newer directory."""

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
ATTEMPTS = 3
"""How often two files are read that turn out to be of different models."""
MODES = "modes"
"""Folder with the spatial modes (`Modes.save`) whose coefficients a model was trained on, where it was."""


# Format 1, of version 0.1.0: parts of the transformer had other names, and the Transformers of the paper had settings
# that nothing read.
_TRANSFORMERS = ("CST", "BertTransformer", "TransformerLinear", "TransformerSpline")
_RENAMED = {"rest.": "residual.", "decode.": "readout.decode.", "skip.": "readout.skip.", "gate.": "readout.gate."}
_UNREAD = ("nearness", "devices", "nodes", "strategy")


def from_format_1(tensors: dict[str, Tensor], description: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Convert what version 0.1.0 wrote."""
    if description["kind"] not in _TRANSFORMERS:
        return tensors, description
    names = {
        name: next((new + name[len(old) :] for old, new in _RENAMED.items() if name.startswith(old)), name)
        for name in tensors
    }
    settings = description.get("settings")
    if description["kind"] != "CST" and isinstance(settings, dict):
        settings = {k: v for k, v in settings.items() if k not in _UNREAD}
    return {names[name]: x for name, x in tensors.items()}, description | {"settings": settings}


def save_model(folder: str | os.PathLike[str], tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write a model directory: weights and a description, both or none."""
    folder = check_target(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CSTError(f"cannot make the folder {folder.parent}: {error.strerror or error}") from None
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        weights = write_tensors(temporary / WEIGHTS, tensors, {})
        about = {"format": FORMAT, "versions": versions(), "weights": weights, **description}
        text = json.dumps(about, indent=1)
        (temporary / DESCRIPTION).write_text(text)


def check_target(folder: str | os.PathLike[str]) -> Path:
    """Say where a model may be written: where nothing is, or an older model and nothing else."""
    target = Path(os.path.abspath(folder))
    if target.is_dir():
        strange = sorted({f.name for f in target.iterdir()} - {WEIGHTS, DESCRIPTION, MODES})
        if strange or (target / WEIGHTS).exists() != (target / DESCRIPTION).exists():
            what = f"is a directory with other files ({strange[0]})" if strange else "is not a cstformer model"
            raise CSTError(f"{folder} {what}; choose another place for the model, it is left as it is")
    elif target.is_symlink():
        raise CSTError(f"{folder} is a link to something that does not exist; remove it or choose another place")
    elif target.exists():
        raise CSTError(f"{folder} is a file; choose another place for the model, it is left as it is")
    return target


def load_model(folder: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model directory of this kind; a foreign, damaged or newer one gets a one-line error.

    Another process may save a model there between the reading of the two files. The description has the checksum of
    its weights; if it is not that of the weights, both are read again.
    """
    folder = Path(folder)
    for attempt in range(ATTEMPTS):
        description = _load_description(folder, kind)
        try:
            tensors, _ = read_tensors(folder / WEIGHTS)
        except CSTError:  # replaced while it was read, if not damaged
            if attempt == ATTEMPTS - 1:
                raise
            continue
        found = checksum(tensors)
        if description.get("weights", found) == found:  # version 0.1.0 wrote none
            return (tensors, description) if description["format"] == FORMAT else from_format_1(tensors, description)
        time.sleep(0.05 * attempt)
    raise CSTError(
        f"{folder}: {DESCRIPTION} and {WEIGHTS} are of different models; wait if it is being saved, or save it again"
    )


def _load_description(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not path.is_file():
        what = "does not exist" if not folder.exists() else f"has no {DESCRIPTION}, so it is not a cstformer model"
        raise CSTError(f"{folder} {what}; give a directory written by `cst fit` or `model.save`")
    try:
        description = json.loads(path.read_text())
        found, format_ = description["kind"], description["format"]
    except PermissionError:
        raise CSTError(f"{path} may not be read: this user has no permission") from None
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
    return description
