"""All partial derivatives, mixed ones included, out of one-dimensional series."""

import itertools
import math

import pytest
import torch
from problems import Polynomial, Wave, normal, uniform

from cstformer.errors import CSTError
from cstformer.taylor import series
from cstformer.taylor.derivatives import check_multi_index, multi_indices, plan, up_to


def random_polynomial(d: int, degree: int, seed: int) -> Polynomial:
    powers = [p for p in itertools.product(range(degree + 1), repeat=d) if sum(p) <= degree]
    return Polynomial(dict(zip(powers, normal(len(powers), seed=seed).tolist(), strict=True)))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_all_partials_of_random_polynomials(d, order):
    polynomial = random_polynomial(d, 4, seed=10 * d + order)
    x = 2 * uniform(7, d, seed=order) - 1
    p = plan(d, up_to(d, order))
    y = polynomial.on_series(series.straight_line(x, p.directions, p.order))
    assert set(p.weights) == set(up_to(d, order))
    torch.testing.assert_close(p.partial(y, (0,) * d), polynomial.partial(x, (0,) * d), rtol=0, atol=1e-12)
    for q in p.weights:
        torch.testing.assert_close(p.partial(y, q), polynomial.partial(x, q), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "indices",
    [
        [(2, 0, 0)],
        [(1, 1, 0)],
        [(0, 1, 2)],
        [(1, 0, 0), (0, 0, 3)],
        [(1, 1, 1), (0, 2, 0)],
        [(0, 0, 0), (0, 1, 0)],
    ],
)
def test_any_choice_of_partials_of_a_wave(indices):
    wave = Wave((1.3, -0.7, 2.1))
    x = uniform(5, 3)
    p = plan(3, indices)
    line = series.straight_line(x, p.directions, p.order)
    phase = series.shift(line.map(lambda c: c @ c.new_tensor(wave.w)), wave.b)
    y = series.sin_cos(phase)[0]
    for q in indices:
        torch.testing.assert_close(p.partial(y, q), wave.partial(x, q), rtol=0, atol=1e-10)


@pytest.mark.parametrize("d, order, coefficients", [(1, 4, 5), (2, 2, 7), (3, 1, 4), (3, 2, 13), (3, 3, 31)])
def test_number_of_directions_and_coefficients(d, order, coefficients):
    """C(d+k−1, k) directions, 1 + k·C(d+k−1, k) coefficients; the paper's movies have d = 3."""
    p = plan(d, up_to(d, order))
    assert p.directions.shape == (math.comb(d + order - 1, order), d)
    assert len(series.straight_line(torch.zeros(1, d), p.directions, p.order).coefs) == coefficients


def test_single_axis_needs_one_direction():
    assert plan(3, [(0, 3, 0), (0, 1, 0)]).directions.tolist() == [[0, 1, 0]]
    assert plan(3, [(2, 0, 0), (0, 0, 1)]).directions.tolist() == [[1, 0, 0], [0, 0, 1]]
    # a mixed partial of two axes does not pay for the third
    assert len(plan(3, [(1, 0, 1)]).directions) == math.comb(3, 2)


def test_nothing_asked_for_is_order_zero():
    p = plan(2, [])
    assert p.order == 0 and not p.weights


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("order", [0, 3])
def test_multi_indices_are_complete(d, order):
    want = {p for p in itertools.product(range(order + 1), repeat=d) if sum(p) == order}
    got = multi_indices(d, order)
    assert set(got) == want and len(got) == len(want) == math.comb(d + order - 1, order)


@pytest.mark.parametrize("index", [(1, 0, 0), (-1, 1), (0.5, 1), 1])
def test_bad_multi_index(index):
    with pytest.raises(CSTError, match=r"does not fit 2 coordinate axes.*\(1, 0\)"):
        check_multi_index(index, 2)


def test_good_multi_index():
    assert check_multi_index(2, 1) == (2,)
    assert check_multi_index([1, 0], 2) == (1, 0)
