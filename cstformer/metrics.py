"""Errors, roughness and paired tests: pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


def euclidean_error(
    y: Float[np.ndarray, "N n c"], truth: Float[np.ndarray, "N n c"], where: Bool[np.ndarray, "N n"]
) -> Float[np.ndarray, N]:
    """Mean Euclidean distance per sample over the points chosen by ``where`` (the paper's "L2 norm").

    >>> float(euclidean_error(np.zeros((1, 2, 2)), np.array([[[3.0, 4.0], [9.0, 9.0]]]), np.array([[True, False]]))[0])
    5.0
    """
    distance = np.linalg.norm(y - truth, axis=-1)
    return np.where(where, distance, 0.0).sum(1) / where.sum(1)


def bending(y: Float[np.ndarray, "N m c"]) -> Float[np.ndarray, N]:
    """Mean squared second difference of each sample on its (equispaced) coordinates."""
    return (np.diff(y, n=2, axis=1) ** 2).mean((1, 2))


def roughness(y: Float[np.ndarray, "N m c"], truth: Float[np.ndarray, "N m c"]) -> Float[np.ndarray, N]:
    """Bending of each sample over the mean bending of the noise-free truth: 1 is as smooth as the truth."""
    return bending(y) / bending(truth).mean()


@dataclass(frozen=True)
class PairedTest:
    """Wilcoxon signed-rank test of paired errors, two-sided.

    ``effect`` is the rank-biserial correlation: −1 if the first is smaller in every pair, +1 if larger.
    """

    statistic: float
    p_value: float
    effect: float
    n: int


def paired_test(first: Float[np.ndarray, n], second: Float[np.ndarray, n]) -> PairedTest:
    """Compare two systems on the same samples.

    >>> paired_test(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 4.0, 6.0, 8.0])).effect
    -1.0
    """
    from scipy.stats import rankdata, wilcoxon

    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    nonzero = difference[difference != 0]
    if len(nonzero) == 0:
        return PairedTest(0.0, 1.0, 0.0, len(difference))
    result = wilcoxon(nonzero)
    ranks = rankdata(np.abs(nonzero))
    effect = float((ranks * np.sign(nonzero)).sum() / ranks.sum())
    return PairedTest(float(result.statistic), float(result.pvalue), effect, len(difference))


def summary(x: Float[np.ndarray, n]) -> dict[str, float | int]:
    """Mean, standard deviation and count, as result files hold them."""
    return {"mean": float(np.mean(x)), "std": float(np.std(x, ddof=1)) if len(x) > 1 else 0.0, "n": len(x)}
