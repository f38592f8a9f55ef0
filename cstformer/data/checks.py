"""Checks of samples and queries that CST and every rival share."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.arrays import as_floats
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning


def check_training(samples: Samples) -> Samples:
    """Average repeated coordinates and sort the points; refuse samples of fewer than two."""
    if not isinstance(samples, Samples):
        raise CSTError(f"fit takes Samples, got {type(samples).__name__}; wrap arrays as Samples(coords, values)")
    samples = samples.merged().sorted()
    few = np.flatnonzero(samples.point_observed.sum(1) < 2)
    if len(few):
        raise CSTError(f"samples {few[:5].tolist()} have fewer than two observed points; remove them or give them more")
    return samples


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
    shape = x.shape
    if x.ndim == 1 and d == 1:
        x = x[:, None]
    if x.ndim == 2:
        x = np.broadcast_to(x, (len(context), *x.shape))
    if x.ndim != 3 or x.shape[0] != len(context) or x.shape[2] != d or x.shape[1] == 0:
        raise CSTError(
            f"at has shape {shape}; give (m, {d}) or ({len(context)}, m, {d}) with m ≥ 1, "
            f"one row of coordinates per query"
        )
    if not np.isfinite(x).all():
        raise CSTError("at contains NaN or infinite coordinates; remove those queries")
    return x


def warn_outside(scaled: Float[np.ndarray, "N m d"], coord_names: list[str], stacklevel: int = 3) -> None:
    """Warn when queries, in the model's units, lie outside the training domain [0,1]^d."""
    outside = np.maximum(-scaled, scaled - 1).max((0, 1))
    if (outside > 1e-6).any():
        axis = int(outside.argmax())
        warnings.warn(
            f"coordinates lie outside the training domain by up to {outside[axis]:.1%} of its extent along "
            f"{coord_names[axis]!r}; answers there are extrapolated",
            CSTWarning,
            stacklevel=stacklevel,
        )
