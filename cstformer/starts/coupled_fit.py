r"""Hyper-parameters of the coupled process, by maximum marginal likelihood.

The gradient needs no derivative of a Cholesky factor. With :math:`\alpha = K^{-1} y`, where K includes the noise,

.. math:: d(-\log p) = \tfrac12 \operatorname{tr}\bigl((K^{-1} - \alpha \alpha^T)\, dK\bigr),

so the matrix in front of dK is computed once per step, as a constant, and K alone is differentiated.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn

from cstformer.starts.coupled import JITTER, Cells, CoupledKernel, CoupledMean
from cstformer.starts.curves import Start, make_start
from cstformer.starts.gaussian_process import Kernel, masked_cholesky
from cstformer.taylor import series

RANK = 4  # of W; the diagonal of B is free besides
STEPS, BATCH, RATE = 200, 8, 0.1  # of Adam, at most
# A step costs the third power of the cells of a sample: 60 steps of 400 cells, 140 of 300, 200 of 260.
LEAST_STEPS, WORK = 40, 60 * 400**3
EVERY, PATIENCE = 20, 3  # steps between judgements, and how many of them without improvement end the fit
DOUBT = 60  # so does an error that is not below what is asked after so many steps
SAMPLE_CELLS, POINTS = 400, 200  # of a sample, in the fit: its first points, which are neighbours on curves
SAMPLES = 512  # samples that the fit may see
MAX_CHANNELS, MAX_CELLS = 64, 1024  # with more channels, or more cells in the largest sample, none is fitted
PLACES = (-1.0, 1.0)  # lengthscales at first: so many standard deviations of those of the channels from their mean,
SPREAD = 3.0  # a standard deviation being a factor of at least this
FIRST = 0.3  # standard deviation of the first W; with 0.1 the fit to ETTh1 needs more steps
JUDGED, HIDDEN = 32, 0.25  # samples that judge the coupling, and the share of their cells that is hidden
# By how much the coupled process must predict hidden cells better than the other one. Where channels go together it
# halves the squared error (ETTh1 with half of the cells removed: 0.059 instead of 0.128). On intensive-care patients
# single hidden cells gain 29 %, and times at which nothing was measured gain nothing.
GAIN = 0.1


class _Parameters(nn.Module):
    """Logarithms, and the factors W, of what `CoupledKernel` holds; the first are those of uncoupled channels."""

    def __init__(self, kernel: Kernel, channels: int, seed: int):
        super().__init__()
        kernels = kernel.channels or (kernel,) * channels
        tensor = lambda x: torch.tensor(x, dtype=torch.float64)  # noqa: E731
        each = tensor([k.lengthscales for k in kernels]).log()  # (c, d)
        middle, spread = each.mean(0), each.std(0, correction=0).clamp_min(math.log(SPREAD))
        lengths = torch.stack([middle + i * spread for i in PLACES]).clamp(math.log(1e-3), math.log(4.0))
        near = (each[None] - lengths[:, None]).square().sum(-1).mul(-1).softmax(0)  # (Q, c): shares of the lengthscales
        amplitude = tensor([k.amplitude for k in kernels]) ** 2
        offset = tensor([k.offset for k in kernels]) ** 2
        own = torch.cat([near * amplitude, offset[None]]).clamp(1e-3, 4.0)
        shape = (len(PLACES) + 1, channels, min(RANK, channels))
        random = torch.randn(shape, generator=Generator().manual_seed(seed), dtype=torch.float64)
        self.lengths = nn.Parameter(lengths)
        self.factors = nn.Parameter(FIRST * random)
        self.own = nn.Parameter(own.log())
        self.noises = nn.Parameter(tensor([k.noise for k in kernels]).clamp(0.03, 1.0).log())
        # Two lengthscales make what is smoother than 3/2.
        self.smoothness = None if kernel.smoothness is None else min(kernel.smoothness, 1.5)

    def kernel(self) -> CoupledKernel:
        matrices = self.factors @ self.factors.mT + torch.diag_embed(self.own.exp())
        return CoupledKernel(self.lengths.exp(), matrices, self.noises.exp(), self.smoothness)


def fit_coupled(
    kernel: Kernel,
    coords: Float[Tensor, "N n d"],
    values: Float[Tensor, "N n c"],
    observed: Bool[Tensor, "N n c"],
    seed: int = 0,
) -> CoupledKernel | None:
    """Fit a coupled process; None where it would not be worth its time, or does not predict hidden cells better.

    Parameters
    ----------
    kernel : Kernel fitted to the same data, whose smoothness is taken
    coords : scaled to [0,1]^d
    values : standardised
    observed : True where a cell was measured
    seed : of the samples that are seen, and of the first W
    """
    most = int(observed.flatten(1).sum(1).max())
    if not 1 < values.shape[-1] <= MAX_CHANNELS or most > MAX_CELLS or len(coords) < 4:
        return None
    generator = Generator().manual_seed(seed)
    order = torch.randperm(len(coords), generator=generator)[:SAMPLES]
    x, y, seen = coords[order].cpu().double(), values[order].cpu().double(), observed[order].cpu()
    x, y, seen = _short(x, y, seen)
    judges = max(1, min(JUDGED, len(order) // 4))
    judge = _Judge(x[:judges], y[:judges], seen[:judges], generator)
    if not bool(judge.hidden.any()):
        return None
    first = _Parameters(kernel, y.shape[-1], seed)
    enough = (1 - GAIN) * judge.error(judge.alone(kernel))
    found, error = _maximise(first, x[judges:], y[judges:], seen[judges:], generator, judge, enough)
    return found if error < enough else None


class _Judge:
    """Mean squared error at hidden cells of samples that the fit does not see."""

    def __init__(self, x: Tensor, y: Tensor, seen: Tensor, generator: Generator):
        self.x, self.y = x, y
        self.hidden = seen & (torch.rand(seen.shape, generator=generator) < HIDDEN)
        self.given = seen & ~self.hidden

    def error(self, start: Start) -> float:
        """Of a start that is given the other cells."""
        return float((start(series.constant(self.x)).value - self.y)[self.hidden].square().mean())

    def alone(self, kernel: Kernel) -> Start:
        """Processes that do not know of each other."""
        return make_start("smooth", self.x, self.y, self.given, kernel)

    def together(self, kernel: CoupledKernel) -> Start:
        """The coupled process."""
        return CoupledMean(kernel, self.x, self.y, self.given)


def _short(x: Tensor, y: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples with at most `POINTS` points and `SAMPLE_CELLS` cells each."""
    first = seen.any(-1).to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :POINTS]
    row = torch.arange(len(x))[:, None]
    x, y, seen = x[row, first], y[row, first], seen[row, first]
    few = seen.sum(-1).cumsum(1) <= SAMPLE_CELLS
    return x, y, seen & few[..., None]


