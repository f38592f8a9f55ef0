"""Intervals and standard deviations of CST: what they mean, their units, and what is kept in files."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from cstformer.data.patches import frame_queries, frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST

T = np.linspace(0, 1, 9)
AT = np.array([0.0, 0.06, 0.31, 0.5, 0.94])
RELEASED = Path(__file__).parents[1] / "released" / "0.1.0"


def waves(count: int, seed: int, unit: float = 1.0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Phases (count, 1), and noisy values at T (count, 9)."""
    rng = np.random.default_rng(seed)
    phase = rng.uniform(size=(count, 1))
    return phase, unit * (np.sin(2 * np.pi * (T + phase)) + noise * rng.normal(size=(count, 9)))


@lru_cache
def model() -> CST:
    return CST.preset("smoke", seed=1, steps=120, validation=0.2).fit(Samples(T, waves(250, 0)[1]))


def test_intervals_cover_new_observations():
    phase, noisy = waves(400, 1)
    rng = np.random.default_rng(2)
    truth = np.sin(2 * np.pi * (AT + phase))
    for level in (0.8, 0.9):
        low, high = model().interval(Samples(T, noisy), AT, level)
        seen = truth + 0.1 * rng.normal(size=truth.shape)
        assert np.mean((low[..., 0] <= seen) & (seen <= high[..., 0])) == pytest.approx(level, abs=0.04)


def test_the_sd_is_that_of_the_function():
    phase, noisy = waves(400, 3)
    values, sd = model().predict(Samples(T, noisy), AT, return_std=True)
    np.testing.assert_array_equal(values, model().predict(Samples(T, noisy), AT))
    errors = values[..., 0] - np.sin(2 * np.pi * (AT + phase))
    assert 0.7 < np.sqrt(np.mean((errors / sd[..., 0]) ** 2)) < 1.4


def test_without_noise_an_interval_is_a_multiple_of_the_sd():
    context = Samples(T, waves(3, 4)[1])
    values, sd = model().predict(context, AT, return_std=True)
    low, high = model().interval(context, AT, 0.9, noise=False)
    ratio = (high - values) / sd
    np.testing.assert_allclose(ratio, ratio.flat[0])
    np.testing.assert_allclose(high - values, values - low)
    wide = model().interval(context, AT, 0.9)
    assert (wide[0] < low).all() and (wide[1] > high).all()


def test_intervals_grow_in_gaps():
    y = waves(1, 5)[1]
    whole, gap = Samples(T, y), Samples(np.delete(T, [3, 4, 5]), np.delete(y, [3, 4, 5], 1))
    sd = [model().predict(context, [0.5], return_std=True)[1].item() for context in (whole, gap)]
    assert sd[1] > 1.2 * sd[0]


def test_units_follow_the_user():
    """Values in hundredths and times in seconds of a minute: bounds and sd scale, derivatives too."""
    y = waves(120, 6)[1]
    settings = {"seed": 0, "precision": "float64", "steps": 20, "validation": 0.2}
    plain = CST.preset("smoke", **settings).fit(Samples(T, y))
    other = CST.preset("smoke", **settings).fit(Samples(60 * T, 100 * y + 7))
    low, high = plain.interval(Samples(T, y[:2]), AT)
    np.testing.assert_allclose(
        other.interval(Samples(60 * T, 100 * y[:2] + 7), 60 * AT), (100 * low + 7, 100 * high + 7)
    )
    first = plain.derivative(Samples(T, y[:2]), AT, (1,), return_std=True)[1]
    scaled = other.derivative(Samples(60 * T, 100 * y[:2] + 7), 60 * AT, (1,), return_std=True)[1]
    np.testing.assert_allclose(scaled, first * 100 / 60)


def test_robust_channels_have_skewed_intervals():
    y = np.exp(2 * waves(120, 7)[1])
    robust = CST.preset("smoke", scaling="robust", steps=60, validation=0.2).fit(Samples(T, y))
    context = Samples(T, y[:20])
    values = robust.predict(context, AT)
    low, high = robust.interval(context, AT)
    away = np.sign(values - np.median(y)) * ((high - values) - (values - low))  # the longer side points to the tail
    assert (low < values).all() and (away > 0).mean() > 0.95
    # A small interval is linear: the sd is the slope of the scaling times the sd in the model's units.
    narrow, sd = robust.interval(context, AT, 0.05, noise=False), robust.predict(context, AT, return_std=True)[1]
    ratio = (narrow[1] - narrow[0]) / sd
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=0.01)


def test_a_saved_model_gives_the_same_intervals(tmp_path):
    model().save(tmp_path / "model")
    context = Samples(T, waves(2, 8)[1])
    again = CST.load(tmp_path / "model").interval(context, AT, 0.8)
    np.testing.assert_array_equal(again, model().interval(context, AT, 0.8))


