"""Intervals of pixels from a model of coefficients: coverage in a movie of low rank whose noise is known."""

from functools import lru_cache

import numpy as np
import pytest

from cstformer.data.modes import Modes
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST
from cstformer.models.mode_intervals import calibrate_modes
from cstformer.models.movie_answers import predict_modes

FRAMES, SIDE, STEP = 600, 12, 0.1
SIGMA = np.linspace(0.2, 0.8, SIDE)[:, None] * np.ones(SIDE)  # noise of each pixel: less at the top


def clean(times: np.ndarray) -> np.ndarray:
    """Three pictures with courses of several periods, and a mean frame of 5."""
    row = np.linspace(0, np.pi, SIDE)
    maps = np.stack([np.outer(np.sin(row), np.sin(row)), np.outer(np.cos(row), np.sin(row)), np.outer(row, row / 6)])
    rates, phases = np.array([1.0, 1.7, 2.3]), np.array([0.0, 1.0, 2.0])
    courses = np.sin(rates * times[:, None] + phases) + 0.5 * np.sin(0.37 * rates * times[:, None])
    return 5.0 + np.tensordot(courses, maps, 1)


@lru_cache
def fitted() -> tuple[CST, Modes, np.ndarray, np.ndarray, Samples]:
    rng = np.random.default_rng(0)
    times = STEP * np.arange(FRAMES)
    movie = clean(times) + SIGMA * rng.normal(size=(FRAMES, SIDE, SIDE))
    movie[:, 0, 0] = np.nan
    modes = Modes(3).fit(movie)
    series = modes.coefficients(movie, times, 16, 8)
    model = CST.preset("smoke", steps=20, validation=0.25).fit(series)
    return model, calibrate_modes(model, modes, movie, times, series), movie, times, series


def test_intervals_cover_new_observations_of_pixels():
    model, modes, movie, times, _ = fitted()
    given = np.arange(FRAMES) % 5 != 2
    at = times[~given]
    rng = np.random.default_rng(1)
    new = clean(at) + SIGMA * rng.normal(size=(len(at), SIDE, SIDE))
    for level in (0.8, 0.9):
        frames, low, high = predict_modes(model, modes, movie[given], times[given], at, level=level)
        inside = (low <= new) & (new <= high)
        inside = inside.reshape(len(at), -1)[:, 1:]  # the first pixel is left out
        assert inside.mean() == pytest.approx(level, abs=0.02)
        rows = inside[:, SIDE - 1 :].mean(0).reshape(-1, SIDE).mean(1)  # quiet and loud pixels alike
        np.testing.assert_allclose(rows, level, atol=0.05)
    assert np.isnan(low[:, 0, 0]).all() and ((low < frames) & (frames < high))[:, 1:].all()
    np.testing.assert_allclose(frames, predict_modes(model, modes, movie[given], times[given], at), equal_nan=True)


def test_widths_are_those_of_the_noise_and_grow_in_gaps():
    """Coefficients are known to a fraction of the noise, so a pixel has little more than its own."""
    model, modes, movie, times, _ = fitted()
    at = np.array([30.05])
    _, low, high = predict_modes(model, modes, movie, times, at, level=0.9)
    width = (high - low)[0, 1:] / (2 * 1.645 * SIGMA[1:])
    assert np.median(width) == pytest.approx(1.0, abs=0.12)
    gap = np.abs(times - 30.05) > 0.5
    _, farther, higher = predict_modes(model, modes, movie[gap], times[gap], at, level=0.9)
    assert ((higher - farther) > (high - low))[0, 1:].all()


def test_scores_are_kept_and_few_windows_refused(tmp_path):
    model, modes, movie, times, series = fitted()
    modes.save(tmp_path / "modes")
    again = Modes.load(tmp_path / "modes")
    both = [predict_modes(model, m, movie[:40], times[:40], times[5:7], level=0.9) for m in (modes, again)]
    np.testing.assert_array_equal(*both)
    again.scores_ = again.scores_[:, again.scores_[1] < 5]
    with pytest.raises(CSTError, match="needs 9 held-out windows, but 5 were there"):
        predict_modes(model, again, movie, times, times[:1], level=0.9)
    with pytest.raises(CSTError, match="level must lie between 0 and 1, got 90"):
        predict_modes(model, again, movie, times, times[:1], level=90)
    few = calibrate_modes(model, again, movie, times, series[:4])
    with pytest.raises(CSTError, match="no scores of held-out windows"):
        predict_modes(model, few, movie, times, times[:1], level=0.9)
