"""Several processes in time against one at a time, dense linear algebra and draws."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, Matern

from cstformer.starts.curves import make_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.time_posterior import TimePosterior, left_out_error, narrow_variance
from cstformer.taylor import series

KERNELS = [Kernel((0.1,), 1.0, 0.1, 0.2), Kernel((0.7,), 2.0, 0.5, 0.01), Kernel((0.3,), 1.5, 0.0, 0.1, smoothness=1.5)]
EXISTS = torch.tensor([[True] * 5, [True] * 4 + [False], [False, True, True, True, True]])


def knots() -> torch.Tensor:
    return torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).double().sort(1).values


def covariance(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    shape = RBF(1.0) if kernel.smoothness is None else Matern(1.0, nu=kernel.smoothness)
    rho = shape(x[:, None] / kernel.lengthscales[0], y[:, None] / kernel.lengthscales[0])
    return kernel.amplitude**2 * rho + kernel.offset**2


def test_weights_are_the_posterior_means_of_several_kernels():
    """One identity column per knot asks `make_start` for the same weights, kernel by kernel."""
    at = torch.linspace(-0.2, 1.2, 9).double().expand(3, -1)
    weights = TimePosterior(KERNELS, knots(), EXISTS).weights(at)
    identity = torch.eye(5).double().expand(3, -1, -1)
    for kernel, found in zip(KERNELS, weights, strict=True):
        start = make_start("smooth", knots()[..., None], identity, EXISTS[..., None].expand(-1, -1, 5), kernel)
        assert torch.allclose(found, start(series.constant(at[..., None])).value, atol=1e-8)


def test_variances_are_those_of_the_textbook():
    at = torch.linspace(0.05, 0.95, 7).double().expand(3, -1)
    posterior = TimePosterior(KERNELS, knots(), EXISTS)
    found = posterior.variance(series.constant(at[..., None])).value
    left = posterior.left_out()
    for sample in range(3):
        x = knots()[sample][EXISTS[sample]].numpy()
        for k, kernel in enumerate(KERNELS):
            observed = covariance(kernel, x, x) + kernel.noise**2 * np.eye(len(x))
            t = at[sample].clamp(x.min(), x.max()).numpy()
            cross = covariance(kernel, t, x)
            by_hand = np.diag(covariance(kernel, t, t) - cross @ np.linalg.solve(observed, cross.T))
            assert np.allclose(found[sample, :, k], by_hand, atol=1e-7)
            for i in range(len(x)):
                rest = np.delete(np.arange(len(x)), i)
                one = covariance(kernel, x[[i]], x[rest])
                alone = covariance(kernel, x[[i]], x[[i]]) - one @ np.linalg.solve(observed[np.ix_(rest, rest)], one.T)
                assert left[sample][EXISTS[sample]][i, k].item() == pytest.approx(alone.item(), abs=1e-6)


def test_the_variance_has_the_derivatives_of_nested_autograd():
    at = torch.tensor([[0.3, 0.55]]).double().expand(3, -1)
    posterior = TimePosterior(KERNELS, knots(), EXISTS)
    line = series.straight_line(at[..., None], torch.ones(1, 1).double(), 2)
    found = series.power(posterior.variance(line), 0.5)

    def sd(shift: torch.Tensor) -> torch.Tensor:
        return posterior.variance(series.constant(at[..., None] + shift)).value.sqrt()

    zero = torch.zeros((), dtype=torch.float64)
    first = torch.func.jacfwd(sd)(zero)
    second = torch.func.jacfwd(torch.func.jacfwd(sd))(zero)
    assert torch.allclose(found.coefs[1], first, rtol=1e-6, atol=1e-8)
    assert torch.allclose(2 * found.coefs[2], second, rtol=1e-5, atol=1e-6)


def test_errors_at_left_out_observations_are_those_of_predicting_drawn_values_from_their_neighbours():
    kernel = Kernel((0.2,), 1.3, 0.0, 0.3)
    t = np.linspace(0, 1, 9)
    rng = np.random.default_rng(0)
    values = rng.multivariate_normal(np.zeros(9), covariance(kernel, t, t) + 1e-9 * np.eye(9), size=4000)
    noisy = values + kernel.noise * rng.normal(size=values.shape)
    observed, errors = covariance(kernel, t, t) + kernel.noise**2 * np.eye(9), []
    for i in range(1, 8):
        rest = np.delete(np.arange(9), i)
        weights = np.linalg.solve(observed[np.ix_(rest, rest)], covariance(kernel, t[rest], t[[i]]))
        errors.append(noisy[:, rest] @ weights[:, 0] - values[:, i])
    times, exists = torch.tensor(t)[None], torch.ones(1, 9, dtype=torch.bool)
    by_hand = np.mean(np.square([e + values[:, i + 1] - noisy[:, i + 1] for i, e in enumerate(errors)]))
    assert left_out_error(kernel, times, torch.tensor(noisy.T)[None], exists) == pytest.approx(by_hand, rel=1e-6)
    variance = np.quantile(np.mean(np.square(errors), 1), 0.02)
    found = narrow_variance([kernel], torch.ones(1), times, exists)
    assert found == pytest.approx(variance, rel=0.05)  # of 4000 draws
    both = narrow_variance([kernel, kernel], torch.tensor([0.5, 1.5]), times, exists)
    assert both == pytest.approx(2 * found)
    assert narrow_variance([kernel], torch.ones(1), times[:, :2], exists[:, :2]) == 0  # nothing lies between two
