r"""Volterra integral equations of the second kind, solved by damped successive approximation.

    y(t) = f(t) + ∫_a^t K(t, s) G(y(s)) ds,        a ≤ t ≤ b,   y(t) ∈ R^m

K is a matrix kernel, f the free term (one per curve of the batch) and G a nonlinearity. The iterate lives on
a uniform grid of nodes; a quadrature rule turns the integral into one matrix A, so that an update of all
curves is one matrix product,

    y ← (1 − λ) y + λ (f + A G(y)),                λ = damping,

and the answer at any time is the right-hand side evaluated there (Nyström's interpolation formula).

Reference: K. E. Atkinson, The Numerical Solution of Integral Equations of the Second Kind (1997).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline

from cstformer.errors import CSTError, CSTWarning, unknown

METHODS = ("trapezoid", "spline", "monte-carlo")


def identity(y: np.ndarray) -> np.ndarray:
    """G(y) = y, the linear equation."""
    return y


@dataclass(frozen=True)
class Volterra:
    """The equation y(t) = f(t) + ∫_a^t K(t, s) G(y(s)) ds.

    Parameters
    ----------
    kernel
        ``kernel(t, s)`` takes two arrays of the same shape and returns that shape followed by (m, m); a
        constant (m, m) matrix is accepted too.
    free_term
        ``free_term(t)`` takes times (n,) and returns (n, m), or (batch, n, m) for many curves at once.
    nonlinearity
        ``nonlinearity(y)`` takes and returns (batch, n, m).
    interval
        (a, b), with a < b.
    """

    kernel: Callable[[np.ndarray, np.ndarray], np.ndarray]
    free_term: Callable[[np.ndarray], np.ndarray]
    nonlinearity: Callable[[np.ndarray], np.ndarray] = identity
    interval: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        a, b = self.interval
        if not (np.isfinite([a, b]).all() and a < b):
            raise CSTError(f"interval must be finite (a, b) with a < b, got {self.interval}")


@dataclass(frozen=True)
class Solution:
    """Result of `solve`: ``values`` (batch, n, m) at ``times`` (n,), and how the iteration went.

    ``iterations`` counts damped updates; ``residual`` is max |f + A G(y) − y| over the nodes for the last
    iterate y, which is kept in ``iterate`` (batch, nodes, m) so that `evaluate` can answer at more times.
    """

    times: Float[np.ndarray, " n"]
    values: Float[np.ndarray, "batch n m"]
    iterate: Float[np.ndarray, "batch nodes m"]
    iterations: int
    residual: float
    converged: bool


def solve(
    equation: Volterra,
    times: ArrayLike,
    *,
    nodes: int = 201,
    method: str = "trapezoid",
    damping: float = 0.5,
    tolerance: float = 1e-10,
    max_iterations: int = 500,
    updates: int | None = None,
    samples: int = 10_000,
    seed: int = 0,
) -> Solution:
    """Solve the equation, starting from y = f, and return the solution at ``times``.

    Iterates until the largest change of an update is below ``tolerance``. If ``max_iterations`` updates do
    not suffice, it warns and sets ``converged`` to False. ``updates=n`` makes exactly n damped updates instead,
    without a warning. The values are always one more, undamped, evaluation of the right-hand side.

    Methods: "trapezoid", second order, reads the kernel on s ≤ t only; "spline", fourth order, integrates the
    not-a-knot cubic spline through the integrand at all nodes, so K must continue smoothly past s = t;
    "monte-carlo" averages ``samples`` uniform draws of s in [a, t] for every t, with G(y) linear between the
    nodes. The same draws, given by ``seed``, are used in all updates, so that the iteration can converge.

    >>> growth = Volterra(kernel=lambda t, s: np.eye(1), free_term=lambda t: np.ones((len(t), 1)))
    >>> answer = solve(growth, [0.0, 1.0], method="spline")  # y = 1 + ∫ y ds
    >>> answer.values[0, :, 0].round(6).tolist()  # exp(t)
    [1.0, 2.718282]
    """
    _check_number("damping", damping, 0 < damping <= 1, "choose a value in (0, 1]")
    _check_number("tolerance", tolerance, tolerance > 0, "choose a positive number")
    _check_number("max_iterations", max_iterations, max_iterations >= 1, "choose at least 1")
    if updates is not None:
        _check_number("updates", updates, updates >= 0, "choose 0 or more, or None to iterate to the tolerance")
    grid = _grid(equation, nodes)
    free = _free_term(equation, grid)
    times = _times(equation, times)
    operator = _operator(equation, grid, grid, free.shape[-1], method, samples, seed)

    y, done = free, 0
    while True:
        step = free + _integral(equation, operator, y) - y
        residual = float(np.abs(step).max())
        if not np.isfinite(residual):
            raise CSTError(
                f"the iteration is not finite after {done} updates; the solution may blow up inside the "
                f"interval {equation.interval}: shorten it, or lower damping (now {damping})"
            )
        converged = damping * residual < tolerance
        if (converged or done >= max_iterations) if updates is None else done >= updates:
            break
        y, done = y + damping * step, done + 1

    if updates is None and not converged:
        warnings.warn(
            f"no convergence: residual {residual:.2g} after {done} updates, tolerance {tolerance:.2g}; raise "
            "max_iterations or tolerance, or shorten the interval",
            CSTWarning,
            stacklevel=2,
        )
    values = evaluate(equation, y, times, method=method, samples=samples, seed=seed + 1)
    return Solution(times, values, y, done, residual, converged)


def evaluate(
    equation: Volterra,
    iterate: Float[np.ndarray, "batch nodes m"],
    times: ArrayLike,
    *,
    method: str = "trapezoid",
    samples: int = 10_000,
    seed: int = 0,
) -> Float[np.ndarray, "batch n m"]:
    """Right-hand side f(t) + ∫_a^t K(t, s) G(y(s)) ds at any times, for y given on the uniform nodes."""
    grid, times = _grid(equation, iterate.shape[1]), _times(equation, times)
    operator = _operator(equation, times, grid, iterate.shape[2], method, samples, seed)
    return _free_term(equation, times) + _integral(equation, operator, iterate)


def _integral(equation: Volterra, operator: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Apply the matrix: A G(y), (batch, nodes, m) -> (batch, n, m)."""
    with np.errstate(over="ignore", invalid="ignore"):  # an exploding iterate is reported by the caller
        g = np.asarray(equation.nonlinearity(y), dtype=float)
        if g.shape != y.shape:
            raise CSTError(f"nonlinearity must keep the shape {y.shape}, got {g.shape}; return one value each")
        return (g.reshape(len(g), -1) @ operator.T).reshape(len(g), -1, y.shape[2])


