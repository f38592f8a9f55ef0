r"""Gaussian processes in time, one for each kernel, given observations at the same times.

For a kernel k with noise :math:`\sigma^2` and the times T of the observations y,

.. math:: w(t) = k(t, T)\,(K + \sigma^2 I)^{-1}, \qquad \mu(t) = w(t)\, y, \qquad v(t) = k(t, t) - w(t)\, k(T, t)

are the weights of the observations, the posterior mean and the posterior variance of the process. Without observation
i, and with :math:`P = (K + \sigma^2 I)^{-1}`, the variance at its time is :math:`1 / P_{ii} - \sigma^2` and the error
of its prediction :math:`(P y)_i / P_{ii}` (Rasmussen & Williams, section 5.4.2).

Shapes: K kernels, B samples, n observations, m times, J Taylor coefficients.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.starts.gaussian_process import Kernel, inverse_factor
from cstformer.taylor import series
from cstformer.taylor.series import Series

LEAST = 1e-6  # smallest posterior variance over that of the process
NARROW = 0.02  # quantile of the variances at hidden frames that counts as low


class TimePosterior:
    """Weights and variances of several processes.

    Parameters
    ----------
    kernels : in time, without channels of their own
    knots : times of the observations
    exists : False for the padding of samples with fewer observations

    Examples
    --------
    One noisy observation of a process of variance 1: w = 1 / (1 + σ²), and the variance there is σ² w.

    >>> knots, exists = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    >>> posterior = TimePosterior([Kernel((0.1,), 1.0, 0.0, noise=0.5)], knots, exists)
    >>> round(posterior.weights(knots).item(), 6)
    0.8
    >>> round(posterior.variance(series.constant(knots[..., None])).value.item(), 6)
    0.2
    """

    def __init__(self, kernels: Sequence[Kernel], knots: Float[Tensor, "B n"], exists: Bool[Tensor, "B n"]):
        self.dtype = knots.dtype
        self.knots, self.exists = knots.double()[..., None], exists  # (B, n, 1)
        self.rows = [kernel.rows(self.knots) for kernel in kernels]
        # The variance from L⁻¹ k is more exact than from (K + σ²I)⁻¹ k, whose terms cancel where there is little noise.
        self.roots = [inverse_factor(rows, self.knots, exists) for rows in self.rows]  # (B, n, n) each
        self.inverses = [root.transpose(1, 2) @ root for root in self.roots]
        self.low = self.knots.masked_fill(~exists[..., None], torch.inf).amin(1, keepdim=True)  # (B, 1, 1)
        self.high = self.knots.masked_fill(~exists[..., None], -torch.inf).amax(1, keepdim=True)

    def weights(self, at: Float[Tensor, "B m"]) -> Float[Tensor, "K B m n"]:
        """Weights of the observations; before the first and after the last they stay constant."""
        x = series.constant(torch.minimum(torch.maximum(at.double()[..., None], self.low), self.high))
        each = zip(self.rows, self.inverses, strict=True)
        return torch.stack([rows.covariance(x, self.knots).value @ inverse for rows, inverse in each]).to(self.dtype)

    def variance(self, t: Series) -> Series:
        """Posterior variances (J, B, m, K) at times (J, B, m, 1), held before the first and after the last."""
        t = t.map(Tensor.double)
        held = torch.minimum(torch.maximum(t.value, self.low), self.high)
        x = Series(torch.cat([held[None], t.coefs[1:] * (held == t.value)]), t.order, t.directions)
        found = []
        for rows, root in zip(self.rows, self.roots, strict=True):
            k = rows.covariance(x, self.knots).map(lambda c: c * self.exists[:, None])
            half = k.map(functools.partial(torch.matmul, other=root.transpose(1, 2)))
            explained = (half * half).map(lambda c: -c.sum(-1))
            v = series.shift(explained, rows.variance[..., 0])
            # The difference of nearly equal numbers is rounding alone: keep it above `LEAST`, as a constant.
            least = LEAST * rows.variance[..., 0]
            found.append(series.shift(v, (v.value.clamp_min(least) - v.value).detach()))
        return series.concatenate([v.map(lambda c: c[..., None]) for v in found], -1)

    def mixed_variance(self, t: Series, shares: Float[Tensor, " K"]) -> Series:
        """Sum of shares times variances: (J, B, m, 1)."""
        return self.variance(t).map(lambda c: (c * shares.to(c)).sum(-1, keepdim=True))

    def left_out(self) -> Float[Tensor, "B n K"]:
        """Variance of the process at each knot given all other observations."""
        each = zip(self.rows, self.inverses, strict=True)
        alone = [1 / inverse.diagonal(dim1=1, dim2=2) - rows.noise[..., 0] ** 2 for rows, inverse in each]
        return torch.stack(alone, -1)


def left_out_error(
    kernel: Kernel, knots: Float[Tensor, "B n"], values: Float[Tensor, "B n c"], exists: Bool[Tensor, "B n"]
) -> float:
    """Mean squared error of predicting each inner observation from the others; 0 without any."""
    inner = _inner(exists)
    if not bool(inner.any()):
        return 0.0
    inverse = TimePosterior([kernel], knots, exists).inverses[0]
    y = (values * exists[..., None]).double()
    return float(((inverse @ y) / inverse.diagonal(dim1=1, dim2=2)[..., None])[inner].square().mean())


def narrow_variance(
    kernels: Sequence[Kernel], shares: Float[Tensor, " K"], knots: Float[Tensor, "B n"], exists: Bool[Tensor, "B n"]
) -> float:
    """The `NARROW` quantile, over inner observations, of the variance that the others leave; 0 without any.

    Parameters
    ----------
    shares : weight of the variance of each process in the sum
    """
    inner = _inner(exists)
    if not bool(inner.any()):
        return 0.0
    left = TimePosterior(kernels, knots, exists).left_out()[inner]  # (·, K)
    return float((left * shares.to(left)).sum(-1).clamp_min(0).quantile(NARROW))


def _inner(exists: Bool[Tensor, "B n"]) -> Bool[Tensor, "B n"]:
    """Observations that have others before and after them."""
    place = exists.cumsum(1)
    return exists & (place > 1) & (place < exists.sum(1, keepdim=True))
