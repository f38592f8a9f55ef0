"""The estimator against its formula with known covariances, its limits, and a plain loop."""

import numpy as np
import pytest

from cstformer.benchmarks.calcium import loop_over_patches
from cstformer.datasets.calcium.hemodynamics import (
    marchenko_pastur_median,
    noise_variance,
    regress_out,
    remove_hemodynamics,
    tile_weights,
)
from cstformer.errors import CSTError

SIDE = 10
CENTRE = 4 * SIDE + 4  # the pixel (3, 3) of a tile, with its rim
PATCH = [CENTRE + SIDE * r + c for r in (-1, 0, 1) for c in (-1, 0, 1)]


def smooth_covariance(scale, seed):
    """A covariance of 100 pixels with few large eigenvalues: smooth fields."""
    place = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1).reshape(-1, 2)
    rng = np.random.default_rng(seed)
    fields = np.stack([np.cos(place @ rng.normal(scale=scale, size=2) + rng.uniform(0, 6)) for _ in range(3)])
    return fields.T @ np.diag([3.0, 2.0, 1.0]) @ fields


def model(noise_signal=0.5, noise_control=0.3, seed=0):
    """Σ_x and the covariance of both channels for known x, z, mixing and noise."""
    s_x, s_z = smooth_covariance(0.3, seed), smooth_covariance(0.2, seed + 1)
    mixing = 0.7 * np.eye(100) + 0.1 * np.random.default_rng(seed).normal(size=(100, 100)) / 10
    one = s_x + s_z + noise_signal * np.eye(100)
    two = mixing @ s_z @ mixing.T + noise_control * np.eye(100)
    cross = s_z @ mixing.T
    return s_x, s_z, np.block([[one, cross], [cross.T, two]])


def test_weights_are_the_optimal_linear_estimator_without_knowing_the_mixing():
    s_x, _, covariance = model()
    weights = tile_weights(covariance, np.ones(100, bool), samples=10**9)[3 * 8 + 3]
    both = PATCH + [100 + i for i in PATCH]
    target = np.concatenate([s_x[CENTRE, PATCH], np.zeros(9)])
    expected = np.linalg.solve(covariance[np.ix_(both, both)], target)
    # z has rank 3 and A is not quite local: within nine pixels Σ_z is recovered to a few per cent.
    np.testing.assert_allclose(weights[both], expected, atol=0.04)
    assert np.corrcoef(weights[both], expected)[0, 1] > 0.99
    np.testing.assert_array_equal(np.delete(weights, both), 0)


def test_a_local_mixing_is_undone_exactly_where_there_is_no_noise():
    """With A = a I and next to no noise the estimate is y₁ − y₂ / a."""
    s_x, s_z, a = smooth_covariance(0.3, 0), smooth_covariance(0.2, 1), 0.6
    cross = a * s_z
    covariance = np.block([[s_x + s_z, cross], [cross, a * cross]]) + 1e-7 * np.eye(200)
    weights = tile_weights(covariance, np.ones(100, bool), samples=10**9)
    rng = np.random.default_rng(0)
    x, z = (rng.multivariate_normal(np.zeros(100), s, size=50, method="eigh") for s in (s_x, s_z))
    estimate = np.concatenate([x + z, a * z], axis=1) @ weights[3 * 8 + 3]
    np.testing.assert_allclose(estimate, x[:, CENTRE], atol=0.02 * x.std())


def test_without_hemodynamics_it_is_a_wiener_filter():
    s_x, _, _ = model()
    covariance = np.block([[s_x + 0.5 * np.eye(100), np.zeros((100, 100))], [np.zeros((100, 100)), 0.3 * np.eye(100)]])
    weights = tile_weights(covariance, np.ones(100, bool), samples=10**9)[3 * 8 + 3]
    local = s_x[np.ix_(PATCH, PATCH)]
    np.testing.assert_allclose(weights[PATCH], np.linalg.solve(local + 0.5 * np.eye(9), local[4]), atol=1e-6)
    np.testing.assert_allclose(weights[100:], 0, atol=1e-6)


def test_the_estimate_never_has_more_power_than_the_signal_allows():
    """Σ_x stays positive semidefinite: shrinkage lies between 0 and 1, also where chance would make it negative."""
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 150, 8, 8))
    estimate = remove_hemodynamics(one, two)
    assert (estimate.std(axis=0) <= one.std(axis=0)).all()
    assert estimate.std() < 0.5  # there is nothing but noise


def test_noise_is_found_under_smooth_signals():
    for samples in (200, 5000):
        rng = np.random.default_rng(samples)
        signal = rng.multivariate_normal(np.zeros(100), smooth_covariance(0.3, 0), size=samples, method="eigh")
        y = signal + rng.normal(scale=0.2, size=signal.shape)
        assert noise_variance(y.T @ y / samples, samples) == pytest.approx(0.04, rel=0.06)


