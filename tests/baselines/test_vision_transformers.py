"""3D-ViT and ViViT: tubelets, who reads whom, padding, per-token decoding."""

import numpy as np
import pytest
import torch
from problems import normal, uniform
from torch import nn

from cstformer.baselines import ViT3D, ViViT
from cstformer.baselines.sequences import TimeSeries
from cstformer.baselines.vision_transformers import (
    Block,
    FactorisedTransformer,
    JointTransformer,
    Sizes,
    clock,
    tubelets,
    untubelets,
)
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.network.architecture import parameter_count
from cstformer.starts.kinds import unfitted_kind

SIZES = Sizes((2, 3, 2), dim=12, layers=2, head_count=3, head_width=5, feedforward=9)


def movie(batch=2, T=5, seed=0):
    """TimeSeries of 5 × 4 pixels in two colours; nothing divides."""
    times = uniform(batch, T, seed=seed).sort(1).values
    observed = uniform(batch, T, 5, 4, 2, seed=seed + 1) > 0.1
    return TimeSeries(times, normal(batch, T, 5, 4, 2, seed=seed + 2) * observed, observed, times >= 0)


def networks(**changes):
    sizes = Sizes(**{**SIZES.__dict__, **changes})
    torch.manual_seed(0)
    return [JointTransformer((5, 4, 2), sizes).double(), FactorisedTransformer((5, 4, 2), sizes, 2).double()]


def test_tubelets_hold_the_right_pixels():
    x = movie().values
    cut = tubelets(x, (2, 3, 2))
    assert cut.shape == (2, 3, 2 * 2, 2 * 3 * 2 * 2)
    torch.testing.assert_close(cut[1, 1, 3].reshape(2, 3, 2, 2)[:, :2], x[1, 2:4, 3:5, 2:4])
    assert not cut[1, 1, 3].reshape(2, 3, 2, 2)[:, 2].any() and not cut[:, 2].reshape(2, 4, 2, -1)[:, :, 1].any()
    torch.testing.assert_close(untubelets(cut, (2, 3, 2), (5, 5, 4, 2)), x)


def test_block_equals_torchs_with_heads_that_fill_the_width():
    """The same weights in torch's pre-norm layer give the same answers, masked tokens included."""
    sizes = Sizes((1, 1, 1), dim=8, layers=1, head_count=2, head_width=4, feedforward=6)
    torch.manual_seed(0)
    ours = Block(sizes).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 6, 0.0, "gelu", batch_first=True, norm_first=True).double()
    with torch.no_grad():
        attention = theirs.self_attn
        attention.in_proj_weight.copy_(ours.query_key_value.weight)
        attention.in_proj_bias.zero_()
        pairs = ((attention.out_proj, ours.out), (theirs.linear1, ours.widen), (theirs.linear2, ours.narrow))
        for to, of in (*pairs, (theirs.norm1, ours.norm1), (theirs.norm2, ours.norm2)):
            to.load_state_dict(of.state_dict())
    x, tokens = normal(3, 5, 8), torch.arange(5) < torch.tensor([[5], [3], [1]])
    expected = theirs(x, src_key_padding_mask=~tokens)
    torch.testing.assert_close(ours(x, tokens)[tokens], expected[tokens])


