"""Hyper-parameters of the Gaussian process, by maximum marginal likelihood of the training samples.

See Rasmussen & Williams, *Gaussian Processes for Machine Learning*, ch. 5. The noise σ is one of them, so it is
estimated without clean data; and the smoothness ν is chosen by the same likelihood, so that roughness is not taken for
noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from cstformer.starts.gaussian_process import Coords, Exists, Kernel, Values, masked_cholesky
from cstformer.taylor.recurrences import exponential

MIN_NOISE = 1e-4  # lower bound of σ, in standard deviations of the values: below, K + σ²I is singular to rounding
# Fitting costs O(n³) per sample and step of the optimiser. These caps keep it to seconds:
MAX_POINTS = 300  # points of a sample
LONG, MIN_POINTS = 4, 16  # points of a sample over the mean of all, and the points that are kept in any case
MAX_CHANNELS = 16  # channels; they share one kernel
MIN_SAMPLES = 8  # samples taken at least, even if their points exceed ``max_numbers``
# Starting points of the optimiser, in the model's units. Several, because the likelihood can have one maximum that
# explains the data by a fast process and another that explains them by a slow one with more noise (ibid., fig. 5.5).
START_LENGTHSCALES, START_NOISES, START_OFFSET = (0.05, 0.2, 0.7), (0.02, 0.3), 0.3
ROUGH_START = (0.2, 0.02)  # lengthscale and noise of a fresh start of the rough kernels
SMALLEST, LARGEST = 1e-3, 30.0  # bounds of lengthscales, amplitude and offset, in the model's units
SMOOTHNESS = (None, 2.5, 1.5, 0.5)
"""Smoothnesses that may be chosen, ν of the Matérn family; None is the smooth one."""
# Points of one channel that its own kernel is fitted to, and steps of that fit, which begins at the shared kernel.
CHANNEL_NUMBERS, CHANNEL_ITERATIONS = 400, 20


def log_likelihood(kernel: Kernel, coords: Coords, values: Values, exists: Exists) -> float:
    """Log marginal likelihood of all samples and channels under ``kernel``."""
    theta = _logarithms(kernel).to(coords)
    return float(_log_likelihood(theta, coords, values, exists, kernel.smoothness))


def fit_kernel(
    coords: Tensor,
    values: Tensor,
    exists: Tensor,
    seed: int = 0,
    max_noise: float = 3.0,
    max_numbers: int = 2000,
    smoothness: Sequence[float | None] = (None,),
    shortest: float = SMALLEST,
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
    smoothness : sequence of float or None
        Smoothnesses to choose from; the likelihood decides.
    shortest : float
        Lower bound of the lengthscales. What changes faster counts as noise.
    """
    coords, values, exists = _subset(coords, values, exists, seed, max_numbers)
    d = coords.shape[-1]
    every = [(length, noise) for length in START_LENGTHSCALES for noise in START_NOISES]
    best: tuple[float, Tensor, float | None] | None = None
    for nu in smoothness:
        # Neighbouring smoothnesses have similar maxima: after the first, one fresh start beside the best is enough.
        starts = every if best is None else [ROUGH_START]
        thetas = [_logarithms(Kernel((length,) * d, 1.0, START_OFFSET, noise)) for length, noise in starts]
        for theta in thetas if best is None else [best[1], *thetas]:
            score, found = _maximise(theta, coords, values, exists, max(max_noise, MIN_NOISE), nu, shortest=shortest)
            if best is None or score > best[0]:
                best = score, found, nu
    assert best is not None
    return _kernel(*best[1:])


def fit_channels(
    kernel: Kernel,
    coords: Tensor,
    values: Tensor,
    observed: Tensor,
    seed: int = 0,
    max_noise: float = 3.0,
    max_numbers: int = CHANNEL_NUMBERS,
    shortest: float = SMALLEST,
) -> Kernel:
    """Give each channel a kernel of its own where the likelihood says so.

    The kernels of the channels together replace the shared one if they lower the Bayesian information criterion
    (Schwarz 1978): if their log likelihood is larger by more than ½ log(numbers) for each further hyper-parameter.

    Parameters
    ----------
    kernel : Kernel that all channels share
    coords : Tensor (N, n, d), scaled to [0,1]^d
    values : Tensor (N, n, c), standardised
    observed : Tensor (N, n, c)
    seed, max_noise, max_numbers, shortest : as in `fit_kernel`

    Returns
    -------
    ``kernel``, or a kernel with ``channels`` and the root mean square of their noise.
    """
    shared, own, numbers, kernels = 0.0, 0.0, 0, []
    for channel in range(values.shape[-1]):
        mask = observed[..., channel]
        some = mask.any(1)
        if not bool(some.any()):
            kernels.append(kernel)
            continue
        x, y, exists = _subset(coords[some], values[some][..., [channel]], mask[some], seed, max_numbers)
        shared += log_likelihood(kernel, x, y, exists)
        theta, bound = _logarithms(kernel), max(max_noise, MIN_NOISE)
        score, theta = _maximise(theta, x, y, exists, bound, kernel.smoothness, CHANNEL_ITERATIONS, shortest)
        own += score
        numbers += int(exists.sum())
        kernels.append(_kernel(theta, kernel.smoothness))
    more = (len(kernels) - 1) * (coords.shape[-1] + 3)
    if not math.isfinite(own) or own - shared <= 0.5 * more * math.log(max(numbers, 1)):
        return kernel
    noise = math.sqrt(sum(k.noise**2 for k in kernels) / len(kernels))
    return replace(kernel, noise=noise, channels=tuple(kernels))


