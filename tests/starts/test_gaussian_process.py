"""Gaussian processes against the textbook, written with numpy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import nested_derivatives, normal, relative_error, uniform
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import Matern

from cstformer.starts.curves import make_start
from cstformer.starts.gaussian_process import Kernel, posterior_weights
from cstformer.starts.kernel_fit import SMOOTHNESS, fit_channels, fit_kernel, log_likelihood
from cstformer.taylor import series

KERNELS = {1: Kernel((0.3,), 1.2, 0.5, 0.2), 2: Kernel((0.3, 0.6), 0.8, 0.3, 0.1)}
SMOOTH = pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5, None])


def covariance(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By scikit-learn, for which the smooth kernel is Matérn with ν = inf."""
    nu = np.inf if kernel.smoothness is None else kernel.smoothness
    return kernel.offset**2 + kernel.amplitude**2 * Matern(kernel.lengthscales, nu=nu)(x, y)


def data(d: int, batch: int = 2, n: int = 6, c: int = 2):
    return uniform(batch, n, d), normal(batch, n, c, seed=1), uniform(batch, 4, d, seed=2)


@SMOOTH
@pytest.mark.parametrize("d", [1, 2])
def test_posterior_mean_is_the_textbooks(d, smoothness):
    """k*ᵀ(K + σ²I)⁻¹y."""
    kernel, (coords, values, at) = replace(KERNELS[d], smoothness=smoothness), data(d)
    exists = torch.ones(2, 6, dtype=torch.bool)
    # In d > 1 the tip of a rough kernel is rounded off, by up to SOFTENING of its height.
    rtol = 1e-7 if d == 1 or smoothness is None else 1e-2
    mean = kernel.covariance(series.constant(at), coords).value @ posterior_weights(kernel, coords, values, exists)
    for b in range(2):
        x, y, new = coords[b].numpy(), values[b].numpy(), at[b].numpy()
        inverse = np.linalg.inv(covariance(kernel, x, x) + kernel.noise**2 * np.eye(6))
        np.testing.assert_allclose(mean[b].numpy(), covariance(kernel, new, x) @ inverse @ y, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("d", [1, 2])
def test_masked_points_are_as_good_as_removed(d):
    kernel, (coords, values, _) = KERNELS[d], data(d)
    keep = [0, 2, 3, 5]
    exists = torch.zeros(2, 6, dtype=torch.bool)
    exists[:, keep] = True
    garbage = torch.where(exists[..., None], values, torch.full_like(values, 1e6))
    weights = posterior_weights(kernel, coords, garbage, exists)
    fewer = torch.ones(2, 4, dtype=torch.bool)
    torch.testing.assert_close(weights[:, keep], posterior_weights(kernel, coords[:, keep], values[:, keep], fewer))
    assert not weights[:, [1, 4]].any()
    assert log_likelihood(kernel, coords, garbage, exists) == pytest.approx(
        log_likelihood(kernel, coords[:, keep], values[:, keep], fewer), rel=1e-12
    )


@SMOOTH
@pytest.mark.parametrize("d", [1, 2])
def test_likelihood_is_the_normal_density(d, smoothness):
    kernel, (coords, values, _) = replace(KERNELS[d], smoothness=smoothness), data(d)
    want = 0.0
    for b in range(2):
        x = coords[b].numpy()
        total = covariance(kernel, x, x) + kernel.noise**2 * np.eye(6)
        want += sum(multivariate_normal(np.zeros(6), total).logpdf(values[b, :, c].numpy()) for c in range(2))
    assert log_likelihood(kernel, coords, values, torch.ones(2, 6, dtype=torch.bool)) == pytest.approx(want, rel=1e-6)


@SMOOTH
@pytest.mark.parametrize("d", [1, 2])
def test_derivatives_of_the_covariance(d, smoothness):
    kernel, (coords, _, at) = replace(KERNELS[d], smoothness=smoothness), data(d)
    direction = torch.ones(1, d, dtype=torch.float64)
    k = kernel.covariance(series.straight_line(at, direction, 3), coords)
    want = nested_derivatives(lambda s: kernel.covariance(series.constant(at + s), coords).value, 1, 3)
    for j in range(4):
        assert relative_error(math.factorial(j) * k.at(j)[0], want[j].reshape(k.value.shape)) < 1e-9


@SMOOTH
def test_values_of_the_covariance_are_those_of_its_series(smoothness):
    """Without derivatives another way is taken; kernels of two channels, and a query at a centre."""
    one = replace(KERNELS[1], smoothness=smoothness)
    kernel = replace(one, channels=(one, replace(one, lengthscales=(0.1,), amplitude=0.4, offset=0.9)))
    coords, _, at = data(1)
    at[0, 0] = coords[0, 0]
    before = at.clone(), coords.clone()
    rows = kernel.rows(coords, torch.tensor([0, 1]))
    values = rows.covariance(series.constant(at), coords).value
    line = rows.covariance(series.straight_line(at, torch.ones(1, 1, dtype=torch.float64), 1), coords).value
    torch.testing.assert_close(values, line, rtol=1e-12, atol=1e-13)
    assert torch.equal(at, before[0]) and torch.equal(coords, before[1])
    slope = torch.autograd.functional.jacobian(lambda x: rows.covariance(series.constant(x), coords).value.sum(), at)
    assert slope.abs().min() > 0


def draw(kernel: Kernel, samples: int, n: int, d: int, seed: int):
    coords = uniform(samples, n, d, seed=seed)
    values = [
        np.linalg.cholesky(covariance(kernel, x, x) + kernel.noise**2 * np.eye(n)) @ e
        for x, e in zip(coords.numpy(), normal(samples, n, 1, seed=seed + 1).numpy(), strict=True)
    ]
    return coords, torch.tensor(np.stack(values)), torch.ones(samples, n, dtype=torch.bool)


def test_fit_recovers_noise_and_lengthscale():
    truth = Kernel((0.2,), 1.0, 0.4, 0.15)
    fitted = fit_kernel(*draw(truth, 40, 20, 1, seed=3))
    assert fitted.noise == pytest.approx(truth.noise, rel=0.2)
    assert fitted.lengthscales[0] == pytest.approx(truth.lengthscales[0], rel=0.2)
    assert fitted.amplitude == pytest.approx(truth.amplitude, rel=0.3)


@pytest.mark.parametrize("truth", [Kernel((0.3,), 1.0, 0.4, 0.02, 0.5), Kernel((0.2,), 1.0, 0.4, 0.15, None)])
def test_roughness_is_not_taken_for_noise(truth):
    """A rough process with little noise, and a smooth one with much: the likelihood tells them apart."""
    drawn = draw(truth, 60, 30, 1, seed=3)
    fitted = fit_kernel(*drawn, smoothness=SMOOTHNESS)
    assert fitted.smoothness == truth.smoothness
    assert fitted.noise == pytest.approx(truth.noise, rel=0.2, abs=0.05)
    if truth.smoothness == 0.5:
        assert fit_kernel(*drawn).noise > 0.1  # what the smooth kernel alone would say


def test_channels_of_different_lengths_get_kernels_of_their_own():
    slow, fast = Kernel((0.8,), 1.0, 0.4, 0.1, 1.5), Kernel((0.1,), 1.0, 0.4, 0.3, 1.5)
    coords, first, exists = draw(slow, 40, 20, 1, seed=3)
    observed = exists[..., None].expand(-1, -1, 2)

    def fitted(kernel):
        """Fit to `first` and to draws of another kernel at the same places."""
        factors = [np.linalg.cholesky(covariance(kernel, x, x) + kernel.noise**2 * np.eye(20)) for x in coords.numpy()]
        second = torch.tensor(np.stack(factors)) @ normal(40, 20, 1, seed=9)
        values = torch.cat([first, second], -1)
        return fit_channels(fit_kernel(coords, values, exists, smoothness=(1.5,)), coords, values, observed)

    found = fitted(fast).channels
    assert [k.lengthscales[0] for k in found] == pytest.approx([0.8, 0.1], rel=0.4)
    assert [k.noise for k in found] == pytest.approx([0.1, 0.3], rel=0.3)
    assert fitted(slow).channels == ()


def test_kernels_of_channels_are_those_of_single_channels():
    coords, values = uniform(2, 9, 1).sort(1).values, normal(2, 9, 2, seed=4)
    kernels = Kernel((0.8,), 1.0, 0.4, 0.1, 1.5), Kernel((0.1,), 0.5, 0.2, 0.3, 1.5)
    both, observed = replace(kernels[0], channels=kernels), torch.ones(2, 9, 2, dtype=torch.bool)
    at = series.straight_line(uniform(2, 5, 1, seed=9), torch.ones(1, 1, dtype=torch.float64), 2)
    together = make_start("smooth", coords, values, observed, both)(at).coefs
    for channel, kernel in enumerate(kernels):
        alone = make_start("smooth", coords, values[..., [channel]], observed[..., [channel]], kernel)(at).coefs
        torch.testing.assert_close(together[..., [channel]], alone, rtol=1e-9, atol=1e-9)


def test_fit_recovers_one_lengthscale_per_axis():
    truth = Kernel((0.15, 0.6), 1.0, 0.3, 0.2)
    fitted = fit_kernel(*draw(truth, 25, 30, 2, seed=5))
    assert fitted.noise == pytest.approx(truth.noise, rel=0.2)
    assert fitted.lengthscales == pytest.approx(truth.lengthscales, rel=0.2)


def test_the_fit_is_a_maximum_and_deterministic():
    truth = Kernel((0.2,), 1.0, 0.4, 0.15)
    drawn = draw(truth, 20, 12, 1, seed=7)
    fitted = fit_kernel(*drawn)
    assert fitted == fit_kernel(*drawn)
    assert log_likelihood(fitted, *drawn) >= log_likelihood(truth, *drawn)


@pytest.mark.parametrize("lengthscale", [0.02, 0.7])
def test_single_precision_is_good_enough(lengthscale):
    """Many close points, little noise: float32 must neither fail nor drift from float64."""
    kernel = Kernel((lengthscale,), 1.0, 0.3, 1e-2)
    coords = torch.linspace(0, 1, 120, dtype=torch.float64)[None, :, None]
    values, at = (6 * coords).sin(), uniform(1, 50, 1)
    exists = torch.ones(1, 120, dtype=torch.bool)

    def mean(dtype):
        weights = posterior_weights(kernel, coords.to(dtype), values.to(dtype), exists)
        return (kernel.covariance(series.constant(at.to(dtype)), coords.to(dtype)).value @ weights).double()

    assert float((mean(torch.float32) - mean(torch.float64)).abs().max()) < 2e-3


@pytest.mark.parametrize("lengthscale", [0.05, 20.0])
def test_dense_and_almost_noise_free_samples_do_not_fail_in_single_precision(lengthscale):
    kernel = Kernel((lengthscale,), 1.0, 0.3, 1e-4)
    coords = torch.linspace(0, 1, 300)[None, :, None]
    exists = torch.ones(1, 300, dtype=torch.bool)
    assert bool(torch.isfinite(posterior_weights(kernel, coords, (6 * coords).sin(), exists)).all())


def test_padding_does_not_change_the_fit():
    """Channels with few points among many empty slots: the same kernel as without the slots."""
    coords, values = uniform(12, 8, 1).sort(1).values, normal(12, 8, 1, seed=3)
    exists = torch.ones(12, 8, dtype=torch.bool)
    exists[::2, 5:] = False
    plain = fit_kernel(coords, values, exists)
    spread = torch.arange(0, 40, 5)
    wide = [torch.zeros(12, 40, *x.shape[2:], dtype=x.dtype).index_copy(1, spread, x) for x in (coords, values, exists)]
    padded = fit_kernel(*wide)
    assert padded.lengthscales[0] == pytest.approx(plain.lengthscales[0], rel=1e-4)
    assert padded.noise == pytest.approx(plain.noise, rel=1e-4)


def test_a_start_by_channel_is_that_of_each_channel_alone():
    """Channels with 0, 3, 12 and 40 of 40 points, which are solved in groups of similar size."""
    coords, values = uniform(2, 40, 1).sort(1).values, normal(2, 40, 4, seed=4)
    observed = torch.zeros(2, 40, 4, dtype=torch.bool)
    for channel, count in enumerate((0, 3, 12, 40)):
        observed[:, torch.randperm(40, generator=torch.Generator().manual_seed(channel))[:count], channel] = True
    at = series.straight_line(uniform(2, 5, 1, seed=9), torch.ones(1, 1, dtype=torch.float64), 2)
    for name in ("linear", "cubic", "smooth"):
        together = make_start(name, coords, values, observed, KERNELS[1])(at).coefs
        for channel in range(1, 4):
            alone = make_start(name, coords, values[..., [channel]], observed[..., [channel]], KERNELS[1])(at).coefs
            torch.testing.assert_close(together[..., [channel]], alone, rtol=1e-9, atol=1e-9)
        assert not together[..., 0].any()
