"""The Sobolev loss: numbers by hand, closed forms, and gradients at every order."""

import itertools
import math

import pytest
import torch
from problems import Wave, start_of, tiny_context, tiny_network, uniform

from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import Series
from cstformer.training.losses import combine, data_term, sobolev_term

INF = math.inf


@pytest.mark.parametrize(
    "p, want", [(1.0, 2.0), (2.0, 14 / 3), (3.0, 12.0), (1.5, (1 + 8**0.5 + 27**0.5) / 3), (INF, 3.0)]
)
def test_data_term_by_hand(p, want):
    """Errors 1, −2, 3; a fourth, of 100, was never observed."""
    y, data = torch.tensor([1.0, 0.0, 3.0, 100.0]).double(), torch.tensor([0.0, 2.0, 0.0, 0.0]).double()
    observed = torch.tensor([True, True, True, False])
    assert float(data_term(y, data, observed, p)) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    "p, want", [(1.0, (4 + 3 * 2) / 6), (2.0, (6 + 3 * 4) / 6), (3.0, (10 + 3 * 8) / 6), (INF, 2.0)]
)
def test_weighted_data_term_by_hand(p, want):
    """Errors 1, 1, 2 of the first channel with weight 1, and 2 of the second with weight 3; 100 was never observed.

    The weights of the observed cells sum to 6. For p = ∞ they are 1/3 and 1.
    """
    y = torch.tensor([[1.0, -2.0], [-1.0, 100.0], [2.0, 100.0]]).double()
    observed = torch.tensor([[True, True], [True, False], [True, False]])
    assert float(data_term(y, torch.zeros_like(y), observed, p, (1.0, 3.0))) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
def test_equal_weights_change_no_digit(p):
    y, data, observed = uniform(5, 7, 3, seed=0), uniform(5, 7, 3, seed=1), uniform(5, 7, 3, seed=2) > 0.3
    plain = data_term(y.float(), data.float(), observed, p)
    assert float(data_term(y.float(), data.float(), observed, p, [0.1] * 3)) == float(plain)


def test_weights_repeat_for_each_pixel_of_a_patch():
    """Two pixels of two colours: errors 1, 2, 3, 4 with weights 1, 0, 1, 0."""
    y = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert float(data_term(y, torch.zeros(4), torch.ones(4, dtype=torch.bool), 2.0, (1.0, 0.0))) == 5.0


def test_cells_without_weight_have_no_loss_and_no_gradient():
    y = torch.ones(2, 2, requires_grad=True)
    observed = torch.tensor([[False, True], [False, True]])
    loss = data_term(y, torch.zeros(2, 2), observed, 2.0, (1.0, 0.0))
    loss.backward()
    assert float(loss.detach()) == 0 and y.grad is not None and not y.grad.any()


def dummy_series() -> tuple[Series, object]:
    """Two dummy points, one channel: y = 5 + 1s − 1s² and y = 7 − 2s + 2s², so D¹ = 1, −2 and D² = −2, 4."""
    coefs = torch.tensor([[5.0, 7.0], [1.0, -2.0], [-1.0, 2.0]]).double()[:, None, :, None]
    return Series(coefs, 2), plan(1, up_to(1, 2))


@pytest.mark.parametrize("p, want", [(1.0, 1.5 + 3), (2.0, 2.5 + 10), (3.0, 4.5 + 36), (INF, 2 + 4)])
def test_sobolev_term_by_hand(p, want):
    y, p_plan = dummy_series()
    assert float(sobolev_term(y, p_plan, p)) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("p, total", [(1.0, 2 + 4.5 / 10), (2.0, 14 / 3 + 1.25), (3.0, 12 + 4.05), (INF, 3 + 0.6)])
