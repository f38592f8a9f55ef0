"""Modes of frames: against the known answer, in derivatives, in files, and against waves."""

import numpy as np
import pytest
import torch
from movies import movie_batch
from problems import entry, nested_derivatives, relative_error
from small_models import patched_kernel, waves

from cstformer import CST, CSTError, frames_to_samples
from cstformer.starts import modes as module
from cstformer.starts.choosing import choose_modes, held_frames, share_noise, with_neighbours
from cstformer.starts.frame_start import frame_movie, frame_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kinds import kind_of
from cstformer.starts.modes import FrameModes, distinct_frames, fit_modes, persistent
from cstformer.starts.waves import fit_waves
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import constant, straight_line

SIZE, T, N = (16, 16), 12, 300
TIMES = torch.linspace(0, 1, T, dtype=torch.float64)
LENGTHS, POWERS = (0.3, 0.5, 0.8), (4.0, 2.0, 1.0)


def square_exponential(a, b, length):
    return torch.exp(-0.5 * ((a[:, None] - b) / length).square())


class LowRank:
    """Three rough maps with Gaussian processes of known kernels, and white noise: the truth, and Wiener's answer."""

    def __init__(self, noise=1.0, seed=0):
        generator = torch.Generator().manual_seed(seed)
        pixels = SIZE[0] * SIZE[1]
        self.maps = torch.linalg.qr(torch.randn(pixels, 3, generator=generator, dtype=torch.float64))[0].T
        self.at = torch.cat([TIMES, (TIMES[1:] + TIMES[:-1]) / 2])
        self.noise, self.mean = noise, torch.randn(pixels, generator=generator, dtype=torch.float64)
        courses, answers = [], []
        for length, power in zip(LENGTHS, POWERS, strict=True):
            variance = power * pixels / 7  # of a coefficient, so that a pixel has the variance 1
            cov = variance * square_exponential(self.at, self.at, length)
            factor = torch.linalg.cholesky(cov + 1e-8 * variance * torch.eye(len(cov), dtype=cov.dtype))
            course = torch.randn(N, len(cov), generator=generator, dtype=cov.dtype) @ factor.T
            courses.append(course)
            noisy = course[:, :T] + noise * torch.randn(N, T, generator=generator, dtype=cov.dtype)
            gain = cov[:, :T] @ torch.linalg.inv(cov[:T, :T] + noise**2 * torch.eye(T, dtype=cov.dtype))
            answers.append((noisy, noisy @ gain.T))
        signal = torch.stack(courses, -1) @ self.maps  # (N, 2T - 1, pixels)
        # The noise in the span of the maps is the one that the known answer had to cope with.
        white = noise * torch.randn(N, T, pixels, generator=generator, dtype=cov.dtype)
        inside = torch.stack([a[0] for a in answers], -1) - torch.stack(courses, -1)[:, :T]
        white = white - white @ self.maps.T @ self.maps + inside @ self.maps
        self.truth = self.frames(signal)
        self.noisy = self.frames(signal[:, :T] + white)
        self.wiener = self.frames(torch.stack([a[1] for a in answers], -1) @ self.maps)
        self.times = TIMES.expand(N, -1)
        self.exists = torch.ones(N, T, dtype=torch.bool)

    def frames(self, flat):
        return (flat + self.mean).unflatten(-1, SIZE)[..., None]

    def error(self, name, smoother):
        found = frame_movie(name, self.times, self.exists, self.noisy, smoother).at_moments(self.at.expand(N, -1))
        return float((found - self.truth).square().mean())


@pytest.fixture(scope="module")
def low_rank():
    return LowRank()


@pytest.fixture(scope="module")
def modes(low_rank):
    return fit_modes(low_rank.times, low_rank.noisy, low_rank.exists)


