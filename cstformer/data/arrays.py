"""Checks of the arrays that users pass: numbers, shapes, masks; and padding of ragged ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.errors import CSTError
from cstformer.system.files import MAX_BYTES
from cstformer.system.memory import memory_left

MOST_PADDING = 20
"""Padded samples of more than `SMALL` bytes may have this many times the points that were given."""
SMALL = 2**28


def check_size(N: int, n: int, d: int, c: int, points: int | None = None, max_bytes: int = MAX_BYTES) -> None:
    """Refuse samples (N, n) of d axes and c channels that do not fit into memory, before their arrays are made.

    They take ``16 (d + c) + 2 c`` bytes a point: coordinates, values and mask, and a copy of each. ``points`` is how
    many there are without padding; a table of short samples and a long one may pad to thousands of times its size.

    >>> check_size(10**5, 10**5, 1, 1, points=2 * 10**5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cstformer.errors.CSTError: 100,000 samples, padded to the longest of 100,000 points, take 50,000 times the room ...
    """
    needed = N * n * (16 * (d + c) + 2 * c)
    if points is not None and needed > SMALL and N * n > MOST_PADDING * points:
        raise CSTError(
            f"{N:,} samples, padded to the longest of {n:,} points, take {N * n // max(1, points):,} times the room of "
            "their points; cut long samples into windows, or leave them out"
        )
    what = f"{N:,} samples of {n:,} points with {d} coordinate(s) and {c} value(s) need {needed:,} bytes"
    if needed > 2 * max_bytes:
        raise CSTError(f"{what}, more than twice max_bytes={max_bytes:,}; read fewer, or pass a larger max_bytes")
    if needed > 2**20 and needed > (left := memory_left()):
        raise CSTError(f"{what}, but only {left:,} are free; read fewer samples, or shorter windows")


def as_floats(name: str, data: Any) -> np.ndarray:
    """Any array-like of real numbers as float64; masked entries become NaN.

    >>> as_floats("values", [1, 2]).dtype
    dtype('float64')
    """
    if hasattr(data, "detach"):  # a torch tensor, without importing torch
        data = data.detach().cpu()
    try:
        masked = np.ma.isMaskedArray(data)
        array = data.astype(np.float64).filled(np.nan) if masked else np.asarray(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CSTError(
            f"{name} is not one rectangular array of numbers ({error}); ragged samples: Samples.from_list"
        ) from error
    if array.dtype.kind not in "fiub":
        raise CSTError(f"{name} must be real numbers, got dtype {array.dtype}; convert them to float")
    return array.astype(np.float64, copy=False)


def shaped_coords(x: np.ndarray, shape: tuple[int, ...]) -> Float[np.ndarray, "N n d"]:
    """Coordinates as (N, n, d), for values of `shape` (N, n, c)."""
    N, n, _ = shape
    if x.shape == (N, n):
        x = x[..., None]
    elif x.ndim in (1, 2) and len(x) == n:
        x = np.broadcast_to(x.reshape(n, -1), (N, n, x.size // n))
    elif x.ndim not in (1, 2, 3):
        raise CSTError(f"coords must have shape (N, n, d), (N, n), (n, d) or (n,), got {x.shape}")
    if x.ndim != 3 or x.shape[:2] != (N, n):
        what = "sample" if x.ndim == 3 and len(x) != N else "point"
        raise CSTError(
            f"coords {x.shape} and values {shape} differ in the number of {what}s; "
            f"pass coords ({N}, {n}, d), or ({n}, d) for one shared grid"
        )
    if x.shape[2] == 0:
        raise CSTError(f"coords must have at least one axis, got shape {x.shape}")
    return x


def shaped_observed(observed: ArrayLike | None, shape: tuple[int, ...]) -> Bool[np.ndarray, "N n c"]:
    """The mask as bool of `shape` (N, n, c); all True if there is none."""
    if observed is None:
        return np.ones(shape, dtype=bool)
    is_bool = getattr(observed, "dtype", None) == np.bool_  # a large mask need not be copied as floats
    seen = np.asarray(observed) if is_bool else as_floats("observed", observed)
    if seen.shape not in (shape, shape[:2]):
        raise CSTError(f"observed must have shape {shape[:2]} or {shape}, got {seen.shape}")
    if not is_bool and not np.isin(seen, (0, 1)).all():
        raise CSTError("observed must hold only True and False (or 1 and 0)")
    return np.broadcast_to(seen.reshape(*shape[:2], -1).astype(bool), shape)


def refuse(bad: np.ndarray, what: str, remedy: str, ids: Sequence[Any], channels: Sequence[str] | None = None) -> None:
    """Raise an error that names the first bad sample, point and channel, if there is one.

    Parameters
    ----------
    bad : bool (N, n) or (N, n, c).
    ids, channels : names of the samples and of the channels.
    """
    if bad.any():
        sample, point, *channel = (int(i) for i in np.argwhere(bad)[0])
        where = f", {channels[channel[0]] if channels else f'channel {channel[0]}'}" if channel else ""
        label = ids[sample] if sample < len(ids) else sample
        raise CSTError(f"{what} at {bad.sum()} places, first at sample {label!r}, point {point}{where}; {remedy}")


def pad(arrays: Sequence[np.ndarray], n: int, fill: float | int = 0.0) -> np.ndarray:
    """Stack arrays (n_i, ...) as (N, n, ...), with `fill` after the end of each."""
    out = np.full((len(arrays), n, *arrays[0].shape[1:]), fill, dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
