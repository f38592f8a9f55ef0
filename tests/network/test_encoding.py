"""Encodings of coordinates: values by hand, derivatives in closed form."""

import math

import pytest
import torch
from problems import relative_error, uniform

from cstformer.network.encoding import FourierEncoding, LinearEncoding, Nearness
from cstformer.taylor import series


def test_linear_encoding_by_hand():
    encoding = LinearEncoding(2, 1).double()
    with torch.no_grad():
        encoding.project.weight.copy_(torch.tensor([[2.0, -3.0]]))
        encoding.project.bias.fill_(1.0)
    x = series.straight_line(torch.tensor([[0.5, 1.0]]).double(), torch.eye(2), 2)
    # 2·0.5 − 3·1 + 1 = −1; the slopes are the weights; no curvature
    assert encoding(x).coefs.flatten().tolist() == [-1, 2, -3, 0, 0]


def test_fourier_encoding_by_hand():
    """One frequency of a quarter cycle per unit: sin(πx/2), cos(πx/2) and x itself."""
    encoding = FourierEncoding(1, 3, features=1, frequency=1.0).double()
    encoding.frequencies.fill_(math.pi / 2)
    with torch.no_grad():
        encoding.project.weight.copy_(torch.eye(3))
        encoding.project.bias.zero_()
    y = encoding(series.straight_line(torch.tensor([[1.0]]).double(), torch.ones(1, 1), 2)).coefs[:, 0]
    w = math.pi / 2
    torch.testing.assert_close(y, torch.tensor([[1, 0, 1], [0, -w, 1], [-(w**2) / 2, 0, 0]]).double())


@pytest.mark.parametrize("d", [1, 3])
def test_fourier_derivatives_in_closed_form(d):
    """D^j of sin(w·x) along δ is (w·δ)^j sin(w·x + jπ/2)."""
    torch.manual_seed(0)
    encoding = FourierEncoding(d, 5, features=6, frequency=0.7).double()
    x, delta = uniform(4, d), uniform(1, d, seed=1)
    y = encoding(series.straight_line(x, delta, 4))
    phase, speed = x @ encoding.frequencies.T, delta @ encoding.frequencies.T
    for j in range(5):
        waves = [speed**j * (phase + j * math.pi / 2 + quarter).sin() for quarter in (0, math.pi / 2)]
        straight = [x, delta.expand_as(x)][j] if j < 2 else torch.zeros_like(x)
        want = torch.cat([*waves, straight], -1) @ encoding.project.weight.T
        want = want + encoding.project.bias if j == 0 else want
        assert relative_error(math.factorial(j) * y.at(j)[0], want) < 1e-12


def test_frequencies_are_fixed_and_saved():
    torch.manual_seed(0)
    encoding = FourierEncoding(1, 4, features=2000, frequency=0.5)
    assert "frequencies" in encoding.state_dict()
    assert "frequencies" not in dict(encoding.named_parameters())
    assert float(encoding.frequencies.std()) == pytest.approx(0.5 * 2 * math.pi, rel=0.05)


def test_a_wrapped_axis_is_periodic_and_the_other_is_not():
    torch.manual_seed(0)
    encoding = FourierEncoding(2, 5, features=8, frequency=2.0).double()
    encoding.wrap(1, 1.25)
    x = uniform(6, 2)
    at = lambda shift: encoding(series.constant(x + torch.tensor(shift).double())).value  # noqa: E731
    assert torch.allclose(at([0.0, 1.25]), at([0.0, 0.0]), atol=1e-12)
    assert not torch.allclose(at([1.25, 0.0]), at([0.0, 0.0]), atol=1e-2)
    assert not torch.allclose(at([0.0, 0.6]), at([0.0, 0.0]), atol=1e-2)


def nearness_logits(near: Nearness, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(heads, m, n), up to a constant of each head."""
    with torch.no_grad():
        q, k = near.queries(series.constant(x[None])), near.keys(series.constant(y[None]))
    return (q.value @ k.value.mT)[0]


def test_nearness_is_its_formula():
    torch.manual_seed(0)
    near = Nearness(2, heads=3).double()
    near.wrap(1, 1.25)
    x, y = uniform(4, 2), uniform(5, 2, seed=1)
    delta = y - x[:, None] - near.offset.detach()[:, None, None]  # (heads, m, n, d)
    scale = near.period / (2 * math.pi * near.log_width.detach().exp()[:, None, None])
    want = (scale**2 * torch.cos(2 * math.pi * delta / near.period)).sum(-1)
    torch.testing.assert_close(nearness_logits(near, x, y), want)
    round_the_circle = y + torch.tensor([0.0, 1.25]).double()
    torch.testing.assert_close(nearness_logits(near, x, round_the_circle), want)


def test_nearness_is_a_gaussian_of_small_distances():
    near = Nearness(1, heads=1).double()
    with torch.no_grad():
        near.offset.fill_(0.1)
        near.log_width.fill_(math.log(0.05))
    y = torch.tensor([[0.6], [0.65], [0.5]]).double()  # at the offset, one width beyond, two before
    logits = nearness_logits(near, torch.tensor([[0.5]]).double(), y)[0, 0]
    torch.testing.assert_close(logits - logits[0], torch.tensor([0.0, -0.5, -2.0]).double(), rtol=0, atol=5e-3)


def test_nearness_begins_at_the_distance_of_neighbours():
    torch.manual_seed(0)
    near = Nearness(2, heads=2000)
    near.spread(torch.tensor([0.25, 0.1]))
    torch.testing.assert_close(near.offset.std(0), torch.tensor([0.175, 0.07]), rtol=0.1, atol=0)
    torch.testing.assert_close(near.log_width.mean(0).exp(), torch.tensor([0.1375, 0.055]), rtol=0.1, atol=0)


def test_nearness_derivatives_by_differences_of_angles():
    """The features of a query along a line are sines and cosines of a growing angle."""
    torch.manual_seed(1)
    near = Nearness(1, heads=2).double()
    x = series.straight_line(torch.tensor([[[0.3]]]).double(), torch.ones(1, 1).double(), 4)
    with torch.no_grad():
        y = near.queries(x)
        speed = 2 * math.pi / near.period
        angle = speed * (0.3 + near.offset)
        size = near.period / (2 * math.pi) / near.log_width.exp()
    for j in range(5):
        want = [size * speed**j * torch.sin(angle + (j + quarter) * math.pi / 2) for quarter in (0, 1)]
        torch.testing.assert_close(math.factorial(j) * y.at(j)[0, 0, :, 0], torch.cat(want, -1))
