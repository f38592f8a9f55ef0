"""Recurrent models: cells against hand-worked numbers and PyTorch's own, the paper's sizes, what they see."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from cstformer.baselines import ConvGRU, ConvLSTM
from cstformer.baselines.recurrent import LSTM, ConvGRUCell, ConvLSTMCell
from cstformer.baselines.sequences import TimeSeries
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.starts.kinds import unfitted_kind

SMALL = PatchLayout((5, 6), (5, 6), 2)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_convgru_cell_by_hand():
    """One pixel, one unit: r, z, candidate and the new state worked out with a calculator's formulas."""
    cell = ConvGRUCell(1, 1, kernel=3)
    for conv, centre in ((cell.gates, [[0.5, -1.0], [2.0, 0.25]]), (cell.candidate, [[1.5, -0.75]])):
        conv.weight.data.zero_()
        conv.weight.data[:, :, 1, 1] = torch.tensor(centre)
    cell.gates.bias.data = torch.tensor([0.1, -0.2])
    cell.candidate.bias.data = torch.tensor([0.3])
    x, h = 0.8, -0.6
    r = sigmoid(0.5 * x - 1.0 * h + 0.1)
    z = sigmoid(2.0 * x + 0.25 * h - 0.2)
    candidate = math.tanh(1.5 * x - 0.75 * r * h + 0.3)
    answer = cell(torch.full((1, 1, 1, 1), x), torch.full((1, 1, 1, 1), h))
    assert answer.item() == pytest.approx((1 - z) * h + z * candidate, rel=1e-6)


