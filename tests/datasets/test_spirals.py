"""The spirals against the figures measured on the published file."""

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.interpolate import CubicSpline

from cstformer.datasets.integral_equations import solve
from cstformer.datasets.spirals import (
    equation,
    irregular_indices,
    kernel,
    make_spirals,
    monte_carlo_deviation,
    regular_indices,
    split,
)
from cstformer.errors import CSTError

REAL = regular_indices()
UNSEEN = np.setdiff1d(np.arange(100), REAL)


@pytest.fixture(scope="module")
def spirals():
    return make_spirals()


@pytest.fixture(scope="module")
def no_observation_noise():
    return make_spirals(observation_noise=0.0)


def unseen_error(prediction, spirals):
    return np.linalg.norm(prediction - spirals.values, axis=-1)[:, UNSEEN].mean()


def test_shapes_and_times(spirals):
    assert spirals.values.shape == spirals.clean.shape == (500, 100, 2)
    assert spirals.u.shape == (500, 2)
    np.testing.assert_allclose(spirals.times, np.arange(100) / 99)


def test_kernel_is_the_symmetric_matrix_of_the_sum():
    t, s = 0.3, 0.45
    c, d = np.cos(2 * np.pi * 0.75), np.sin(2 * np.pi * 0.75)
    np.testing.assert_allclose(kernel(np.array([t]), np.array([s]))[0], [[c, -d], [-d, -c]])


def test_curves_start_at_one_minus_one_plus_u():
    quiet = make_spirals(20, observation_noise=0.0, monte_carlo_noise=False)
    np.testing.assert_allclose(quiet.values[:, 0], quiet.u + np.array([1, -1]), atol=1e-14)
    np.testing.assert_array_equal(quiet.values, quiet.clean)


def test_value_ranges_of_the_published_file(spirals):
    np.testing.assert_allclose(spirals.values.min(axis=(0, 1)), [-0.71, -2.31], atol=0.1)
    np.testing.assert_allclose(spirals.values.max(axis=(0, 1)), [2.19, 1.09], atol=0.1)


def test_noise_starts_at_the_observation_noise_and_grows(spirals, no_observation_noise):
    deviation = (spirals.values - spirals.clean).std(axis=(0, 2))
    assert abs(deviation[0] - 0.02) < 0.002
    assert deviation[-5:].mean() > deviation[:5].mean() + 0.002
    solver_error = no_observation_noise.values - no_observation_noise.clean
    assert np.all(solver_error[:, 0] == 0)
    rough = np.diff(solver_error, n=2, axis=1).std(axis=(0, 2)) / np.sqrt(6)
    assert 0.0075 < rough[90:].mean() < 0.0115
    assert rough[20] < rough[50] < rough[90]


def test_monte_carlo_deviation_is_that_of_real_sampling():
    spirals, rng, t = make_spirals(2, seed=3), np.random.default_rng(0), 0.8
    predicted = monte_carlo_deviation(spirals.iterate, np.array([t]))[:, 0]
    s = rng.uniform(0, t, 200_000)
    grid = np.linspace(0, 1, spirals.iterate.shape[1])
    g = np.tanh(2 * np.pi * CubicSpline(grid, spirals.iterate, axis=1)(s))
    integrand = np.einsum("sij,bsj->bsi", kernel(np.array(t), s), g)
    np.testing.assert_allclose(predicted, t * integrand.std(axis=1) / 100, rtol=0.02)


def test_monte_carlo_deviation_at_the_end(spirals):
    assert 0.0085 < monte_carlo_deviation(spirals.iterate, np.ones(1)).mean() < 0.011


def test_nodes_are_enough():
    u = np.random.default_rng(1).uniform(-1, 1, (30, 2))
    few = make_spirals(u=u)
    many = solve(equation(u), few.times, nodes=991, updates=5)  # the trapezoid is an independent rule
    np.testing.assert_allclose(few.clean, many.values, atol=1e-5)