def _operator(
    equation: Volterra, times: np.ndarray, grid: np.ndarray, m: int, method: str, samples: int, seed: int
) -> np.ndarray:
    """Matrix A (n·m, nodes·m) with A G ≈ ∫_a^t K(t, s) G(s) ds for every t in times and G given on grid."""
    n, t = len(times), times[:, None]
    if method == "trapezoid":
        # Whole panels up to t, then a shorter one that ends at t, with G linear between the two nodes around t.
        h = grid[1] - grid[0]
        panel, fraction = _locate(grid, times)
        row, column = np.arange(n), np.arange(len(grid))
        below = np.where(column <= panel[:, None], h, 0.0)
        below[:, 0] = h / 2
        below[row, panel] = h / 2 * ((panel > 0) + fraction)
        last = np.zeros_like(below)
        last[row, panel] = h / 2 * fraction * (1 - fraction)
        last[row, panel + 1] = h / 2 * fraction**2
        blocks = below[..., None, None] * _kernel(equation, t, np.minimum(grid, t), m)
        blocks += last[..., None, None] * _kernel(equation, t, t, m)
    elif method == "spline":
        weights = CubicSpline(grid, np.eye(len(grid))).antiderivative()(times)
        blocks = weights[..., None, None] * _kernel(equation, t, grid[None], m)
    elif method == "monte-carlo":
        _check_number("samples", samples, samples >= 1, "choose at least 1")
        rng, blocks = np.random.default_rng(seed), np.zeros((n, len(grid), m, m))
        for block, end in zip(blocks, times, strict=True):
            s = rng.uniform(grid[0], end, samples)
            panel, fraction = _locate(grid, s)
            share = _kernel(equation, end[None, None], s[None], m)[0] * (end - grid[0]) / samples
            np.add.at(block, panel, share * (1 - fraction)[:, None, None])
            np.add.at(block, panel + 1, share * fraction[:, None, None])
    else:
        raise unknown("method", method, METHODS)
    return blocks.transpose(0, 2, 1, 3).reshape(n * m, len(grid) * m)


def _locate(grid: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Panel of each time on a uniform grid, and its position in [0, 1] within that panel."""
    position = (times - grid[0]) / (grid[1] - grid[0])
    panel = np.clip(position.astype(int), 0, len(grid) - 2)
    return panel, np.clip(position - panel, 0.0, 1.0)


def _kernel(equation: Volterra, t: np.ndarray, s: np.ndarray, m: int) -> np.ndarray:
    t, s = np.broadcast_arrays(t, s)  # so that a kernel may ignore one of them
    values, shape = np.asarray(equation.kernel(t, s), dtype=float), (*t.shape, m, m)
    if values.shape not in (shape, (m, m)):
        raise CSTError(f"kernel must return shape {shape}, or ({m}, {m}) if constant, got {values.shape}")
    if not np.isfinite(values).all():
        raise CSTError("kernel returned values that are not finite; remove the singularity of K(t, s)")
    return np.broadcast_to(values, shape)


def _free_term(equation: Volterra, times: np.ndarray) -> np.ndarray:
    values = np.asarray(equation.free_term(times), dtype=float)
    if values.ndim not in (2, 3) or values.shape[-2] != len(times):
        raise CSTError(f"free_term must return ([batch,] {len(times)}, m), got {values.shape}")
    if not np.isfinite(values).all():
        raise CSTError("free_term returned values that are not finite; check f(t) on the whole interval")
    return values if values.ndim == 3 else values[None]


def _grid(equation: Volterra, nodes: int) -> np.ndarray:
    _check_number("nodes", nodes, nodes >= 2, "choose at least 2")
    return np.linspace(*equation.interval, nodes)


def _times(equation: Volterra, times: ArrayLike) -> np.ndarray:
    times = np.asarray(times, dtype=float)
    a, b = equation.interval
    if times.ndim != 1 or not np.all((times >= a) & (times <= b)):
        raise CSTError(f"times must be a 1-d array inside the interval [{a}, {b}], got {times}")
    return times


def _check_number(name: str, value: float, good: bool, advice: str) -> None:
    if not good:
        raise CSTError(f"{name} cannot be {value}; {advice}")
