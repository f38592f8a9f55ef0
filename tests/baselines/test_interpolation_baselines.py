"""Rivals without a network, against NumPy, SciPy, textbook formulas and the published spirals."""

import numpy as np
import pytest
import scipy.interpolate
import torch

from cstformer.baselines import (
    CopyNearest,
    CubicSpline,
    GaussianProcess,
    LinearInterpolation,
    Mean,
    SpaceTimeWiener,
    WienerCubic,
)
from cstformer.baselines import interpolation as family
from cstformer.data.patches import frame_queries, frames_to_samples, samples_to_frames
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.starts.gaussian_process import Kernel

NAN = np.nan


def irregular(count=6, n=8, seed=0):
    """Curves with two channels, missing at different places, in units far from standardised."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(-3, 7, (count, n)), axis=1)
    y = np.stack([100 + 20 * np.sin(t), t**2], axis=-1)
    y[rng.random(y.shape) < 0.25] = NAN
    y[:, [0, 3, 5, -1]] = np.nan_to_num(y[:, [0, 3, 5, -1]], nan=5.0)
    return Samples(t, y)


def observed_curve(samples, i, k):
    seen = samples.observed[i, :, k]
    return samples.coords[i, seen, 0], samples.values[i, seen, k]


def test_linear_by_hand():
    """Between (0, 1) and (2, 5) at 0.5: 1 + 4·0.25 = 2; the second channel skips its missing middle."""
    s = Samples([[0.0, 2.0, 4.0]], [[[1.0, 10.0], [5.0, NAN], [3.0, 30.0]]])
    y = LinearInterpolation().fit(s).predict(s, [0.5, 3.0])
    np.testing.assert_allclose(y[0], [[2.0, 12.5], [4.0, 25.0]], rtol=1e-12)


@pytest.mark.parametrize("model", [LinearInterpolation(), CubicSpline()])
def test_curves_agree_with_numpy_and_scipy(model):
    s = irregular()
    at = np.linspace(s.coords.min(), s.coords.max(), 50)
    y = model.fit(s).predict(s, at)
    for i in range(len(s)):
        for k in range(s.c):
            t, v = observed_curve(s, i, k)
            inside = np.clip(at, t[0], t[-1])  # held constant outside the observed range
            linear = isinstance(model, LinearInterpolation)
            expected = np.interp(at, t, v) if linear else scipy.interpolate.CubicSpline(t, v)(inside)
            np.testing.assert_allclose(y[i, :, k], expected, rtol=1e-10, atol=1e-10)


def test_spline_of_few_points():
    """One point is a constant, two a line, three a parabola; a channel without any is its training mean."""
    train = Samples([0.0, 1.0, 2.0], np.arange(6.0).reshape(1, 3, 2))
    model = CubicSpline().fit(train)
    few = Samples.from_list(
        [([1.0], [[7.0, NAN]]), ([0.0, 2.0], [[0.0, 1.0], [4.0, 1.0]]), ([0, 1, 2], [[0, 0], [1, 1], [4, 4]])]
    )
    np.testing.assert_allclose(model.predict(few, [1.5])[:, 0], [[7.0, 3.0], [3.0, 1.0], [2.25, 2.25]])


def test_repeated_coordinates_are_averaged():
    train = Samples([0.0, 1.0], [[0.0, 1.0]])
    twice = Samples([0.0, 1.0, 1.0], [[0.0, 1.0, 3.0]])
    with pytest.warns(UserWarning, match="averaged"):
        assert LinearInterpolation().fit(train).predict(twice, [0.5]).item() == 1.0


def test_published_spirals_reference():
    """PAPER_FACTS 1.1: mean Euclidean error at the 90 unseen points, linear 0.0487, cubic spline 0.0376."""
    spirals = make_spirals(150, seed=0)
    real = regular_indices()
    context = Samples(spirals.times[real], spirals.values[:, real])
    unseen = np.setdiff1d(np.arange(100), real)
    for model, reference in ((LinearInterpolation(), 0.0487), (CubicSpline(), 0.0376)):
        y = model.fit(context).predict(context, spirals.times[unseen])
        error = np.linalg.norm(y - spirals.values[:, unseen], axis=-1).mean()
        assert error == pytest.approx(reference, rel=0.06)


@pytest.mark.parametrize("cls", [LinearInterpolation, CubicSpline])
def test_fields_pass_through_their_points(cls, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 1, (5, 20, 2)) * [1.0, 300.0]
    s = Samples(x, np.sin(x[..., :1] * 3) + x[..., 1:] / 300)
    model = cls().fit(s)
    np.testing.assert_allclose(model.predict(s, s.coords), s.values, atol=1e-5)
    inner = rng.uniform(0.3, 0.7, (9, 2)) * [1.0, 300.0]
    y = model.predict(s, inner)
    truth = np.sin(inner[:, :1] * 3) + inner[:, 1:] / 300
    assert np.abs(y - truth).max() < 0.2
    monkeypatch.setattr(family, "NUMBERS_PER_PASS", 50)  # pieces must not change the answer
    np.testing.assert_allclose(model.predict(s, inner), y, rtol=1e-10)


def test_mean_and_nearest_by_hand():
    s = Samples([[0.0, 1.0, 4.0]], [[[1.0, 10.0], [5.0, NAN], [3.0, 30.0]]])
    np.testing.assert_allclose(Mean().fit(s).predict(s, [0.7])[0, 0], [3.0, 20.0])
    np.testing.assert_allclose(CopyNearest().fit(s).predict(s, [0.7, 3.5])[0], [[5.0, 10.0], [3.0, 30.0]])
    # Axes are compared in shares of the domain: 100 of 1000 is nearer than 0.5 of 1.
    s = Samples([[[0.0, 0.0], [0.5, 100.0], [1.0, 1000.0]]], [[1.0, 2.0, 3.0]])
    assert CopyNearest().fit(s).predict(s, [[0.0, 200.0]]).item() == 1.0


def textbook(kernel: Kernel, t, y, at):
    """Posterior mean in standardised units: Rasmussen & Williams, eq. 2.25."""

    def k(a, b):
        squares = (a[:, None] - b[None, :]) ** 2
        return kernel.offset**2 + kernel.amplitude**2 * np.exp(-0.5 * squares / kernel.lengthscales[0] ** 2)

    inverse = np.linalg.inv(k(t, t) + kernel.noise**2 * np.eye(len(t)))
    return k(at, t) @ inverse @ y


@pytest.mark.parametrize("missing", [False, True])
def test_gaussian_process_is_the_textbook_posterior(missing):
    s = irregular()
    if not missing:
        s = Samples(s.coords, np.where(s.observed, s.values, 3.0))
    model = GaussianProcess().fit(s)
    model.kind_.kernel = Kernel((0.2,), 1.3, 0.6, 0.1)
    at = np.linspace(s.coords.min(), s.coords.max(), 30)
    y = model.predict(s, at)
    scale = model.scaling_
    for i in range(len(s)):
        for k in range(s.c):
            t, v = observed_curve(s, i, k)
            t, x = ((z - scale.low) / scale.span for z in (t, at))
            mean = textbook(model.kernel_, t, (v - scale.mean[k]) / scale.sd[k], x)
            np.testing.assert_allclose(y[i, :, k], mean * scale.sd[k] + scale.mean[k], rtol=1e-6, atol=1e-6)


def test_gaussian_process_finds_the_noise_and_takes_it_away():
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 1, (60, 12)), axis=1)
    phase = rng.uniform(0, 2 * np.pi, (60, 1))
    wave = lambda t: 5 * np.sin(6 * t + phase)  # noqa: E731
    s = Samples(t, wave(t) + rng.normal(0, 0.5, t.shape))
    model = GaussianProcess().fit(s)
    assert model.kernel_.noise * model.scaling_.sd[0] == pytest.approx(0.5, rel=0.1)
    at = np.linspace(t.min(), t.max(), 40)[5:-5]
    error = model.predict(s, at)[..., 0] - wave(at[None])
    assert np.sqrt(np.mean(error**2)) < 0.5  # a measurement at that very place would have this error


def test_gaussian_process_in_pieces(monkeypatch):
    s = irregular()
    model = GaussianProcess().fit(s)
    at = np.linspace(0, 5, 30)
    y = model.predict(s, at)
    monkeypatch.setattr(family, "NUMBERS_PER_PASS", 50)
    np.testing.assert_allclose(model.predict(s, at), y, rtol=1e-10)


@pytest.mark.parametrize("cls", [LinearInterpolation, CubicSpline, GaussianProcess])
def test_frames_are_interpolated_in_time(cls, tmp_path):
    """Pixels that change linearly in time: the frame in between is the mean of its neighbours."""
    rng = np.random.default_rng(0)
    first, slope = rng.normal(size=(2, 3, 1, 8, 8, 1))
    s = frames_to_samples(first + 0.5 * slope * np.arange(5.0)[None, :, None, None, None], patch=(4, 4))
    at = frame_queries(s.layout, [1.5])
    model = cls().fit(s)
    y = model.predict(s, at)
    expected = (s.values[:, 4:8] + s.values[:, 8:12]) / 2
    np.testing.assert_allclose(y, expected, atol=1e-5 if cls is not GaussianProcess else 0.05)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(cls.load(tmp_path / "model").predict(s, at), y)


@pytest.mark.parametrize("periodic", [True, False])
def test_wiener_filters_take_noise_away(periodic, tmp_path):
    """Long waves that turn slowly, half as much noise: each filter does better than the one that knows less."""
    rng = np.random.default_rng(0)
    place, t, phase = np.arange(16) / 16, np.arange(8.0), rng.uniform(0, 2 * np.pi, (12, 1, 1, 1, 1))
    angle = 2 * np.pi * (place[:, None] + place)[None, None, :, :, None] + phase
    clean = lambda t: 2**0.5 * np.cos(angle + 0.5 * t[None, :, None, None, None])  # noqa: E731
    s = frames_to_samples(clean(t) + 0.5 * rng.normal(size=(12, 8, 16, 16, 1)), (4, 4), periodic=periodic)
    at, truth = frame_queries(s.layout, [2.5, 4.0]), clean(np.array([2.5, 4.0]))
    error = {}
    for cls in (LinearInterpolation, WienerCubic, SpaceTimeWiener):
        model = cls().fit(s)
        y = model.predict(s, at)
        error[cls] = ((samples_to_frames(y, s.layout) - truth) ** 2).mean()
        model.save(tmp_path / cls.name)
        np.testing.assert_array_equal(cls.load(tmp_path / cls.name).predict(s, at), y)
    assert error[WienerCubic] < 0.3 * error[LinearInterpolation]
    assert error[SpaceTimeWiener] < 0.7 * error[WienerCubic]
    assert model.kind_.waves.noise * model.scaling_.sd[0] == pytest.approx(0.5, rel=0.05)


def test_fitting_leaves_torchs_generator_alone():
    state = torch.random.get_rng_state()
    GaussianProcess().fit(irregular())
    assert torch.equal(state, torch.random.get_rng_state())
