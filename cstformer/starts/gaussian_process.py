r"""Gaussian-process regression: the ``smooth`` start, the estimate of the noise, and a baseline of its own.

Each sample and channel is a draw of one process with covariance

.. math:: k(x, x') = b^2 + a^2\, \rho_\nu(r), \qquad r^2 = \sum_i (x_i - x'_i)^2 / \ell_i^2,

observed with independent noise of variance :math:`\sigma^2`. The correlation :math:`\rho_\nu` is of the Matérn family:

.. math:: \rho_{1/2} = e^{-r}, \quad \rho_{3/2} = (1 + s)\, e^{-s}, \ s = \sqrt3\, r, \quad
          \rho_{5/2} = (1 + s + s^2/3)\, e^{-s}, \ s = \sqrt5\, r, \quad \rho_\infty = e^{-r^2/2}.

Draws are continuous for ν = 1/2, once differentiable for 3/2, twice for 5/2, and smooth for ∞. Given values y at the
points X, the posterior mean is

.. math:: \mu(x) = k(x, X)\,(K + \sigma^2 I)^{-1} y, \qquad K = k(X, X)

(Rasmussen & Williams, *Gaussian Processes for Machine Learning*, ch. 2 and 4.2). `kernel_fit` finds the
hyper-parameters.

Shapes: B or N samples, n points, m queries, d axes, c channels; ``exists`` (B, n) is False for padding. Matrices are
factorised in float64: in float32 those of dense, nearly noise-free samples are not positive definite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.system.described import TINY, number, numbers
from cstformer.taylor import series
from cstformer.taylor.recurrences import LOG2_E
from cstformer.taylor.series import Series

Coords = Float[Tensor, "B n d"]
Values = Float[Tensor, "B n c"]
Exists = Bool[Tensor, "B n"]

# ε in r² + ε², for d > 1: rounds off the tip of r, where no Taylor series exists. In lengthscales.
SOFTENING = 1e-3


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
    smoothness: float | None = None
    """ν: 0.5, 1.5, 2.5, or None for ∞."""
    channels: tuple[Kernel, ...] = ()
    """Kernels of the single channels, of the same smoothness, where they differ; empty where all share this one."""

    @property
    def noises(self) -> tuple[float, ...]:
        """σ of each channel, or the one that all share."""
        return tuple(k.noise for k in self.channels) or (self.noise,)

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> Kernel:
        """The inverse of `dataclasses.asdict`; version 0.1.0 knew neither smoothness nor channels."""
        smoothness = about.get("smoothness")
        if smoothness not in (None, 0.5, 1.5, 2.5):
            raise ValueError(f"smoothness of the kernel must be 0.5, 1.5, 2.5 or null, got {smoothness}")
        return cls(
            lengthscales=numbers("lengthscales of the kernel", about["lengthscales"], TINY),
            amplitude=number("amplitude of the kernel", about["amplitude"], 0),
            offset=number("offset of the kernel", about["offset"], 0),
            noise=number("noise of the kernel", about["noise"], 0),
            smoothness=smoothness,
            channels=tuple(cls.from_description(one) for one in about.get("channels", ())),
        )

    def rows(self, like: Tensor, channel: Tensor | None = None) -> KernelRows:
        """As tensors: one row, or the kernel of the channel with each of these numbers (P,)."""
        if channel is None or not self.channels:
            return KernelRows.of([self], like)
        every = KernelRows.of(self.channels, like)
        lengths, amplitude, offset, noise = (x[channel] for x in every.tensors)
        return KernelRows(lengths, amplitude, offset, noise, self.smoothness)

    def covariance(self, x: Series, centres: Coords) -> Series:
        """k(x, centres): (J, B, m, n) from query coordinates (J, B, m, d) and centres (B, n, d)."""
        return self.rows(centres).covariance(x, centres)


@dataclass(frozen=True)
class KernelRows:
    """Kernels of P problems as tensors; P = 1 stands for all problems of a batch."""

    lengthscales: Float[Tensor, "P 1 d"]
    amplitude: Float[Tensor, "P 1 1"]
    offset: Float[Tensor, "P 1 1"]
    noise: Float[Tensor, "P 1 1"]
    smoothness: float | None

    @classmethod
    def of(cls, kernels: Sequence[Kernel], like: Tensor) -> KernelRows:
        """Stack kernels of one smoothness."""
        lengths = like.new_tensor([k.lengthscales for k in kernels])[:, None]
        amplitude, offset, noise = (
            like.new_tensor([getattr(k, name) for k in kernels])[:, None, None]
            for name in ("amplitude", "offset", "noise")
        )
        return cls(lengths, amplitude, offset, noise, kernels[0].smoothness)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All but the smoothness."""
        return self.lengthscales, self.amplitude, self.offset, self.noise

    @property
    def variance(self) -> Float[Tensor, "P 1 1"]:
        """k(x, x)."""
        return self.amplitude**2 + self.offset**2

    def covariance(self, x: Series, centres: Coords) -> Series:
        """k(x, centres): (J, B, m, n) from query coordinates (J, B, m, d) and centres (B, n, d)."""
        plain = x.order == 0 and x.coefs.shape[-1] == 1 and self.smoothness is not None
        if plain and not _differentiated(x.coefs, centres, *self.tensors):
            return series.constant(self._on_a_line(x.value, centres))
        p, q = x.map(lambda c: c / self.lengthscales), centres / self.lengthscales
        correlation = _smooth(p, q) if self.smoothness is None else _matern(p, q, self.smoothness)
        return series.shift(correlation.map(lambda c: self.amplitude**2 * c), self.offset**2)

    def _on_a_line(self, x: Float[Tensor, "B m 1"], centres: Float[Tensor, "B n 1"]) -> Float[Tensor, "B m n"]:
        """Matérn covariances without derivatives, in place: every training step of series computes many of them."""
        assert self.smoothness is not None
        unit = math.sqrt(2 * self.smoothness) / self.lengthscales
        s = (x * unit - (centres * unit).mT).abs_()
        decay = (s * -LOG2_E).exp2_()  # as `recurrences.exponential`
        if self.smoothness == 1.5:
            decay.mul_(s.add_(1))
        elif self.smoothness == 2.5:
            decay.mul_(s.addcmul_(s, s, value=1 / 3).add_(1))
        return decay.mul_(self.amplitude**2).add_(self.offset**2)


