r"""Gaussian-process regression: the ``smooth`` start, the estimate of the noise, and a baseline of its own.

Each sample and channel is a draw of one process with covariance

.. math:: k(x, x') = b^2 + a^2 \exp\Bigl(-\tfrac12 \sum_i (x_i - x'_i)^2 / \ell_i^2\Bigr),

observed with independent noise of variance :math:`\sigma^2`. Given values y at the points X, the posterior mean is

.. math:: \mu(x) = k(x, X)\,(K + \sigma^2 I)^{-1} y, \qquad K = k(X, X)

(Rasmussen & Williams, *Gaussian Processes for Machine Learning*, ch. 2). The hyper-parameters maximise the marginal
likelihood of the training samples (ibid., ch. 5), so :math:`\sigma` estimates the noise without clean data.

Shapes: B or N samples, n points, m queries, d axes, c channels; ``exists`` (B, n) is False for padding. Matrices are
factorised in float64: in float32 those of dense, nearly noise-free samples are not positive definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.taylor import series
from cstformer.taylor.series import Series

Coords = Float[Tensor, "B n d"]
Values = Float[Tensor, "B n c"]
Exists = Bool[Tensor, "B n"]

MIN_NOISE = 1e-4  # lower bound of σ, in standard deviations of the values: below, K + σ²I is singular to rounding
# Fitting costs O(n³) per sample and step of the optimiser. These caps keep it to seconds:
MAX_POINTS = 300  # points of a sample
LONG, MIN_POINTS = 4, 16  # points of a sample over the mean of all, and the points that are kept in any case
MAX_CHANNELS = 16  # channels; they share one kernel
MIN_SAMPLES = 8  # samples taken at least, even if their points exceed ``max_numbers``
# Starting points of the optimiser, in the model's units. Several, because the likelihood can have one maximum that
# explains the data by a fast process and another that explains them by a slow one with more noise (ibid., fig. 5.5).
START_LENGTHSCALES, START_NOISES, START_OFFSET = (0.05, 0.2, 0.7), (0.02, 0.3), 0.3
SMALLEST, LARGEST = 1e-3, 30.0  # bounds of lengthscales, amplitude and offset, in the model's units


@dataclass(frozen=True)
class Kernel:
    """Hyper-parameters in the model's units (coordinates in [0,1]^d, standardised values)."""

    lengthscales: tuple[float, ...]
    """ℓ, one for each axis."""
    amplitude: float
    """a: standard deviation of the process about its mean."""
    offset: float
    """b: standard deviation of the mean of a sample."""
    noise: float
    """σ: standard deviation of the noise of an observation."""

    def covariance(self, x: Series, centres: Coords) -> Series:
        """k(x, centres): (J, B, m, n) from query coordinates (J, B, m, d) and centres (B, n, d)."""
        scale = centres.new_tensor(self.lengthscales)
        p, q = x.map(lambda c: c / scale), centres / scale
        # −½|p − q|² = p·q − ½|p|² − ½|q|²: one matrix product instead of a tensor (B, m, n, d).
        cross = p.map(lambda c: c @ q.transpose(-1, -2))
        square = (p * p).map(lambda c: -0.5 * c.sum(-1, keepdim=True))
        exponent = series.shift(cross + square, -0.5 * (q * q).sum(-1)[:, None, :])
        # The three terms cancel where p = q, and rounding may leave a positive rest: set it to 0, as a constant.
        exponent = series.shift(exponent, (exponent.value.clamp_max(0) - exponent.value).detach())
        return series.shift(series.exp(exponent).map(lambda c: self.amplitude**2 * c), self.offset**2)


def posterior_weights(kernel: Kernel, coords: Coords, values: Values, exists: Exists) -> Values:
    """(K + σ²I)⁻¹ y of each sample; the posterior mean is k(x, X) times these weights."""
    factor = _factor(kernel, coords, exists)
    return torch.cholesky_solve((values * exists[..., None]).double(), factor).to(values.dtype)


