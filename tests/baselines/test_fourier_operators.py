"""Fourier operators: single modes through hand-set weights, grids of odd size, resampling, the paper's sizes."""

import math
import sys

import numpy as np
import pytest
import torch
from problems import normal, uniform
from torch import nn

from cstformer.baselines import FNO2D, FNO3D
from cstformer.baselines.fourier_operators import ComplexWeight, FourierOperator, FrameForecaster, MovieOperator
from cstformer.baselines.sequences import TimeSeries
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.errors import CSTError
from cstformer.network.architecture import parameter_count
from cstformer.starts.kinds import unfitted_kind

SIZES = dict(modes=3, hidden=4, layers=2, projection=8, mixing=False)


def translation(operator: FourierOperator, shift: tuple[float, ...]) -> FourierOperator:
    """Hand-set weights of one layer: multiply mode k by exp(−2πi k·shift), so that fields move by ``shift``."""
    convolution = operator.blocks.convs[0]
    *_, last, _ = pairs = convolution.weight.pairs.shape
    numbers = [torch.arange(n) - n // 2 for n in pairs[2:-2]] + [torch.arange(last)]
    k = torch.meshgrid(*numbers, indexing="ij")
    phase = sum(-2 * math.pi * s * n for s, n in zip(shift, k, strict=True))
    weight = torch.polar(torch.ones_like(phase), phase).to(torch.complex128)
    with torch.no_grad():
        for p in operator.parameters():
            p.zero_()
        convolution.weight.pairs[0, 0] = torch.view_as_real(weight)
        operator.lift.fcs[0].weight[0, 0] = 1.0  # the first input is the first hidden channel
        # The projection goes through a GELU, which is the identity far from 0.
        first, second = operator.project.fcs
        first.weight[0, 0], first.bias[0] = 1.0, 30.0
        second.weight[0, 0], second.bias[0] = 1.0, -30.0
    return operator


@pytest.mark.parametrize("size", [(16, 16), (16, 15), (12, 18)])
def test_a_single_mode_moves_exactly(size):
    """u_t + a·∇u = 0 takes sin(2π k·x) to sin(2π k·(x − a t)): one Fourier layer with the right weights does so."""
    operator = FourierOperator(1, 1, axes=2, **SIZES | {"layers": 1}).double()
    translation(operator, (0.13, -0.29))
    row, col = torch.meshgrid(*(torch.arange(n).double() / n for n in size), indexing="ij")

    def field(k, m, shift=(0.0, 0.0)):
        return (2 * math.pi * (k * (row - shift[0]) + m * (col - shift[1])) + 0.4).sin()[None, None]

    for k, m in ((1, 0), (0, 1), (2, 1), (-2, 2), (1, -1)):
        y = operator(field(k, m)).detach()
        torch.testing.assert_close(y, field(k, m, (0.13, -0.29)), rtol=0, atol=1e-5)  # the package works in float32
    assert float(operator(field(0, 3)).detach().abs().max()) < 1e-5  # modes 0, 1, 2 are kept


def test_modes_of_a_movie_move_exactly():
    operator = FourierOperator(1, 1, axes=3, **SIZES | {"layers": 1}).double()
    translation(operator, (0.1, 0.2, 0.3))
    grid = torch.meshgrid(*(torch.arange(n).double() / n for n in (8, 10, 7)), indexing="ij")

    def field(shift=(0.0, 0.0, 0.0)):
        return sum(2 * math.pi * k * (x - s) for k, x, s in zip((1, -2, 1), grid, shift, strict=True)).cos()[None, None]

    torch.testing.assert_close(operator(field()).detach(), field((0.1, 0.2, 0.3)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(9, 8), (8, 9), (9, 7)])
def test_grids_of_odd_size(size):
    """An odd first axis gets one more row, a repeated one; without it the package would misplace the modes."""
    torch.manual_seed(0)
    operator = FourierOperator(2, 3, axes=2, **SIZES)
    x = normal(2, 2, *size, dtype=torch.float32)
    y = operator(x).detach()
    assert y.shape == (2, 3, *size)
    if size[0] % 2:
        longer = torch.cat([x, x[:, :, -1:]], 2)
        torch.testing.assert_close(y, operator(longer).detach()[:, :, :-1])
    flat = FourierOperator(1, 1, axes=2, **SIZES | {"layers": 1}).double()
    wave = (2 * math.pi * torch.arange(size[0]).double() / (size[0] + size[0] % 2)).cos()[:, None].expand(size)
    moved = translation(flat, (0.0, 0.0))(wave[None, None]).detach()
    if not size[0] % 2:
        torch.testing.assert_close(moved[0, 0], wave, rtol=0, atol=1e-5)
    assert float((moved[0, 0] - wave).abs().mean()) < 0.2  # the mode stays where it is; misplaced it would be 1


def test_complex_weights_are_pairs_of_real_ones():
    operator = FourierOperator(1, 1, axes=2, **SIZES)
    assert not any(p.is_complex() for p in operator.parameters())
    assert all(isinstance(v, torch.Tensor) for v in operator.state_dict().values())
    weight = operator.blocks.convs[0].weight
    assert isinstance(weight, ComplexWeight) and weight.pairs.shape == (4, 4, 6, 3, 2)
    assert weight.pairs.std(dim=(0, 1, 2, 3)).min() > 0  # real and imaginary parts are drawn
    before = weight[...].detach()
    assert torch.equal(operator.double().blocks.convs[0].weight[...].detach(), before.to(torch.complex128))


def test_import_leaves_the_filters_of_warnings_alone():
    import warnings

    for name in [m for m in sys.modules if m.startswith("neuralop")]:
        del sys.modules[name]
    before = list(warnings.filters)
    FourierOperator(1, 1, axes=2, **SIZES)
    assert warnings.filters == before


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "neuralop.models", None)
    with pytest.raises(CSTError, match=r"FNO needs neuraloperator; pip install \"cstformer\[rivals\]\""):
        FourierOperator(1, 1, axes=2, **SIZES)


