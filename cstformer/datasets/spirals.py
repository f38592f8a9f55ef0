r"""The two-dimensional integral-equation spirals of the paper, with their noise-free truth.

    y(t) = u + g(t) + ∫_0^t K(t, s) tanh(2π y(s)) ds,        0 ≤ t ≤ 1,   y(t) ∈ R²

    g(t) = (cos t, −cos t),   K(t, s) = [[cos θ, −sin θ], [−sin θ, −cos θ]],   θ = 2π (t + s),

with u uniform on (−1, 1)² for each curve. The published curves are not the solution but an early iterate of
it: starting from y = u + g, five updates damped by one half and then one evaluation of the right-hand side.
Curves that pass near y = 0 are still moving at that point, so the two differ by up to 0.5; ``converged=True``
gives the solution instead. The published values also carry Gaussian noise of 0.02 and the errors of a random
solver, which took its integrals from 10 000 random samples and kept its iterate on 100 random inner nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline

from cstformer.data.samples import Samples
from cstformer.datasets.integral_equations import Volterra, evaluate, solve
from cstformer.errors import CSTError

UPDATES = 5  # damped updates before the last evaluation, as in the published file
DAMPING = 0.5
METHOD = "spline"
NODES = 199  # exact to 1e-6 with the fourth-order rule
MONTE_CARLO_SAMPLES = 10_000
MONTE_CARLO_NODES = 100
OBSERVATION_NOISE = 0.02  # of the published values


@dataclass(frozen=True)
class Spirals:
    """Curves of one equation: observed ``values``, their noise-free ``clean`` values and the parameters ``u``."""

    times: Float[np.ndarray, " n_points"]
    values: Float[np.ndarray, "n_curves n_points 2"]
    clean: Float[np.ndarray, "n_curves n_points 2"]
    u: Float[np.ndarray, "n_curves 2"]
    iterate: Float[np.ndarray, "n_curves nodes 2"] = field(repr=False)

    def samples(self) -> Samples:
        """Observed values at all points as `Samples` with coordinate t and values x, y."""
        coords = np.broadcast_to(self.times[None, :, None], (*self.values.shape[:2], 1)).copy()
        return Samples(coords, self.values, coord_names=("t",), value_names=("x", "y"))

    def clean_at(self, times: ArrayLike) -> Float[np.ndarray, "n_curves m 2"]:
        """Noise-free curves at any times in [0, 1]: the last evaluation of the right-hand side, at these times."""
        return evaluate(equation(self.u), self.iterate, times, method=METHOD)


def equation(u: Float[np.ndarray, "n_curves 2"]) -> Volterra:
    """Build the spirals' Volterra equation, with one free term u + g(t) per row of u."""

    def free_term(t: np.ndarray) -> np.ndarray:
        return u[:, None, :] + np.stack([np.cos(t), -np.cos(t)], axis=-1)

    return Volterra(kernel, free_term, nonlinearity)


def kernel(t: np.ndarray, s: np.ndarray) -> np.ndarray:
    """K(t, s), which depends on t + s and is therefore not a convolution.

    >>> kernel(np.array(0.25), np.array(0.0)).round(12).tolist()
    [[0.0, -1.0], [-1.0, -0.0]]
    """
    theta = 2 * np.pi * (t + s)
    c, d = np.cos(theta), -np.sin(theta)
    return np.stack([np.stack([c, d], axis=-1), np.stack([d, -c], axis=-1)], axis=-2)


def nonlinearity(y: np.ndarray) -> np.ndarray:
    """G(y) = tanh(2π y), for each component."""
    return np.tanh(2 * np.pi * y)


def make_spirals(
    n_curves: int = 500,
    n_points: int = 100,
    seed: int = 0,
    *,
    observation_noise: float = OBSERVATION_NOISE,
    monte_carlo_noise: bool = True,
    converged: bool = False,
    u: ArrayLike | None = None,
) -> Spirals:
    """Make spirals at n_points equispaced times in [0, 1].

    ``observation_noise`` is the standard deviation of independent Gaussian noise on each point and component.
    ``monte_carlo_noise`` adds the errors of the authors' solver. (a) Each integral gets the error of M = 10 000
    uniform samples: a Gaussian of variance t² Var_s[K(t, s) G(y(s))] / M, s uniform on [0, t], which
    is 0 at t = 0 and about 0.009² at t = 1. (b) The iterate is known on 100 random inner nodes and both ends,
    with a natural cubic spline in between, which bends a few steep curves by up to 0.2. The nodes are redrawn
    at each update, which makes the errors as large as in the published file. ``converged`` curves get (a) only.
    The three random parts (u and both noises) have their own streams: switching one off does not change the
    others. ``u`` (n, 2), if given, replaces the random one, and n replaces n_curves.

    >>> spirals = make_spirals(3, seed=1, observation_noise=0.0, monte_carlo_noise=False)
    >>> bool(np.allclose(spirals.values[:, 0], spirals.u + [1.0, -1.0]))
    True
    """
    if n_curves < 1 or n_points < 2:
        raise CSTError(f"need n_curves >= 1 and n_points >= 2, got n_curves={n_curves}, n_points={n_points}")
    if not (np.isfinite(observation_noise) and observation_noise >= 0):
        raise CSTError(f"observation_noise must be a standard deviation >= 0, got {observation_noise}")
    u_rng, noise_rng, monte_carlo_rng = np.random.default_rng(seed).spawn(3)
    u = u_rng.uniform(-1, 1, (n_curves, 2)) if u is None else np.array(u, dtype=float)
    if u.ndim != 2 or u.shape[1] != 2 or not len(u) or not np.isfinite(u).all():
        raise CSTError(f"u must be a finite array of shape (n_curves, 2), got shape {u.shape}")

    times, law = np.linspace(0, 1, n_points), equation(u)
    updates = None if converged else UPDATES
    truth = solve(law, times, nodes=NODES, method=METHOD, damping=DAMPING, updates=updates)
    values = truth.values
    if monte_carlo_noise:
        y = truth.iterate if converged else _noisy_iterate(law, monte_carlo_rng)
        noise = monte_carlo_deviation(y, times) * monte_carlo_rng.normal(size=values.shape)
        values = evaluate(law, y, times, method=METHOD) + noise
    values = values + noise_rng.normal(0, observation_noise, values.shape)
    return Spirals(times, values, truth.values, u, truth.iterate)


