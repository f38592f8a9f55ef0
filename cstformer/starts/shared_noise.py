"""The noise of each channel that no other channel shares.

The Gaussian process of a channel calls everything noise that its neighbours in time do not tell. Other channels may
tell it: a sudden load shows in several of them at once. Training must not remove what can be known, so the noise that
it adds is the part which is independent between channels.

Model: y_tc = f_c(t) + n_tc, with processes f_c that are independent of each other and noise n_t ~ N(0, N) at each time,
where N (c, c) is a full matrix. Expectation maximisation finds N with the kernels held fixed. The noise of channel c
given that of all others has the variance 1 / (N⁻¹)_cc.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kernel_fit import correlation

# The cost is O(m³) per sample of m cells and iteration. These caps keep it to a second or two:
CELLS = 6000  # cells of all samples together
SAMPLE_CELLS = 400  # cells of one sample: its first points
CHANNELS = 64  # with more, N has too many numbers
ITERATIONS, TOLERANCE = 40, 1e-3  # at most, and the relative change of N that ends them


@dataclass(frozen=True)
class _Sample:
    """Observed cells of one sample: covariance of f, values, and place in time and channel of each."""

    process: Float[Tensor, "m m"]
    values: Float[Tensor, " m"]
    point: Int[Tensor, " m"]
    channel: Int[Tensor, " m"]

    @property
    def together(self) -> Tensor:
        """Which pairs of cells lie at the same point (m, m)."""
        return self.point[:, None] == self.point


def independent_noise(kernel: Kernel, coords: Tensor, values: Tensor, observed: Tensor, seed: int = 0) -> list[float]:
    """Standard deviation of each channel's noise given the noise of the other channels at the same point.

    Parameters
    ----------
    kernel : Kernel fitted to the same data
    coords : Tensor (N, n, d), scaled to [0,1]^d
    values : Tensor (N, n, c), standardised
    observed : Tensor (N, n, c) of bool
    seed : int
        For the subset of samples used when there are many.
    """
    c = values.shape[-1]
    kernels = kernel.channels or (kernel,) * c
    alone = torch.tensor([k.noise for k in kernels], dtype=torch.float64)
    several = observed.sum(-1) > 1  # points at which channels can be compared
    if c == 1 or c > CHANNELS or int(several.sum()) < 2 * c:
        return alone.tolist()
    coords, values, observed = (x.detach().cpu() for x in (coords, values, observed))
    samples = _choose(kernels, coords, values, observed, seed)
    covariance = prior = alone.square().diag()
    for _ in range(ITERATIONS):
        total, points = (c + 1) * prior, c + 1.0  # as if c + 1 more points had been seen, with independent noise
        for sample in samples:
            moment, count = _second_moment(sample, covariance)
            total, points = total + moment, points + count
        before, covariance = covariance, total / points
        if float((covariance - before).abs().max()) < TOLERANCE * float(covariance.diagonal().max()):
            break
    return (1 / torch.linalg.inv(covariance).diag()).sqrt().minimum(alone).tolist()


def _second_moment(sample: _Sample, covariance: Float[Tensor, "c c"]) -> tuple[Float[Tensor, "c c"], int]:
    """Σ_t E[n_t n_tᵀ | y] over the points t of a sample, and their number.

    With S the covariance of all cells y and C_t = Cov(n_t, y), which has the rows of N at the cells of t and zeros
    elsewhere, the posterior of n_t has mean C_t S⁻¹ y and covariance N − C_t S⁻¹ C_tᵀ.
    """
    together, rows = sample.together, covariance[sample.channel]  # rows of N (m, c)
    total = sample.process + covariance[sample.channel][:, sample.channel] * together
    factor = torch.linalg.cholesky(total + 1e-8 * total.diagonal().mean() * torch.eye(len(total), dtype=total.dtype))
    inverse = torch.cholesky_inverse(factor)
    number = int(sample.point.max()) + 1
    weighted = rows * (inverse @ sample.values)[:, None]
    mean = rows.new_zeros(number, len(covariance)).index_add(0, sample.point, weighted)
    count = len(sample.point.unique())
    return mean.T @ mean + count * covariance - rows.T @ (inverse * together) @ rows, count


def _choose(kernels: tuple[Kernel, ...], coords: Tensor, values: Tensor, observed: Tensor, seed: int) -> list[_Sample]:
    """Random samples that have `CELLS` cells together."""
    found: list[_Sample] = []
    cells = 0
    for i in torch.randperm(len(coords), generator=Generator().manual_seed(seed)).tolist():
        point, channel = observed[i].nonzero(as_tuple=True)
        point, channel = point[:SAMPLE_CELLS], channel[:SAMPLE_CELLS]
        if not len(point):
            continue
        x, y = coords[i].double()[point], values[i].double()[point, channel]
        process = x.new_zeros(len(point), len(point))
        for j, kernel in enumerate(kernels):
            own = (channel == j).nonzero().squeeze(1)
            scaled = x[own] / x.new_tensor(kernel.lengthscales)
            square = (scaled[:, None] - scaled).square().sum(-1)
            process[own[:, None], own] = kernel.amplitude**2 * correlation(square, kernel.smoothness) + kernel.offset**2
        found.append(_Sample(process, y, point, channel))
        cells += len(point)
        if cells >= CELLS:
            break
    return found
