"""What the rules of the coefficients share; `test_series.py` tests each rule through `Series`."""

import math

import pytest
import torch
from problems import normal, relative_error
from torch.nn import functional as F

from cstformer.taylor.recurrences import Split, adjoint_product, gelu_derivatives, product, stack


def test_split_and_stack_are_inverse():
    coefs = normal(7, 4)
    parts = Split(coefs, 2, 3)
    assert [part.shape for part in parts] == [(1, 4), (3, 4), (3, 4)]
    assert torch.equal(stack(parts), coefs)
    with pytest.raises(IndexError, match="order 3 of a series of order 2"):
        parts[3]


def test_adjoint_product_by_hand():
    """With y = a·b to order 1 in two directions: a̅_0 = y̅_0 b_0 + Σ y̅_1 b_1 over the directions, a̅_1 = y̅_1 b_0."""
    gradient = [torch.tensor([2.0]), torch.tensor([3.0, 5.0])]
    b = [torch.tensor([7.0]), torch.tensor([11.0, 13.0])]
    value, slope = adjoint_product(gradient, b)
    assert value.tolist() == [2 * 7 + 3 * 11 + 5 * 13] and slope.tolist() == [21, 35]


def test_adjoint_product_is_the_gradient_of_the_product():
    a, b, weight = (normal(7, 4, seed=i) for i in range(3))
    a.requires_grad_()
    (stack(product(Split(a, 2, 3), Split(b, 2, 3))) * weight).sum().backward()
    torch.testing.assert_close(stack(adjoint_product(Split(weight, 2, 3), Split(b, 2, 3))), a.grad)


def test_gelu_derivatives_against_autograd():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    want = x * torch.special.ndtr(x)
    for j, scaled in enumerate(gelu_derivatives(x.detach(), 5)):
        assert relative_error(scaled * math.factorial(j), want.detach()) < 1e-11
        want = torch.autograd.grad(want.sum(), x, create_graph=True)[0]


def test_gelu_value_is_torch_gelu_in_float32():
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(gelu_derivatives(x, 1)[0], F.gelu(x), rtol=0, atol=1e-6)
