"""Metrics against hand-worked numbers and scipy."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from cstformer.metrics import bending, euclidean_error, paired_test, roughness, summary


def test_euclidean_error_counts_chosen_points_only():
    y, truth = np.zeros((2, 3, 2)), np.zeros((2, 3, 2))
    truth[0, 0], truth[0, 1], truth[1, 2] = (3, 4), (100, 0), (0, 2)
    where = np.array([[True, False, True], [False, False, True]])
    assert euclidean_error(y, truth, where).tolist() == [2.5, 2.0]


def test_bending_of_a_parabola():
    """Second differences of t² on a grid of step h are 2h² everywhere."""
    t = np.linspace(0, 1, 11)
    assert bending(t[None, :, None] ** 2) == pytest.approx([4 * 0.1**4])
    assert bending(t[None, :, None] * 7 - 3) == pytest.approx([0], abs=1e-28)


def test_roughness_is_one_for_the_truth_and_large_for_steps():
    t = np.linspace(0, 1, 1000)
    truth = np.sin(2 * np.pi * t)[None, :, None]
    steps = np.round(truth * 5) / 5
    assert roughness(truth, truth) == pytest.approx([1])
    assert roughness(steps, truth)[0] > 1e4


def test_paired_test_agrees_with_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=40), rng.normal(size=40) + 0.4
    ours, theirs = paired_test(a, b), wilcoxon(a, b)
    assert (ours.statistic, ours.p_value, ours.n) == (theirs.statistic, theirs.pvalue, 40)
    assert -1 < ours.effect < 0
    assert paired_test(b, a).effect == pytest.approx(-ours.effect)


def test_effect_by_hand():
    """Differences −1, −2, +3: ranks 1, 2, 3, so (3 − 1 − 2) / 6 = 0."""
    assert paired_test(np.array([0.0, 0.0, 3.0]), np.array([1.0, 2.0, 0.0])).effect == 0


def test_equal_systems_do_not_differ():
    x = np.arange(5.0)
    assert paired_test(x, x).p_value == 1


def test_summary():
    assert summary(np.array([1.0, 3.0])) == {"mean": 2.0, "std": pytest.approx(2**0.5), "n": 2}
