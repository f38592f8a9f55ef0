"""The Volterra solver against closed forms, measured orders, and one iteration worked out by hand."""

import numpy as np
import pytest
from scipy.linalg import expm

from cstformer.datasets.integral_equations import Volterra, evaluate, solve
from cstformer.errors import CSTError, CSTWarning

TIMES = np.linspace(0, 1, 17)


def ones(t):
    return np.ones((len(t), 1))


def growth(**settings):
    """y = 1 + ∫ y ds, y = exp(t)."""
    return Volterra(lambda t, s: np.eye(1), ones, **settings)


def decay():
    """y = 1 − ∫ y² ds, y = 1 / (1 + t)."""
    return Volterra(lambda t, s: -np.eye(1), ones, np.square)


def product():
    """K(t, s) = t s is no convolution; f is chosen such that y = t + 1."""
    return Volterra(
        lambda t, s: (t * s)[..., None, None],
        lambda t: (t + 1 - t * (t**3 / 3 + t**2 / 2))[:, None],
    )


EXACT = {
    "growth": (growth(), np.exp),
    "decay": (decay(), lambda t: 1 / (1 + t)),
    "product": (product(), lambda t: t + 1),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("method", "nodes", "tolerance"), [("trapezoid", 401, 5e-6), ("spline", 101, 1e-8)])
def test_closed_forms(name, method, nodes, tolerance):
    equation, exact = EXACT[name]
    answer = solve(equation, TIMES, method=method, nodes=nodes)
    assert answer.converged
    assert answer.values.shape == (1, 17, 1)
    np.testing.assert_allclose(answer.values[0, :, 0], exact(TIMES), atol=tolerance)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("method", "order"), [("trapezoid", 1.9), ("spline", 3.7)])
def test_measured_order_between_the_nodes_too(name, method, order):
    equation, exact = EXACT[name]
    counts = np.array([11, 21, 41, 81])
    times = np.linspace(0, 1, 57)  # mostly off the nodes: the answer's own formula must keep the order

    def error(nodes):
        answer = solve(equation, times, nodes=nodes, method=method, tolerance=1e-13)
        return np.abs(answer.values[0, :, 0] - exact(times)).max()

    errors = np.array([error(nodes) for nodes in counts])
    if errors.max() < 1e-12:  # the spline integrates cubics exactly
        return
    assert -np.polyfit(np.log(counts - 1), np.log(errors), 1)[0] >= order


def test_linear_system_is_the_matrix_exponential_for_every_curve_of_a_batch():
    matrix = np.array([[0.3, -2.0], [1.5, -0.4]])
    starts = np.random.default_rng(0).normal(size=(3, 2))
    equation = Volterra(lambda t, s: matrix, lambda t: np.repeat(starts[:, None], len(t), axis=1))
    answer = solve(equation, TIMES, nodes=101, method="spline")
    exact = np.stack([starts @ expm(matrix * t).T for t in TIMES], axis=1)
    np.testing.assert_allclose(answer.values, exact, atol=1e-7)


def test_interval_need_not_start_at_zero():
    answer = solve(growth(interval=(-1.0, 0.5)), [-1.0, 0.5], method="spline")
    np.testing.assert_allclose(answer.values[0, :, 0], [1.0, np.exp(1.5)], atol=1e-8)


@pytest.mark.parametrize("method", ["trapezoid", "spline"])
def test_kernel_of_one_variable_alone(method):
    equation = Volterra(lambda t, s: (2 * s)[..., None, None], ones)  # y' = 2 t y
    np.testing.assert_allclose(solve(equation, TIMES, method=method).values[0, :, 0], np.exp(TIMES**2), atol=1e-4)


def test_trapezoid_never_reads_the_kernel_beyond_s_equal_t():
    def kernel(t, s):
        assert np.all(s <= t)
        return np.sqrt(t - s)[..., None, None]

    assert solve(Volterra(kernel, ones), [0.0, 0.123, 1.0], nodes=11).converged


def test_monte_carlo_error_falls_as_one_over_root_samples():
    counts = np.array([100, 1000, 10_000])

    def error(samples):
        runs = [
            solve(
                product(),
                [1.0],
                nodes=21,
                method="monte-carlo",
                samples=samples,
                seed=10 * seed,
                tolerance=1e-6,
            )
            for seed in range(30)
        ]
        return np.sqrt(np.mean([(run.values[0, 0, 0] - 2) ** 2 for run in runs]))

    slope = np.polyfit(np.log(counts), np.log([error(samples) for samples in counts]), 1)[0]
    assert -0.65 < slope < -0.35


