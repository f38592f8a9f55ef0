"""From the last token of a query to its answer: each readout against its formula."""

import pytest
import torch
from problems import entry, nested_derivatives, normal, relative_error, start_of, tiny_context, uniform
from torch.nn import functional as F

from cstformer.network.architecture import Architecture
from cstformer.network.readout import GATE_GAIN, GatedReadout, PlainReadout, SkipReadout, make_readout
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.pixel_view import LOUDEST, PixelView
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import constant

VIEW = PixelView(rows=2, cols=3, channels=2, halo=1)
KINDS = {
    "plain": dict(c=3, readout="plain"),
    "plain, post-norm": dict(c=3, readout="plain", norm="post"),
    "skip": dict(c=3),
    "gated": dict(c=12, view=VIEW),
}


def architecture(kind: str) -> Architecture:
    return Architecture(d=2, width=8, layers=1, heads=2, feedforward=12, **KINDS[kind])


def readout_of(kind: str) -> PlainReadout:
    """A readout none of whose parameters is zero."""
    readout = make_readout(architecture(kind)).double()
    with torch.no_grad():
        for i, p in enumerate(readout.parameters()):
            p.copy_(0.5 * normal(*p.shape, seed=10 + i))
    return readout


def view_of(first, second, odds, error) -> torch.Tensor:
    """The flattened view of two estimates (B, m, rows, cols, C), log odds and error (B, m, rows, cols)."""
    weight = odds.sigmoid()[..., None]
    guess, difference = weight * first + (1 - weight) * second, first - second
    inside = torch.cat([guess, difference, odds[..., None] / LOUDEST, error[..., None]], -1)
    around = 100 * normal(2, 5, VIEW.rows + 2, VIEW.cols + 2, 6, seed=9)  # the readout must not read the halo
    around[..., 1:-1, 1:-1, :] = inside
    return around.flatten(2)


def pixels() -> tuple[torch.Tensor, ...]:
    """First and second estimate, log odds and expected error of 2 × 5 patches."""
    first, second = (normal(2, 5, 2, 3, 2, seed=seed) for seed in (1, 2))
    return first, second, 2 * normal(2, 5, 2, 3, seed=3), 0.5 + uniform(2, 5, 2, 3, seed=4)


def test_the_architecture_chooses():
    chosen = {kind: type(make_readout(architecture(kind))) for kind in KINDS}
    classes = PlainReadout, PlainReadout, SkipReadout, GatedReadout
    assert chosen == dict(zip(KINDS, classes, strict=True))


@pytest.mark.parametrize("kind, bias", [("plain", True), ("plain, post-norm", False)])
def test_the_plain_readout_is_a_linear_layer(kind, bias):
    readout, token = readout_of(kind), normal(2, 5, 8)
    assert (readout.decode.bias is not None) == bias
    y = readout(constant(token), constant(normal(2, 5, 3, seed=5))).value
    torch.testing.assert_close(y, F.linear(token, readout.decode.weight, readout.decode.bias))


def test_the_skip_readout_adds_a_matrix_times_the_initial_value():
    readout, token, initial = readout_of("skip"), normal(2, 5, 8), normal(2, 5, 3, seed=5)
    y = readout(constant(token), constant(initial)).value
    want = token @ readout.decode.weight.T + readout.decode.bias + initial @ readout.skip.weight.T
    torch.testing.assert_close(y, want)


def test_the_gated_readout_mixes_two_estimates():
    """y = γ a + (1 − γ)(b + e δ) with γ = sigmoid(l + gain · g), pixel by pixel."""
    readout, token = readout_of("gated"), normal(2, 5, 8)
    first, second, odds, error = pixels()
    y = readout(constant(token), constant(view_of(first, second, odds, error))).value
    change = F.linear(token, readout.decode.weight, readout.decode.bias).reshape(2, 5, 2, 3, 2)
    gate = F.linear(token, readout.gate.weight, readout.gate.bias).reshape(2, 5, 2, 3)
    gamma = torch.sigmoid(odds + GATE_GAIN * gate)[..., None]
    want = gamma * first + (1 - gamma) * (second + error[..., None] * change)
    torch.testing.assert_close(y, want.flatten(2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_series_is_that_of_nested_autograd(kind):
    """Token and initial value are both curved functions of the coordinates."""
    readout, at = readout_of(kind), uniform(2, 5, 2)
    size = architecture(kind).initial_size
    to_token, to_initial = normal(8, 2, seed=1), normal(size, 2, seed=2)

    def answer(x):
        token, initial = (series.sigmoid(series.linear(x, weight, None)) for weight in (to_token, to_initial))
        return readout(token, initial)

    terms = plan(2, up_to(2, 2))
    y = answer(series.straight_line(at, terms.directions, terms.order))
    want = nested_derivatives(lambda s: answer(constant(at + s)).value, 2, 2)
    for q in up_to(2, 2):
        assert relative_error(terms.partial(y, q), entry(want, q)) < 1e-10, q


@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_an_untrained_network_with_skip_answers_with_the_initial_value(pattern):
    network = ContinuousTransformer(Architecture(d=1, c=2, pattern=pattern)).double()
    context, line = tiny_context(1), series.straight_line(uniform(2, 3, 1), torch.eye(1), 2)
    initial = start_of("cubic", context)(line)
    torch.testing.assert_close(network(context, line, initial)[1].coefs, initial.coefs)


def test_an_untrained_network_with_gates_answers_with_the_guess():
    network = ContinuousTransformer(architecture("gated")).double()
    context = tiny_context(2, c=12, n=5)
    context = context.replace(initial=normal(2, 5, VIEW.size, seed=6))
    line = series.straight_line(uniform(2, 3, 2), torch.eye(2), 2)
    initial = series.linear(line * line, normal(VIEW.size, 2, seed=7), None)
    guess = VIEW.split(initial)[0].map(lambda c: c.flatten(-3))
    torch.testing.assert_close(network(context, line, initial)[1].coefs, guess.coefs)


def test_an_untrained_network_with_the_plain_readout_does_not():
    network = ContinuousTransformer(Architecture(d=1, c=2, readout="plain")).double()
    context, at = tiny_context(1), constant(uniform(2, 3, 1))
    initial = start_of("cubic", context)(at)
    assert relative_error(network(context, at, initial)[1].value, initial.value) > 0.1


@pytest.mark.parametrize("kind", ["skip", "gated"])
def test_decoders_that_start_at_zero_learn_from_the_first_step(kind):
    readout = make_readout(architecture(kind)).double()
    initial = view_of(*pixels()) if kind == "gated" else normal(2, 5, 3)
    readout(constant(normal(2, 5, 8, seed=8)), constant(initial)).value.square().sum().backward()
    assert all(float(p.grad.abs().min()) > 1e-6 for p in readout.parameters())