def test_convgru_cell_reads_neighbours():
    """A kernel with one weight beside its centre shifts the picture; the gate z is open."""
    cell = ConvGRUCell(1, 1, kernel=3).double()
    for conv in (cell.gates, cell.candidate):
        conv.weight.data.zero_()
        conv.bias.data.zero_()
    cell.gates.bias.data[1] = 100.0
    cell.candidate.weight.data[0, 0, 1, 0] = 1.0  # the pixel on the left
    x = torch.rand(1, 1, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.tanh(torch.cat([torch.zeros(1, 1, 4, 1), x[..., :-1]], -1))
    torch.testing.assert_close(cell(x), expected)


def test_convlstm_cell_on_one_pixel_is_an_lstm_cell():
    torch.manual_seed(0)
    cell, reference = ConvLSTMCell(3, 4, kernel=1).double(), nn.LSTMCell(3, 4).double()
    order = [0, 1, 3, 2]  # PyTorch has i, f, g, o; the cell i, f, o, g
    gates = torch.cat([reference.weight_ih, reference.weight_hh], 1).chunk(4)
    cell.gates.weight.data = torch.cat([gates[k] for k in order])[..., None, None]
    bias = (reference.bias_ih + reference.bias_hh).chunk(4)
    cell.gates.bias.data = torch.cat([bias[k] for k in order])
    x, h, c = (torch.randn(2, n, dtype=torch.float64) for n in (3, 4, 4))
    expected = reference(x, (h, c))
    answer = cell(x[..., None, None], (h[..., None, None], c[..., None, None]))
    for a, e in zip(answer, expected, strict=True):
        torch.testing.assert_close(a[..., 0, 0], e)


@pytest.mark.parametrize(
    ("model", "layout", "paper", "extra"),
    [
        # The extra numbers: the time input of the first gates, and a readout that the paper's count leaves out.
        (LSTM, PatchLayout((184, 208), (23, 16)), 46_196_992, 4 * 240),
        (ConvLSTM, PatchLayout((184, 208), (23, 16)), 16_530_689, 9 * 4 * 256),
        (ConvGRU, PatchLayout((128, 160), (16, 32), 3), 53_611_776, 81 * 3 * 64 + 256 * 3 + 3),
    ],
)
def test_paper_presets_have_the_papers_sizes(model, layout, paper, extra):
    rival = model.preset("paper")
    with torch.device("meta"):
        network = network_for(rival, layout)
    count = sum(p.numel() for p in network.parameters())
    assert count == paper + extra
    assert count == pytest.approx(paper, rel=0.002)


def wave_frames(dtype=torch.float64) -> TimeSeries:
    times = torch.tensor([[0.0, 0.3, 0.4, 1.0]], dtype=dtype)
    values = torch.rand(1, 4, 5, 6, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return TimeSeries(times, values, torch.ones_like(values, dtype=torch.bool), times >= 0)


def network_for(rival, layout=SMALL):
    """A fresh network of a rival, as if it were fitted to movies of this layout."""
    rival.kind_ = unfitted_kind(3, layout.c, layout)
    return rival._network(3, layout.c)


def random_network(rival):
    torch.manual_seed(0)
    network = network_for(rival).double()
    for p in network.parameters():
        nn.init.normal_(p, std=0.3)  # also the readout, which begins at zero
    return network


@pytest.mark.parametrize("model", [LSTM(hidden=3, window=2), ConvLSTM(hidden=2, window=2)])
def test_forecasts_see_their_window_alone(model):
    network, frames = random_network(model), wave_frames()
    at = torch.tensor([[0.35, 0.7]], dtype=torch.float64)
    before = network(frames, at)
    values = frames.values.clone()
    values[:, 3] += 1.0  # later than both
    values[:, 0] += 1.0  # too old for the second
    after = network(TimeSeries(frames.times, values, frames.observed, frames.exists), at)
    torch.testing.assert_close(after[:, 1], before[:, 1])
    assert (after[:, 0] - before[:, 0]).abs().max() > 1e-4
    assert (network(frames, at + 0.02) - before).abs().max() > 1e-5  # the time ahead is an input


def test_convgru_sees_the_past_alone_and_the_gaps():
    network, frames = random_network(ConvGRU(hidden=2)), wave_frames()
    before = network.reconstruct(frames)
    values = frames.values.clone()
    values[:, 2] += 1.0
    after = network.reconstruct(TimeSeries(frames.times, values, frames.observed, frames.exists))
    torch.testing.assert_close(after[:, :2], before[:, :2])
    assert ((after[:, 2:] - before[:, 2:]).flatten(2).abs().amax(-1) > 1e-4).all()
    stretched = TimeSeries(2 * frames.times, frames.values, frames.observed, frames.exists)
    assert (network.reconstruct(stretched) - before)[:, 1:].abs().max() > 1e-4


@pytest.mark.parametrize("model", [LSTM, ConvLSTM, ConvGRU])
def test_untrained_models_copy(model):
    """With ``skip`` the readout begins at zero, so that training begins at the last given frame."""
    y = network_for(model.preset("smoke")).double()(wave_frames(), wave_frames().times)
    torch.testing.assert_close(y, wave_frames().values)


@pytest.mark.parametrize("model", [LSTM, ConvLSTM])
def test_latent_is_the_state_after_all_frames(model):
    rng = np.random.default_rng(0)
    samples = frames_to_samples(rng.normal(size=(6, 4, 9, 12, 1)), patch=(3, 4))
    rival = model.preset("smoke", steps=1).fit(samples)
    latent = rival.latent(samples)
    assert latent.shape == (6, 24 if model is LSTM else 4 * 8 * 8)
    changed = Samples(samples.coords, samples.values + (samples.coords[..., :1] == 0), layout=samples.layout)
    assert (np.abs(rival.latent(changed) - latent).max(1) > 1e-6).all()  # the first frame still counts
    np.testing.assert_allclose(rival.latent(samples[2])[0], latent[2], rtol=1e-5, atol=1e-6)


def test_large_frames_do_not_saturate_the_gates():
    """The input of each gate is of order one whatever the size of a frame."""
    for size in (4, 64):
        torch.manual_seed(0)
        network = network_for(LSTM(mask=False), PatchLayout((size, size), (size, size)))
        frames = network.scale * torch.randn(100, size**2)
        gates = frames @ network.lstm.weight_ih_l0[:, :-1].T
        assert gates.std().item() == pytest.approx(3**-0.5, rel=0.1)  # of uniform weights in [−1, 1]


def test_even_kernels_are_refused():
    with pytest.raises(CSTError, match="kernel=4: must be odd"):
        ConvGRU(kernel=4).fit(frames_to_samples(np.zeros((2, 3, 4, 4, 1)), patch=(2, 2)))
