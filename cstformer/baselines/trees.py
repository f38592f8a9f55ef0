"""Boosted regression trees as plain arrays, so that they can be written to a file without pickle and read safely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

ENTRIES_PER_PASS = 2**20  # rows × trees handled at once: bounds the memory
COLUMNS = ("feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "value")


@dataclass(frozen=True)
class Trees:
    """The trees of several channels.

    A row goes to the left child of a node if its feature is at most the threshold, and to the learned side if the
    feature is NaN. It ends in a leaf of every tree; the sum of their values is the output.

    Attributes
    ----------
    nodes : feature (−1 for a leaf), threshold, 1 if NaN goes left, left child, right child, value
    roots : node at which each tree of a channel begins; −1 where a channel has none
    base : of each channel, added to the sum
    """

    nodes: Float[np.ndarray, "nodes 6"]
    roots: Int[np.ndarray, "c trees"]
    base: Float[np.ndarray, " c"]

    @classmethod
    def of(cls, models: Sequence[HistGradientBoostingRegressor | None], trees: int) -> Self:
        """From one fitted model of ``trees`` trees for each channel; None for a channel without trees."""
        nodes: list[np.ndarray] = []
        roots, base, total = np.full((len(models), trees), -1), np.zeros(len(models)), 0
        for k, model in enumerate(models):
            if model is None:
                continue
            base[k] = float(np.ravel(model._baseline_prediction)[0])
            for j, (tree,) in enumerate(model._predictors):
                table = np.stack([tree.nodes[name].astype(float) for name in COLUMNS], axis=1)
                leaf = tree.nodes["is_leaf"].astype(bool)
                table[:, 3:5] += total
                table[leaf, :5] = (-1, 0, 0, 0, 0)
                roots[k, j] = total
                total += len(table)
                nodes.append(table)
        return cls(np.concatenate(nodes) if nodes else np.zeros((0, 6)), roots, base)

    def sums(self, k: int, x: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, " rows"]:
        """Output of channel ``k`` for rows of features."""
        roots = self.roots[k][self.roots[k] >= 0]
        out = np.full(len(x), self.base[k])
        leaf, value = self.nodes[:, 0] < 0, self.nodes[:, 5]
        feature, children = np.maximum(self.nodes[:, 0], 0).astype(int), self.nodes[:, 3:5].astype(int)
        threshold, nan_right = self.nodes[:, 1], self.nodes[:, 2] == 0
        size = max(1, ENTRIES_PER_PASS // max(1, len(roots)))
        for first in range(0, len(x), size):
            count = min(size, len(x) - first)
            # One entry for each row and tree that has not reached a leaf: few trees are as deep as the deepest.
            row, node = np.repeat(np.arange(first, first + count), len(roots)), np.tile(roots, count)
            while len(node):
                ended = leaf[node]
                out[first : first + count] += np.bincount(row[ended] - first, value[node[ended]], count)
                row, node = row[~ended], node[~ended]
                seen = x[row, feature[node]]
                right = np.where(np.isnan(seen), nan_right[node], seen > threshold[node])
                node = children[node, right.astype(int)]
        return out

    def tensors(self) -> dict[str, Tensor]:
        """For a model file."""
        return {name: torch.from_numpy(getattr(self, name)) for name in ("nodes", "roots", "base")}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], channels: int, features: int) -> Self:
        """From a model file; refuse trees that would not end or read what is not there."""
        nodes, roots, base = (tensors[name].numpy() for name in ("nodes", "roots", "base"))
        if nodes.shape[1:] != (6,) or roots.ndim != 2 or len(roots) != channels or base.shape != (channels,):
            raise ValueError(f"trees have shapes {nodes.shape}, {roots.shape} and {base.shape} for c={channels}")
        inner = nodes[:, 0] >= 0
        children, own = nodes[inner, 3:5], np.flatnonzero(inner)[:, None]
        whole = np.isfinite(nodes[:, [0, 3, 4, 5]]).all() and (children == children.round()).all()
        if not whole or (children <= own).any() or (children >= len(nodes)).any() or (nodes[:, 0] >= features).any():
            raise ValueError("the nodes of the trees do not fit together")
        starts = roots[roots >= 0]
        if not np.issubdtype(roots.dtype, np.integer) or (starts >= len(nodes)).any() or (np.diff(starts) <= 0).any():
            raise ValueError("the roots of the trees do not fit their nodes")
        return cls(nodes.astype(float), roots, base.astype(float))
