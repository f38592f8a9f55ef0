"""Waves of frames: orthonormal, with known spectra, noise and gains; the best linear estimate in space and time."""

import itertools
import json

import numpy as np
import pytest
import torch

from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.waves import EDGES, Waves, fit_waves, wave_basis, wave_numbers


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 31])
def test_waves_are_orthonormal_and_sorted(size, periodic):
    basis = wave_basis(size, periodic)
    assert torch.allclose(basis @ basis.T, torch.eye(size).double(), atol=1e-12)
    signs = (basis[:, 1:] * basis[:, :-1] < 0).sum(1)
    assert (signs[1:] >= signs[:-1] - 1).all()  # a cosine and its sine may differ by one crossing


def test_wave_numbers_count_cycles_along_the_longer_side():
    assert wave_numbers(8, 8, True)[0].tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    assert wave_numbers(8, 16, True)[1, 0] == 2  # one cycle of the short side is as long as two of the other
    assert wave_numbers(8, 8, False)[0].tolist() == [0, 0, 1, 2, 2, 2, 3, 4]  # half cycles, rounded to even
    assert wave_numbers(8, 8, True)[7, 5] == 5  # √(4² + 3²)


def field(n, frames, size, spectrum, lengthscale, seed=0, periodic=True):
    """Gaussian fields with this power of each wave number, correlated in time by a squared exponential; their times."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 1, (n, frames)), 1)
    distance = times[:, :, None] - times[:, None]
    factor = np.linalg.cholesky(np.exp(-0.5 * (distance / lengthscale) ** 2) + 1e-9 * np.eye(frames))
    power = np.array([spectrum(k) for k in range(2 * max(size))])[wave_numbers(*size, periodic)]
    waves = np.einsum("nts,nsij->ntij", factor, rng.normal(size=(n, frames, *size))) * np.sqrt(power)
    rows, cols = (wave_basis(s, periodic).numpy() for s in size)
    return torch.tensor(times), torch.tensor(np.einsum("ih,ntij,jw->nthw", rows, waves, cols))[..., None]


def spectrum(k):
    """Long waves alone: 4 below wave number 5, nothing above."""
    return 4.0 if k < 5 else 0.0


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", [(24, 24), (16, 28)])
def test_noise_gains_and_lengthscales_of_a_known_spectrum(size, periodic):
    times, clean = field(40, 8, size, spectrum, 0.3, periodic=periodic)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1)).double()
    waves = fit_waves(times, noisy, torch.ones(times.shape, dtype=torch.bool), periodic)
    assert waves.noise == pytest.approx(0.5, rel=0.03)
    gains = np.array(waves.gains)
    assert gains[1:5] == pytest.approx(1 - 0.25 / 4.25, abs=0.02)  # P = 4 + 0.25
    assert gains[5:] == pytest.approx(0, abs=0.15)  # the shortest of all are a single wave
    for kernel in waves.kernels[: EDGES.index(5)]:
        assert kernel.lengthscales[0] == pytest.approx(0.3, rel=0.25)
        assert kernel.amplitude == pytest.approx(2.0, rel=0.15)
    assert waves.kernels[EDGES.index(5) :] == (None, None)


@pytest.mark.parametrize("periodic", [True, False])
def test_wieners_error_is_the_closed_form(periodic):
    """The error of a wave is σ²(P − σ²)/P: the posterior variance of a normal number seen with noise."""
    times, clean = field(30, 6, (20, 24), spectrum, 0.3, periodic=periodic)
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(2)).double()
    waves = fit_waves(times, noisy, torch.ones(times.shape, dtype=torch.bool), periodic)
    share = (wave_numbers(20, 24, periodic) < 5).double().mean()
    error = (waves.wiener(noisy) - clean).square().mean()
    assert error == pytest.approx(float(share * 0.25 * 4 / 4.25), rel=0.05)


def test_a_wave_passes_with_its_gain_and_bands_add_up():
    place = torch.arange(16).double()
    frame = torch.cos(2 * torch.pi * 3 * place / 16)[:, None].expand(16, 16)[..., None] + 2.0
    waves = Waves((1.0, 1.0, 1.0, 0.25) + (0.0,) * 8, (), 0.1, periodic=True)
    assert torch.allclose(waves.wiener(frame), 0.25 * (frame - 2) + 2, atol=1e-12)
    movie = field(4, 5, (16, 12), spectrum, 0.3)[1]
    waves = Waves((), (Kernel((0.3,), 1.0, 0.1, 0.1),) * len(EDGES), 0.1, periodic=True)
    parts = waves.bands(movie)
    assert torch.allclose(torch.stack(parts).sum(0), movie, atol=1e-9)
    for one, other in itertools.combinations(parts, 2):
        assert abs(float((one * other).sum())) < 1e-9
    for i, part in enumerate(parts):
        alone = [amplitudes * (j == i) for j, amplitudes in enumerate(waves.split(movie))]
        assert torch.allclose(waves.join(alone, 16, 12), part, atol=1e-9)


def test_frames_that_do_not_exist_do_not_count():
    times, movie = field(6, 5, (16, 16), spectrum, 0.3)
    exists = torch.ones(times.shape, dtype=torch.bool)
    exists[2, 3:] = False
    spoiled = movie.clone()
    spoiled[2, 3:] = 1e6
    assert fit_waves(times, spoiled, exists, True) == fit_waves(
        times, movie * exists[..., None, None, None], exists, True
    )


@pytest.mark.parametrize("movie", [torch.zeros(2, 3, 4, 4, 1), torch.ones(2, 3, 2, 1, 2), torch.randn(3, 2, 8, 8, 1)])
def test_there_is_always_a_start(movie):
    """Nothing, a constant, pure noise: some band stays, and the filter gives finite numbers."""
    times = torch.linspace(0, 1, movie.shape[1]).expand(len(movie), -1)
    waves = fit_waves(times, movie, torch.ones(times.shape, dtype=torch.bool))
    assert waves.bands(movie)
    assert waves.wiener(movie).isfinite().all()


def test_waves_as_json():
    times, movie = field(3, 4, (16, 16), spectrum, 0.3)
    waves = fit_waves(times, movie, torch.ones(times.shape, dtype=torch.bool), True)
    assert Waves.from_description(json.loads(json.dumps(waves.describe()))) == waves
