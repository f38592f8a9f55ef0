"""The start: against numpy and scipy, by hand, its edges, and its measured smoothness."""

import numpy as np
import pytest
import torch
from problems import Polynomial, nested_derivatives, normal, relative_error, start_of, tiny_context, uniform
from scipy.interpolate import CubicSpline, RBFInterpolator

from cstformer.starts import curves
from cstformer.starts.curves import STARTS, make_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.taylor import series
from cstformer.taylor.series import constant

KERNEL = Kernel((0.2,), 1.0, 0.5, 0.05)


def curve(kind, t, y, observed=None):
    """Start of one sample of one or more channels from plain lists."""
    t = torch.as_tensor(t, dtype=torch.float64)[None, :, None]
    y = torch.as_tensor(np.array(y), dtype=torch.float64)
    y = (y[:, None] if y.dim() == 1 else y)[None]
    observed = torch.ones_like(y, dtype=torch.bool) if observed is None else torch.as_tensor(observed)[None]
    return make_start(kind, t, y, observed, KERNEL)


def at(start, x, order=0):
    """Derivatives 0..order at the places x: (order+1, m, c)."""
    x = torch.as_tensor(np.array(x), dtype=torch.float64).reshape(1, -1, 1)
    coefs = start(series.straight_line(x, torch.ones(1, 1), order)).coefs[:, 0]
    return coefs * torch.tensor([1.0, 1.0, 2.0, 6.0, 24.0], dtype=torch.float64)[: order + 1, None, None]


KNOTS = np.sort(np.concatenate([[0.0, 1.0], uniform(6, seed=3).numpy()]))
DATA = normal(8, 2, seed=4).numpy()
PLACES = np.linspace(0.001, 0.999, 101)


def test_linear_is_numpys():
    got = at(curve("linear", KNOTS, DATA), PLACES)[0]
    for c in range(2):
        np.testing.assert_allclose(got[:, c], np.interp(PLACES, KNOTS, DATA[:, c]), atol=1e-12)


@pytest.mark.parametrize("knots", [3, 8])
def test_cubic_is_scipys_natural_spline(knots):
    t, y = np.linspace(0, 1, knots) ** 1.5, DATA[:knots]
    got = at(curve("cubic", t, y), PLACES, order=3)
    spline = CubicSpline(t, y, bc_type="natural")
    for j in range(4):
        np.testing.assert_allclose(got[j], spline(PLACES, j), atol=1e-8)


@pytest.mark.parametrize("kind", ["linear", "hermite", "cubic"])
def test_two_knots_are_joined_by_a_straight_line(kind):
    y = DATA[:2]
    got = at(curve(kind, [0.0, 1.0], y), PLACES)[0]
    np.testing.assert_allclose(got, y[0] + PLACES[:, None] * (y[1] - y[0]), atol=1e-12)


def test_hermite_by_hand():
    """Knots 0, 1, 3, values 0, 1, 5: end slopes are the secants 1 and 2, the middle (2·1 + 1·2)/3 = 4/3."""
    start = curve("hermite", [0.0, 1.0, 3.0], [0.0, 1.0, 5.0])
    values = at(start, [0.0, 0.5, 1.0, 2.0, 3.0], order=1)[..., 0]
    # on [0, 1]: s + (−1/3)s² + (1/3)s³
    # on [1, 3], u = t − 1: 1 + 4u/3 + u²·(6 − 8/3 − 2)/2 + u³·(4/3 + 2 − 4)/4
    middle = 0.5 - 0.25 / 3 + 0.125 / 3
    second = 1 + 4 / 3 + (6 - 8 / 3 - 2) / 2 + (4 / 3 + 2 - 4) / 4
    torch.testing.assert_close(values[0], torch.tensor([0, middle, 1, second, 5]).double())
    torch.testing.assert_close(values[1, [0, 2, 4]], torch.tensor([1, 4 / 3, 2]).double())


def jump(start, knot: float, order: int) -> float:
    """Size of the jump of a derivative across a knot, relative to its size nearby."""
    h = 1e-7
    left, right = at(start, [knot - h, knot + h], order)[order]
    return float((right - left).abs().max() / (1 + left.abs().max()))


@pytest.mark.parametrize("kind, smooth_to", [("linear", 0), ("hermite", 1), ("cubic", 2), ("smooth", 4)])
def test_measured_smoothness_at_knots(kind, smooth_to):
    start = curve(kind, KNOTS, DATA)
    for order in range(smooth_to + 1):
        assert max(jump(start, t, order) for t in KNOTS[1:-1]) < 1e-3, order
    if kind != "smooth":
        assert min(jump(start, t, smooth_to + 1) for t in KNOTS[1:-1]) > 1e-2


