r"""Velocity of travelling waves: from derivatives, and by two classical methods for comparison.

Where u(t, row, col) moves with the velocity v without changing its shape, :math:`\partial_t u + v \cdot \nabla u = 0`.
This one equation determines the component of v along the gradient, the velocity of the level lines:

.. math:: v = -\partial_t u \, \nabla u / |\nabla u|^2

The component along the level lines cannot be observed (the aperture problem of optical flow).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from cstformer.errors import CSTError

# Share of the steepest |∇u| of a frame below which the velocity is NaN: v divides by |∇u|², so that noise dominates
# where the frame is nearly flat.
FLAT = 0.1


def wave_velocity(
    slope: Float[np.ndarray, "h w"], gradient: Float[np.ndarray, "2 h w"], flat: float = FLAT
) -> Float[np.ndarray, "2 h w"]:
    """Velocity (rows, columns) of level lines; NaN where |∇u| is below ``flat`` times its maximum over the frame.

    ``slope`` is ∂u/∂t and ``gradient`` is ∇u, (∂u/∂row, ∂u/∂col).

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
    """Velocity of level lines halfway between two frames, by finite differences, in pixels per unit of time.

    ``step`` is the time between the frames. Both differences are central at the moment halfway: of second order.

    >>> x = np.arange(6.0)[None].repeat(6, 0)
    >>> difference_velocity(x, x - 0.2, step=0.1)[:, 2, 3].round(9).tolist()
    [0.0, 2.0]
    """
    slope = (after - before) / step
    return wave_velocity(slope, np.stack(np.gradient((before + after) / 2)), flat)


def flow_velocity(
    before: Float[np.ndarray, "h w"], after: Float[np.ndarray, "h w"], step: float, radius: int = 7
) -> Float[np.ndarray, "2 h w"]:
    """Optical flow between two frames (iterative Lucas–Kanade, scikit-image), in pixels per unit of time.

    ``radius`` is half the window of Lucas–Kanade in pixels; 7 is scikit-image's default.
    """
    try:
        from skimage.registration import optical_flow_ilk
    except ImportError:
        raise CSTError('optical flow needs scikit-image; pip install "cstformer[neuro]"') from None
    # The flow is the displacement from each pixel of `before` to its place in `after`.
    return np.asarray(optical_flow_ilk(before, after, radius=radius), dtype=np.float64) / step


def velocity_errors(
    velocity: Float[np.ndarray, "2 h w"], truth: Float[np.ndarray, "2 h w"], where: Bool[np.ndarray, "h w"]
) -> tuple[float, float]:
    """Median errors over the pixels ``where``: of the speed relative to the true speed, of the direction in degrees.

    A pixel without an answer (NaN) counts as speed 0: an error of 100 % and, like a random direction, of 90°.

    >>> truth = np.stack([np.full((2, 2), 3.0), np.zeros((2, 2))])
    >>> all_of_it = np.ones((2, 2), dtype=bool)
    >>> [round(x, 9) for x in velocity_errors(2 * truth[::-1], truth, all_of_it)]
    [1.0, 90.0]
    """
    v, true = velocity[:, where], truth[:, where]
    known = np.isfinite(v).all(0)
    v = np.where(known, v, 0.0)
    speed, right = np.hypot(*v), np.hypot(*true)
    # As complex numbers, the angle of a quotient is the difference of the angles, in (−180°, 180°].
    turn = np.degrees(np.abs(np.angle((v[0] + 1j * v[1]) / (true[0] + 1j * true[1]))))
    moving = known & (speed > 0)
    error = np.abs(speed - right) / right
    return float(np.median(error)), float(np.median(np.where(moving, turn, 90.0)))