class Record(nn.Module):
    """In the place of the operator: keeps what it is given and answers with its first channel."""

    def forward(self, x):
        self.given = x
        return x[:, :1]


def movie(batch=2, T=4, seed=0):
    times = uniform(batch, T, seed=seed).sort(1).values
    observed = uniform(batch, T, 6, 5, 1, seed=seed + 1) > 0.2
    exists = torch.ones(batch, T, dtype=torch.bool)
    exists[1, -1] = observed[1, -1] = False
    times[1, -1] = times[1, -2]
    return TimeSeries(times, normal(batch, T, 6, 5, 1, seed=seed + 2) * observed, observed, exists)


def test_what_the_forecaster_is_given():
    net, f = FrameForecaster(1, 2, mask=True, **SIZES), movie()
    net.operator = Record()
    ahead = uniform(2, 2, seed=7)
    past = f[:, :2]
    y = net.forecast(past, ahead)
    given = net.operator.given  # (N, window × (value, observed, ahead), H, W)
    for i in range(2):
        torch.testing.assert_close(given[:, 3 * i], past.values[:, i, ..., 0])
        torch.testing.assert_close(given[:, 3 * i + 1], past.observed[:, i, ..., 0].double())
        torch.testing.assert_close(given[:, 3 * i + 2], ahead[:, i, None, None].expand(2, 6, 5))
    torch.testing.assert_close(y, past.values[:, 0])


def test_index_puts_frame_after_frame():
    net, f = MovieOperator(1, True, "index", slots=9, padding=2, **SIZES), movie()
    net.operator = Record()
    y = net(f, f.times[:, :2])
    given = net.operator.given  # (B, (value, observed, time), H, W, slots)
    assert given.shape == (2, 3, 6, 5, 9) and not given[..., 4:].any()
    torch.testing.assert_close(given[:, 0, ..., :4].permute(0, 3, 1, 2), f.values[..., 0])
    torch.testing.assert_close(given[0, 2, 3, 2, :4], f.times[0])
    assert not given[1, :, ..., 3].any()  # padding leaves its slot empty
    torch.testing.assert_close(y, f.values[:, :2])
    with pytest.raises(CSTError, match="3 places in time, got 4 frames; set slots=6"):
        MovieOperator(1, True, "index", slots=5, padding=2, **SIZES)(f, f.times)


