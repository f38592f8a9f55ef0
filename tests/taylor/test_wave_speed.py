"""Velocities of waves against waves of known velocity."""

import numpy as np
import pytest

from cstformer.taylor.wave_speed import difference_velocity, flow_velocity, velocity_errors, wave_velocity

ROW, COL = np.meshgrid(np.arange(48.0), np.arange(56.0), indexing="ij")


def ring(t, speed=3.0, width=6.0):
    """A ring about (10, 12) that grows, its time derivative, gradient, velocity, and where it is steep."""
    row, col = ROW - 10, COL - 12
    radius = np.hypot(row, col) + 1e-9
    z = (radius - 15 - speed * t) / width
    u = np.exp(-(z**2) / 2)
    radial = np.stack([row, col]) / radius
    gradient = -z * u / width * radial
    return u, speed * z * u / width, gradient, speed * radial, np.abs(z * u) > 0.3


def test_exact_derivatives_give_the_exact_velocity():
    _, slope, gradient, velocity, steep = ring(0.7)
    found = wave_velocity(slope, gradient, flat=0.0)
    np.testing.assert_allclose(found[:, steep], velocity[:, steep], rtol=1e-9)
    assert velocity_errors(found, velocity, steep) == pytest.approx((0, 0), abs=1e-6)


def test_differences_converge_with_second_order_in_the_step():
    """On a wave whose gradient differences find exactly: one that is linear in space and cubic in time."""
    errors = []
    for step in (0.4, 0.2):
        u = lambda t: COL + 20 * t**3 + t  # noqa: E731
        found = difference_velocity(u(1 - step / 2), u(1 + step / 2), step)
        errors.append(abs(found[1, 5, 5] + 61))
    assert errors[0] / errors[1] == pytest.approx(4, rel=1e-6)


def test_differences_and_flow_follow_a_slow_ring():
    before, after = ring(-0.05)[0], ring(0.05)[0]
    _, _, _, velocity, steep = ring(0.0)
    speed, turn = velocity_errors(difference_velocity(before, after, 0.1), velocity, steep)
    assert speed < 0.03 and turn < 1
    pytest.importorskip("skimage")
    speed, turn = velocity_errors(flow_velocity(before, after, 0.1), velocity, steep)
    assert speed < 0.15 and turn < 10


def test_what_is_not_known_counts_as_wrong():
    truth = np.ones((2, 3, 3))
    where = np.ones((3, 3), dtype=bool)
    assert velocity_errors(np.full((2, 3, 3), np.nan), truth, where) == (1.0, 90.0)
    assert velocity_errors(-truth, truth, where) == pytest.approx((0.0, 180.0))


def test_flat_places_have_no_velocity():
    flat = wave_velocity(np.ones((4, 4)), np.zeros((2, 4, 4)))
    assert np.isnan(flat).all()