def smoothing_weights(
    kernels: Sequence[Kernel], knots: Float[Tensor, "B n"], exists: Exists
) -> Callable[[Tensor], Tensor]:
    """Posterior means in time as weights of the observed frames, for several kernels at once.

    Returns a function from times (B, m) to weights k(t, T) (K + σ²I)⁻¹ of shape (kernels, B, m, n), for frames observed
    at the knots T. Before the first and after the last knot the weights stay constant.
    """
    t = knots.double()
    length, amplitude, offset, noise = (
        t.new_tensor(x)[:, None, None, None]  # (kernels, 1, 1, 1)
        for x in zip(*((k.lengthscales[0], k.amplitude, k.offset, k.noise) for k in kernels), strict=True)
    )

    def covariance(at: Tensor) -> Tensor:
        """(B, m) → (kernels, B, m, n)."""
        distance = (at[:, :, None] - t[:, None, :]) / length
        return amplitude**2 * torch.exp(-0.5 * distance.square()) + offset**2

    noise = noise**2 + _jitter(t) * (amplitude**2 + offset**2)
    pair = exists[:, :, None] & exists[:, None, :]
    eye = torch.eye(t.shape[1], dtype=t.dtype, device=t.device)
    diagonal = torch.where(exists[:, :, None], noise, torch.ones_like(noise))  # padding: rows of the identity
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance(t) * pair + eye * diagonal)) * pair
    low = t.masked_fill(~exists, torch.inf).amin(1, keepdim=True)
    high = t.masked_fill(~exists, -torch.inf).amax(1, keepdim=True)
    return lambda at: (covariance(at.double().clamp(low, high)) @ inverse).to(knots.dtype)


def log_likelihood(kernel: Kernel, coords: Coords, values: Values, exists: Exists) -> float:
    """Log marginal likelihood of all samples and channels under ``kernel``."""
    theta = [math.log(x) for x in (*kernel.lengthscales, kernel.amplitude, kernel.offset, kernel.noise)]
    return float(_log_likelihood(torch.tensor(theta, dtype=coords.dtype), coords, values, exists))


def fit_kernel(
    coords: Tensor, values: Tensor, exists: Tensor, seed: int = 0, max_noise: float = 3.0, max_numbers: int = 2000
) -> Kernel:
    """Maximise the marginal likelihood over the kernel's hyper-parameters.

    Parameters
    ----------
    coords : Tensor (N, n, d), scaled to [0,1]^d
    values : Tensor (N, n, c), standardised
    exists : Tensor (N, n)
        True where a point exists.
    seed : int
        For the subset of samples used when there are many.
    max_noise : float
        Upper bound of the noise in standard deviations of the values, where something else is known about it.
    max_numbers : int
        Samples are drawn until their points exceed this number; more would not change the estimate.
    """
    coords, values, exists = _subset(coords, values, exists, seed, max_numbers)
    d = coords.shape[-1]
    best: tuple[float, Tensor] | None = None
    for lengthscale in START_LENGTHSCALES:
        for noise in START_NOISES:
            theta = torch.tensor(
                [math.log(lengthscale)] * d + [0.0, math.log(START_OFFSET), math.log(noise)], dtype=torch.float64
            )
            score, theta = _maximise(theta, coords, values, exists, max(max_noise, MIN_NOISE))
            if best is None or score > best[0]:
                best = score, theta
    assert best is not None
    found = best[1].exp()
    return Kernel(tuple(found[:d].tolist()), float(found[d]), float(found[d + 1]), float(found[d + 2]))