def _noisy_iterate(law: Volterra, rng: np.random.Generator) -> np.ndarray:
    """Return the damped iterate (n_curves, NODES, 2) of the random solver, resampled on our own nodes."""
    grid = np.linspace(0, 1, NODES)
    y = law.free_term(grid)
    for _ in range(UPDATES):
        update = (1 - DAMPING) * y + DAMPING * evaluate(law, y, grid, method=METHOD)
        deviation = DAMPING * monte_carlo_deviation(y, grid)
        y = np.empty_like(update)
        for curve in range(len(y)):
            nodes = np.concatenate([[0.0], np.sort(rng.random(MONTE_CARLO_NODES)), [1.0]])
            at_nodes = CubicSpline(grid, np.stack([update[curve], deviation[curve]]), axis=1)(nodes)
            noisy = at_nodes[0] + at_nodes[1] * rng.normal(size=at_nodes[1].shape)
            y[curve] = CubicSpline(nodes, noisy, bc_type="natural")(grid)
    return y


def monte_carlo_deviation(
    iterate: Float[np.ndarray, "n_curves nodes 2"], times: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n_curves n 2"]:
    """Compute the standard deviation t √(Var_s[K(t, s) G(y(s))] / M) of a Monte-Carlo integral."""
    g, t = nonlinearity(iterate), times[:, None]
    grid = np.linspace(0, 1, g.shape[1])
    inside = grid <= t + 1e-12
    mean = (inside / inside.sum(axis=1, keepdims=True))[..., None, None]  # average over the nodes up to t
    k = kernel(t, grid)
    k_squared = np.stack([k[..., 0] ** 2, 2 * k[..., 0] * k[..., 1], k[..., 1] ** 2], axis=-1)
    g_squared = np.stack([g[..., 0] ** 2, g[..., 0] * g[..., 1], g[..., 1] ** 2], axis=-1)
    first = np.tensordot(g, mean * k, axes=([1, 2], [1, 3]))
    second = np.tensordot(g_squared, mean * k_squared, axes=([1, 2], [1, 3]))
    return t * np.sqrt(np.maximum(second - first**2, 0) / MONTE_CARLO_SAMPLES)


def split(n: int, fraction: float = 0.7, seed: int = 0) -> tuple[Int[np.ndarray, " a"], Int[np.ndarray, " b"]]:
    """Split n curves at random into training and test indices.

    >>> train, test = split(500)
    >>> len(train), len(test), len(set(train) | set(test))
    (350, 150, 500)
    """
    if n < 2 or not 0 < fraction < 1:
        raise CSTError(f"need n >= 2 and fraction inside (0, 1), got n={n}, fraction={fraction}")
    order = np.random.default_rng(seed).permutation(n)
    cut = min(max(round(fraction * n), 1), n - 1)
    return order[:cut], order[cut:]


def regular_indices(n_points: int = 100, k: int = 10) -> Int[np.ndarray, " k"]:
    """Choose k equispaced of n_points indices, both ends included.

    >>> regular_indices().tolist()
    [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    """
    if not 2 <= k <= n_points:
        raise CSTError(f"k must lie between 2 and n_points={n_points}, got {k}")
    return np.linspace(0, n_points - 1, k).round().astype(int)


def irregular_indices(n_curves: int, n_points: int = 100, k: int = 10, seed: int = 0) -> Int[np.ndarray, "n k"]:
    """Choose k of n_points indices at random for each curve, sorted, without repetition.

    >>> irregular_indices(2, n_points=5, k=5).tolist()
    [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    """
    if n_curves < 1 or not 1 <= k <= n_points:
        raise CSTError(f"need n_curves >= 1 and 1 <= k <= n_points={n_points}, got n_curves={n_curves}, k={k}")
    order = np.random.default_rng(seed).random((n_curves, n_points)).argsort(axis=1)
    return np.sort(order[:, :k], axis=1)