def test_rank_modes_and_noise_are_found(low_rank):
    modes = fit_modes(low_rank.times, low_rank.noisy, low_rank.exists, turned=False)
    assert len(modes.vectors) == 2 * 3  # generous
    inner = modes.vectors.flatten(1)[:3] @ low_rank.maps.T
    assert torch.linalg.svdvals(inner).min() > 0.99
    noise = torch.tensor([k.noise for k in modes.kernel.channels]) * modes.scale
    np.testing.assert_allclose(noise[:3], low_rank.noise, rtol=0.1)
    np.testing.assert_allclose([k.lengthscales[0] for k in modes.kernel.channels[:3]], LENGTHS, rtol=0.15)
    assert modes.kernel.smoothness is None
    powers = torch.tensor([k.amplitude**2 + k.offset**2 for k in modes.kernel.channels]) * modes.scale**2
    assert powers[3:].max() < 0.01 * powers[:3].min()  # the other modes are noise


def test_the_start_is_close_to_the_best_that_is_possible(low_rank, modes):
    best = float((low_rank.wiener - low_rank.truth).square().mean())
    bands = fit_waves(low_rank.times, low_rank.noisy, low_rank.exists)
    found, linear, other = (low_rank.error(*x) for x in (("modes", modes), ("linear", modes), ("smooth", bands)))
    assert best < found < 1.4 * best
    assert found < 0.3 * linear and found < 0.1 * other


def test_noise_that_neighbours_share_is_found_in_each_mode():
    """White in time, blurred in space: a smooth map collects more of it than a rough one."""
    data, generator = LowRank(noise=1e-3), torch.Generator().manual_seed(1)
    blurred = torch.nn.functional.avg_pool2d(torch.randn(N * T, 1, 20, 20, generator=generator), 5, 1)
    frames = data.noisy + blurred.double().reshape(N, T, *SIZE, 1)
    found = fit_modes(data.times, frames, data.exists, rank=3)
    expected = (torch.linalg.pinv(found.vectors.flatten(1)).T @ blurred.double().flatten(1).T).std(1)
    noise = torch.tensor([k.noise for k in found.kernel.channels]) * found.scale
    np.testing.assert_allclose(noise, expected, rtol=0.15)


def test_signal_and_shared_noise_that_singular_vectors_mix_become_modes_of_their_own(monkeypatch):
    """A process and noise that is white in time, of equal power, with maps at 60°: singular vectors mix them."""
    monkeypatch.setattr(module, "KERNEL_NUMBERS", 600)
    generator = torch.Generator().manual_seed(5)
    first, other = torch.linalg.qr(torch.randn(256, 2, generator=generator, dtype=torch.float64))[0].T
    maps = torch.stack([first, 0.5 * first + 0.75**0.5 * other])
    factor = torch.linalg.cholesky(square_exponential(TIMES, TIMES, 0.5) + 1e-8 * torch.eye(T))
    course, noise = 20 * torch.randn(2, N, T, generator=generator, dtype=torch.float64)
    truth = ((course @ factor.T)[..., None] * maps[0]).reshape(N, T, *SIZE, 1)
    noisy = truth + (noise[..., None] * maps[1]).reshape(truth.shape)
    noisy = noisy + torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    times, exists = TIMES.expand(N, -1), torch.ones(N, T, dtype=torch.bool)
    errors, angles = [], []
    for turned in (True, False):
        found = fit_modes(times, noisy, exists, rank=2, turned=turned)
        answer = frame_movie("modes", times, exists, noisy, found).at_moments(times)
        errors.append(float((answer - truth).square().mean()))
        angles.append(float((found.vectors.flatten(1) @ maps.T).abs().diagonal().min()))
    assert angles[0] > 0.99 and angles[1] < 0.95
    assert errors[0] < 0.2 * errors[1]


def test_modes_are_not_turned_by_few_frames():
    series = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exists = torch.ones(2, 20, dtype=torch.bool)  # 38 pairs for 3 modes
    np.testing.assert_array_equal(persistent(series, exists), np.eye(3))