def test_published_curves_are_not_converged(spirals):
    converged = make_spirals(observation_noise=0.0, monte_carlo_noise=False, converged=True)
    np.testing.assert_array_equal(converged.u, spirals.u)
    difference = np.abs(converged.clean - spirals.clean).max(axis=(1, 2))
    assert 0.3 < difference.max() < 0.7
    assert 0.15 < (difference > 0.05).mean() < 0.30
    g = np.stack([np.cos(spirals.times), -np.cos(spirals.times)], axis=-1)
    integral = converged.clean - converged.u[:, None] - g
    spline = CubicSpline(spirals.times, np.tanh(2 * np.pi * converged.clean[:5]), axis=1)
    s = np.linspace(0, 1, 2001)
    again = trapezoid(np.einsum("sij,bsj->bsi", kernel(np.array(1.0), s), spline(s)), s, axis=1)
    np.testing.assert_allclose(integral[:5, -1], again, atol=1e-3)


def test_error_figures_of_the_published_file(spirals):
    t, real = spirals.times, spirals.values[:, REAL]
    where = np.minimum(np.searchsorted(t[REAL], t, side="right") - 1, 8)
    weight = ((t - t[REAL][where]) / np.diff(t[REAL])[where])[:, None]
    linear = (1 - weight) * real[:, where] + weight * real[:, where + 1]
    cubic = CubicSpline(t[REAL], real, axis=1)(t)
    assert abs(unseen_error(spirals.clean, spirals) - 0.0274) < 0.001
    assert abs(unseen_error(linear, spirals) - 0.0487) < 0.002
    assert abs(unseen_error(cubic, spirals) - 0.0376) < 0.002


def test_seed_decides_everything_and_the_parts_are_independent():
    one, again, other = make_spirals(5, seed=1), make_spirals(5, seed=1), make_spirals(5, seed=2)
    np.testing.assert_array_equal(one.values, again.values)
    assert np.abs(one.u - other.u).max() > 0.1
    without = make_spirals(5, seed=1, monte_carlo_noise=False)
    np.testing.assert_array_equal(one.u, without.u)
    quiet = make_spirals(5, seed=1, observation_noise=0.0)
    np.testing.assert_allclose(one.values - quiet.values, without.values - without.clean, atol=1e-14)


@pytest.mark.parametrize("converged", [False, True])
def test_clean_at_continues_clean_between_the_points(converged):
    few, many = (make_spirals(5, n, seed=1, converged=converged) for n in (100, 1000))
    np.testing.assert_allclose(few.clean_at(few.times), few.clean, atol=1e-12)
    np.testing.assert_allclose(few.clean_at(many.times), many.clean, atol=1e-12)


def test_given_u_replaces_the_random_one():
    spirals = make_spirals(u=[[0.0, 0.0]], observation_noise=0.0)
    assert spirals.values.shape == (1, 100, 2)
    np.testing.assert_allclose(spirals.values[0, 0], [1, -1])


def test_samples_hold_all_observed_points():
    pytest.importorskip("cstformer.data.samples")
    spirals = make_spirals(3)
    samples = spirals.samples()
    assert samples.coords.shape == (3, 100, 1)
    np.testing.assert_allclose(samples.coords[1, :, 0], spirals.times)
    np.testing.assert_allclose(samples.values, spirals.values)


def test_indices():
    train, test = split(500, seed=4)
    assert (len(train), len(test)) == (350, 150)
    assert sorted([*train, *test]) == list(range(500))
    assert not np.array_equal(train, split(500, seed=5)[0])
    assert regular_indices().tolist() == list(range(0, 100, 11))
    irregular = irregular_indices(50, 100, 10, seed=0)
    assert irregular.shape == (50, 10)
    assert np.all(np.diff(irregular, axis=1) > 0)
    assert irregular.min() >= 0
    assert irregular.max() <= 99
    assert len(np.unique(irregular, axis=0)) == 50


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_spirals(0), "n_curves=0"),
        (lambda: make_spirals(2, 1), "n_points=1"),
        (lambda: make_spirals(2, observation_noise=-1.0), "observation_noise must be"),
        (lambda: make_spirals(u=[1.0, 2.0]), r"u must be .* got shape \(2,\)"),
        (lambda: make_spirals(u=[[1.0, np.nan]]), "u must be a finite array"),
        (lambda: split(10, 1.0), "fraction=1.0"),
        (lambda: regular_indices(5, 6), "k must lie between"),
        (lambda: irregular_indices(2, 5, 6), "k=6"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(CSTError, match=message):
        call()
