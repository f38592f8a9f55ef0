"""Every rule of the series arithmetic against nested autograd, and against closed forms."""

import math
import shutil

import pytest
import torch
from problems import normal, relative_error, uniform
from torch.nn import functional as F

from cstformer.taylor import series
from cstformer.taylor.series import Series, constant

ORDERS = (1, 2, 3, 4)


def random_series(shape, order, directions, seed=0, positive=False) -> Series:
    coefs = normal(1 + order * directions, *shape, seed=seed)
    if positive:
        coefs = torch.cat([0.5 + uniform(1, *shape, seed=seed), coefs[1:]])
    return Series(coefs, order, directions)


def curve(x: Series, directions: int, s: torch.Tensor) -> torch.Tensor:
    """x(s) = Σ x_j s^j along every direction, (D, ...), as a plain function of s."""
    total = x.at(x.order)
    for j in range(x.order - 1, -1, -1):
        total = x.at(j) + s * total
    return total.expand(directions, *total.shape[1:])


def coefficients(f, order: int) -> list[torch.Tensor]:
    """f⁽ʲ⁾(0)/j! for j = 0..order, by forward-mode autograd nested j times."""
    out = []
    for j in range(order + 1):
        out.append(f(torch.zeros((), dtype=torch.float64)) / math.factorial(j))
        f = lambda s, f=f: torch.func.jvp(f, (s,), (torch.ones_like(s),))[1]  # noqa: E731
    return out


def assert_matches(result: Series, plain, *inputs: Series, tolerance=1e-10):
    """Every coefficient of every direction equals the nested derivative of ``plain`` along the curves."""
    like = max(inputs, key=lambda x: x.order)
    assert (result.order, result.directions) == (like.order, like.directions)
    assert len(result.coefs) == 1 + like.order * like.directions
    for j, want in enumerate(
        coefficients(lambda s: plain(*(curve(x, like.directions, s) for x in inputs)), like.order)
    ):
        got = result.at(j).expand(like.directions, *result.coefs.shape[1:])
        assert got.shape == want.shape
        assert float((got - want).abs().max()) <= tolerance * max(1.0, float(want.abs().max())), j


def truncated(x: Series, order: int) -> Series:
    return Series(x.coefs[: 1 + order * x.directions], order, x.directions)


