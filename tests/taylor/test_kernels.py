"""Fused steps against autograd through the recurrences, compiled and not, in pieces and whole."""

import shutil

import pytest
import torch
from problems import normal, relative_error
from torch import Tensor

from cstformer.taylor import kernels, recurrences, series
from cstformer.taylor.attention import softmax_sums
from cstformer.taylor.recurrences import Split, stack
from cstformer.taylor.series import Series

WEIGHT, BIAS = normal(3, 4, seed=5), normal(3, seed=6)
GAIN, OFFSET = normal(4, seed=7), normal(4, seed=8)
ORDER, DIRECTIONS = 3, 2


def plain_gelu(coefs: Tensor) -> Tensor:
    derivatives = recurrences.gelu_derivatives(coefs[0], ORDER)
    return stack(recurrences.compose(Split(coefs, ORDER, DIRECTIONS), derivatives))


def plain_norm(coefs: Tensor) -> Tensor:
    return kernels.plain_norm(ORDER, DIRECTIONS, 1e-5, coefs.flatten(1, -2), GAIN, OFFSET).view_as(coefs)


FUSED = {
    "exp": (
        lambda c: kernels.exp(c, ORDER, DIRECTIONS),
        lambda c: stack(recurrences.exp(Split(c, ORDER, DIRECTIONS))),
    ),
    "gelu": (lambda c: kernels.gelu(c, ORDER, DIRECTIONS), plain_gelu),
    "layer_norm": (lambda c: kernels.layer_norm(c, GAIN, OFFSET, 1e-5, ORDER, DIRECTIONS), plain_norm),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("chunk", [5, 2**15])
def test_fused_steps_equal_the_recurrences_backward_too(name, chunk, monkeypatch):
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    weight = normal(7, 5, 3, 4, seed=9)
    results = []
    for f in FUSED[name]:
        coefs = normal(7, 5, 3, 4, seed=3).requires_grad_()
        y = f(coefs)
        (y * weight).sum().backward()
        results.append((y.detach(), coefs.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(FUSED[name][0](coefs), results[1][0], rtol=1e-10, atol=1e-10)


def test_gradients_of_weights():
    x = normal(5, 2, 4, seed=4).requires_grad_()
    weight, bias, gain, offset = (t.clone().requires_grad_() for t in (WEIGHT, BIAS, GAIN, OFFSET))
    assert torch.autograd.gradcheck(kernels.linear, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda c, w, b: kernels.layer_norm(c, w, b, 1e-5, 2, 2), (x, gain, offset))


@pytest.mark.long  # compiling takes half a minute
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own notices
def test_compiled_kernels_are_the_same_functions(monkeypatch):
    """GELU and the exponentials of attention compiled forward and backward, exp and LayerNorm forward, in two sizes."""
    compiled, compile_kernel = [], kernels.compiled
    monkeypatch.setattr(kernels, "compiled", lambda kernel: compiled.append(kernel) or compile_kernel(kernel))
    weight, bias = normal(7, seed=1), normal(7, seed=2)
    for rows in (3, 50):
        coefs = normal(5, rows, 7, seed=rows).requires_grad_()  # order 2 in two directions
        x = Series(coefs, 2, 2)

        def results(x=x, coefs=coefs) -> list[torch.Tensor]:
            y = series.gelu(x).coefs
            (gradient,) = torch.autograd.grad((y * normal(*y.shape, seed=9)).sum(), coefs)
            both = kernels.gelu_and_gradient(2, 2, coefs.detach(), normal(*y.shape, seed=9))
            q = Series(coefs.unflatten(1, (1, 1, -1)), 2, 2)  # one sample, one head
            sums = softmax_sums(q, q, q, torch.ones(1, coefs.shape[1], dtype=torch.bool)).coefs
            (through,) = torch.autograd.grad((sums * normal(*sums.shape, seed=8)).sum(), coefs)
            with torch.no_grad():
                alone = [series.exp(x).coefs, series.layer_norm(x, weight, bias, 1e-5).coefs]
            return [y, gradient, *both, sums, through, *alone]

        plain = results()
        with series.compiled_kernels():
            fast = results()
        for a, b in zip(fast, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert {kernel.__name__ for kernel in compiled} == {
        *("_gelu_value", "_gelu_gradient", "_gelu_both", "_exp", "_adjoint", "_exp_value", "plain_norm")
    }


def test_products_in_bfloat16_stay_close_and_reach_the_weights():
    """Three significant digits of each factor; bias, storage and gradient stay in the dtype of the data."""
    coefs, weight, bias = (normal(*s, seed=i).float() for i, s in enumerate([(3, 20, 8), (5, 8), (5,)]))
    weight.requires_grad_()

    def value_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        y = kernels.linear(coefs, weight, bias)
        return y, torch.autograd.grad(y.square().sum(), weight)[0]

    y, gradient = value_and_gradient()
    with kernels.matrix_products(torch.bfloat16):
        low, low_gradient = value_and_gradient()
        assert kernels.products_in_lower_precision()
    assert low.dtype == low_gradient.dtype == torch.float32
    for a, b in ((low, y), (low_gradient, gradient)):
        assert 0 < relative_error(a, b) < 0.02


@pytest.mark.parametrize("coefficients", [1, 5])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_products_of_many_rows_give_the_same_numbers(coefficients, bias, monkeypatch):
    x = normal(coefficients, 6, 50, 4)
    few = kernels.linear(x, WEIGHT, bias)
    monkeypatch.setattr(kernels, "_MANY", 10)
    with torch.no_grad():
        many = kernels.linear(x, WEIGHT, bias)
    torch.testing.assert_close(many, few, rtol=1e-12, atol=1e-12)