def _differentiated(*tensors: Tensor) -> bool:
    """Whether autograd or a transform of `torch.func` follows what is computed from these tensors."""
    followed = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return followed or torch._C._are_functorch_transforms_active()


def _smooth(p: Series, q: Coords) -> Series:
    """exp(−½|p − q|²): (J, B, m, n)."""
    exponent = _square_distance(p, q).map(lambda c: -0.5 * c)
    # The terms of the square cancel where p = q, and rounding may leave a positive rest: set it to 0, as a constant.
    exponent = series.shift(exponent, (exponent.value.clamp_max(0) - exponent.value).detach())
    return series.exp(exponent)


def _square_distance(p: Series, q: Coords) -> Series:
    """|p − q|² = |p|² − 2 p·q + |q|²: one matrix product instead of a tensor (B, m, n, d)."""
    cross = p.map(lambda c: -2 * (c @ q.transpose(-1, -2)))
    square = (p * p).map(lambda c: c.sum(-1, keepdim=True))
    return series.shift(cross + square, (q * q).sum(-1)[:, None, :])


def _matern(p: Series, q: Coords, smoothness: float) -> Series:
    """ρ of the Matérn family: (J, B, m, n). On a line r = |p − q| exactly, with the slope to the right at r = 0."""
    if q.shape[-1] == 1:
        r = series.shift(p.map(lambda c: c.expand(*c.shape[:-1], q.shape[1])), -q.transpose(-1, -2))  # (J, B, m, n)
        sign = torch.where(r.value < 0, -1.0, 1.0).to(q)
        r = r.map(lambda c: c * sign)
    else:
        square = _square_distance(p, q)
        rounding = (square.value.clamp_min(0) - square.value).detach()
        r = series.power(series.shift(square, rounding + SOFTENING**2), 0.5)
    s = r.map(lambda c: math.sqrt(2 * smoothness) * c)
    decay = series.exp(s.map(torch.neg))
    if smoothness == 0.5:
        return decay
    if smoothness == 1.5:
        return series.shift(s, 1.0) * decay
    return series.shift(s + (s * s).map(lambda c: c / 3), 1.0) * decay


def posterior_weights(kernel: Kernel | KernelRows, coords: Coords, values: Values, exists: Exists) -> Values:
    """(K + σ²I)⁻¹ y of each sample; the posterior mean is k(x, X) times these weights."""
    rows = kernel.rows(coords.double()) if isinstance(kernel, Kernel) else kernel
    factor = cholesky_factor(rows, coords, exists)
    return torch.cholesky_solve((values * exists[..., None]).double(), factor).to(values.dtype)


def cholesky_factor(kernel: KernelRows, coords: Coords, exists: Exists) -> Float[Tensor, "B n n"]:
    """Cholesky factor of K + σ²I, in float64."""
    jitter = _jitter(coords)
    coords = coords.double()
    covariance = kernel.covariance(series.constant(coords), coords).value
    return masked_cholesky(covariance, exists, (kernel.noise**2 + jitter * kernel.variance)[..., 0])


def inverse_factor(kernel: KernelRows, coords: Coords, exists: Exists) -> Float[Tensor, "B n n"]:
    """L⁻¹ of the Cholesky factor L of K + σ²I in float64; 0 in the rows and columns of padding."""
    factor = cholesky_factor(kernel, coords, exists)
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    return torch.linalg.solve_triangular(factor, eye, upper=False) * (exists[:, :, None] & exists[:, None, :])


def _jitter(coords: Tensor) -> float:
    """Added to the diagonal, relative to k(x, x): about 100 roundings of float32, and little in float64.

    It follows the dtype of the data, not of the factor: it bounds the weights (K + σ²I)⁻¹ y, and large weights would
    cancel in sums of that dtype.
    """
    return 1e-5 if coords.dtype == torch.float32 else 1e-10


def masked_cholesky(
    covariance: Float[Tensor, "B n n"], exists: Exists, noise: Tensor | float
) -> Float[Tensor, "B n n"]:
    """Cholesky factor of covariance + noise·I; the rows and columns of padding become those of the identity."""
    pair = exists[:, :, None] & exists[:, None, :]
    eye = torch.eye(exists.shape[1], dtype=covariance.dtype, device=covariance.device)
    diagonal = torch.where(exists, noise, torch.ones((), dtype=covariance.dtype, device=covariance.device))
    return torch.linalg.cholesky(covariance * pair + eye * diagonal[:, :, None])