def test_turned_modes_do_not_correlate_with_each_other():
    """At the same time and from frame to frame; frames that do not exist take no part."""
    generator = torch.Generator().manual_seed(0)
    series = torch.randn(80, 12, 4, generator=generator, dtype=torch.float64).cumsum(1)
    series = series @ torch.randn(4, 4, generator=generator, dtype=torch.float64)
    exists = torch.ones(80, 12, dtype=torch.bool)
    exists[::2, 7:] = False
    pictures = persistent(torch.where(exists[..., None], series, torch.nan), exists)
    new = series @ torch.linalg.inv(pictures)
    pair = exists[:, 1:] & exists[:, :-1]
    lagged = new[:, :-1][pair].T @ new[:, 1:][pair]
    for cov in (new[exists].T @ new[exists], lagged + lagged.T):
        scale = cov.diagonal().sqrt()
        assert float((cov / scale / scale[:, None] - torch.eye(4)).abs().max()) < 1e-4
    every, after = new[exists].square().mean(0), lagged.diagonal() / pair.sum()
    assert bool((after / every).diff().lt(0).all())  # in the order in which they persist
    np.testing.assert_allclose(pictures.norm(dim=1), 1)


def some_modes(size=(10, 9), channels=2, count=3):
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(count, *size, channels, generator=generator, dtype=torch.float64)
    kernels = tuple(Kernel((0.2 + 0.1 * k,), 1.0, 0.5, 0.1 + 0.2 * k) for k in range(count))
    scale = torch.arange(1.0, count + 1, dtype=torch.float64)
    mean = torch.randn(*size, channels, generator=generator).double()
    return FrameModes(mean, vectors, scale, Kernel((0.3,), 1.0, 0.5, 0.2, channels=kernels))


def test_frames_against_the_formula():
    modes, frames = some_modes(), torch.randn(2, 5, 10, 9, 2, dtype=torch.float64)
    times = torch.tensor([[0.0, 0.2, 0.4, 0.7, 1.0], [0.0, 0.3, 0.5, 0.6, 0.9]], dtype=torch.float64)
    at = torch.tensor([[0.1, 0.4], [0.55, 0.8]], dtype=torch.float64)
    found = frame_movie("modes", times, torch.ones(2, 5, dtype=torch.bool), frames, modes).at_moments(at)
    filters = torch.linalg.pinv(modes.vectors.flatten(1))  # least squares: these modes are not orthogonal
    for b in range(2):
        want = modes.mean.clone().expand(2, -1, -1, -1).clone()
        for k, kernel in enumerate(modes.kernel.channels):
            a = (frames[b] - modes.mean).flatten(1) @ filters[:, k]
            cov = lambda s, t, kernel=kernel: square_exponential(s, t, kernel.lengthscales[0]) + 0.25  # noqa: E731
            inverse = torch.linalg.inv(cov(times[b], times[b]) + kernel.noise**2 * torch.eye(5, dtype=a.dtype))
            want += (cov(at[b], times[b]) @ inverse @ a)[:, None, None, None] * modes.vectors[k]
        np.testing.assert_allclose(found[b], want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["modes", "cubic"])
def test_derivatives_agree_with_nested_autograd(name):
    movie = np.random.default_rng(0).normal(size=(5, 10, 9, 2))
    data = movie_batch(movie, (4, 4))
    start = frame_start(name, data.batch, data.grid, some_modes())
    at = data.scaled([[0.3, 4.2, 3.9], [2.6, 3.3, 5.1], [3.1, 6.4, 2.2]])
    terms = plan(3, up_to(3, 2))
    found = start(straight_line(at, terms.directions, terms.order))
    derivatives = nested_derivatives(lambda s: start(constant(at + s)).value, 3, 2)
    for q in up_to(3, 2):
        assert relative_error(terms.partial(found, q), entry(derivatives, q)) < 1e-8, q


