"""Cubic convolution: what its weights reproduce, how fast it converges, and its derivatives."""

import itertools
import math

import torch
from problems import uniform

from cstformer.starts.cubic_convolution import keys_weights
from cstformer.taylor.series import Series, constant


def interpolate(f, x: torch.Tensor, step: float) -> torch.Tensor:
    """Values at x of the interpolant of a function on the grid 0, step, 2 step, …"""
    first = (x / step).floor()
    weights = keys_weights(constant(x / step - first))
    return sum(w.value * f((first + tap) * step) for w, tap in zip(weights, (-1, 0, 1, 2), strict=True))


def test_parabolas_are_exact():
    x = uniform(50)
    for power in range(3):
        torch.testing.assert_close(interpolate(lambda t, power=power: t**power, x, 0.1), x**power)


def test_the_error_falls_with_the_third_power_of_the_step():
    x = uniform(400)
    errors = [(interpolate(torch.sin, x, step) - x.sin()).abs().max() for step in (0.2, 0.1, 0.05)]
    for coarse, fine in itertools.pairwise(errors):
        assert 2.8 < math.log2(coarse / fine) < 3.4


def test_derivatives_of_the_weights_against_autograd():
    """To an order above that of the polynomials; the weights sum to one, so the derivatives of the sum are zero."""
    f = uniform(9).requires_grad_()
    line = Series(torch.stack([f.detach(), torch.ones(9), *[torch.zeros(9)] * 3]).double(), 4)
    total = torch.zeros(5, 9).double()
    for found, plain in zip(keys_weights(line), keys_weights(constant(f)), strict=True):
        want, total = plain.value, total + found.coefs
        for j in range(4):
            torch.testing.assert_close(found.coefs[j] * math.factorial(j), want.detach())
            if j < 3:
                (want,) = torch.autograd.grad(want.sum(), f, create_graph=True)
        assert not found.coefs[4].any()
    torch.testing.assert_close(total, torch.tensor([1.0, 0, 0, 0, 0]).double()[:, None].expand(5, 9))