def test_a_model_of_0_1_0_has_no_scores_until_it_is_calibrated():
    old = CST.load(RELEASED / "cubic" / "model")
    context = Samples.load(RELEASED / "cubic" / "context.npz")
    with pytest.raises(CSTError, match=r"no scores of held-out samples: version 0\.1\.0 did not keep them.*calibrate"):
        old.interval(context, context.coords)
    many = context[np.arange(60) % len(context)]
    low, high = old.calibrate(many).interval(context, context.coords, 0.8)
    assert (low < high).all()


def test_samples_that_trained_do_not_calibrate():
    few = CST.preset("smoke", steps=2).fit(Samples(T, waves(4, 9)[1]))
    with pytest.raises(CSTError, match="fewer than five samples"):
        few.predict(Samples(T, waves(1, 9)[1]), AT, return_std=True)


def test_too_few_held_out_samples_for_a_level():
    few = CST.preset("smoke", steps=2, validation=0.2).fit(Samples(T, waves(40, 10)[1]))
    context = Samples(T, waves(1, 9)[1])
    few.interval(context, AT, 0.8)
    with pytest.raises(CSTError, match=r"level 0\.9 needs 9 held-out samples, but 8 were there; .* up to 0\.88,"):
        few.interval(context, AT, 0.9)
    few.calibrate(Samples(T, waves(9, 11)[1])).interval(context, AT, 0.9)


def test_the_sd_of_a_derivative_follows_its_errors():
    phase, noisy = waves(300, 12)
    slope, sd = model().derivative(Samples(T, noisy), AT[1:-1], (1,), return_std=True)
    truth = 2 * np.pi * np.cos(2 * np.pi * (AT[1:-1] + phase))
    assert 0.5 < np.sqrt(np.mean(((slope[..., 0] - truth) / sd[..., 0]) ** 2)) < 2


@pytest.mark.parametrize("start", ["smooth", "modes"])
def test_frames_have_intervals(start):
    rng = np.random.default_rng(0)
    t, phase = np.arange(6.0), rng.uniform(size=(60, 1, 1, 1))
    place = np.arange(8)[:, None] / 8 + np.zeros(8)
    movies = np.sin(2 * np.pi * (place + phase + t[:, None, None] / 12)) + 0.2 * rng.normal(size=(60, 6, 8, 8))
    samples = frames_to_samples(movies[..., None], (4, 4), times=t)
    cst = CST.preset("smoke", start=start, steps=20, batch=8, validation=0.2).fit(samples)
    queries = frame_queries(samples.layout, [0.0, 2.5])
    low, high = cst.interval(samples[:3], queries)
    values, sd = cst.predict(samples[:3], queries, return_std=True)
    assert low.shape == values.shape and (low < values).all() and (values < high).all()
    gap = samples[:3].subset_points(~np.isin(samples[:3].coords[..., 0], [2.0, 3.0]))
    wider = cst.predict(gap, queries, return_std=True)[1]
    assert wider[:, 4:].mean() > 1.2 * sd[:, 4:].mean() > 0  # at 2.5, between the frames that are gone
    first = cst.derivative(samples[:3], queries, (1, 0, 0), return_std=True)[1]
    assert first.shape == sd.shape and (first > 0).all()
    with pytest.raises(CSTError, match="derivatives in time"):
        cst.derivative(samples[:3], queries, (0, 1, 0), return_std=True)


def test_recordings_have_the_blended_intervals_of_their_windows():
    rng = np.random.default_rng(13)
    t = np.arange(0.0, 100.0, 0.5)
    recordings = Samples(t, np.sin(t / 2 + rng.uniform(0, 6, (12, 1))) + 0.1 * rng.normal(size=(12, 200)))
    cst = CST.preset("smoke", steps=10, validation=0.2).fit(recordings.windows(10, 10))
    low, high = cst.interval(recordings[:2], [31.0, 47.3], 0.8)
    values, sd = cst.predict(recordings[:2], [31.0, 47.3], return_std=True)
    assert (low < values).all() and (values < high).all() and (sd > 0).all()
    answer, slope_sd = cst.derivative(recordings[:2], [31.0, 47.3], (1,), return_std=True)
    np.testing.assert_allclose(answer, cst.derivative(recordings[:2], [31.0, 47.3], (1,)), rtol=1e-6)
    # Near the beginning one window answers alone, and the bound is its own standard deviation.
    first = recordings[:2].windows(10, 10)
    first = first[[i for i, name in enumerate(first.sample_ids) if name.endswith("@0")]]
    for order in (1, 2):
        alone = cst.derivative(first, [0.1], (order,), return_std=True)[1]
        np.testing.assert_allclose(cst.derivative(recordings[:2], [0.1], (order,), return_std=True)[1], alone, rtol=0.3)
    assert (slope_sd > 0).all()
    cst.calibrate(recordings[:4]).interval(recordings[:2], [31.0], 0.9)
