r"""Gaussian-process regression shared by the ``smooth`` start, the noise estimate and the GP rival.

Each sample and channel is a draw of one process with covariance

.. math:: k(x, x') = b^2 + a^2 \exp\Bigl(-\tfrac12 \sum_i (x_i - x'_i)^2 / \ell_i^2\Bigr),

observed with independent noise of variance :math:`\sigma^2`. The hyper-parameters maximise the marginal likelihood of
the training samples, so :math:`\sigma` is an estimate of the noise that needs no clean data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cstformer.taylor import series
from cstformer.taylor.series import Series

MIN_NOISE = 1e-4  # of the values' sd: below it the covariance is singular to rounding


@dataclass(frozen=True)
class Kernel:
    """Hyper-parameters in the model's units (coordinates in [0,1]^d, standardised values)."""

    lengthscales: tuple[float, ...]
    amplitude: float
    offset: float
    noise: float

    def covariance(self, x: Series, centres: Tensor) -> Series:
        """k(x, centres): (J, B, m, n) from query coordinates (J, B, m, d) and centres (B, n, d)."""
        scale = centres.new_tensor(self.lengthscales)
        a, b = x.map(lambda c: c / scale), centres / scale
        # −½|a − b|² is quadratic in s, and a product of matrices: a·b − ½|a|² − ½|b|².
        cross = a.map(lambda c: c @ b.transpose(-1, -2))
        square = (a * a).map(lambda c: -0.5 * c.sum(-1, keepdim=True))
        exponent = series.shift(cross + square, -0.5 * (b * b).sum(-1)[:, None, :])
        # Rounding must not lift the diagonal above one.
        exponent = series.shift(exponent, (exponent.value.clamp_max(0) - exponent.value).detach())
        return series.shift(series.exp(exponent).map(lambda c: self.amplitude**2 * c), self.offset**2)


def posterior_weights(kernel: Kernel, coords: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """(K + σ²I)⁻¹ y of each sample: (B, n, c) from coordinates (B, n, d), values (B, n, c) and mask (B, n)."""
    factor = _factor(kernel, coords, mask)
    return torch.cholesky_solve((values * mask[..., None]).double(), factor).to(values.dtype)


def smoothing_weights(kernels: Sequence[Kernel], knots: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:
    """What each observed moment counts in the posterior mean at others, for several kernels in time at once.

    From knots (B, n) and mask (B, n) a function from moments (B, m) to weights (kernels, B, m, n). Beyond the first and
    last knot the weights are held.
    """
    t = knots.double()
    length, amplitude, offset, noise = (
        t.new_tensor(x)[:, None, None, None]
        for x in zip(*((k.lengthscales[0], k.amplitude, k.offset, k.noise) for k in kernels), strict=True)
    )

    def covariance(at: Tensor) -> Tensor:
        distance = (at[:, :, None] - t[:, None, :]) / length
        return amplitude**2 * torch.exp(-0.5 * distance.square()) + offset**2

    noise = noise**2 + _jitter(t) * (amplitude**2 + offset**2)
    pair = mask[:, :, None] & mask[:, None, :]
    eye = torch.eye(t.shape[1], dtype=t.dtype, device=t.device)
    diagonal = torch.where(mask[:, :, None], noise, torch.ones_like(noise))  # rows of the identity where nothing is
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance(t) * pair + eye * diagonal)) * pair
    low = t.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    high = t.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    return lambda at: (covariance(at.double().clamp(low, high)) @ inverse).to(knots.dtype)


def posterior_variance(kernel: Kernel, coords: Tensor, mask: Tensor, at: Tensor) -> Tensor:
    """Variance of the noise-free process at ``at`` (B, m, d) given points at ``coords``: (B, m)."""
    cross = kernel.covariance(series.constant(at.double()), coords.double()).value * mask[:, None, :]
    solved = torch.cholesky_solve(cross.transpose(-1, -2), _factor(kernel, coords, mask))
    return (kernel.amplitude**2 + kernel.offset**2 - (cross * solved.transpose(-1, -2)).sum(-1)).to(at.dtype)


def log_likelihood(kernel: Kernel, coords: Tensor, values: Tensor, mask: Tensor) -> float:
    """Log marginal likelihood of all samples and channels under ``kernel``."""
    return float(_log_likelihood(torch.tensor(_pack(kernel), dtype=coords.dtype), coords, values, mask))


