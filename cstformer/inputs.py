"""What CST and its rivals ask of their input, said once: checked samples and queries, splits, devices."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cstformer.errors import CSTError, CSTWarning
from cstformer.objective import Batch
from cstformer.patches import PatchLayout
from cstformer.samples import Samples, as_floats
from cstformer.scaling import Scaling

TOKENS_PER_STEP = 2**12  # context tokens of one training step: large samples come in smaller batches


def storage_dtype(precision: str) -> torch.dtype:
    """Format in which weights and data are kept."""
    return torch.float64 if precision == "float64" else torch.float32


def check_queries(context: Samples, at: Any, d: int, c: int) -> Float[np.ndarray, "N m d"]:
    """Refuse a context or queries that a model of d axes and c channels cannot use; queries as (N, m, d).

    >>> curve = Samples([0.0, 1.0], [[2.0, 3.0]])
    >>> check_queries(curve, [0.5], d=1, c=1).tolist()
    [[[0.5]]]
    """
    if not isinstance(context, Samples):
        raise CSTError(f"context must be Samples, got {type(context).__name__}; wrap arrays as Samples(coords, values)")
    if (context.d, context.c) != (d, c):
        raise CSTError(
            f"context has {context.d} coordinate axes and {context.c} channels; the model was fitted with {d} and {c}"
        )
    x = as_floats("at", at.coords if isinstance(at, Samples) else at)
    given = x.shape
    if x.ndim == 1 and d == 1:
        x = x[:, None]
    if x.ndim == 2:
        x = np.broadcast_to(x, (len(context), *x.shape))
    if x.ndim != 3 or x.shape[0] != len(context) or x.shape[2] != d or x.shape[1] == 0:
        raise CSTError(
            f"at has shape {given}; give (m, {d}) or ({len(context)}, m, {d}) with m ≥ 1, "
            f"one row of coordinates per query"
        )
    if not np.isfinite(x).all():
        raise CSTError("at contains NaN or infinite coordinates; remove those queries")
    return x


def warn_outside(
    queries: np.ndarray,
    scaling: Scaling,
    coord_names: list[str],
    layout: PatchLayout | None = None,
    stacklevel: int = 3,
) -> None:
    """Say so when queries lie outside the training domain; a periodic frame has no outside."""
    scaled = scaling.coords(queries)
    if layout is not None and layout.periodic:
        scaled = scaled[..., :1]
    outside = np.maximum(-scaled, scaled - 1).max((0, 1))
    if (outside > 1e-6).any():
        axis = int(outside.argmax())
        warnings.warn(
            f"coordinates lie outside the training domain by up to {outside[axis]:.1%} of its extent along "
            f"{coord_names[axis]!r}; answers there are extrapolated",
            CSTWarning,
            stacklevel=stacklevel,
        )


def check_training(samples: Samples) -> Samples:
    """Average repeated coordinates and sort the points; refuse samples of fewer than two."""
    if not isinstance(samples, Samples):
        raise CSTError(f"fit takes Samples, got {type(samples).__name__}; wrap arrays as Samples(coords, values)")
    samples = samples.merged().sorted()
    few = np.flatnonzero(samples.point_observed.sum(1) < 2)
    if len(few):
        raise CSTError(f"samples {few[:5].tolist()} have fewer than two observed points; remove them or give them more")
    return samples


def split_samples(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation samples of a data set; with fewer than five samples the same ones serve both.

    >>> training, held_out = split_samples(10, 0.2, seed=0)
    >>> len(training), len(held_out), sorted(torch.cat([training, held_out]).tolist()) == list(range(10))
    (8, 2, True)
    """
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * count)) if count >= 5 and fraction > 0 else 0
    return (shuffled[held:], shuffled[:held]) if held else (shuffled, shuffled)


def fingerprint(data: Batch) -> str:
    """Hash all numbers of a data set: a resumed training must meet the same ones."""
    digest = hashlib.sha256()
    for x in (data.points.coords, data.points.values, data.points.observed):
        digest.update(np.ascontiguousarray(x.cpu().numpy()).tobytes())
    return digest.hexdigest()


def choose_device(name: str) -> torch.device:
    """The device of this name; ``auto`` prefers a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise CSTError(f"device={name!r} cannot be used here ({reason}); auto or cpu always can") from None


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: NumPy, a GPU and the CPU each say so in their own way.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("size mismatch"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocat" in str(error) and "memory" in str(error)


def device_or_cpu(name: str) -> torch.device:
    """The device a loaded model asks for, or the CPU with a warning where this machine lacks it."""
    try:
        return choose_device(name)
    except CSTError as error:
        warnings.warn(f"{error}; the model was loaded on the CPU", CSTWarning, stacklevel=3)
        return torch.device("cpu")
