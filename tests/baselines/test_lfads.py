"""LFADS: the wiring step by step, the prior of the inferred inputs, the divergence, the paper's size."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from problems import generator, normal, uniform
from torch import nn

from cstformer.baselines import LFADS
from cstformer.baselines.lfads import BidirectionalGRU, LFADSNetwork, Sizes
from cstformer.baselines.sequences import TimeSeries
from cstformer.data.samples import Samples
from cstformer.starts.kinds import unfitted_kind

SIZES = Sizes(initial_encoder=4, controller_encoder=3, controller=5, generator=6, factors=3, inputs=2)


def frames(batch=3, T=5, c=2, seed=0):
    """Irregular times; the last two frames of sample 1 are padding."""
    times = uniform(batch, T, seed=seed).sort(1).values
    exists = torch.ones(batch, T, dtype=torch.bool)
    exists[1, -2:] = False
    times[1, -2:] = times[1, -3]
    observed = exists[..., None].expand(-1, -1, c).clone()
    return TimeSeries(times, normal(batch, T, c, seed=seed + 1) * observed, observed, exists)


def network(mask=False):
    torch.manual_seed(0)
    return LFADSNetwork((2,), SIZES, mask).double()


def test_bidirectional_encoder_equals_torchs():
    torch.manual_seed(0)
    ours, theirs = BidirectionalGRU(3, 4).double(), nn.GRU(3, 4, batch_first=True, bidirectional=True).double()
    state = theirs.state_dict()
    for cell, ending in ((ours.forwards, "_l0"), (ours.backwards, "_l0_reverse")):
        cell.load_state_dict({k: state[k + ending] for k in cell.state_dict()})
    x, lengths = normal(3, 5, 3), torch.tensor([5, 2, 4])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, ends = theirs(packed)
    expected = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
    exists = torch.arange(5) < lengths[:, None]
    states, last = ours(x, exists)
    torch.testing.assert_close(states * exists[..., None], expected)
    torch.testing.assert_close(last, torch.cat(tuple(ends), -1))


def test_one_sample_step_by_step():
    """The equations of the description, with plain cells, on the sample that has padding."""
    net, f = network(), frames()
    factors, divergence = net.run(f, None)
    T = 3  # exists frames of sample 1
    x = torch.cat([f.values[1, :T], f.gaps[1, :T, None]], -1)
    given = torch.ones(1, T, dtype=torch.bool)
    mean, log_variance = net.initial_posterior(net.initial_encoder(x[None], given)[1][0]).chunk(2)
    kl = 0.5 * (log_variance.exp() / 0.1 + mean**2 / 0.1 - 1 - log_variance + math.log(0.1)).sum()
    encoded = net.controller_encoder(x[None], given)[0][0]
    g, c, u = mean, torch.zeros(5, dtype=torch.float64), None
    for t in range(T):
        c = net.controller(torch.cat([encoded[t], net.factors.weight @ g]), c)
        m, v = net.input_posterior(c).chunk(2)
        if u is None:
            prior_mean, prior = torch.zeros(2), torch.full((2,), 0.1)
        else:
            alpha = math.exp(-float(x[t, -1]) / 0.1)
            prior_mean, prior = alpha * u, torch.full((2,), 0.1 * (1 - alpha**2))
        kl = kl + 0.5 * ((v.exp() + (m - prior_mean) ** 2) / prior - 1 - v + prior.log()).sum()
        u = m
        g = net.generator(torch.cat([u, x[t, -1:]]), g)
        torch.testing.assert_close(factors[1, t], net.factors.weight @ g)
    torch.testing.assert_close(divergence[1], kl, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(net.latent(f)[1], factors[1, T - 1])
    torch.testing.assert_close(net(f, f.times[:, :1])[1, 0], net.read_out(factors[1, 0]))


def test_prior_of_the_inputs_is_a_stationary_process():
    """Two steps of gaps a and b are one step of a + b, and the variance stays what it is."""
    net = network()
    with torch.no_grad():
        net.prior_log_variance[:] = torch.tensor([0.3, -0.5])
        net.prior_log_time[:] = torch.tensor([-0.4, 0.2])
    u = normal(4, 2)
    a, b = torch.full((4, 1), 0.3).double(), torch.full((4, 1), 0.5).double()
    mean_a, log_a = net.input_prior(u, a)
    mean_ab, log_b = net.input_prior(mean_a, b)
    mean, log_variance = net.input_prior(u, a + b)
    torch.testing.assert_close(mean_ab, mean)
    decay = (-b / net.prior_log_time.exp()).exp()
    torch.testing.assert_close(log_b.exp() + decay**2 * log_a.exp(), log_variance.exp())
    stationary = net.prior_log_variance.exp().expand(4, -1)
    torch.testing.assert_close(log_a.exp() + (-2 * a / net.prior_log_time.exp()).exp() * stationary, stationary)
    first_mean, first = net.input_prior(None, a)
    assert not first_mean.any() and torch.equal(first.exp(), stationary)


def test_divergence_vanishes_only_at_the_prior():
    net, f = network(), frames()
    with torch.no_grad():
        for layer, log_variance in ((net.initial_posterior, math.log(0.1)), (net.input_posterior, math.log(0.1))):
            layer.weight.zero_()
            layer.bias.zero_()
            layer.bias[len(layer.bias) // 2 :] = log_variance
        net.prior_log_time.fill_(math.log(1e-6))  # inputs independent of each other
    torch.testing.assert_close(net.run(f, None)[1], torch.zeros(3).double(), rtol=0, atol=1e-9)
    with torch.no_grad():
        net.initial_posterior.bias[0] = 0.2
    torch.testing.assert_close(net.run(f, None)[1], torch.full((3,), 0.5 * 0.2**2 / 0.1).double())


def test_draws_move_the_answers_and_are_reproducible():
    net, f = network(), frames()
    a, b, c = (net.sample(f, f.times, generator(s))[0] for s in (0, 0, 1))
    assert torch.equal(a, b) and (a - c).abs().max().item() > 1e-3


def test_answers_between_frames_are_straight_lines():
    net, f = network(), frames()
    middle = (f.times[:, :1] + f.times[:, 1:2]) / 2
    ends = net(f, f.times[:, :2])
    torch.testing.assert_close(net(f, middle)[:, 0], ends.mean(1))


def test_learns_curves_through_few_factors():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 7)
    amplitude, mixing = rng.normal(size=(64, 2)), rng.normal(size=(2, 10))
    waves = np.stack([np.sin(5 * t), np.cos(5 * t)], -1)
    y = np.einsum("nk,tk,kc->ntc", amplitude, waves, mixing)
    samples = Samples(t, y)
    model = LFADS.preset("smoke", steps=120, learning_rate=2e-2, factors=3, batch=32, noise=0.0).fit(samples)
    error = np.sqrt(np.mean((model.predict(samples, t) - y) ** 2))
    assert error < 0.35 * y.std()
    assert model.latent(samples).shape == (64, 3)


def test_paper_preset_has_the_papers_size():
    """80,016,090 in the paper's table; ours adds the gap to three inputs and two numbers of the prior."""
    model = LFADS.preset("paper")
    with torch.device("meta"):
        sizes = Sizes(**{f.name: getattr(model, f.name) for f in dataclasses.fields(Sizes)})
        net = LFADSNetwork((184, 208, 1), sizes, model.mask)
    gaps = 2 * 3 * 200 + 2 * 3 * 128 + 3 * 200
    assert sum(p.numel() for p in net.parameters()) == 80_016_090 + gaps + 2
    assert sizes == Sizes()


@pytest.mark.parametrize("between", ["linear", "cubic"])
def test_setting_between_reaches_the_network(between):
    model = LFADS(between=between)
    model.kind_ = unfitted_kind(1, 2)
    assert model._network(1, 2).between == between
