"""Noise that channels share at a time, and noise of each alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.shared_noise import independent_noise


def drawn(noise: np.ndarray, missing: float = 0.0, seed: int = 0, count: int = 40, n: int = 30):
    """Samples of smooth processes with this covariance of the noise between channels, and the kernel of each alone."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, n)
    square = (t[:, None] - t) ** 2
    kernel = Kernel((0.2,), 1.0, 0.3, 0.2)
    covariance = np.exp(-0.5 * square / 0.2**2) + 0.3**2 + 1e-9 * np.eye(n)
    c = len(noise)
    process = np.einsum("tu,ncu->ntc", np.linalg.cholesky(covariance), rng.normal(size=(count, c, n)))
    values = process + rng.normal(size=(count, n, c)) @ np.linalg.cholesky(noise).T
    observed = rng.random(values.shape) >= missing
    channels = tuple(Kernel((0.2,), 1.0, 0.3, float(s)) for s in np.sqrt(np.diag(noise)))
    kernel = Kernel((0.2,), 1.0, 0.3, float(np.sqrt(np.diag(noise).mean())), channels=channels)
    coords = torch.tensor(t)[None, :, None].expand(count, -1, -1)
    return kernel, coords, torch.tensor(np.where(observed, values, 0.0)), torch.tensor(observed)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_noise_that_channels_share_is_not_counted(missing):
    loadings = np.array([0.4, 0.3, 0.0])
    noise = np.outer(loadings, loadings) + np.diag([0.1, 0.1, 0.2]) ** 2
    found = independent_noise(*drawn(noise, missing))
    truth = 1 / np.sqrt(np.diag(np.linalg.inv(noise)))  # 0.16, 0.12 and 0.2; the channels alone have 0.41, 0.32, 0.2
    np.testing.assert_allclose(found, truth, rtol=0.2)


def test_independent_noise_stays_what_it_is():
    noise = np.diag([0.1, 0.3]) ** 2
    found = independent_noise(*drawn(noise))
    np.testing.assert_allclose(found, [0.1, 0.3], rtol=0.08)


def test_channels_that_are_never_seen_together_keep_their_noise():
    kernel, coords, values, observed = drawn(np.diag([0.1, 0.3]) ** 2)
    observed = torch.zeros_like(observed)
    observed[:, ::2, 0] = observed[:, 1::2, 1] = True
    np.testing.assert_allclose(independent_noise(kernel, coords, values, observed), [0.1, 0.3], rtol=1e-12)


def test_one_channel_has_the_noise_of_its_process():
    kernel, coords, values, observed = drawn(np.array([[0.2**2]]))
    assert independent_noise(kernel, coords, values, observed) == [pytest.approx(0.2)]


def test_the_same_seed_finds_the_same_noise():
    data = drawn(np.diag([0.1, 0.3]) ** 2, count=400)
    assert independent_noise(*data, seed=3) == independent_noise(*data, seed=3)