def test_with_a_skip_an_untrained_operator_copies():
    """FNO2D the last frame, FNO3D straight lines between the given ones; both have weights that learn."""
    f = movie()
    f = TimeSeries(f.times.float(), f.values.float(), f.observed, f.exists)
    forecaster = FrameForecaster(1, 2, mask=True, skip=True, **SIZES)
    torch.testing.assert_close(forecaster.forecast(f[:, :2], f.times[:, :2]), f.values[:, 1])
    for resample in ("index", "regular"):
        net = MovieOperator(1, True, resample, slots=9, padding=2, skip=True, **SIZES)
        given = net.regular(f) if resample == "regular" else f
        torch.testing.assert_close(net(f, given.times[:, :2]), given.values[:, :2])
        net(f, f.times).square().mean().backward()
        assert float(net.operator.project.fcs[-1].weight.grad.abs().max()) > 0


def test_regular_resamples_linearly():
    net = MovieOperator(1, True, "regular", slots=7, padding=2, **SIZES)
    net.operator = Record()
    times = torch.tensor([[0.0, 0.1, 0.6, 1.0]], dtype=torch.float64)
    slope = normal(6, 5, 1)
    values = times[..., None, None, None] * slope + 2
    observed = torch.ones_like(values, dtype=torch.bool)
    at = torch.tensor([[0.0, 0.3, 0.97]], dtype=torch.float64)
    y = net(TimeSeries(times, values, observed, times >= 0), at)
    torch.testing.assert_close(y, at[..., None, None, None] * slope + 2)  # linear in time: nothing is lost
    torch.testing.assert_close(net.operator.given[0, 2, 0, 0, :5], torch.linspace(0, 1, 5).double())
    # A missing pixel takes the value of the neighbour in time that was observed, and is told as half observed or not.
    observed[0, 1, 0, 0] = False
    regular = net.regular(TimeSeries(times, values * observed, observed, times >= 0))
    torch.testing.assert_close(regular.values[0, 1, 0, 0], values[0, 2, 0, 0])  # 0.25 lies between 0.1 and 0.6


def test_learns_a_translation():
    """A pattern that moves to the right by a third of the picture per unit of time, seen at irregular times."""
    rng = np.random.default_rng(0)
    t = np.array([0.0, 0.1, 0.35, 0.4, 0.7, 0.85, 1.0])
    col, phase = np.arange(9), rng.uniform(0, 2 * np.pi, (24, 1, 1, 1, 1))

    def u(t):
        wave = np.sin(2 * np.pi * (col / 9 - np.asarray(t)[:, None] / 3))[:, None, :, None]
        other = np.cos(2 * np.pi * (col / 9 - np.asarray(t)[:, None] / 3))[:, None, :, None]
        return np.cos(phase) * wave.repeat(9, 1) + np.sin(phase) * other.repeat(9, 1)

    samples = frames_to_samples(u(t), (3, 3), times=t)
    at = np.array([0.2, 0.55, 0.95])
    quick = dict(learning_rate=2e-2, noise=0.0, hide=0.3)
    for cls, settings, limit in (
        (FNO2D, dict(steps=40, targets=2), 0.3),
        (FNO3D, dict(steps=25, slots=10, padding=2), 0.2),
    ):
        model = cls.preset("smoke", **quick, **settings).fit(samples)
        y = stitch(model.predict(samples, frame_queries(samples.layout, at)), samples.layout)
        assert np.sqrt(np.mean((y - u(at)) ** 2)) < limit * u(at).std(), cls


def test_paper_presets_have_the_papers_sizes():
    """926,357 and 6,562,281 with 10 frames and the coordinates; ours differ by the channels they are given."""
    for cls, inputs, published in ((FNO2D, 10 + 2, 926_357), (FNO3D, None, 6_562_281)):
        model = cls.preset("paper")
        model.kind_ = unfitted_kind(3, 64, PatchLayout((64, 64), (8, 8)))
        with torch.device("meta"):
            count = parameter_count(model._network(3, 64))
        if inputs is not None:
            assert count == published + model.hidden * (3 * 10 + 2 - inputs)  # values, masks, times
        assert count == pytest.approx(published, rel=1e-3)


def test_settings_that_leave_no_room():
    with pytest.raises(CSTError, match="slots=4 leaves 0 for frames beside padding=4; choose at least 6"):
        FNO3D(slots=4, padding=4)._check_settings()
