"""Every rule of the series arithmetic against nested autograd, and against closed forms."""

import math

import pytest
import torch
from problems import normal, uniform

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
    "sinh": (series.sinh, torch.sinh),
    "sigmoid": (series.sigmoid, torch.sigmoid),
    "gelu": (series.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
    "layer_norm": (
        lambda x: series.layer_norm(x, GAIN, OFFSET, 1e-5),
        lambda x: (
            (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5) ** 0.5 * GAIN + OFFSET
        ),
    ),
    "linear": (lambda x: series.linear(x, WEIGHT, BIAS), lambda x: x @ WEIGHT.T + BIAS),
    "linear without bias": (lambda x: series.linear(x, WEIGHT), lambda x: x @ WEIGHT.T),
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


def test_adding_in_place_only_without_gradients():
    x, fresh = (random_series((3,), 1, 1, seed=i) for i in (0, 1))
    expected, before = (x + fresh).coefs, fresh.coefs.clone()
    assert torch.equal(series.add_to(fresh, x).coefs, expected) and torch.equal(fresh.coefs, before)
    with torch.no_grad():
        assert torch.equal(series.add_to(fresh, x).coefs, expected)
    assert torch.equal(fresh.coefs, expected)
