"""Posterior variances of a process and of its derivatives, against scikit-learn and nested autograd."""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from cstformer.errors import CSTError
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.spread import Spread, prior_variance

SMOOTH = Kernel((0.2,), amplitude=0.7, offset=0.5, noise=0.1)
RNG = np.random.default_rng(0)


def seen(n: int, c: int = 1) -> torch.Tensor:
    return torch.ones(1, n, c, dtype=torch.bool)


@pytest.mark.parametrize("smoothness", [None, 0.5, 1.5, 2.5])
def test_the_variance_is_that_of_scikit_learn(smoothness):
    kernel = Kernel((0.3,), 0.7, 0.5, 0.1, smoothness)
    t, at = RNG.uniform(size=(6, 1)), RNG.uniform(-0.5, 1.5, size=(9, 1))
    shape = RBF(0.3) if smoothness is None else Matern(0.3, nu=smoothness)
    process = GaussianProcessRegressor(ConstantKernel(0.49) * shape + ConstantKernel(0.25), alpha=0.01, optimizer=None)
    expected = process.fit(t, np.zeros(6)).predict(at, return_std=True)[1]
    found = Spread(kernel, torch.tensor(t)[None], seen(6))(torch.tensor(at)[None])
    np.testing.assert_allclose(found[0, :, 0].sqrt(), expected, rtol=1e-5)


def covariance(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    """k of two points (d,) that autograd can differentiate, Gaussian or Matérn 5/2."""
    r2 = ((x - y) / torch.tensor(kernel.lengthscales, dtype=x.dtype)).square().sum()
    if kernel.smoothness is None:
        return kernel.amplitude**2 * torch.exp(-r2 / 2) + kernel.offset**2
    # Even powers of r alone, up to the fourth: what the derivatives at r = 0 need.
    return kernel.amplitude**2 * (1 - 5 / 6 * r2 + 25 / 24 * r2**2) + kernel.offset**2


def differentiate(f, x: torch.Tensor, index: tuple[int, ...]):
    for axis, order in enumerate(index):
        for _ in range(order):
            f = (lambda g, a: lambda z: torch.autograd.functional.jacobian(g, z, create_graph=True)[..., a])(f, axis)
    return f(x)


@pytest.mark.parametrize("smoothness", [None, 2.5])
@pytest.mark.parametrize("index", [(1, 0), (0, 2), (1, 1)])
def test_the_prior_variance_of_derivatives_is_that_of_autograd(index, smoothness):
    kernel = Kernel((0.4, 0.7), 0.9, 0.3, 0.1, smoothness)
    x = torch.tensor([0.2, 0.6], dtype=torch.float64)
    twice = differentiate(lambda a: differentiate(lambda b: covariance(a, b, kernel), x, index), x, index)
    assert float(prior_variance(kernel.rows(x), index)) == pytest.approx(twice.item(), rel=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_the_variance_of_derivatives_is_that_of_autograd(order):
    t, at = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    matrix = torch.stack([torch.stack([covariance(a[None], b[None], SMOOTH) for b in t]) for a in t])
    matrix = matrix + (0.01 + 1e-10 * 0.74) * torch.eye(3, dtype=torch.float64)
    cross = torch.stack([differentiate(lambda x, b=b: covariance(x, b[None], SMOOTH), at, (order,)) for b in t])
    prior = float(prior_variance(SMOOTH.rows(t), (order,)))
    expected = prior - (cross @ torch.linalg.solve(matrix, cross)).item()
    found = Spread(SMOOTH, t[None, :, None], seen(3))(at[None, :, None], (order,))
    assert float(found) == pytest.approx(expected, rel=1e-7)


def test_channels_with_points_of_their_own_are_problems_of_their_own():
    kernel = Kernel((0.2,), 1.0, 0.1, 0.1, channels=(SMOOTH, Kernel((0.4,), 2.0, 0.1, 0.3), SMOOTH))
    t, at = torch.tensor(RNG.uniform(size=(2, 12, 1))), torch.tensor(RNG.uniform(size=(2, 5, 1)))
    observed = torch.tensor(RNG.random((2, 12, 3)) < 0.6)
    observed[1, :, 2] = False
    together = Spread(kernel, t, observed)(at)
    for sample in range(2):
        for channel in range(3):
            mine = observed[sample, :, channel]
            if mine.any():
                alone = Spread(kernel.channels[channel], t[sample, mine][None], seen(int(mine.sum())))(at[sample][None])
                torch.testing.assert_close(together[sample, :, channel], alone[0, :, 0])
    # Never observed: the process itself.
    torch.testing.assert_close(together[1, :, 2], torch.full((5,), 0.74, dtype=torch.float64))


def test_rough_processes_have_no_derivatives():
    rough = Kernel((0.2,), 1.0, 0.1, 0.1, smoothness=0.5)
    with pytest.raises(CSTError, match="too rough for the sd of a derivative of order 1"):
        Spread(rough, torch.zeros(1, 1, 1), seen(1))(torch.zeros(1, 1, 1), (1,))


def test_far_from_all_points_the_variance_is_that_of_the_process_given_its_mean():
    """The offset b is common to a sample: many observations tell it."""
    t = torch.linspace(0, 1, 50, dtype=torch.float64)[None, :, None]
    found = float(Spread(SMOOTH, t, seen(50))(torch.tensor([[[40.0]]], dtype=torch.float64)).sqrt())
    assert 0.7 < found < math.hypot(0.7, 0.5)