def test_frames_that_occur_twice_count_once():
    """Windows that overlap: the same noise in both halves of the frames would count as signal."""
    noise = torch.randn(40, 12, 12, 1, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    assert len(distinct_frames(noise.repeat(2, 1, 1, 1)[order])) == 40
    twice = noise.repeat(2, 1, 1, 1)[order].reshape(8, 10, 12, 12, 1)
    times = torch.linspace(0, 1, 10).expand(8, -1)
    assert len(fit_modes(times, twice, torch.ones(8, 10, dtype=torch.bool)).vectors) == 2  # rank 1, generously


def test_hidden_frames_are_between_others():
    exists = torch.tensor([[True] * 9, [True] * 7 + [False] * 2, [True] * 2 + [False] * 7])
    assert held_frames(exists).int().tolist() == [[0, 0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0], [0] * 9]


def travelling(count=30, frames=8, size=24):
    """A blob that crosses the frame in random directions."""
    rng = np.random.default_rng(3)
    start, angle = rng.uniform(4, size - 4, (count, 1, 2)), rng.uniform(0, 2 * np.pi, (count, 1))
    place = start + np.arange(frames)[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    row, col = np.arange(size)[:, None], np.arange(size)
    far = (row - place[..., :1, None]) ** 2 + (col - place[..., 1:, None]) ** 2
    movie = np.exp(-far / (2 * 2.0**2))
    return (movie + 0.1 * rng.normal(size=movie.shape))[..., None]


def chosen(movies):
    samples = frames_to_samples(movies, (8, 8))
    kind = kind_of(samples)
    batch = kind.batch(samples.sorted(), torch.float64, torch.device("cpu"))
    return choose_modes(batch, kind.grid, kind.fit_waves(batch), 0)


def test_a_blob_that_travels_gets_waves_and_fixed_maps_get_modes(low_rank, monkeypatch):
    monkeypatch.setattr(module, "KERNEL_NUMBERS", 200)
    assert chosen(travelling()) is None
    assert len(chosen(low_rank.noisy[:40].numpy()).vectors) == 6
    assert chosen(low_rank.noisy[:, :2].numpy()) is None  # no frame lies between others


def shares(frames, rank=3):
    """Whether `share_noise` finds something in frames (N, T, H, W, 1) that its modes leave over."""
    exists = torch.ones(frames.shape[:2], dtype=torch.bool)
    return share_noise(fit_modes(TIMES.expand(len(frames), -1), frames, exists, rank=rank), frames, exists)


def test_noise_that_successive_frames_share_is_told_from_white_noise_and_from_signal(low_rank, monkeypatch):
    monkeypatch.setattr(module, "KERNEL_NUMBERS", 200)
    generator = torch.Generator().manual_seed(0)
    between = torch.randn(40, T + 1, *SIZE, 1, generator=generator, dtype=torch.float64)
    some = low_rank.noisy[:40]
    assert not shares(some)
    assert shares(some + (between[:, 1:] + between[:, :-1]) / 2)  # a control at the middle between frames
    assert not shares(some, rank=1)  # two processes are left over
    late = torch.ones(1, 6, dtype=torch.bool)
    late[:, 4:] = False
    assert with_neighbours(held_frames(late), late).int().tolist() == [[0, 1, 1, 0, 0, 0]]


def settings(**changes):
    small = {"width": 16, "layers": 1, "heads": 2, "feedforward": 16, "steps": 2, "order": 0, "device": "cpu"}
    return small | changes


@pytest.mark.parametrize("start", ["auto", "modes"])
def test_a_model_keeps_its_modes(low_rank, tmp_path, start, monkeypatch):
    monkeypatch.setattr(module, "KERNEL_NUMBERS", 200)
    samples = frames_to_samples(low_rank.noisy[:20].numpy(), (8, 8))
    with patched_kernel():
        model = CST(start=start, **settings()).fit(samples)
    assert model.run_.start == "modes" and model.start == start
    model.save(tmp_path / "model")
    again = CST.load(tmp_path / "model")
    at = samples.coords[0, :2] + [0.3, 0.5, 0.0]
    for order in (0, 1):
        answers = (m.derivative(samples[:3], at, (order, 0, 0)) for m in (model, again))
        np.testing.assert_array_equal(*answers)
    assert again.run_.start == "modes" and model.n_parameters_ == again.n_parameters_


def test_curves_have_no_modes():
    with patched_kernel():
        assert CST(start="auto", **settings(nearness="never", hide=0.3, noise=0.1)).fit(waves(6)).run_.start == "smooth"
    with pytest.raises(CSTError, match="start='modes' is for frames"):
        CST(start="modes", **settings()).fit(waves(6))