def fit_kernel(
    coords: Tensor, values: Tensor, mask: Tensor, seed: int = 0, max_noise: float = 3.0, max_numbers: int = 2000
) -> Kernel:
    """Maximise the marginal likelihood over the kernel's hyper-parameters.

    Parameters
    ----------
    coords : Tensor (N, n, d), scaled to [0,1]^d
    values : Tensor (N, n, c), standardised
    mask : Tensor (N, n)
        True where a point exists.
    seed : int
        For the subset of samples used when there are many.
    max_noise : float
        Upper bound of the noise, where something else is known about it.
    max_numbers : int
        Samples are drawn until their points exceed this number; more would not change the estimate.
    """
    generator = torch.Generator().manual_seed(seed)
    coords, values, mask = (x.detach().cpu() for x in (coords, values, mask))
    order = torch.randperm(len(coords), generator=generator)
    enough = int((mask[order].sum(1).cumsum(0) < max_numbers).sum()) + 1
    chosen = order[: max(enough, min(8, len(order)))]
    coords, values, mask = coords[chosen].double(), values[chosen].double(), mask[chosen]
    if coords.shape[1] > 300:  # the cost is cubic in the points of a sample: keep a run (d = 1) or some of them
        some = (
            torch.arange(300) if coords.shape[-1] == 1 else torch.randperm(coords.shape[1], generator=generator)[:300]
        )
        coords, values, mask = coords[:, some], values[:, some], mask[:, some]
    if values.shape[-1] > 16:  # the channels of a patch share the kernel: a few of them tell it
        values = values[..., torch.randperm(values.shape[-1], generator=generator)[:16]]
    best: tuple[float, Tensor] | None = None
    for lengthscale in (0.05, 0.2, 0.7):
        for noise in (0.02, 0.3):
            theta = torch.tensor(
                [math.log(lengthscale)] * coords.shape[-1] + [0.0, math.log(0.3), math.log(noise)],
                dtype=torch.float64,
            )
            score, theta = _maximise(theta, coords, values, mask, max(max_noise, MIN_NOISE))
            if best is None or score > best[0]:
                best = score, theta
    assert best is not None
    d = coords.shape[-1]
    theta = best[1].exp()
    return Kernel(tuple(theta[:d].tolist()), float(theta[d]), float(theta[d + 1]), float(theta[d + 2]))


def _pack(kernel: Kernel) -> list[float]:
    return [math.log(x) for x in (*kernel.lengthscales, kernel.amplitude, kernel.offset, kernel.noise)]


def _factor(kernel: Kernel, coords: Tensor, mask: Tensor) -> Tensor:
    # In double precision always: single precision finds dense, nearly noise-free samples not positive definite. The
    # jitter follows the data's precision, which keeps the weights small enough for it.
    jitter = _jitter(coords)
    coords = coords.double()
    covariance = kernel.covariance(series.constant(coords), coords).value
    return _masked_cholesky(covariance, mask, kernel.noise**2 + jitter * (kernel.amplitude**2 + kernel.offset**2))


def _jitter(coords: Tensor) -> float:
    return 1e-5 if coords.dtype == torch.float32 else 1e-10


def _masked_cholesky(covariance: Tensor, mask: Tensor, noise: Tensor | float) -> Tensor:
    """Cholesky factor of covariance + noise·I; points that do not exist become rows of the identity."""
    pair = mask[:, :, None] & mask[:, None, :]
    eye = torch.eye(mask.shape[1], dtype=covariance.dtype, device=covariance.device)
    diagonal = torch.where(mask, noise, torch.ones((), dtype=covariance.dtype, device=covariance.device))
    return torch.linalg.cholesky(covariance * pair + eye * diagonal[:, :, None])


def _log_likelihood(theta: Tensor, coords: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    d = coords.shape[-1]
    scaled = coords / theta[:d].exp()
    distance = (scaled[:, :, None] - scaled[:, None]).square().sum(-1)
    a2, b2, noise = (2 * theta[d:]).exp()
    factor = _masked_cholesky(a2 * torch.exp(-0.5 * distance) + b2, mask, noise + 1e-8 * (a2 + b2))
    whitened = torch.linalg.solve_triangular(factor, values * mask[..., None], upper=False)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    numbers = mask.sum() * values.shape[-1]
    return -0.5 * whitened.square().sum() - values.shape[-1] * log_det - 0.5 * math.log(2 * math.pi) * numbers


def _maximise(theta: Tensor, coords: Tensor, values: Tensor, mask: Tensor, max_noise: float) -> tuple[float, Tensor]:
    """A few L-BFGS steps inside a box of sensible hyper-parameters."""
    theta = theta.clone().requires_grad_()
    d = coords.shape[-1]
    low = torch.tensor([math.log(1e-3)] * d + [math.log(1e-3)] * 2 + [math.log(MIN_NOISE)], dtype=theta.dtype)
    high = torch.tensor([math.log(30.0)] * d + [math.log(30.0)] * 2 + [math.log(max_noise)], dtype=theta.dtype)
    optimiser = torch.optim.LBFGS([theta], max_iter=60, line_search_fn="strong_wolfe")
    per_number = 1.0 / max(1, int(mask.sum()) * values.shape[-1])

    def closure():
        optimiser.zero_grad()
        bounded = torch.maximum(torch.minimum(theta, high), low)
        loss = -_log_likelihood(bounded, coords, values, mask) * per_number
        loss = loss + 1e-3 * (theta - bounded.detach()).square().sum()  # pulls back what left the box
        loss.backward()
        return loss

    try:
        optimiser.step(closure)
    except torch.linalg.LinAlgError:
        return -math.inf, theta.detach()
    final = torch.maximum(torch.minimum(theta.detach(), high), low)
    score = float(_log_likelihood(final, coords, values, mask))
    return (score if math.isfinite(score) else -math.inf), final
