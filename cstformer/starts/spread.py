r"""How far a Gaussian process may be from its posterior mean: the scale of the intervals.

With the covariance k of `gaussian_process` and points X observed with noise of variance :math:`\sigma^2`, the variance
of the derivative :math:`D^q` of the process at x is

.. math:: \operatorname{Var} D^q f(x) = D^q_x D^q_{x'} k(x, x')\big|_{x' = x} -
          D^q k(x, X)\,(K + \sigma^2 I)^{-1}\, D^q k(X, x).

It depends on where points were observed and not on their values. It is small at observations and grows with the
distance to them, up to the variance of the process.

Shapes: B samples, n points, m queries, d axes, c channels, P problems (channels of samples).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.errors import CSTError
from cstformer.starts.curves import channel_groups
from cstformer.starts.gaussian_process import Kernel, KernelRows, cholesky_factor
from cstformer.taylor import series
from cstformer.taylor.derivatives import MultiIndex, plan

SMALLEST = 1e-10  # variance over that of the process: the rounding of the difference above


@dataclass(frozen=True)
class _Problems:
    """Channels of samples that share the shape of their factor."""

    row: Tensor
    """(P,): sample · c + channel; without channels of their own, the sample."""
    sample: Tensor
    kernel: KernelRows
    coords: Float[Tensor, "P n d"]
    exists: Bool[Tensor, "P n"]
    inverse: Float[Tensor, "P n n"]
    """L⁻¹ of the Cholesky factor L of K + σ²I."""

    def variance(self, x: Float[Tensor, "B m d"], index: MultiIndex) -> Float[Tensor, "P m"]:
        terms = plan(x.shape[-1], [index])
        line = series.straight_line(x[self.sample], terms.directions, terms.order)
        cross = terms.partial(self.kernel.covariance(line, self.coords), index) * self.exists[:, None]  # (P, m, n)
        prior = prior_variance(self.kernel, index)[..., 0]  # (P, 1)
        explained = (cross @ self.inverse.transpose(1, 2)).square().sum(-1)
        return (prior - explained).clamp_min(SMALLEST * prior)


class Spread:
    """Variance of a process, and of its derivatives, given where it was observed.

    Parameters
    ----------
    kernel : Kernel
    coords : (B, n, d)
    observed : (B, n, c) of bool

    Examples
    --------
    >>> t, seen = torch.tensor([[[0.0], [1.0]]]), torch.ones(1, 2, 1, dtype=torch.bool)
    >>> spread = Spread(Kernel((0.2,), amplitude=2.0, offset=0.0, noise=0.1), t, seen)
    >>> spread(torch.tensor([[[0.0], [0.5]]])).sqrt().flatten().tolist()  # near the noise, near the amplitude
    [0.09987..., 1.996...]
    """

    def __init__(self, kernel: Kernel, coords: Float[Tensor, "B n d"], observed: Bool[Tensor, "B n c"]):
        self.shape, coords = observed.shape, coords.double()
        self.shared = not kernel.channels and bool((observed == observed[..., :1]).all())
        self.problems: list[_Problems] = []
        c = 1 if self.shared else observed.shape[-1]
        for row, point, exists in channel_groups(observed[..., :c], empty=True):
            rows, places = kernel.rows(coords, row % c), coords[(row // c)[:, None], point]
            factor = cholesky_factor(rows, places, exists)
            eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
            inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
            self.problems.append(_Problems(row, row // c, rows, places, exists, inverse))
        self.order = torch.cat([p.row for p in self.problems]).argsort()

    def __call__(self, x: Float[Tensor, "B m d"], index: MultiIndex | None = None) -> Float[Tensor, "B m c"]:
        """Variance of D^q, by default of the value, in float64."""
        index = (0,) * x.shape[-1] if index is None else index
        solved = torch.cat([problem.variance(x.double(), index) for problem in self.problems])[self.order]
        return solved.unflatten(0, (self.shape[0], -1)).transpose(1, 2).expand(-1, -1, self.shape[-1])


def prior_variance(kernel: KernelRows, index: MultiIndex) -> Float[Tensor, "P 1 1"]:
    r"""Variance of D^q of the process without observations.

    For stationary covariances it is :math:`(-1)^{|q|} D^{2q} k(0)`. With the axes over their lengthscales, this is
    :math:`a^2 \prod_i (2 q_i - 1)!! / \ell_i^{2 q_i}` for the Gaussian. The Matérn correlations begin with
    :math:`1 - \frac{5}{6} r^2 + \frac{25}{24} r^4` (ν = 5/2) and :math:`1 - \frac{3}{2} r^2` (ν = 3/2), and have no
    derivatives beyond: relative to the Gaussian, :math:`1 - \frac12 r^2 + \frac18 r^4`, orders 1 and 2 are 5/3 and 25/3
    times as large, or 3 times.
    """
    order = sum(index)
    if order == 0:
        return kernel.variance
    larger = {None: (1.0,) * order, 2.5: (5 / 3, 25 / 3), 1.5: (3.0,), 0.5: ()}[kernel.smoothness]
    if order > len(larger):
        raise CSTError(
            f"the data are too rough for the sd of a derivative of order {order}: the process of smoothness "
            f"{kernel.smoothness} that describes them has {len(larger) or 'none'}; ask without return_std"
        )
    factors = [math.prod(range(1, 2 * q, 2)) for q in index]
    lengths = math.prod(kernel.lengthscales[..., i : i + 1] ** (2 * q) for i, q in enumerate(index))
    return larger[order - 1] * math.prod(factors) * kernel.amplitude**2 / lengths