def _maximise(
    parameters: _Parameters, x: Tensor, y: Tensor, seen: Tensor, generator: Generator, judge: _Judge, enough: float
) -> tuple[CoupledKernel | None, float]:
    """Adam on random batches; returns the kernel with the least error at the judge's cells, and this error.

    Values are not quite normal, so that the likelihood goes on to rise when predictions no longer improve.
    """
    optimiser = torch.optim.Adam(parameters.parameters(), lr=RATE)
    steps = min(STEPS, max(LEAST_STEPS, int(WORK / float(seen.flatten(1).sum(1).double().mean()) ** 3)))
    best: tuple[CoupledKernel | None, float] = (None, math.inf)
    waited = 0
    for step in range(1, steps + 1):
        optimiser.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        some = torch.randperm(len(x), generator=generator)[:BATCH]
        try:
            loss = _loss(parameters.kernel(), Cells.of(x, seen, some), y)
        except torch.linalg.LinAlgError:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % EVERY == 0:
            kernel = parameters.kernel().detach()
            error, waited = judge.error(judge.together(kernel)), waited + 1
            if error < best[1]:
                best, waited = (kernel, error), 0
            if waited == PATIENCE or (step >= DOUBT and best[1] > enough):
                break
    return best


def _loss(kernel: CoupledKernel, cells: Cells, y: Float[Tensor, "N n c"]) -> Tensor:
    """A number whose gradient is that of −log p per cell; see the top of this module."""
    covariance = kernel.covariance(cells.coords, cells.channel)
    noise = kernel.noises[cells.channel] ** 2 + JITTER
    with torch.no_grad():
        factor = masked_cholesky(covariance, cells.exists, noise)
        values = y[cells.sample[:, None], cells.point, cells.channel] * cells.exists
        weights = torch.cholesky_solve(values[..., None], factor)
        front = 0.5 * (torch.cholesky_inverse(factor) - weights @ weights.mT) / cells.exists.sum()
        front = front * (cells.exists[:, :, None] & cells.exists[:, None])
    return (front * covariance).sum() + (front.diagonal(dim1=1, dim2=2) * noise).sum()
