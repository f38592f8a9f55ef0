"""Encodings of coordinates: values by hand, derivatives in closed form."""

import math

import pytest
import torch
from problems import relative_error, uniform

from cstformer import series
from cstformer.encoding import FourierEncoding, LinearEncoding


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