WEIGHT, BIAS = normal(3, 4, seed=5), normal(3, seed=6)
GAIN, OFFSET = normal(4, seed=7), normal(4, seed=8)
UNARY = {
    "exp": (series.exp, torch.exp),
    "inverse root": (lambda x: series.power(x, -0.5), lambda x: x**-0.5),
    "power 1.25": (lambda x: series.power(x, 1.25), lambda x: x**1.25),
    "power 3": (lambda x: series.power(x, 3.0), lambda x: x**3),
    "log": (series.log, torch.log),
    "sin": (lambda x: series.sin_cos(x)[0], torch.sin),
    "cos": (lambda x: series.sin_cos(x)[1], torch.cos),
    "gelu": (series.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "layer_norm": (
        lambda x: series.layer_norm(x, GAIN, OFFSET, 1e-5),
        lambda x: (
            (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5) ** 0.5 * GAIN + OFFSET
        ),
    ),
    "linear": (lambda x: series.linear(x, WEIGHT, BIAS), lambda x: x @ WEIGHT.T + BIAS),
    "linear without bias": (lambda x: series.linear(x, WEIGHT), lambda x: x @ WEIGHT.T),
    "scale_shift": (lambda x: series.scale_shift(x, GAIN, OFFSET), lambda x: x * GAIN + OFFSET),
    "shift": (lambda x: series.shift(x, 2.5), lambda x: x + 2.5),
    "map": (lambda x: x.map(lambda c: c.sum(-1, keepdim=True)), lambda x: x.sum(-1, keepdim=True)),
    "compose": (
        lambda x: series.compose(x, [x.value.exp() / math.factorial(m) for m in range(x.order + 1)]),
        torch.exp,
    ),
}
BINARY = {
    "add": (Series.__add__, torch.add, (3, 4), (3, 4)),
    "add broadcast": (Series.__add__, torch.add, (3, 1), (1, 4)),
    "mul": (Series.__mul__, torch.mul, (3, 4), (3, 4)),
    "mul broadcast": (Series.__mul__, torch.mul, (3, 1), (1, 4)),
    "matmul": (Series.__matmul__, torch.matmul, (2, 3, 4), (2, 4, 5)),
    "matmul broadcast": (Series.__matmul__, torch.matmul, (1, 3, 4), (2, 4, 5)),
    "divide": (series.divide, torch.div, (3, 4), (3, 4)),
    "divide broadcast": (series.divide, torch.div, (3, 4), (3, 1)),
    "concatenate": (
        lambda a, b: series.concatenate([a, b], 0),
        lambda a, b: torch.cat([a, b], -2),
        (2, 4),
        (3, 4),
    ),
    "concatenate last": (
        lambda a, b: series.concatenate([a, b], -1),
        lambda a, b: torch.cat([a, b], -1),
        (3, 2),
        (3, 4),
    ),
}


@pytest.mark.parametrize("highest, directions", [(3, 1), (4, 3)])
@pytest.mark.parametrize("name", UNARY)
def test_unary_against_nested_autograd(name, highest, directions):
    ours, plain = UNARY[name]
    x = random_series((3, 4), highest, directions, seed=1, positive=True)
    result = ours(x)
    assert_matches(result, plain, x)
    for order in range(highest):  # a shorter series is the longer one cut off
        torch.testing.assert_close(
            ours(truncated(x, order)).coefs, truncated(result, order).coefs, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("highest, directions", [(3, 1), (4, 3)])
@pytest.mark.parametrize("name", BINARY)
def test_binary_against_nested_autograd(name, highest, directions):
    ours, plain, left, right = BINARY[name]
    x = random_series(left, highest, directions, seed=1)
    y = random_series(right, highest, directions, seed=2, positive=True)
    result = ours(x, y)
    assert_matches(result, plain, x, y)
    for order in range(highest):
        got = ours(truncated(x, order), truncated(y, order)).coefs
        torch.testing.assert_close(got, truncated(result, order).coefs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order, directions", [(1, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize("name", BINARY)
def test_constants_mix_with_series_on_either_side(name, order, directions):
    ours, plain, left, right = BINARY[name]
    x = random_series(left, order, directions, seed=1)
    y = random_series(right, order, directions, seed=2, positive=True)
    assert_matches(ours(x, constant(y.value)), plain, x, constant(y.value))
    assert_matches(ours(constant(x.value), y), plain, constant(x.value), y)


@pytest.mark.parametrize("name", UNARY)
def test_order_zero_is_the_plain_function(name):
    ours, plain = UNARY[name]
    x = 0.5 + uniform(3, 4, seed=3)
    result = ours(constant(x))
    assert result.order == 0 and len(result.coefs) == 1
    torch.testing.assert_close(result.value, plain(x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", BINARY)
def test_order_zero_of_two_constants(name):
    ours, plain, left, right = BINARY[name]
    x, y = normal(*left, seed=1), 0.5 + uniform(*right, seed=2)
    result = ours(constant(x), constant(y))
    assert result.order == 0
    torch.testing.assert_close(result.value, plain(x, y), rtol=1e-12, atol=1e-13)


def test_closed_forms():
    """At x = 1 + s: 1/x has coefficients (−1)^j, √x the binomials C(½, j), log x ∓1/j; sine is odd."""
    x = Series(torch.tensor([1.0, 1, 0, 0, 0], dtype=torch.float64)[:, None], 4)
    one = constant(torch.ones(1, dtype=torch.float64))
    assert series.divide(one, x).coefs.flatten().tolist() == [1, -1, 1, -1, 1]
    assert series.power(x, 0.5).coefs.flatten().tolist() == [1, 1 / 2, -1 / 8, 1 / 16, -5 / 128]
    torch.testing.assert_close(series.log(x).coefs[:, 0], torch.tensor([0, 1, -1 / 2, 1 / 3, -1 / 4]).double())
    t = Series(torch.tensor([0.0, 1, 0, 0, 0], dtype=torch.float64)[:, None], 4)
    sin, cos = series.sin_cos(t)
    torch.testing.assert_close(sin.coefs[:, 0], torch.tensor([0, 1, 0, -1 / 6, 0]).double())
    torch.testing.assert_close(cos.coefs[:, 0], torch.tensor([1, 0, -1 / 2, 0, 1 / 24]).double())
    assert (x * x).coefs.flatten().tolist() == [1, 2, 1, 0, 0]


def test_straight_line():
    x, directions = uniform(2, 3, 2), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    line = series.straight_line(x, directions, 2)
    assert line.coefs.shape == (7, 2, 3, 2)
    assert torch.equal(line.value, x)
    for k, direction in enumerate(directions):
        assert (line.at(1)[k] == direction).all()
    assert not line.at(2).any()
    assert series.straight_line(x, directions, 0).order == 0


def test_coefficients_are_shared_at_order_zero_only():
    x = random_series((3,), 2, 4)
    assert x.at(0).shape == (1, 3) and x.at(1).shape == x.at(2).shape == (4, 3)
    lifted = constant(x.value).lift(x)
    assert torch.equal(lifted.value, x.value) and not lifted.coefs[1:].any()
    assert lifted.lift(x) is lifted


@pytest.mark.parametrize("order", range(6))
def test_gelu_derivatives_against_autograd(order):
    x = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    want = x * torch.special.ndtr(x)
    for j in range(order + 1):
        got = series.gelu_derivatives(x.detach(), order)[j] * math.factorial(j)
        assert relative_error(got, want.detach()) < 1e-11
        want = torch.autograd.grad(want.sum(), x, create_graph=True)[0]


def test_gelu_value_is_torch_gelu_in_float32():
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(series.gelu_derivatives(x, 1)[0], F.gelu(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_gradients_flow_through_unary(name):
    x = random_series((2, 4), 3, 2, seed=4, positive=True)
    ours = UNARY[name][0]
    assert torch.autograd.gradcheck(lambda c: ours(Series(c, 3, 2)).coefs, x.coefs.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("name", BINARY)
def test_gradients_flow_through_binary(name):
    ours, _, left, right = BINARY[name]
    x, y = random_series(left, 2, 2, seed=1), random_series(right, 2, 2, seed=2, positive=True)
    f = lambda a, b: ours(Series(a, 2, 2), Series(b, 2, 2)).coefs  # noqa: E731
    assert torch.autograd.gradcheck(f, (x.coefs.requires_grad_(), y.coefs.requires_grad_()), fast_mode=True)


def test_truncation_error_falls_at_the_order_of_the_series():
    """Measured order: the error of the truncated series of a composite function falls as s^{k+1}."""

    def f(x: Series) -> Series:
        return series.divide(series.gelu(x), series.shift(series.exp(x), 1.0))

    x0 = torch.tensor([0.3], dtype=torch.float64)
    steps = torch.logspace(-1.5, -0.5, 6, dtype=torch.float64)
    for order in ORDERS:
        at = f(Series(torch.cat([x0, torch.ones(1), torch.zeros(order - 1)]).double()[:, None], order))
        taylor = sum(at.coefs[j, 0] * steps**j for j in range(order + 1))
        error = (taylor - f(constant(x0 + steps)).value).abs().log()
        slope = ((error[-1] - error[0]) / (steps[-1].log() - steps[0].log())).item()
        assert order + 0.8 < slope < order + 1.6


FUSED = {
    "exp": (series.exp, series.plain_exp),
    "gelu": (series.gelu, series.plain_gelu),
    "layer_norm": (
        lambda x: series.layer_norm(x, GAIN, OFFSET, 1e-5),
        lambda x: series.plain_layer_norm(x, GAIN, OFFSET, 1e-5),
    ),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("chunk", [5, 2**15])
def test_fused_steps_are_the_plain_ones_backward_too(name, chunk, monkeypatch):
    monkeypatch.setattr(series, "_CHUNK", chunk)
    weight = normal(7, 5, 3, 4, seed=9)
    results = []
    for f in FUSED[name]:
        coefs = random_series((5, 3, 4), 3, 2, seed=3).coefs.requires_grad_()
        y = f(Series(coefs, 3, 2)).coefs
        (y * weight).sum().backward()
        results.append((y.detach(), coefs.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)


def test_gradients_of_weights_of_fused_steps():
    x = random_series((2, 4), 2, 2, seed=4).coefs.requires_grad_()
    weight, bias, gain, offset = (t.clone().requires_grad_() for t in (WEIGHT, BIAS, GAIN, OFFSET))
    linear = lambda c, w, b: series.linear(Series(c, 2, 2), w, b).coefs  # noqa: E731
    norm = lambda c, w, b: series.layer_norm(Series(c, 2, 2), w, b, 1e-5).coefs  # noqa: E731
    assert torch.autograd.gradcheck(linear, (x, weight, bias))
    assert torch.autograd.gradcheck(norm, (x, gain, offset))
    assert torch.autograd.gradcheck(lambda c: series.gelu(Series(c, 2, 2)).coefs, x)


@pytest.mark.long  # compiling takes half a minute
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own notices
def test_compiled_kernels_are_the_same_functions(monkeypatch):
    """GELU compiled forward and backward, exp and LayerNorm forward, in two sizes."""
    compiled, compile_kernel = [], series._compiled
    monkeypatch.setattr(series, "_compiled", lambda kernel: compiled.append(kernel) or compile_kernel(kernel))
    weight, bias = normal(7, seed=1), normal(7, seed=2)
    for rows in (3, 50):
        coefs = normal(5, rows, 7, seed=rows).requires_grad_()  # order 2 in two directions
        x = Series(coefs, 2, 2)

        def results(x=x, coefs=coefs) -> list[torch.Tensor]:
            y = series.gelu(x).coefs
            (gradient,) = torch.autograd.grad((y * normal(*y.shape, seed=9)).sum(), coefs)
            with torch.no_grad():
                return [y, gradient, series.exp(x).coefs, series.layer_norm(x, weight, bias, 1e-5).coefs]

        plain = results()
        with series.compiled_kernels():
            fast = results()
        for a, b in zip(fast, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert {kernel.__name__ for kernel in compiled} == {"_gelu_value", "_gelu_gradient", "_exp_value", "_norm_alone"}


def test_products_in_bfloat16_stay_close_and_reach_the_weights():
    """Three significant digits of each factor; bias, storage and gradient stay in the format of the data."""
    coefs, weight, bias = (normal(*s, seed=i).float() for i, s in enumerate([(3, 20, 8), (5, 8), (5,)]))
    weight.requires_grad_()
    x = Series(coefs, 2)

    def value_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        y = series.linear(x, weight, bias).coefs
        return y, torch.autograd.grad(y.square().sum(), weight)[0]

    y, gradient = value_and_gradient()
    with series.matrix_products(torch.bfloat16):
        low, low_gradient = value_and_gradient()
    assert low.dtype == low_gradient.dtype == torch.float32
    for a, b in ((low, y), (low_gradient, gradient)):
        assert 0 < relative_error(a, b) < 0.02


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_of_many_rows_take_another_way_to_the_same_numbers(order, with_bias, monkeypatch):
    x = random_series((6, 50, 8), order, 2 if order else 1)
    weight, bias = normal(5, 8, seed=1), normal(5, seed=2) if with_bias else None
    few = series.linear(x, weight, bias)
    monkeypatch.setattr(series, "_MANY", 10)
    with torch.no_grad():
        many = series.linear(x, weight, bias)
    torch.testing.assert_close(many.coefs, few.coefs, rtol=1e-12, atol=1e-12)


def test_adding_in_place_only_without_gradients():
    x, fresh = (random_series((3,), 1, 1, seed=i) for i in (0, 1))
    expected, before = (x + fresh).coefs, fresh.coefs.clone()
    assert torch.equal(series.add_to(fresh, x).coefs, expected) and torch.equal(fresh.coefs, before)
    with torch.no_grad():
        assert torch.equal(series.add_to(fresh, x).coefs, expected)
    assert torch.equal(fresh.coefs, expected)