@pytest.mark.parametrize("kind, smooth_to", [("linear", 0), ("hermite", 1), ("cubic", 2)])
def test_measured_smoothness_in_the_plane(kind, smooth_to):
    """Above the softening (1e-3): derivatives up to smooth_to are continuous, the next one jumps or grows.

    The change of the j-th derivative across a point falls with the distance for j ≤ smooth_to, not above.
    """
    coords, values = uniform(1, 12, 2, seed=1), normal(1, 12, 1, seed=2)
    start = make_start(kind, coords, values, torch.ones(1, 12, 1, dtype=torch.bool))
    centre = (coords[0] - 0.5).norm(dim=-1).argmin()
    direction = torch.tensor([[1.0, 0.0]])

    def change(order: int, h: float) -> float:
        places = coords[:, centre] + h * torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).double()
        left, right = start(series.straight_line(places[None], direction, order)).at(order)[0, 0, :, 0]
        # even orders are symmetric about the point: compare them with their value at 2h instead
        if order % 2 == 0 and order:
            far = start(series.straight_line(places[None] + places[None] - coords[:, centre], direction, order))
            left = far.at(order)[0, 0, 1, 0]
        return float((right - left).abs())

    ratio = [change(order, 0.005) / change(order, 0.08) for order in range(smooth_to + 2)]
    assert all(r < 0.4 for r in ratio[: smooth_to + 1]), ratio
    assert ratio[smooth_to + 1] > 0.6, ratio


@pytest.mark.parametrize("kind", STARTS)
def test_constant_outside_the_range_with_zero_derivative(kind):
    start = curve(kind, KNOTS[1:-1], DATA[1:-1])
    low, high = KNOTS[1], KNOTS[-2]
    outside = at(start, [low - 0.5, low - 1e-6, high + 1e-6, high + 3], order=2)
    ends = at(start, [low, low, high, high])[0]
    torch.testing.assert_close(outside[0], ends)
    assert not outside[1:].any()


@pytest.mark.parametrize("kind", STARTS)
def test_unsorted_knots(kind):
    shuffle = [3, 0, 7, 5, 1, 2, 6, 4]
    want = at(curve(kind, KNOTS, DATA), PLACES, order=2)
    assert relative_error(at(curve(kind, KNOTS[shuffle], DATA[shuffle]), PLACES, order=2), want) < 1e-8


@pytest.mark.parametrize("kind", STARTS)
def test_channels_observed_at_different_points(kind):
    observed = np.ones((8, 2), dtype=bool)
    observed[[1, 4], 0] = False
    observed[[0, 2, 7], 1] = False
    garbage = np.where(observed, DATA, 1e6)
    got = at(curve(kind, KNOTS, garbage, observed), PLACES, order=2)
    for c in range(2):
        seen = observed[:, c]
        alone = at(curve(kind, KNOTS[seen], DATA[seen, c]), PLACES, order=2)
        assert relative_error(got[..., c], alone[..., 0]) < 1e-9


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("d", [1, 2])
def test_single_observed_point_is_a_constant(kind, d):
    coords, values = uniform(2, 4, d), normal(2, 4, 2, seed=1)
    observed = torch.zeros(2, 4, 2, dtype=torch.bool)
    observed[:, 2] = True
    context_start = make_start(kind, coords, values, observed, Kernel((0.2,) * d, 1.0, 0.5, 1e-6))
    y = context_start(series.straight_line(uniform(2, 9, d, seed=2), torch.eye(d), 2))
    torch.testing.assert_close(y.value, values[:, 2:3].expand_as(y.value), rtol=1e-6, atol=1e-6)
    assert not y.coefs[1:].any()