def test_whole_loss_by_hand(p, total, root):
    y, data = torch.tensor([1.0, 0.0, 3.0]).double(), torch.tensor([0.0, 2.0, 0.0]).double()
    dummy, p_plan = dummy_series()
    real = data_term(y, data, torch.ones(3, dtype=torch.bool), p)
    loss = combine(real, sobolev_term(dummy, p_plan, p), 0.1, p, root)
    want = total ** (1 / p) if root and p != INF else total
    assert float(loss) == pytest.approx(want, rel=1e-12)


def test_nothing_observed_and_nothing_asked_for_are_zero():
    y = torch.ones(3)
    assert float(data_term(y, y + 1, torch.zeros(3, dtype=torch.bool), 2.0)) == 0
    assert float(sobolev_term(series.constant(y), plan(1, []), 2.0)) == 0


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, INF])
def test_gradient_is_finite_at_a_perfect_fit(p):
    y = torch.zeros(4, requires_grad=True)
    loss = combine(data_term(y, torch.zeros(4), torch.ones(4, dtype=torch.bool), p), torch.zeros(()), 1.0, p, True)
    loss.backward()
    assert bool(torch.isfinite(y.grad).all())


@pytest.mark.parametrize("d, order", [(1, 1), (1, 4), (2, 2), (3, 3)])
def test_sobolev_term_of_a_known_function(d, order):
    """For sin(w·x + b) every partial is known; the mean runs over the dummy points."""
    wave = Wave((1.3, -0.7, 2.1)[:d])
    x = uniform(2, 25, d)
    p_plan = plan(d, up_to(d, order))
    line = series.straight_line(x, p_plan.directions, order)
    phase = series.shift(line.map(lambda c: (c @ c.new_tensor(wave.w)).unsqueeze(-1)), wave.b)
    y = series.sin_cos(phase)[0]
    for p in (1.0, 2.0, 3.0):
        want = sum(wave.partial(x, q).abs().pow(p).mean() for q in up_to(d, order))
        torch.testing.assert_close(sobolev_term(y, p_plan, p), want, rtol=1e-9, atol=0)
    assert len(p_plan.weights) == math.comb(d + order, order) - 1


def test_sobolev_term_tends_to_the_integral():
    """∫₀¹ |D sin(2πx)|² dx = 2π² and of the second derivative 8π⁴, by the midpoint rule."""
    x = ((torch.arange(64).double() + 0.5) / 64)[None, :, None]
    line = series.straight_line(x, torch.ones(1, 1), 2)
    y = series.sin_cos(line.map(lambda c: 2 * math.pi * c))[0]
    assert float(sobolev_term(y, plan(1, up_to(1, 2)), 2.0)) == pytest.approx(2 * math.pi**2 + 8 * math.pi**4, rel=1e-9)


def weight_gradient(order: int, p: float, pattern: str) -> tuple[torch.Tensor, set[str]]:
    network, context = tiny_network(1, pattern=pattern), tiny_context(1)
    p_plan = plan(1, up_to(1, order))
    line = series.straight_line(uniform(2, 5, 1, seed=9), p_plan.directions, p_plan.order)
    y = network(context, line, start_of("smooth", context)(line))[1]
    data = data_term(y.value, torch.zeros_like(y.value), torch.ones_like(y.value, dtype=torch.bool), p)
    combine(data, sobolev_term(y, p_plan, p), 0.01, p, False).backward()
    silent = {n for n, w in network.named_parameters() if w.grad is None or not float(w.grad.abs().max()) > 1e-12}
    return torch.cat([w.grad.flatten() for w in network.parameters()]), silent


@pytest.mark.parametrize("pattern", ["context", "joint"])
@pytest.mark.parametrize("p", [2.0, 3.0])
def test_every_order_changes_the_gradient_of_the_weights(pattern, p):
    """In the published code the graph ends after the first derivative, and k = 1, 2, 3 train alike."""
    gradients = []
    for order in (0, 1, 2, 3, 4):
        gradient, silent = weight_gradient(order, p, pattern)
        assert not silent
        gradients.append(gradient)
    for low, high in itertools.pairwise(gradients):
        assert float((high - low).norm() / low.norm()) > 1e-2
