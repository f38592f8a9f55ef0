"""Checks of samples and queries that CST and every rival share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.arrays import as_floats
from cstformer.data.dates import are_dates, date_unit, dated_axis, epoch_shift, rebased
from cstformer.data.grouping import named_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning


def check_training(samples: Samples) -> Samples:
    """Average repeated coordinates, sort the points, and leave out samples of fewer than two, with a warning."""
    if not isinstance(samples, Samples):
        raise CSTError(f"fit takes Samples, got {type(samples).__name__}; wrap arrays as Samples(coords, values)")
    samples = samples.merged().sorted()
    few = samples.point_observed.sum(1) < 2
    if few.all():
        raise CSTError("all samples have fewer than two observed points; give them more")
    if few.any():
        told = named_samples(samples.sample_ids, few)
        warnings.warn(f"left out {told} with fewer than two observed points", CSTWarning, stacklevel=5)
        samples = samples[~few]
    return samples


def check_context(context: Samples) -> Samples:
    """Refuse anything but `Samples`."""
    if not isinstance(context, Samples):
        raise CSTError(f"context must be Samples, got {type(context).__name__}; wrap arrays as Samples(coords, values)")
    return context


def check_queries(context: Samples, at: Any, d: int, c: int) -> Float[np.ndarray, "N m d"]:
    """Refuse a context or queries that a model of d axes and c channels cannot use; queries as (N, m, d).

    >>> curve = Samples([0.0, 1.0], [[2.0, 3.0]])
    >>> check_queries(curve, [0.5], d=1, c=1).tolist()
    [[[0.5]]]
    """
    check_context(context)
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


def date_queries(context: Samples, at: Any) -> Any:
    """Dates (m,) or (N, m) as coordinates (N, m, 1) of the context; other queries as they are.

    Samples whose dates count from another epoch are counted from that of the context.

    >>> day = Samples([0.0, 6.0], [[2.0, 3.0]], units={"t": "hours since 2024-05-01T00:00:00"})
    >>> date_queries(day, np.array(["2024-05-01T03:00"], dtype="datetime64")).tolist()
    [[[3.0]]]
    """
    if not isinstance(context, Samples):
        return at
    if isinstance(at, Samples):
        return rebased(at, date_unit(context.coord_names, context.units), bool(context.origin.any()))
    if not are_dates(at):
        return at
    found = dated_axis(context.coord_names, context.units)
    if found is None or context.d != 1 or np.ndim(at) > 2:
        raise CSTError("at holds dates, which need a context with dates as its only coordinate axis")
    return (np.atleast_2d(found[1].coords(at)) - context.origin)[..., None]  # (N, m, 1)


def from_model_epoch(
    context: Samples, queries: Float[np.ndarray, "N m d"], names: dict[str, Any]
) -> tuple[Samples, Float[np.ndarray, "N m d"]]:
    """Context and queries with dates that count from the epoch of a model's training data, ``names`` of the model."""
    unit, relative = date_unit(names["coord_names"], names["units"]), names.get("relative", False)
    shift = 0.0 if relative else epoch_shift(context, unit)
    return rebased(context, unit, relative), queries + shift


MARGIN = 0.1
"""How far beyond the training domain queries are answered with a warning, over its extent; farther ones are refused."""
_EXTRAPOLATE: ContextVar[bool] = ContextVar("extrapolate", default=False)
OUTSIDE = "coordinates lie outside the training domain"
"""How the message of `check_outside` begins."""
_HELD = "the start holds the value of the nearest observed point there, and the network has learned nothing"


@contextmanager
def extrapolation(allowed: bool = True) -> Iterator[None]:
    """Within this context, queries far beyond the training domain are answered, if ``allowed``."""
    token = _EXTRAPOLATE.set(allowed or _EXTRAPOLATE.get())
    try:
        yield
    finally:
        _EXTRAPOLATE.reset(token)


def check_outside(
    scaled: Float[np.ndarray, "N m d"], coord_names: list[str], strict: int | None = None, stacklevel: int = 3
) -> None:
    """Warn when queries, in the model's units, lie outside the training domain [0,1]^d; refuse them beyond `MARGIN`.

    ``strict`` is the number of axes, from the first, along which queries are refused; all by default.
    """
    outside = np.maximum(-scaled, scaled - 1).max((0, 1))
    if not (outside > 1e-6).any():
        return
    far = outside[:strict]
    refused = not _EXTRAPOLATE.get() and bool((far > MARGIN).any())
    axis = int(far.argmax() if refused else outside.argmax())
    how_far = f"up to {outside[axis]:.1%}" if outside[axis] >= 0.001 else "less than 0.1%"
    what = f"{OUTSIDE} by {how_far} of its extent along {coord_names[axis]!r}"
    if refused:
        raise CSTError(f"{what}; extrapolate=True answers them all the same, but {_HELD}")
    warnings.warn(f"{what}; answers there are extrapolated: {_HELD}", CSTWarning, stacklevel=stacklevel)
