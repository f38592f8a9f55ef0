"""Decoding of the stimulus from a model's attention or latent state: the paper's decoder, and two kinds of splits.

Features of a segment → 10 principal components → 3 nearest neighbours → label at the last frame. Components and
neighbours come from the training segments only. There are thousands of features and only hundreds of segments, and the
decoder needs just the inner products of segments; so features are reduced to those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int
from sklearn.neighbors import KNeighborsRegressor

from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST

COMPONENTS, NEIGHBOURS, REPEATS = 10, 3, 10
TRAINING_SHARE = 0.7
RANDOM, BLOCKED = "random split", "blocked split"
SEGMENTS_PER_PASS = 8

Split = tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]


def random_splits(count: int, seed: int) -> list[Split]:
    """Random splits, as in the paper. A test segment may share frames with training segments.

    >>> train, test = random_splits(10, seed=0)[0]
    >>> len(train), len(test), len({*train, *test})
    (7, 3, 10)
    """
    random = np.random.default_rng([seed, 0])
    cut = round(TRAINING_SHARE * count)
    orders = [random.permutation(count) for _ in range(REPEATS)]
    return [(np.sort(order[:cut]), np.sort(order[cut:])) for order in orders]


def blocked_splits(starts: Int[np.ndarray, " N"], window: int, block: int, seed: int) -> list[Split]:
    """Random splits of blocks of ``block`` frames. Segments that cross a border of blocks are left out.

    So no frame is in both training and test.

    >>> train, test = blocked_splits(np.arange(0, 100), 10, 20, seed=0)[0]
    >>> bool(np.abs(np.subtract.outer(train, test)).min() >= 10), len(train) + len(test)
    (True, 55)
    """
    random = np.random.default_rng([seed, 1])
    begin = starts - starts.min()
    number, inside = begin // block, begin % block + window <= block
    blocks = np.unique(number[inside])
    cut = min(max(1, round(TRAINING_SHARE * len(blocks))), len(blocks) - 1)
    splits = []
    for _ in range(REPEATS):
        trains = np.isin(number, random.permutation(blocks)[:cut])
        splits.append((np.flatnonzero(trains & inside), np.flatnonzero(~trains & inside)))
    return splits


def inner_products(features: np.ndarray) -> Float[np.ndarray, "N N"]:
    """Inner products of centred features (N, …), computed in pieces that fit into memory.

    >>> inner_products(np.array([[1.0, 0.0], [3.0, 0.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    flat = features.reshape(len(features), -1)
    total = np.zeros((len(flat), len(flat)))
    for first in range(0, flat.shape[1], 2**14):
        piece = flat[:, first : first + 2**14].astype(np.float32)
        piece -= piece.mean(0)
        total += piece @ piece.T
    return total


def component_scores(
    products: Float[np.ndarray, "N N"], split: Split, count: int = COMPONENTS
) -> tuple[Float[np.ndarray, "train k"], Float[np.ndarray, "test k"]]:
    """Principal components of the training segments, and the test segments projected on the same axes."""
    train, test = split
    inner = products[np.ix_(train, train)]
    mean = inner.mean(0)
    centred = inner - mean - mean[:, None] + mean.mean()
    power, axes = scipy.linalg.eigh(centred, subset_by_index=(max(0, len(train) - count), len(train) - 1))
    power, axes = power[::-1], axes[:, ::-1]
    length = np.sqrt(np.maximum(power, 1e-12 * max(float(power[0]), 1e-300)))
    cross = products[np.ix_(test, train)]
    cross = cross - cross.mean(1, keepdims=True) - mean + mean.mean()
    return axes * length, cross @ axes / length


def decode(
    products: Float[np.ndarray, "N N"], labels: Float[np.ndarray, " N"], splits: Sequence[Split]
) -> tuple[float, float]:
    """Mean squared error and R² of the decoded labels, pooled over all splits.

    R² = 1 − mean squared error / variance of the pooled test labels. Pooling keeps a split whose few test stimuli
    happen to be similar from dominating R².
    """
    wrong, tested = [], []
    for train, test in splits:
        known, asked = component_scores(products, (train, test))
        nearest = KNeighborsRegressor(min(NEIGHBOURS, len(train))).fit(known, labels[train])
        wrong.append(nearest.predict(asked) - labels[test])
        tested.append(labels[test])
    error = float(np.square(np.concatenate(wrong)).mean())
    spread = float(np.concatenate(tested).var())
    return error, 1 - error / spread if spread > 0 else float("nan")


@dataclass(frozen=True)
class Attention:
    """Attention of the last frame's patches to the whole segment, relative to uniform attention."""

    ways: dict[str, np.ndarray]
    """Features (N, …) by the name of the summary."""
    received: Float[np.ndarray, "N rows cols"]
    """Attention that each patch of the last frame receives, mean of readers, heads, layers; NaN outside the cortex."""


def last_frame(context: Samples) -> Float[np.ndarray, "rows 3"]:
    """Coordinates of the patches of the last frame that contain cortex; the same in all samples."""
    coords = context.coords[0][context.point_observed[0]]
    return coords[coords[:, 0] == coords[:, 0].max()]


def segment_attention(model: CST, context: Samples) -> Attention:
    """Attention of the last frame's patches, in every summary that may be decoded.

    ``layer 2``: from each patch of the last frame to each of the segment, mean over heads, (N, readers, read).
    ``layer 2, last frame``: the same, to the patches of the last frame only, (N, readers, readers).
    ``layer 2, received``: what each patch receives from each head, mean over the readers, (N, heads, read).
    ``all layers``: the mean over layers.
    """
    at = last_frame(context)
    maps: list[np.ndarray] = []
    received: list[np.ndarray] = []
    for first in range(0, len(context), SEGMENTS_PER_PASS):
        found = model.attention(context[first : first + SEGMENTS_PER_PASS], at)
        exists = found.exists[0]
        share = found.maps[:, :, :, -len(at) :, exists] * exists.sum()
        maps.append(share.mean(2).astype(np.float16))  # (some, layers, readers, read)
        received.append(share.mean(3).astype(np.float32))  # (some, layers, heads, read)
    whole, parts, columns = np.concatenate(maps), np.concatenate(received), found.columns[0, exists]
    last = columns[:, 0] == at[0, 0]
    ways: dict[str, np.ndarray] = {}
    for i in range(whole.shape[1]):
        ways |= {f"layer {i + 1}": whole[:, i], f"layer {i + 1}, last frame": whole[:, i][..., last]}
        ways[f"layer {i + 1}, received"] = parts[:, i]
    mean = whole.mean(1, dtype=np.float32).astype(np.float16)
    ways |= {"all layers": mean, "all layers, last frame": mean[..., last], "all layers, received": parts.mean(1)}
    return Attention(ways, _on_grid(parts.mean((1, 2))[:, last], columns[last, 1:], context))


def _on_grid(x: Float[np.ndarray, "N read"], centres: Float[np.ndarray, "read 2"], context: Samples) -> np.ndarray:
    """Images (N, rows, cols) with one pixel for each patch; NaN where there is no patch."""
    if context.layout is None:
        raise CSTError("attention on frames needs samples of patches; make them with frames_to_samples")
    row, col = np.rint((centres - context.layout.half) / context.layout.patch).astype(int).T
    out = np.full((len(x), *context.layout.grid), np.nan)
    out[:, row, col] = x
    return out