def _subset(
    coords: Tensor, values: Tensor, exists: Tensor, seed: int, max_numbers: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Random samples, points and channels that are enough for the fit, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    coords, values, exists = (x.detach().cpu() for x in (coords, values, exists))
    order = torch.randperm(len(coords), generator=generator)
    enough = int((exists[order].sum(1).cumsum(0) < max_numbers).sum()) + 1
    chosen = order[: max(enough, min(MIN_SAMPLES, len(order)))]
    coords, values, exists = coords[chosen].double(), values[chosen].double(), exists[chosen]
    coords, values, exists = _without_padding(coords, values, exists)
    n, d = coords.shape[1:]
    if n > MAX_POINTS:
        # Curves keep a run of neighbours: small distances tell the noise from the process.
        some = torch.arange(MAX_POINTS) if d == 1 else torch.randperm(n, generator=generator)[:MAX_POINTS]
        coords, values, exists = coords[:, some], values[:, some], exists[:, some]
    if values.shape[-1] > MAX_CHANNELS:
        values = values[..., torch.randperm(values.shape[-1], generator=generator)[:MAX_CHANNELS]]
    return coords, values, exists


def _without_padding(coords: Tensor, values: Tensor, exists: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the points that exist to the front and cut off what is padding in most samples.

    A matrix is as large as the longest sample, so a few long ones among many short ones would set the cost of all:
    samples keep at most `LONG` times the mean number of points, a run of neighbours.
    """
    count = exists.sum(1)
    longest = min(int(count.max()), max(MIN_POINTS, int(LONG * count.double().mean())))
    if longest >= exists.shape[1]:
        return coords, values, exists
    order = exists.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
    row = torch.arange(len(order))[:, None]
    return coords[row, order], values[row, order], exists[row, order]


def _factor(kernel: Kernel, coords: Coords, exists: Exists) -> Float[Tensor, "B n n"]:
    """Cholesky factor of K + σ²I, in float64."""
    jitter = _jitter(coords)
    coords = coords.double()
    covariance = kernel.covariance(series.constant(coords), coords).value
    return _masked_cholesky(covariance, exists, kernel.noise**2 + jitter * (kernel.amplitude**2 + kernel.offset**2))


def _jitter(coords: Tensor) -> float:
    """Added to the diagonal, relative to k(x, x): about 100 roundings of float32, and little in float64.

    It follows the dtype of the data, not of the factor: it bounds the weights (K + σ²I)⁻¹ y, and large weights would
    cancel in sums of that dtype.
    """
    return 1e-5 if coords.dtype == torch.float32 else 1e-10


def _masked_cholesky(
    covariance: Float[Tensor, "B n n"], exists: Exists, noise: Tensor | float
) -> Float[Tensor, "B n n"]:
    """Cholesky factor of covariance + noise·I; the rows and columns of padding become those of the identity."""
    pair = exists[:, :, None] & exists[:, None, :]
    eye = torch.eye(exists.shape[1], dtype=covariance.dtype, device=covariance.device)
    diagonal = torch.where(exists, noise, torch.ones((), dtype=covariance.dtype, device=covariance.device))
    return torch.linalg.cholesky(covariance * pair + eye * diagonal[:, :, None])


def _log_likelihood(theta: Float[Tensor, " p"], coords: Coords, values: Values, exists: Exists) -> Tensor:
    """−½ yᵀ(K + σ²I)⁻¹y − ½ log det(K + σ²I) − ½ n log 2π, summed over samples and channels.

    theta holds the logarithms of ℓ (d of them), a, b and σ. With the Cholesky factor L the first term is
    −½ |L⁻¹ y|², the second −Σ log L_ii. Padding adds rows of the identity: nothing to either.
    """
    d = coords.shape[-1]
    scaled = coords / theta[:d].exp()
    distance = (scaled[:, :, None] - scaled[:, None]).square().sum(-1)  # (B, n, n)
    a2, b2, noise = (2 * theta[d:]).exp()
    # 1e-8 keeps the matrix positive definite in float64 at the smallest noise, which is 1e-4 squared.
    factor = _masked_cholesky(a2 * torch.exp(-0.5 * distance) + b2, exists, noise + 1e-8 * (a2 + b2))
    whitened = torch.linalg.solve_triangular(factor, values * exists[..., None], upper=False)  # L⁻¹ y (B, n, c)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    numbers = exists.sum() * values.shape[-1]
    return -0.5 * whitened.square().sum() - values.shape[-1] * log_det - 0.5 * math.log(2 * math.pi) * numbers


def _maximise(
    theta: Float[Tensor, " p"], coords: Coords, values: Values, exists: Exists, max_noise: float
) -> tuple[float, Float[Tensor, " p"]]:
    """Log likelihood and hyper-parameters after L-BFGS from ``theta``, inside the box of sensible values.

    L-BFGS knows no bounds: the likelihood is evaluated at the nearest point of the box, and a weak quadratic penalty
    pulls theta back, since the gradient vanishes outside.
    """
    theta = theta.clone().requires_grad_()
    d = coords.shape[-1]
    low = torch.tensor([math.log(SMALLEST)] * (d + 2) + [math.log(MIN_NOISE)], dtype=theta.dtype)
    high = torch.tensor([math.log(LARGEST)] * (d + 2) + [math.log(max_noise)], dtype=theta.dtype)
    optimiser = torch.optim.LBFGS([theta], max_iter=60, line_search_fn="strong_wolfe")
    # Per number of the data: the scale of loss and penalty does not depend on how many data there are.
    per_number = 1.0 / max(1, int(exists.sum()) * values.shape[-1])

    def closure():
        optimiser.zero_grad()
        bounded = torch.maximum(torch.minimum(theta, high), low)
        loss = -_log_likelihood(bounded, coords, values, exists) * per_number
        loss = loss + 1e-3 * (theta - bounded.detach()).square().sum()
        loss.backward()
        return loss

    try:
        optimiser.step(closure)
    except torch.linalg.LinAlgError:  # this start led to a singular matrix; the others may not
        return -math.inf, theta.detach()
    final = torch.maximum(torch.minimum(theta.detach(), high), low)
    score = float(_log_likelihood(final, coords, values, exists))
    return (score if math.isfinite(score) else -math.inf), final
