r"""Remove hemodynamics from calcium fluorescence: an optimal linear estimator in every 3 × 3 patch, or regression.

For the p = 9 pixels of a patch, with both channels as ΔF/F of mean zero,

    y₁ = x + z + η        575 nm: neural x, hemodynamic z, noise of variance σ_η²
    y₂ = A z + ξ          395 nm, insensitive to calcium: z through an unknown mixing A, noise of variance σ_ξ²

with x, z, η, ξ uncorrelated. From Σ₁ = Σ_x + Σ_z + σ_η² I, Σ₂ = A Σ_z Aᵀ + σ_ξ² I and Σ₁₂ = Σ_z Aᵀ follows

    Σ_z = Σ₁₂ (Σ₂ − σ_ξ² I)⁻¹ Σ₁₂ᵀ,      Σ_x = Σ₁ − σ_η² I − Σ_z,      Σ_xy = [Σ_x, 0],

and the best linear estimate of x is x̂ = Σ_xy Σ_y⁻¹ y with y = (y₁, y₂): A is never needed. (The paper prints one more
factor Σ₂⁻¹ in Σ_z. The derivation does not give it, and Σ_z would then have no units of a variance.)

The estimate is kept well-posed as follows:

- The paper takes σ² as the median eigenvalue of the patch's covariance. With nine pixels that is itself an eigenvalue,
  which makes Σ₂ − σ_ξ² I singular. Here σ² is the median eigenvalue of a region of 10 × 10 pixels, where signals take
  a few eigenvalues and noise the rest, divided by the median of the Marchenko–Pastur law for noise of variance 1.
- (Σ₂ − σ_ξ² I)⁻¹ is restricted to the eigenvectors of Σ₂ whose eigenvalue exceeds the largest one of pure noise,
  σ_ξ² (1 + √(p/T))². Hemodynamics is smooth, so one or two remain in a patch.
- Negative eigenvalues of Σ_x, which arise only by chance, are set to zero.
- Pixels outside the frame or the mask are left out of their neighbours' patches.

All patches of a tile of 8 × 8 pixels share one matrix product: the covariance of the 2 · 10 · 10 traces of the tile and
its rim contains the covariances of its 64 patches, and its two diagonal blocks give the noise.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Bool, Float

from cstformer.errors import CSTError

TILE = 8
"""Side in pixels of the squares that are processed together."""
RIM = 1
"""Width of the rim around a tile in pixels: patches are 3 × 3."""
FEWEST = 20
"""Smallest number of pixels in a region whose noise can be estimated."""

_SIDE = TILE + 2 * RIM
# (64, 9): for each pixel of the tile, the indices of its patch in the tile with its rim; the centre is the fifth.
_CORNERS = np.arange(TILE)[:, None] * _SIDE + np.arange(TILE)
_PATCH = _CORNERS.reshape(-1, 1) + (np.arange(3)[:, None] * _SIDE + np.arange(3)).reshape(1, -1)


def remove_hemodynamics(
    signal: Float[np.ndarray, "T H W"],
    control: Float[np.ndarray, "T H W"],
    mask: Bool[np.ndarray, "H W"] | None = None,
    rim: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Float[np.ndarray, "T H-rim W-rim"]:
    """Estimate the neural signal x from ΔF/F of both channels, taken at the same times.

    The result is NaN outside ``mask`` and where a trace is not finite. The mean of each trace is removed. ``rim`` (top,
    bottom, left, right), 0 or 1 pixel on each side, is used by its neighbours but left out of the result: with it,
    pieces whose size is a multiple of `TILE` give the same result as the whole frame.
    """
    _check(signal, control, mask)
    top, bottom, left, right = rim
    height, width = signal.shape[1] - top - bottom, signal.shape[2] - left - right
    # Time is the last axis, so that a tile is one block of memory; a border of missing pixels surrounds the frame.
    border = ((RIM - top, RIM - bottom + TILE), (RIM - left, RIM - right + TILE))
    exists = np.isfinite(signal).all(axis=0) & np.isfinite(control).all(axis=0)
    exists = np.pad(exists if mask is None else exists & mask, border)
    traces = np.stack([np.pad(np.moveaxis(m, 0, -1), (*border, (0, 0))) for m in (signal, control)])
    traces -= traces.mean(axis=-1, keepdims=True)
    traces[:, ~exists] = 0
    out = np.full((height + TILE, width + TILE, len(signal)), np.nan, signal.dtype)
    for row, col in ((r, c) for r in range(0, height, TILE) for c in range(0, width, TILE)):
        present = exists[row : row + _SIDE, col : col + _SIDE]
        inner = present[RIM:-RIM, RIM:-RIM]
        if inner.any():
            # (200, T): traces of the tile and its rim, one channel after the other.
            y = traces[:, row : row + _SIDE, col : col + _SIDE].reshape(2 * _SIDE * _SIDE, -1)
            weights = tile_weights(y @ y.T / y.shape[1], present.ravel(), y.shape[1])
            estimate = (weights.astype(y.dtype) @ y).reshape(TILE, TILE, -1)
            out[row : row + TILE, col : col + TILE][inner] = estimate[inner]
    return np.moveaxis(out[:height, :width], -1, 0)


def regress_out(
    signal: Float[np.ndarray, "T H W"], control: Float[np.ndarray, "T H W"], mask: Bool[np.ndarray, "H W"] | None = None
) -> Float[np.ndarray, "T H W"]:
    """The usual correction: subtract from each pixel its least-squares fit by its own control."""
    _check(signal, control, mask)
    y1, y2 = signal - signal.mean(axis=0), control - control.mean(axis=0)
    power = np.einsum("thw,thw->hw", y2, y2)
    slope = np.einsum("thw,thw->hw", y1, y2) / np.where(power > 0, power, 1)
    return y1 - slope * y2 if mask is None else np.where(mask, y1 - slope * y2, np.nan)


def tile_weights(
    covariance: Float[np.ndarray, "2n 2n"], present: Bool[np.ndarray, " n"], samples: int
) -> Float[np.ndarray, "pixels 2n"]:
    """Weights of all traces of a tile and its rim in the estimates of the tile's 64 pixels."""
    n = len(present)
    noise = [noise_variance(covariance[s, s][np.ix_(present, present)], samples) for s in (slice(n), slice(n, None))]
    inside = present[_PATCH]
    diagonal = np.eye(9) * inside[:, :, None]
    rows, cols = _PATCH[:, :, None], _PATCH[:, None, :]
    c = covariance.astype(np.float64)
    s1, s2, s12 = c[rows, cols], c[n + rows, n + cols], c[rows, n + cols]
    values, vectors = np.linalg.eigh(s2)
    edge = noise[1] * (1 + np.sqrt(9 / samples)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(values > max(edge, 1e-12 * values.max()), 1 / (values - noise[1]), 0.0)
    half = s12 @ vectors
    s_x = _positive(s1 - noise[0] * diagonal - (half * inverse[:, None, :]) @ half.transpose(0, 2, 1))
    s_y = np.block([[s1, s12], [s12.transpose(0, 2, 1), s2]])
    # Missing pixels get some variance: their covariances are zero, and so are their weights.
    ridge = np.where(np.tile(inside, 2), 1e-9, 1.0) * np.trace(s_y, axis1=1, axis2=2)[:, None]
    s_y += ridge[:, :, None] * np.eye(18)
    target = np.concatenate([s_x[:, 4], np.zeros((len(s_x), 9))], axis=1)  # the centre's row of Σ_xy
    empty = np.trace(s_y, axis1=1, axis2=2) == 0
    s_y[empty] = np.eye(18)
    h = np.linalg.solve(s_y, target[:, :, None])[:, :, 0]
    weights = np.zeros((len(_PATCH), 2 * n))
    np.put_along_axis(weights, np.concatenate([_PATCH, n + _PATCH], axis=1), h, axis=1)
    return weights


def noise_variance(covariance: Float[np.ndarray, "n n"], samples: int) -> float:
    """Variance of white noise, from the median eigenvalue of a covariance that was estimated from ``samples`` samples.

    Zero for fewer than `FEWEST` pixels, where signals could reach the median.

    >>> noise = np.random.default_rng(0).normal(scale=3.0, size=(100, 2000))
    >>> round(noise_variance(noise @ noise.T / 2000, 2000), 1)
    9.0
    """
    if len(covariance) < FEWEST:
        return 0.0
    median = float(np.median(np.linalg.eigvalsh(covariance.astype(np.float64))))
    return max(0.0, median / marchenko_pastur_median(len(covariance) / samples))


@cache
def marchenko_pastur_median(ratio: float) -> float:
    """Median eigenvalue of the covariance of unit white noise, ``ratio`` = variables / samples, below 1.

    >>> round(marchenko_pastur_median(1e-6), 3), round(marchenko_pastur_median(0.5), 2)
    (1.0, 0.83)
    """
    if not 0 < ratio < 1:
        raise CSTError(f"the noise of a region needs more frames than pixels, got {ratio:.3g} pixels per frame")
    # λ = 1 + r + 2 √r cos θ turns the density √((b − λ)(λ − a)) / (2π r λ) dλ into a smooth one on (0, π).
    theta = (np.arange(20_000) + 0.5) * np.pi / 20_000
    place = 1 + ratio - 2 * np.sqrt(ratio) * np.cos(theta)
    mass = np.cumsum(np.sin(theta) ** 2 / place)
    return float(np.interp(0.5 * mass[-1], mass, place))


def _positive(symmetric: np.ndarray) -> np.ndarray:
    """Nearest positive semidefinite matrices."""
    values, vectors = np.linalg.eigh((symmetric + symmetric.transpose(0, 2, 1)) / 2)
    return (vectors * np.maximum(values, 0)[:, None, :]) @ vectors.transpose(0, 2, 1)


def _check(signal: np.ndarray, control: np.ndarray, mask: np.ndarray | None) -> None:
    if signal.ndim != 3 or signal.shape != control.shape:
        raise CSTError(f"signal and control must both be (T, H, W), got {signal.shape} and {control.shape}")
    if mask is not None and (mask.shape != signal.shape[1:] or mask.dtype != bool):
        raise CSTError(f"mask must be bool of shape {signal.shape[1:]}, got {mask.dtype} of shape {mask.shape}")
    if len(signal) <= _SIDE * _SIDE:
        raise CSTError(f"{len(signal)} frames are too few: the noise is estimated from more than {_SIDE * _SIDE}")
