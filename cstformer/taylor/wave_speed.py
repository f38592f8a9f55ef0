r"""Speed and direction of waves: of their level lines from derivatives, and two classical ways to compare with.

Where u(t, row, col) moves without changing, :math:`\partial_t u + v \cdot \nabla u = 0`. This tells the part of the
velocity v along the gradient, the velocity of level lines; that along them cannot be seen.

.. math:: v = -\partial_t u \, \nabla u / |\nabla u|^2
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from cstformer.errors import CSTError

FLAT = 0.1  # share of the steepest slope in space below which a wave has no direction worth an arrow


def wave_velocity(
    slope: Float[np.ndarray, "h w"], gradient: Float[np.ndarray, "2 h w"], flat: float = FLAT
) -> Float[np.ndarray, "2 h w"]:
    """Velocity (rows, columns) of level lines; NaN where the slope in space is below ``flat`` times the steepest.

    A pattern f(x − vt) moves with the part of v along its gradient:

    >>> x = np.arange(5.0)[None].repeat(5, 0)  # u = (x − 3 t)² at t = 0
    >>> wave_velocity(-6 * x, np.stack([0 * x, 2 * x]))[:, 2, 3].tolist()
    [0.0, 3.0]
    """
    square = (gradient**2).sum(0)
    steep = square > flat**2 * np.nanmax(square, initial=0.0)
    return np.where(steep, -slope * gradient / np.where(steep, square, 1.0), np.nan)


def difference_velocity(
    before: Float[np.ndarray, "h w"], after: Float[np.ndarray, "h w"], step: float, flat: float = FLAT
) -> Float[np.ndarray, "2 h w"]:
    """Velocity of level lines halfway between two frames ``step`` apart, by differences, in pixels a unit of time.

    >>> x = np.arange(6.0)[None].repeat(6, 0)
    >>> difference_velocity(x, x - 0.2, step=0.1)[:, 2, 3].round(9).tolist()
    [0.0, 2.0]
    """
    slope = (after - before) / step
    return wave_velocity(slope, np.stack(np.gradient((before + after) / 2)), flat)


def flow_velocity(
    before: Float[np.ndarray, "h w"], after: Float[np.ndarray, "h w"], step: float, radius: int = 7
) -> Float[np.ndarray, "2 h w"]:
    """Optical flow between two frames (iterative Lucas–Kanade, scikit-image), in pixels a unit of time."""
    try:
        from skimage.registration import optical_flow_ilk
    except ImportError:
        raise CSTError("optical flow needs scikit-image; install cstformer[neuro]") from None
    # The flow says where in `after` each pixel of `before` is found.
    return np.asarray(optical_flow_ilk(before, after, radius=radius), dtype=np.float64) / step


def velocity_errors(
    velocity: Float[np.ndarray, "2 h w"], truth: Float[np.ndarray, "2 h w"], where: Bool[np.ndarray, "h w"]
) -> tuple[float, float]:
    """Median error of the speed, relative to the true one, and of the direction in degrees, over some pixels.

    A pixel without an answer counts as one that says nothing moves: wrong by 100 % and by 90°.

    >>> truth = np.stack([np.full((2, 2), 3.0), np.zeros((2, 2))])
    >>> all_of_it = np.ones((2, 2), dtype=bool)
    >>> [round(x, 9) for x in velocity_errors(2 * truth[::-1], truth, all_of_it)]
    [1.0, 90.0]
    """
    v, true = velocity[:, where], truth[:, where]
    known = np.isfinite(v).all(0)
    v = np.where(known, v, 0.0)
    speed, right = np.hypot(*v), np.hypot(*true)
    turn = np.degrees(np.abs(np.angle((v[0] + 1j * v[1]) / (true[0] + 1j * true[1]))))
    moving = known & (speed > 0)
    error = np.abs(speed - right) / right
    return float(np.median(error)), float(np.median(np.where(moving, turn, 90.0)))
