"""Imputation tasks: samples with gaps to learn from, and samples whose missing cells are asked for and known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.samples import Samples
from cstformer.errors import unknown

PARTS = ("test", "validation")
"""Samples that a task scores. Choices are made on ``validation``; ``test`` is for the final numbers."""


@dataclass(frozen=True)
class GapTask:
    """One imputation task on curves.

    Attributes
    ----------
    train : samples to learn from, with gaps of their own
    context : samples to score, without the cells that are asked for
    at : coordinates of the queries; a sample with fewer of them repeats its first
    truth : values at the queries, 0 where nothing is known
    asked : cells whose answers are scored
    """

    train: Samples
    context: Samples
    at: Float[np.ndarray, "N m 1"]
    truth: Float[np.ndarray, "N m c"]
    asked: Bool[np.ndarray, "N m c"]

    def errors(self, answer: Float[np.ndarray, "N m c"]) -> dict[str, Float[np.ndarray, " N"]]:
        """Sums of absolute and squared errors over the asked cells of each sample, and the number of these cells."""
        return error_sums(answer, self.truth, self.asked)


def error_sums(
    answer: Float[np.ndarray, "N ..."], truth: Float[np.ndarray, "N ..."], asked: Bool[np.ndarray, "N ..."]
) -> dict[str, Float[np.ndarray, " N"]]:
    """Sums of absolute and squared errors over the asked cells of each sample, and the number of these cells.

    >>> asked = np.array([[True, False, True]])
    >>> sums = error_sums(np.array([[1.0, 9.0, 2.0]]), np.array([[0.0, 0.0, 4.0]]), asked)
    >>> {name: x.item() for name, x in sums.items()}
    {'absolute': 3.0, 'squared': 5.0, 'cells': 2.0}
    """
    axes = tuple(range(1, truth.ndim))
    error = np.where(asked, answer - truth, 0.0)
    return {
        "absolute": np.abs(error).sum(axes),
        "squared": np.square(error).sum(axes),
        "cells": asked.sum(axes).astype(float),
    }


def remove_cells(
    values: Float[np.ndarray, "N n c"], share: float, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "N n c"], Bool[np.ndarray, "N n c"]]:
    """Remove each cell with probability ``share``: values with NaN in the removed cells, and where these are.

    >>> kept, removed = remove_cells(np.ones((1, 5000, 2)), 0.3, np.random.default_rng(0))
    >>> bool((np.isnan(kept) == removed).all()), round(float(removed.mean()), 2)
    (True, 0.3)
    """
    removed = rng.random(values.shape) < share
    return np.where(removed, np.nan, values), removed


def check_part(part: str) -> None:
    """Refuse anything but a name in `PARTS`."""
    if part not in PARTS:
        raise unknown("part", part, PARTS)
