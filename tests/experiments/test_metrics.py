"""Metrics against hand-worked numbers and scipy."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from cstformer.errors import CSTError
from cstformer.experiments.metrics import (
    bending,
    clip_mse,
    euclidean_error,
    holm,
    paired_test,
    paired_tests,
    psnr,
    roughness,
    ssim,
    summary,
)


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


def test_summary_of_seeds_has_both_spreads():
    """Two seeds of three samples: sample means 2, 3, 7 and seed means 3, 5."""
    found = summary(np.array([[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]]))
    assert found == {"mean": 4.0, "std": pytest.approx(7**0.5), "n": 3, "seeds": 2, "seed_std": pytest.approx(2**0.5)}


def test_holm_by_hand():
    """Sorted P values times 3, 2 and 1, never falling, at most 1."""
    assert holm([0.04, 0.01, 0.5]) == [0.08, 0.03, 0.5]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_tests_compare_means_over_seeds_and_are_corrected_within_a_condition():
    rng = np.random.default_rng(0)
    errors = {("a", "x"): rng.random((3, 12)), ("b", "x"): rng.random((2, 12)) + 0.2, ("c", "x"): rng.random(12) + 0.2}
    errors |= {("a", "y"): rng.random(12), ("b", "y"): rng.random(12)}
    tests = paired_tests(errors, [("a", "b", "x"), ("a", "c", "x"), ("a", "b", "y"), ("a", "missing", "y")])
    assert [(t["name"], t["condition"]) for t in tests] == [("a vs b", "x"), ("a vs c", "x"), ("a vs b", "y")]
    mean = paired_test(errors["a", "x"].mean(0), errors["b", "x"].mean(0))
    assert tests[0]["p_single"] == mean.p_value and tests[0]["n"] == 12
    assert [t["p_value"] for t in tests[:2]] == holm([t["p_single"] for t in tests[:2]])
    assert tests[2]["p_value"] == tests[2]["p_single"]  # alone in its condition


def test_fewer_than_ten_samples_are_not_tested():
    errors = {(name, "x"): np.random.default_rng(i).random((5, 9)) for i, name in enumerate("ab")}
    assert paired_tests(errors, [("a", "b", "x")]) == []


def test_clip_mse_and_psnr_by_hand():
    """Off by 0.5 in half of the pixels: MSE 1/8, the cost of leaving a corrupted clip as it is; 9.03 dB."""
    truth = np.zeros((2, 3, 4, 4, 3))
    y = truth.copy()
    y[0, :, :2] = 0.5
    assert clip_mse(y, truth).tolist() == [0.125, 0]
    assert psnr(y, truth)[0] == pytest.approx(10 * np.log10(8))
    assert psnr(y, truth)[1] == np.inf
    assert psnr(255 * y, 255 * truth, peak=255)[0] == pytest.approx(9.0309, abs=1e-4)


def test_ssim_of_flat_frames_by_hand():
    """Only brightness differs: (2 · 0.4 · 0.8 + 10⁻⁴) / (0.4² + 0.8² + 10⁻⁴) = 0.6401 / 0.8001."""
    flat = np.ones((1, 2, 16, 16, 3))
    assert ssim(0.4 * flat, 0.8 * flat) == pytest.approx([0.6401 / 0.8001])


def test_ssim_of_a_negative_by_hand():
    """A pattern of mean 0 and variance v (under the window) against its negative: (C₂ − 2v) / (C₂ + 2v)."""
    board = np.where(np.indices((32, 32)).sum(0) % 2, 0.1, -0.1)[None, None, ..., None]
    assert ssim(board, board) == pytest.approx([1])
    assert ssim(board, -board) == pytest.approx([(9e-4 - 0.02) / (9e-4 + 0.02)], abs=1e-5)


def test_ssim_agrees_with_scikit_image():
    skimage = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(0)
    x = rng.random((2, 2, 20, 24, 3))
    y = x + 0.2 * rng.normal(size=x.shape)
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "channel_axis": -1}
    frames = zip(y.reshape(4, 20, 24, 3), x.reshape(4, 20, 24, 3), strict=True)
    theirs = [skimage.structural_similarity(a, b, data_range=1.0, **options) for a, b in frames]
    theirs = np.reshape(theirs, (2, 2))
    assert ssim(y, x) == pytest.approx(np.mean(theirs, axis=1), abs=1e-12)
    assert ssim(y.astype(np.float32), x.astype(np.float32)) == pytest.approx(np.mean(theirs, axis=1), abs=1e-5)


def test_ssim_needs_room_for_its_window():
    with pytest.raises(CSTError, match="at least 11 × 11 pixels, got 10 × 20"):
        ssim(np.zeros((1, 1, 10, 20, 3)), np.zeros((1, 1, 10, 20, 3)))