def test_clock_tells_times_apart():
    t = torch.tensor([[0.0, 0.5]], dtype=torch.float64)
    assert clock(t)[0, 0].tolist() == [0.0] + [0.0] * 6 + [1.0] * 6
    expected = [0.5, 1, 0, 0, 0, 0, 0, 0, -1, 1, 1, 1, 1]  # sines, then cosines of π/2, π, 2π, …
    torch.testing.assert_close(clock(t)[0, 1], torch.tensor(expected).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", [0, 1])
def test_padding_changes_nothing(which):
    net, f = networks()[which], movie()
    y = net.reconstruct(f[:, :3])
    longer = TimeSeries(
        torch.cat([f.times[:, :3], f.times[:, 2:3].expand(-1, 3)], 1),
        torch.cat([f.values[:, :3], torch.zeros(2, 3, 5, 4, 2)], 1),
        torch.cat([f.observed[:, :3], torch.zeros(2, 3, 5, 4, 2, dtype=torch.bool)], 1),
        torch.arange(6).expand(2, -1) < 3,
    )
    torch.testing.assert_close(net.reconstruct(longer)[:, :3], y)
    torch.testing.assert_close(net.latent(longer), net.latent(f[:, :3]))


@pytest.mark.parametrize("which", [0, 1])
def test_every_pixel_reads_all_frames_and_its_times(which):
    net, f = networks()[which], movie()
    values, times = f.values.clone().requires_grad_(), f.times.clone().requires_grad_()
    y = net.reconstruct(TimeSeries(times, values, f.observed, f.exists))
    assert y.shape == f.values.shape
    by_value, by_time = torch.autograd.grad(y[0, 0, 1, 1, 0], (values, times))
    assert by_value[0].abs().amin() > 0 and not by_value[1].any()
    assert by_time[0].abs().amin() > 0 and not by_time[1].any()


def test_factorised_attention_takes_the_way_over_the_moments():
    """Without the temporal encoder's answer a moment knows its own frames alone."""
    _, net = networks()
    f = movie()
    values = f.values.clone().requires_grad_()
    x, _, _ = net.tokens(TimeSeries(f.times, values, f.observed, f.exists))
    moments = net.spatial(x.flatten(0, 1), None).unflatten(0, x.shape[:2])
    (gradient,) = torch.autograd.grad(moments[0, 1].square().sum(), values)
    assert gradient[0, 2:4].abs().amin() > 0
    assert not gradient[0, :2].any() and not gradient[0, 4:].any()


def test_each_token_is_decoded_into_its_own_pixels():
    for net in networks():
        f = movie()
        places, _ = net.encode(f)
        by_hand = places[1, 1, 3] @ net.decode.weight.T + net.decode.bias  # frames 2-3, rows 3-4, columns 2-3
        torch.testing.assert_close(net.reconstruct(f)[1, 2:4, 3:5, 2:4], by_hand.reshape(2, 3, 2, 2)[:, :2])


def test_mask_is_an_input_that_the_paper_leaves_out():
    f = movie()
    other = TimeSeries(f.times, f.values, torch.ones_like(f.observed), f.exists)
    for mask in (True, False):
        for net in networks(mask=mask):
            change = float((net.reconstruct(f) - net.reconstruct(other)).detach().abs().max())
            assert (change > 1e-3) == mask


def test_latent_is_the_moment_of_the_last_frame():
    f = movie()
    for net in networks():
        torch.testing.assert_close(net.latent(f), net.encode(f)[1][:, -1])
        torch.testing.assert_close(net.latent(f[:, :4]), net.encode(f[:, :4])[1][:, 1])


@pytest.mark.parametrize("cls", [ViT3D, ViViT])
def test_learns_to_remove_noise(cls):
    """Standing waves of random phase under noise: nearer to the truth than what it is given."""
    rng = np.random.default_rng(0)
    t, row = np.linspace(0, 1, 6), np.arange(8)
    angle = 2 * np.pi * (row[:, None] / 8 + t[:, None, None, None] / 2) + rng.uniform(0, 6, (64, 1, 1, 1, 1))
    truth = np.sin(angle).repeat(8, -1)[..., None].reshape(64, 6, 8, 8, 1)
    noisy = truth + 0.5 * rng.normal(size=truth.shape)
    samples = frames_to_samples(noisy, (4, 4), times=t)
    model = cls.preset("smoke", steps=40, learning_rate=1e-2, noise=0.5, hide=0.3, batch=16).fit(samples)
    y = stitch(model.predict(samples, frame_queries(samples.layout, t)), samples.layout)
    assert np.sqrt(np.mean((y - truth) ** 2)) < 0.5 * 0.5
    assert model.latent(samples).shape == (64, 32)


def test_paper_presets_as_described():
    """29.5 M and 31.6 M with per-token decoding; the paper's counts need a layer to the whole clip (see the module)."""
    for cls, expected in ((ViT3D, 29_466_624), (ViViT, 31_589_376)):
        model = cls.preset("paper")
        model.kind_ = unfitted_kind(3, 1536, PatchLayout((128, 160), (16, 32), 3))
        with torch.device("meta"):
            count = parameter_count(model._network(3, 1536))
        d, inner, f, p = 1024, 6 * 64, model.feedforward, 2 * 16 * 32 * 3
        block = 4 * d + 3 * d * inner + inner * d + d + 2 * d * f + f + d
        shared = p * d + d + 8 * 5 * d + 2 * 13 * d + d * p + p
        by_hand = shared + (4 * block + 2 * d if cls is ViT3D else 8 * block + 4 * d + d)
        assert count == by_hand == expected