def _logarithms(kernel: Kernel) -> Float[Tensor, " p"]:
    """Logarithms of ℓ (d of them), a, b and σ."""
    numbers = (*kernel.lengthscales, kernel.amplitude, kernel.offset, kernel.noise)
    return torch.tensor([math.log(x) for x in numbers], dtype=torch.float64)


def _kernel(theta: Float[Tensor, " p"], smoothness: float | None) -> Kernel:
    """Inverse of `_logarithms`."""
    *lengths, amplitude, offset, noise = theta.exp().tolist()
    return Kernel(tuple(lengths), amplitude, offset, noise, smoothness)


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


def _log_likelihood(
    theta: Float[Tensor, " p"], coords: Coords, values: Values, exists: Exists, smoothness: float | None
) -> Tensor:
    """−½ yᵀ(K + σ²I)⁻¹y − ½ log det(K + σ²I) − ½ n log 2π, summed over samples and channels.

    theta holds the logarithms of ℓ (d of them), a, b and σ. With the Cholesky factor L the first term is
    −½ |L⁻¹ y|², the second −Σ log L_ii. Padding adds rows of the identity: nothing to either.
    """
    d = coords.shape[-1]
    scaled = coords / theta[:d].exp()
    distance = (scaled[:, :, None] - scaled[:, None]).square().sum(-1)  # (B, n, n)
    a2, b2, noise = (2 * theta[d:]).exp()
    # 1e-8 keeps the matrix positive definite in float64 at the smallest noise, which is 1e-4 squared.
    factor = masked_cholesky(a2 * correlation(distance, smoothness) + b2, exists, noise + 1e-8 * (a2 + b2))
    whitened = torch.linalg.solve_triangular(factor, values * exists[..., None], upper=False)  # L⁻¹ y (B, n, c)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    numbers = exists.sum() * values.shape[-1]
    return -0.5 * whitened.square().sum() - values.shape[-1] * log_det - 0.5 * math.log(2 * math.pi) * numbers


def correlation(square: Float[Tensor, "B n n"], smoothness: float | None) -> Float[Tensor, "B n n"]:
    """ρ(r) from r², see `gaussian_process`."""
    if smoothness is None:
        return exponential(-0.5 * square)
    s = (2 * smoothness * square.clamp_min(1e-24)).sqrt()  # the bound keeps the gradient of the root finite at r = 0
    polynomial = {0.5: torch.ones_like, 1.5: lambda s: 1 + s, 2.5: lambda s: 1 + s + s.square() / 3}[smoothness]
    return polynomial(s) * exponential(-s)


def _maximise(
    theta: Float[Tensor, " p"],
    coords: Coords,
    values: Values,
    exists: Exists,
    max_noise: float,
    smoothness: float | None,
    iterations: int = 60,
    shortest: float = SMALLEST,
) -> tuple[float, Float[Tensor, " p"]]:
    """Log likelihood and hyper-parameters after L-BFGS from ``theta``, inside the box of sensible values.

    L-BFGS knows no bounds: the likelihood is evaluated at the nearest point of the box, and a weak quadratic penalty
    pulls theta back, since the gradient vanishes outside.
    """
    theta = theta.clone().requires_grad_()
    d = coords.shape[-1]
    low = torch.tensor([math.log(shortest)] * d + [math.log(SMALLEST)] * 2 + [math.log(MIN_NOISE)], dtype=theta.dtype)
    high = torch.tensor([math.log(LARGEST)] * (d + 2) + [math.log(max_noise)], dtype=theta.dtype)
    optimiser = torch.optim.LBFGS([theta], max_iter=iterations, line_search_fn="strong_wolfe")
    # Per number of the data: the scale of loss and penalty does not depend on how many data there are.
    per_number = 1.0 / max(1, int(exists.sum()) * values.shape[-1])

    def closure():
        optimiser.zero_grad()
        bounded = torch.maximum(torch.minimum(theta, high), low)
        loss = -_log_likelihood(bounded, coords, values, exists, smoothness) * per_number
        loss = loss + 1e-3 * (theta - bounded.detach()).square().sum()
        loss.backward()
        return loss

    try:
        optimiser.step(closure)
    except torch.linalg.LinAlgError:  # this start led to a singular matrix; the others may not
        return -math.inf, theta.detach()
    final = torch.maximum(torch.minimum(theta.detach(), high), low)
    score = float(_log_likelihood(final, coords, values, exists, smoothness))
    return (score if math.isfinite(score) else -math.inf), final