def test_monte_carlo_follows_its_seed():
    def run(seed):
        return solve(decay(), TIMES, nodes=11, method="monte-carlo", samples=50, seed=seed).values

    np.testing.assert_array_equal(run(1), run(1))
    assert np.abs(run(1) - run(2)).max() > 1e-4


@pytest.mark.parametrize("damping", [0.2, 0.7, 1.0])
def test_damping_changes_the_path_and_not_the_solution(damping):
    reference = solve(decay(), TIMES, damping=0.5, tolerance=1e-12)
    answer = solve(decay(), TIMES, damping=damping, tolerance=1e-12)
    np.testing.assert_allclose(answer.values, reference.values, atol=1e-10)
    assert answer.iterations != reference.iterations


def test_stopping_rule():
    loose, strict = (solve(growth(), TIMES, tolerance=tolerance) for tolerance in (1e-3, 1e-9))
    assert loose.iterations < strict.iterations
    assert 0.5 * loose.residual < 1e-3
    assert 0.5 * strict.residual < 1e-9
    with pytest.warns(CSTWarning, match="no convergence: residual .* after 3 updates"):
        assert not solve(growth(), TIMES, max_iterations=3).converged


def test_fixed_number_of_updates_worked_out_by_hand():
    # y0 = 1; RHS(y0) = 1 + t; y1 = 1 + t/2; RHS(y1) = 1 + t + t²/4; y2 = 1 + 3t/4 + t²/8
    for updates, exact in [
        (0, 1 + TIMES),
        (1, 1 + TIMES + TIMES**2 / 4),
        (2, 1 + TIMES + 3 * TIMES**2 / 8 + TIMES**3 / 24),
    ]:
        answer = solve(growth(), TIMES, method="spline", updates=updates)
        np.testing.assert_allclose(answer.values[0, :, 0], exact, atol=1e-12)
        assert answer.iterations == updates
        assert not answer.converged
    grid = np.linspace(0, 1, 201)
    np.testing.assert_allclose(answer.iterate[0, :, 0], 1 + 3 * grid / 4 + grid**2 / 8, atol=1e-12)
    np.testing.assert_allclose(answer.residual, 1 / 4 + 1 / 4 + 1 / 24, atol=1e-12)


def test_evaluate_answers_at_more_times():
    answer = solve(decay(), TIMES)
    np.testing.assert_allclose(evaluate(decay(), answer.iterate, TIMES), answer.values)
    np.testing.assert_allclose(evaluate(decay(), answer.iterate, [0.37])[0, 0, 0], 1 / 1.37, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"damping": 0.0}, "damping cannot be 0.0"),
        ({"damping": 1.5}, r"choose a value in \(0, 1\]"),
        ({"nodes": 1}, "nodes cannot be 1; choose at least 2"),
        ({"tolerance": 0.0}, "tolerance cannot be 0.0"),
        ({"max_iterations": 0}, "max_iterations cannot be 0"),
        ({"updates": -1}, "updates cannot be -1"),
        ({"method": "trapezoidal"}, "did you mean 'trapezoid'"),
        ({"method": "monte-carlo", "samples": 0}, "samples cannot be 0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(CSTError, match=message):
        solve(growth(), TIMES, **settings)


@pytest.mark.parametrize("times", [[-0.1, 0.5], [0.5, 1.1], [np.nan], 0.5, [[0.1, 0.2]]])
def test_bad_times(times):
    with pytest.raises(CSTError, match="times must be a 1-d array inside the interval"):
        solve(growth(), times)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        (Volterra(lambda t, s: np.eye(1), lambda t: np.full((len(t), 1), np.inf)), "free_term .* not finite"),
        (Volterra(lambda t, s: np.eye(1), lambda t: t), "free_term must return"),
        (Volterra(lambda t, s: np.eye(2), ones), r"kernel must return .* got \(2, 2\)"),
        (Volterra(lambda t, s: t * s, ones), "kernel must return"),
        (Volterra(lambda t, s: np.full((1, 1), np.nan), ones), "kernel .* not finite"),
        (Volterra(lambda t, s: np.eye(1), ones, lambda y: y[..., 0]), "nonlinearity must keep the shape"),
        (Volterra(lambda t, s: 9 * np.eye(1), ones, np.square), "may blow up"),
    ],
)
def test_bad_equations(equation, message):
    with pytest.raises(CSTError, match=message):
        solve(equation, TIMES)


@pytest.mark.parametrize("interval", [(1.0, 0.0), (0.0, np.inf)])
def test_bad_interval(interval):
    with pytest.raises(CSTError, match="interval must be finite"):
        growth(interval=interval)
