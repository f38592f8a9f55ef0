r"""A Gaussian process of several channels that know of each other, known as co-kriging.

The covariance of channel i at x and channel j at x' is a *linear model of coregionalisation*,

.. math:: \operatorname{cov}(f_i(x), f_j(x')) = \sum_{q=1}^{Q} B^q_{ij}\, \rho(|x - x'| / \ell_q) + B^0_{ij},
          \qquad B^q = W_q W_q^T + \operatorname{diag}(v_q),

with a Matérn correlation ρ and the symmetric matrices :math:`B^q` (c, c), and each channel has noise of its own. So the
value of a channel is told by its neighbours in time, by other channels at the same time, and by both together; the
constant part :math:`B^0` says how the levels of a sample go together. With the weights :math:`w = (K + \Sigma)^{-1} y`
of the observed cells, 0 elsewhere, the posterior mean needs no matrix of queries and cells:

.. math:: f(x) = \sum_q \rho_q(x, X)\, (w B^q) + \mathbf{1}^T w B^0.

See Álvarez, Rosasco & Lawrence, *Kernels for vector-valued functions* (2012), ch. 4. How it is fitted is in
`coupled_fit`.

Shapes: J Taylor coefficients, B samples, n points, m queries, d axes, c channels; P problems (samples whose number of
observed cells is similar) of k cells; Q lengthscales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cstformer.starts.gaussian_process import KernelRows, masked_cholesky
from cstformer.starts.spread import SMALLEST, prior_variance
from cstformer.taylor import series
from cstformer.taylor.derivatives import MultiIndex, plan
from cstformer.taylor.series import Series

JITTER = 1e-6  # added to the noise variance, in standardised units: keeps the factor positive definite
# Samples of a batch are grouped by their numbers of cells: a matrix is as large as the largest of its group.
GROUPS = (64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
ENTRIES = 2**22  # covariances of queries and cells computed at once


@dataclass(frozen=True)
class CoupledKernel:
    """Hyper-parameters, in the model's units.

    Attributes
    ----------
    lengthscales : (Q, d)
    matrices : (Q + 1, c, c)
        B of each lengthscale; the last is that of the constant part.
    noises : (c,)
        Standard deviations.
    smoothness : ν of ρ as in `Kernel`
    """

    lengthscales: Float[Tensor, "Q d"]
    matrices: Float[Tensor, "Q+1 c c"]
    noises: Float[Tensor, " c"]
    smoothness: float | None

    def rows(self, like: Tensor) -> list[KernelRows]:
        """ρ of each lengthscale, as a kernel of variance 1."""
        one, zero = like.new_ones(1, 1, 1), like.new_zeros(1, 1, 1)
        return [KernelRows(ell.to(like)[None, None], one, zero, zero, self.smoothness) for ell in self.lengthscales]

    def covariance(self, coords: Float[Tensor, "P k d"], channel: Int[Tensor, "P k"]) -> Float[Tensor, "P k k"]:
        """Covariance of the process at all pairs of cells."""
        mixed = self.matrices.to(coords)
        line = series.constant(coords)
        total = pairs(mixed[-1], channel)
        for kernel, matrix in zip(self.rows(coords), mixed[:-1], strict=True):
            total = total + kernel.covariance(line, coords).value * pairs(matrix, channel)
        return total

    def detach(self) -> CoupledKernel:
        """Without its history."""
        return CoupledKernel(self.lengthscales.detach(), self.matrices.detach(), self.noises.detach(), self.smoothness)

    def tensors(self) -> dict[str, Tensor]:
        """For a model file."""
        return {"lengthscales": self.lengthscales, "matrices": self.matrices, "noises": self.noises}

    def describe(self) -> dict[str, Any]:
        """What `tensors` does not hold."""
        return {"smoothness": self.smoothness}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> CoupledKernel:
        """The inverse of `tensors` and `describe`; numbers that no fit gives are refused."""
        lengths, matrices, noises = (tensors[name].double() for name in ("lengthscales", "matrices", "noises"))
        smoothness, q = about["smoothness"], len(lengths)
        if lengths.shape != (q, d) or matrices.shape != (q + 1, c, c) or noises.shape != (c,):
            raise ValueError(f"the coupled kernel has shapes that do not fit {d} axes and {c} channels")
        if smoothness not in (None, 0.5, 1.5, 2.5):
            raise ValueError(f"smoothness of the coupled kernel must be 0.5, 1.5, 2.5 or null, got {smoothness}")
        positive = bool((lengths > 0).all()) and bool((noises >= 0).all())
        if not positive or not bool((torch.linalg.eigvalsh(matrices) > -1e-6 * matrices.abs().max()).all()):
            raise ValueError("the coupled kernel is not positive definite")
        return cls(lengths, matrices, noises, smoothness)


def pairs(matrix: Float[Tensor, "c c"], channel: Int[Tensor, "P k"]) -> Float[Tensor, "P k k"]:
    """B[channel_a, channel_b] of all pairs of cells; as products, whose gradient is a product too."""
    one = torch.nn.functional.one_hot(channel, len(matrix)).to(matrix)
    return one @ matrix @ one.transpose(1, 2)


@dataclass(frozen=True)
class Cells:
    """Observed cells of P samples, padded to the largest number of them."""

    sample: Int[Tensor, " P"]
    point: Int[Tensor, "P k"]
    channel: Int[Tensor, "P k"]
    exists: Bool[Tensor, "P k"]
    coords: Float[Tensor, "P k d"]

    @classmethod
    def of(cls, coords: Float[Tensor, "B n d"], observed: Bool[Tensor, "B n c"], sample: Int[Tensor, " P"]) -> Cells:
        """Cells of some samples of a batch."""
        seen, c = observed[sample].flatten(1), observed.shape[-1]
        most = max(1, int(seen.sum(1).max()))
        place = seen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        point = place // c
        return cls(sample, point, place % c, seen.gather(1, place), coords[sample[:, None], point].double())

    def factor(self, kernel: CoupledKernel) -> Float[Tensor, "P k k"]:
        """Cholesky factor of K + Σ."""
        noise = kernel.noises.to(self.coords)[self.channel] ** 2 + JITTER
        return masked_cholesky(kernel.covariance(self.coords, self.channel), self.exists, noise)


def groups(coords: Float[Tensor, "B n d"], observed: Bool[Tensor, "B n c"]) -> Iterator[Cells]:
    """All samples of a batch, those with similar numbers of cells together."""
    size = torch.bucketize(observed.flatten(1).sum(1), torch.tensor(GROUPS, device=observed.device))
    for number in size.unique().tolist():
        yield Cells.of(coords, observed, (size == number).nonzero()[:, 0])


def coupled_weights(
    kernel: CoupledKernel,
    coords: Float[Tensor, "B n d"],
    values: Float[Tensor, "B n c"],
    observed: Bool[Tensor, "B n c"],
) -> Float[Tensor, "B n c"]:
    """(K + Σ)⁻¹ y of the observed cells, 0 elsewhere, in float64."""
    weights = torch.zeros_like(values, dtype=torch.float64)
    for cells in groups(coords, observed):
        place = (cells.sample[:, None], cells.point, cells.channel)
        y = values[place].double() * cells.exists
        solved = torch.cholesky_solve(y[..., None], cells.factor(kernel))[..., 0]
        weights.index_put_(place, solved * cells.exists, accumulate=True)  # padding repeats a place, with weight 0
    return weights


class CoupledMean:
    """Posterior mean, as a start: Taylor series at queries (J, B, m, d) → (J, B, m, c).

    Like all starts it is constant beyond the observed coordinates of a sample, see `curves`.
    """

    def __init__(
        self,
        kernel: CoupledKernel,
        coords: Float[Tensor, "B n d"],
        values: Float[Tensor, "B n c"],
        observed: Bool[Tensor, "B n c"],
    ):
        weights = coupled_weights(kernel, coords, values, observed)
        mixed = kernel.matrices.to(weights)
        self.coords, self.dtype = coords.double(), values.dtype
        self.kernels = kernel.rows(self.coords)
        self.weights = [weights @ matrix for matrix in mixed[:-1]]  # w B^q, each (B, n, c)
        self.level = (weights.sum(1) @ mixed[-1])[:, None]  # (B, 1, c)

    def __call__(self, x: Series) -> Series:
        """Σ_q ρ_q(x, X) (w B^q) + 1ᵀ w B^0."""
        line = x.map(Tensor.double)
        correlations = [kernel.covariance(line, self.coords).coefs for kernel in self.kernels]  # (J, B, m, n) each
        total = sum(rho @ weights for rho, weights in zip(correlations, self.weights, strict=True))
        return series.shift(Series(total, x.order, x.directions), self.level).map(lambda y: y.to(self.dtype))


class CoupledSpread:
    """Posterior variance of each channel and its derivatives, as `spread.Spread`."""

    def __init__(self, kernel: CoupledKernel, coords: Float[Tensor, "B n d"], observed: Bool[Tensor, "B n c"]):
        self.kernel, self.coords = kernel, coords.double()
        self.cells = list(groups(self.coords, observed))
        self.factors = [cells.factor(kernel) for cells in self.cells]

    def __call__(self, x: Float[Tensor, "B m d"], index: MultiIndex | None = None) -> Float[Tensor, "B m c"]:
        """Variance of D^q, by default of the value, in float64."""
        x, index = x.double(), (0,) * x.shape[-1] if index is None else index
        rows, mixed = self.kernel.rows(self.coords), self.kernel.matrices.to(self.coords)
        own = mixed.diagonal(dim1=1, dim2=2)  # B_ii (Q + 1, c)
        prior = sum(b * float(prior_variance(row, index)) for row, b in zip(rows, own[:-1], strict=True))
        if not any(index):
            prior = prior + own[-1]
        found = x.new_empty(*x.shape[:2], mixed.shape[-1])
        for cells, factor in zip(self.cells, self.factors, strict=True):
            few = max(1, ENTRIES // (mixed.shape[-1] * cells.point.shape[1]))
            for row in range(len(cells.sample)):
                for at in torch.arange(x.shape[1], device=x.device).split(few):
                    explained = self._explained(cells, factor, row, x[cells.sample[row], at], index)
                    found[cells.sample[row], at] = prior - explained
        return found.clamp_min(SMALLEST * float(prior.max()))

    def _explained(
        self, cells: Cells, factor: Float[Tensor, "P k k"], row: int, x: Float[Tensor, "m d"], index: MultiIndex
    ) -> Float[Tensor, "m c"]:
        """Cov(D^q f_i(x), y) (K + Σ)⁻¹ Cov(y, D^q f_i(x)) of one sample."""
        terms = plan(x.shape[-1], [index])
        line = series.straight_line(x[None], terms.directions, terms.order)
        coords, channel, exists = cells.coords[row : row + 1], cells.channel[row], cells.exists[row]
        mixed = self.kernel.matrices.to(coords)
        cross = x.new_zeros(len(x), mixed.shape[-1], len(channel))
        for kernel, matrix in zip(self.kernel.rows(coords), mixed[:-1], strict=True):
            cross += terms.partial(kernel.covariance(line, coords), index)[0][:, None] * matrix[:, channel]
        if not any(index):
            cross += mixed[-1][:, channel]
        cross = (cross * exists).flatten(0, 1)  # (m·c, k)
        half = torch.linalg.solve_triangular(factor[row], cross.T, upper=False)
        return half.square().sum(0).view(len(x), -1)
