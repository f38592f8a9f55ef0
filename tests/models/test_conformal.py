"""Quantiles of scores by whole samples: hand-worked numbers, MAPIE, and coverage on simulated scores."""

import math

import numpy as np
import pytest

from cstformer.models.conformal import fewest_samples, fit_shares, quantile


def test_one_score_a_sample_is_the_usual_quantile():
    """The k-th smallest of N scores with k = ⌈(N + 1) L⌉."""
    rng = np.random.default_rng(0)
    for count in (19, 25, 40, 99, 200):
        for level in (0.5, 0.8, 0.9, 0.95):
            scores = rng.exponential(size=count)
            kth = math.ceil(round((count + 1) * level, 9))
            assert quantile(scores, np.arange(count), level) == np.sort(scores)[kth - 1], (count, level)


def test_mapie_finds_the_same_intervals():
    regression = pytest.importorskip("mapie.regression", reason="MAPIE is not installed")
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(150, 2)), rng.normal(size=150)
    model = LinearRegression().fit(x[:50], y[:50])
    for level in (0.8, 0.9, 0.95):
        oracle = regression.SplitConformalRegressor(model, confidence_level=level, prefit=True)
        _, bounds = oracle.conformalize(x[50:110], y[50:110]).predict_interval(x[110:])
        half = quantile(np.abs(y[50:110] - model.predict(x[50:110])), np.arange(60), level)
        np.testing.assert_allclose(bounds[:, 0, 0], model.predict(x[110:]) - half)
        np.testing.assert_allclose(bounds[:, 1, 0], model.predict(x[110:]) + half)


def test_scores_that_repeat_within_samples_count_once():
    scores = np.random.default_rng(2).exponential(size=30)
    once = quantile(scores, np.arange(30), 0.9)
    assert quantile(np.repeat(scores, 7), np.repeat(np.arange(30), 7), 0.9) == once


def test_too_few_samples_have_no_quantile():
    assert fewest_samples(0.9) == 9
    scores, sample = np.ones(800), np.repeat(np.arange(8), 100)
    assert quantile(scores, sample, 0.9) == math.inf and quantile(scores, sample, 0.8) == 1.0


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_coverage_of_new_samples(shared):
    """|√shared · a + √(1 − shared) · b| with a common to a sample: from 29 samples of 20 scores each."""
    rng = np.random.default_rng(3)

    def scores(count: int) -> np.ndarray:
        common, own = rng.normal(size=(count, 1)), rng.normal(size=(count, 20))
        return np.abs(math.sqrt(shared) * common + math.sqrt(1 - shared) * own)

    sample = np.repeat(np.arange(29), 20)
    found = [np.mean(scores(400) <= quantile(scores(29).ravel(), sample, 0.9)) for _ in range(150)]
    assert np.mean(found) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.04), (1.0, 0.01), (3.0, 1e-4)])
def test_both_parts_of_a_variance_are_found(alpha, beta):
    rng = np.random.default_rng(4)
    process = rng.exponential(0.05, size=20_000)
    errors = rng.normal(size=20_000) * np.sqrt(alpha * process + beta)
    found = fit_shares(errors**2, process, 0.1, np.repeat(np.arange(400), 50))
    assert found[0] == pytest.approx(alpha, rel=0.3)
    assert found[1] == pytest.approx(beta, rel=0.3, abs=5e-4)


def test_the_noise_decides_where_the_errors_do_not():
    """Where s² is the same everywhere, β is at least the noise, and α the rest."""
    errors = np.random.default_rng(5).normal(size=2000) * math.sqrt(0.05)
    alpha, beta = fit_shares(errors**2, np.full(2000, 0.04), 0.1, np.repeat(np.arange(40), 50))
    assert 0.009 < beta < 0.03 and alpha * 0.04 + beta == pytest.approx(0.05, rel=0.1)


def test_samples_weigh_the_same_whatever_their_number_of_scores():
    """One long sample of large scores is one of eleven."""
    scores = np.concatenate([np.full(1000, 9.0), np.arange(10) / 10])
    sample = np.concatenate([np.zeros(1000, dtype=int), np.arange(1, 11)])
    assert quantile(scores, sample, 0.8) == 0.9