@pytest.mark.parametrize("kind", STARTS)
def test_only_one_point_in_the_sample(kind):
    y = at(curve(kind, [0.4], [[2.0]]), [0.0, 0.3, 0.9], order=2)
    assert float(y[0, 0, 0]) == pytest.approx(2.0, rel=0.01)  # smooth shrinks a little
    assert (y[0] == y[0, 0]).all() and not y[1:].any()


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("d", [1, 2])
def test_never_observed_channel_starts_at_zero(kind, d):
    coords, values = uniform(2, 5, d), normal(2, 5, 3, seed=1)
    observed = torch.ones(2, 5, 3, dtype=torch.bool)
    observed[0, :, 1] = False
    observed[1] = False
    start = make_start(kind, coords, values, observed, Kernel((0.2,) * d, 1.0, 0.5, 0.1))
    y = start(series.straight_line(uniform(2, 7, d, seed=2), torch.eye(d), 2)).coefs
    assert not y[:, 0, :, 1].any() and not y[:, 1].any()
    assert bool(torch.isfinite(y).all()) and bool(y[0, 0, :, [0, 2]].abs().min() > 0)


def scattered(d: int, n: int = 15):
    """Points in a box whose corners are among them, so that every query is inside."""
    coords = torch.cat([torch.zeros(1, d), torch.ones(1, d), uniform(n - 2, d, seed=1)]).double()
    return coords, normal(n, 2, seed=2), uniform(30, d, seed=3)


def everything(coords, values, kind):
    return make_start(kind, coords[None], values[None], torch.ones(1, *values.shape, dtype=torch.bool))


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", ["linear", "hermite", "cubic"])
def test_scattered_data_is_reproduced_at_its_points(kind, d):
    coords, values, _ = scattered(d)
    got = everything(coords, values, kind)(constant(coords[None])).value[0]
    torch.testing.assert_close(got, values, rtol=0, atol=1e-8)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(
    "kind, kernel, degree",
    [("linear", "linear", 0), ("hermite", "thin_plate_spline", 1), ("cubic", "cubic", 1)],
)
def test_scattered_data_matches_scipy_up_to_the_softening(kind, kernel, degree, d, monkeypatch):
    coords, values, places = scattered(d)
    want = torch.tensor(RBFInterpolator(coords.numpy(), values.numpy(), kernel=kernel, degree=degree)(places.numpy()))
    # The tip of r is a thousandth wide; r² log r and r³ hardly feel it.
    as_shipped = everything(coords, values, kind)(constant(places[None])).value[0]
    assert relative_error(as_shipped, want) < (2e-2 if kind == "linear" else 1e-3)
    monkeypatch.setattr(curves, "_SOFTENING", 1e-6)
    hardly_softened = everything(coords, values, kind)(constant(places[None])).value[0]
    assert relative_error(hardly_softened, want) < 5e-5


@pytest.mark.parametrize("kind", ["hermite", "cubic"])
@pytest.mark.parametrize("d", [2, 3])
def test_linear_functions_are_reproduced(kind, d):
    coords, _, places = scattered(d)
    slopes = (0.7, -1.3, 2.0)[:d]
    plane = Polynomial({(0,) * d: 0.5} | {tuple(int(i == k) for i in range(d)): slopes[k] for k in range(d)})
    start = everything(coords, plane.partial(coords, (0,) * d)[:, None], kind)
    y = start(series.straight_line(places[None], torch.eye(d), 1))
    torch.testing.assert_close(y.value[0, :, 0], plane.partial(places, (0,) * d), rtol=0, atol=1e-4)
    for k in range(d):
        torch.testing.assert_close(y.at(1)[k, 0, :, 0], torch.full_like(places[:, 0], slopes[k]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kind", STARTS)
def test_derivatives_of_a_start_against_nested_autograd(kind, d):
    context = tiny_context(d)
    start, x = start_of(kind, context), 0.35 + 0.3 * uniform(2, 3, d, seed=20)
    direction = torch.ones(1, d, dtype=torch.float64)
    y = start(series.straight_line(x, direction, 3))
    want = nested_derivatives(lambda s: start(constant(x + s)).value, 1, 3)
    for j, factor in enumerate((1, 1, 2, 6)):
        expected = want[j].reshape(y.value.shape)
        assert float((factor * y.at(j)[0] - expected).abs().max()) <= 1e-8 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["linear", "hermite", "cubic"])
def test_single_precision_in_three_dimensions(kind):
    coords, values, places = scattered(3, n=120)
    values = torch.sin(3 * coords[:, :1] + 2 * coords[:, 1:2] * coords[:, 2:])
    want = everything(coords, values, kind)(constant(places[None])).value
    single = everything(coords.float(), values.float(), kind)
    line = series.straight_line(torch.cat([places, coords])[None].float(), torch.eye(3), 2)
    y = single(line)
    assert bool(torch.isfinite(y.coefs).all())  # on the points themselves, too
    assert relative_error(y.value[:, : len(places)].double(), want) < 2e-3
