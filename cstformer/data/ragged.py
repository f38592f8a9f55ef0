"""Samples of different lengths, and points of a sample with equal coordinates."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats, check_size, pad
from cstformer.errors import CSTError


def stacked_pairs(pairs: Iterable[tuple[ArrayLike, ArrayLike]]) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (N, n, d) and values (N, n, c) of ragged samples, NaN behind the end; see `Samples.from_list`."""
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    for i, (coords, values) in enumerate(pairs):
        x, y = as_floats(f"coords of sample {i}", coords), as_floats(f"values of sample {i}", values)
        x, y = (a[:, None] if a.ndim == 1 else a for a in (x, y))
        if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
            raise CSTError(f"sample {i} must have coords (n, d) and values (n, c), got {x.shape} and {y.shape}")
        if columns and (x.shape[1], y.shape[1]) != (columns[0][0].shape[1], columns[0][1].shape[1]):
            raise CSTError(
                f"sample {i} has d, c = {x.shape[1]}, {y.shape[1]}, "
                f"but sample 0 has {columns[0][0].shape[1]}, {columns[0][1].shape[1]}; make them equal"
            )
        columns.append((x, y))
    if not columns:
        raise CSTError("from_list got no samples; pass at least one (coords, values) pair")
    n, (d, c) = max(len(x) for x, _ in columns), (a.shape[1] for a in columns[0])
    check_size(len(columns), n, d, c, sum(len(x) for x, _ in columns))
    return pad([x for x, _ in columns], n), pad([y for _, y in columns], n, np.nan)


def repeats_before(
    coords: Float[np.ndarray, "N n d"], exists: Bool[np.ndarray, "N n"], order: Int[np.ndarray, "N n"]
) -> Bool[np.ndarray, "N n"]:
    """In sorted order: True where an observed point has the coordinates of the one before it."""
    x, seen = np.take_along_axis(coords, order[..., None], axis=1), np.take_along_axis(exists, order, axis=1)
    repeat = np.zeros(seen.shape, dtype=bool)
    repeat[:, 1:] = (x[:, 1:] == x[:, :-1]).all(axis=-1) & seen[:, 1:]
    return repeat


def averaged(
    values: Float[np.ndarray, "N n c"],
    observed: Bool[np.ndarray, "N n c"],
    order: Int[np.ndarray, "N n"],
    repeat: Bool[np.ndarray, "N n"],
) -> tuple[Float[np.ndarray, "N n c"], Bool[np.ndarray, "N n c"]]:
    """Values and mask with the mean of each run of repeated points at its first point; the others are not observed.

    ``order`` sorts the points, and ``repeat`` says, in sorted order, which of them repeat the one before.
    """
    rows, c = np.arange(len(values))[:, None], values.shape[-1]
    starts = np.flatnonzero(~repeat)  # first point of each run of equal coordinates
    totals = np.add.reduceat(values[rows, order].reshape(-1, c), starts)
    counts = np.add.reduceat(observed[rows, order].reshape(-1, c).astype(np.int64), starts)
    place = (np.broadcast_to(rows, order.shape).ravel()[starts], order.ravel()[starts])
    means, seen = np.zeros_like(values), np.zeros_like(observed)
    means[place] = totals / np.maximum(counts, 1)
    seen[place] = counts > 0
    return means, seen
