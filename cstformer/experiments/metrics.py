"""Errors, roughness and paired tests: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import gaussian_filter
from scipy.stats import rankdata, wilcoxon

from cstformer.errors import CSTError


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
    """Bending of each sample divided by the mean bending of the noise-free truth; 1 is as smooth as the truth."""
    return bending(y) / bending(truth).mean()


def clip_mse(y: Float[np.ndarray, "N ..."], truth: Float[np.ndarray, "N ..."]) -> Float[np.ndarray, N]:
    """Mean squared error of each clip (or sample) over all its frames, pixels and colours.

    >>> clip_mse(np.zeros((2, 1, 2)), np.array([[[0.0, 2.0]], [[1.0, 1.0]]])).tolist()
    [2.0, 1.0]
    """
    return ((y - truth) ** 2).mean(tuple(range(1, y.ndim)))


def psnr(y: Float[np.ndarray, "N ..."], truth: Float[np.ndarray, "N ..."], peak: float = 1.0) -> Float[np.ndarray, N]:
    """Peak signal-to-noise ratio of each clip in dB, 10 log₁₀(peak² / MSE); infinite if the clips are equal.

    >>> psnr(np.zeros((1, 4)), np.full((1, 4), 0.1)).round(9).tolist()
    [20.0]
    """
    with np.errstate(divide="ignore"):
        return 10 * np.log10(peak**2 / clip_mse(y, truth))


def ssim(
    y: Float[np.ndarray, "N T H W C"], truth: Float[np.ndarray, "N T H W C"], peak: float = 1.0
) -> Float[np.ndarray, N]:
    r"""Structural similarity of each clip, averaged over its frames and colours (Wang et al., 2004).

    .. math:: \frac{(2 μ_y μ_x + C_1)(2 σ_{xy} + C_2)}{(μ_y^2 + μ_x^2 + C_1)(σ_y^2 + σ_x^2 + C_2)}, \qquad
              C_1 = (0.01\,\text{peak})^2, \; C_2 = (0.03\,\text{peak})^2

    with moments under a Gaussian window of 11 × 11 pixels and standard deviation 1.5, averaged over all positions of
    the window inside the frame.
    """
    if min(y.shape[2:4]) < 11:
        raise CSTError(f"ssim needs frames of at least 11 × 11 pixels, got {y.shape[2]} × {y.shape[3]}")

    def window(x: np.ndarray) -> np.ndarray:
        return gaussian_filter(x, (0, 0, 1.5, 1.5, 0), radius=(0, 0, 5, 5, 0))[:, :, 5:-5, 5:-5]

    y, truth = y.astype(np.float64), truth.astype(np.float64)  # variances are differences of close numbers
    mean_y, mean_x = window(y), window(truth)
    var_y, var_x = window(y * y) - mean_y**2, window(truth * truth) - mean_x**2
    covariance = window(y * truth) - mean_y * mean_x
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similar = (2 * mean_y * mean_x + c1) * (2 * covariance + c2)
    return (similar / ((mean_y**2 + mean_x**2 + c1) * (var_y + var_x + c2))).mean((1, 2, 3, 4))


@dataclass(frozen=True)
class PairedTest:
    """Wilcoxon signed-rank test of paired errors, two-sided.

    ``effect`` is the rank-biserial correlation: −1 if the first error is the smaller one in every pair, +1 if it is the
    larger one in every pair.
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
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    nonzero = difference[difference != 0]
    if len(nonzero) == 0:
        return PairedTest(0.0, 1.0, 0.0, len(difference))
    result = wilcoxon(nonzero)
    ranks = rankdata(np.abs(nonzero))
    effect = float((ranks * np.sign(nonzero)).sum() / ranks.sum())
    return PairedTest(float(result.statistic), float(result.pvalue), effect, len(difference))


FEWEST = 10  # samples of a test: with fewer, hardly any difference could survive the correction


def paired_tests(
    errors: Mapping[tuple[str, str], np.ndarray], pairs: Iterable[tuple[str, str, str]]
) -> list[dict[str, Any]]:
    """The ``tests`` of `result.json`: one `paired_test` for each question, corrected within a condition.

    ``p_value`` is the P of Holm (1979) over all questions of the same condition, ``p_single`` that of the test alone.
    Conditions with fewer than `FEWEST` samples are not tested.

    Parameters
    ----------
    errors : by row and condition, (samples,) or (seeds, samples), of which the mean over the seeds is compared; rows of
        a condition have errors of the same samples
    pairs : (first row, second row, condition); pairs with a missing row are left out

    Examples
    --------
    >>> errors = {(row, "clean"): np.arange(10.0) + shift for row, shift in (("CST", 0), ("linear", 1))}
    >>> [test["name"] for test in paired_tests(errors, [("CST", "linear", "clean"), ("CST", "cubic", "clean")])]
    ['CST vs linear']
    """
    means = {key: np.atleast_2d(x).mean(0) for key, x in errors.items()}
    tests: list[dict[str, Any]] = []
    for first, second, condition in dict.fromkeys(pairs):
        if (first, condition) not in means or (second, condition) not in means:
            continue
        found = paired_test(means[first, condition], means[second, condition])
        if found.n >= FEWEST:
            tests.append({"name": f"{first} vs {second}", "condition": condition} | asdict(found))
    for condition in dict.fromkeys(test["condition"] for test in tests):
        of_table = [test for test in tests if test["condition"] == condition]
        for test, p in zip(of_table, holm([test["p_value"] for test in of_table]), strict=True):
            test |= {"p_single": test["p_value"], "p_value": p}
    return tests


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted P values of Holm's step-down procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def summary(x: Float[np.ndarray, "*seeds n"]) -> dict[str, float | int]:
    """Mean, and standard deviation over the samples, as result files hold them; of several seeds also over these.

    ``std`` is that of the samples' means over the seeds, ``seed_std`` that of the seeds' means over the samples.
    """
    by_seed = np.atleast_2d(x)
    found = {"mean": float(np.mean(x)), "std": _deviation(by_seed.mean(0)), "n": by_seed.shape[1]}
    return found if len(by_seed) == 1 else found | {"seeds": len(by_seed), "seed_std": _deviation(by_seed.mean(1))}


def _deviation(x: np.ndarray) -> float:
    # Equal numbers, such as the widths of intervals on a regular grid, differ from their mean by rounding.
    return float(np.std(x, ddof=1)) if len(x) > 1 and np.ptp(x) > 1e-12 * np.abs(x).max() else 0.0