@pytest.mark.parametrize("ratio", [0.02, 0.2, 0.6])
def test_marchenko_pastur_median_is_that_of_white_noise(ratio):
    n = 600
    y = np.random.default_rng(1).normal(size=(int(ratio * n), n))
    assert marchenko_pastur_median(ratio) == pytest.approx(np.median(np.linalg.eigvalsh(y @ y.T / n)), rel=0.02)


def movies(shape=(400, 19, 13), seed=0):
    rng = np.random.default_rng(seed)
    rows, cols = np.meshgrid(np.linspace(0, 1, shape[1]), np.linspace(0, 1, shape[2]), indexing="ij")
    maps = np.stack([np.cos(a * rows + b * cols + c) for a, b, c in rng.uniform(0, 4, (6, 3))])
    courses = np.cumsum(rng.normal(size=(6, shape[0])), axis=1)
    courses = (courses - courses.mean(axis=1, keepdims=True)) / courses.std(axis=1, keepdims=True)
    x, z = np.einsum("kt,khw->thw", courses[:3], maps[:3]), np.einsum("kt,khw->thw", courses[3:], maps[3:])
    noise = rng.normal(scale=0.5, size=(2, *shape))
    return x, x + z + noise[0], 0.7 * z + noise[1]


def test_tiles_give_what_a_loop_over_patches_gives():
    _, one, two = movies()
    mask = np.ones(one.shape[1:], bool)
    mask[:4, :5] = False
    mask[10, 7] = False
    np.testing.assert_allclose(remove_hemodynamics(one, two, mask), loop_over_patches(one, two, mask), atol=1e-8)


def test_pieces_with_a_rim_give_what_the_whole_gives():
    _, one, two = movies()
    whole = remove_hemodynamics(one, two)
    upper = remove_hemodynamics(one[:, :9], two[:, :9], rim=(0, 1, 0, 0))
    left = remove_hemodynamics(one[:, 7:, :9], two[:, 7:, :9], rim=(1, 0, 0, 1))
    right = remove_hemodynamics(one[:, 7:, 7:], two[:, 7:, 7:], rim=(1, 0, 1, 0))
    pieces = np.concatenate([upper, np.concatenate([left, right], axis=2)], axis=1)
    np.testing.assert_allclose(pieces, whole, atol=1e-10)


def test_better_than_regression_and_regression_better_than_nothing():
    x, one, two = movies()
    score = {
        name: np.mean(
            [np.corrcoef(a, b)[0, 1] for a, b in zip(est.reshape(400, -1).T, x.reshape(400, -1).T, strict=True)]
        )
        for name, est in (("no", one), ("regress", regress_out(one, two)), ("estimate", remove_hemodynamics(one, two)))
    }
    assert score["estimate"] > score["regress"] + 0.05 > score["no"] + 0.1


def test_the_estimate_has_nothing_in_common_with_its_control():
    """The covariance of x̂ with y is Σ_xy Σ_y⁻¹ Σ_y = [Σ_x, 0]: with y₂ it is zero, whatever the data."""
    _, one, two = movies()
    estimate = remove_hemodynamics(one, two)
    shared = np.einsum("thw,thw->hw", estimate, two - two.mean(axis=0)) / len(two)
    assert np.abs(shared).max() < 1e-6 * np.abs(np.einsum("thw,thw->hw", one, two - two.mean(axis=0)) / len(two)).max()


def test_regression_is_least_squares():
    _, one, two = movies()
    pixel = np.polyfit(two[:, 2, 3], one[:, 2, 3], 1)
    np.testing.assert_allclose(regress_out(one, two)[:, 2, 3], one[:, 2, 3] - np.polyval(pixel, two[:, 2, 3]))


def test_holes_and_dead_pixels():
    _, one, two = movies()
    one[5, 2, 2] = np.nan
    two[:, 12, 11] = 0.0
    estimate = remove_hemodynamics(one, two)
    assert np.isnan(estimate[:, 2, 2]).all()
    assert np.isfinite(np.delete(estimate.reshape(400, -1), 2 * 13 + 2, axis=1)).all()


def test_bad_input():
    movie = np.zeros((200, 8, 8))
    with pytest.raises(CSTError, match=r"both be \(T, H, W\)"):
        remove_hemodynamics(movie, movie[:, :4])
    with pytest.raises(CSTError, match="100 frames are too few"):
        remove_hemodynamics(movie[:100], movie[:100])
    with pytest.raises(CSTError, match=r"mask must be bool of shape \(8, 8\)"):
        regress_out(movie, movie, np.ones((2, 2), bool))
    with pytest.raises(CSTError, match="more frames than pixels"):
        marchenko_pastur_median(1.0)
