"""Devices and number formats by their names in the settings."""

from __future__ import annotations

import warnings

import torch

from cstformer.errors import CSTError, CSTWarning


def storage_dtype(precision: str) -> torch.dtype:
    """Number format in which weights and data are stored."""
    return torch.float64 if precision == "float64" else torch.float32


def choose_device(name: str) -> torch.device:
    """The device of this name; ``auto`` chooses a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise CSTError(f"device={name!r} cannot be used here ({reason}); auto or cpu always can") from None


def device_or_cpu(name: str) -> torch.device:
    """The device that a loaded model asks for; the CPU, with a warning, if this machine does not have it."""
    try:
        return choose_device(name)
    except CSTError as error:
        warnings.warn(f"{error}; the model was loaded on the CPU", CSTWarning, stacklevel=3)
        return torch.device("cpu")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: NumPy, a GPU and the CPU each say so in their own way.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("size mismatch"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocat" in str(error) and "memory" in str(error)
