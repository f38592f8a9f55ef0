"""One transformer block: parity with PyTorch, heads that look near a place, the shortcut for few keys."""

import math

import pytest
import torch
from problems import normal, relative_error, start_of, tiny_context, tiny_network, uniform
from torch import nn
from torch.nn import functional as F

from cstformer.network.architecture import Architecture
from cstformer.network.blocks import Attention, Block
from cstformer.taylor import series
from cstformer.taylor.series import constant

MASK = torch.tensor([[True] * 6, [True, False, True, True, False, True]])


def with_noise(module: nn.Module) -> nn.Module:
    """The same module in double precision, no parameter of which is zero."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.add_(0.3 * normal(*p.shape, seed=50 + i))
    return module


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_the_encoder_layer_of_torch(norm):
    block = with_noise(Block(Architecture(d=1, c=2, width=8, heads=2, feedforward=12, norm=norm)))
    torch.manual_seed(0)
    other = nn.TransformerEncoderLayer(8, 2, 12, 0.0, F.gelu, batch_first=True, norm_first=norm == "pre").double()
    attention = block.attention
    both = [attention.query, attention.key_value]
    weights = {
        "self_attn.in_proj_weight": torch.cat([layer.weight for layer in both]),
        "self_attn.in_proj_bias": torch.cat([layer.bias for layer in both]),
    }
    pairs = {"self_attn.out_proj": attention.out, "linear1": block.widen, "linear2": block.narrow}
    pairs |= {"norm1": block.norm1, "norm2": block.norm2}
    for name, layer in pairs.items():
        weights |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    other.load_state_dict(weights)
    x, at = normal(2, 6, 8), constant(uniform(2, 6, 1))
    tokens = constant(x)
    y = block(tokens, at, block.keys_values(tokens, at), MASK, nystrom=False).value
    want = other(x, src_key_padding_mask=~MASK)
    torch.testing.assert_close(y[MASK], want[MASK])


def test_a_second_projection_comes_after_the_first():
    attention = with_noise(Attention(Architecture(d=1, c=2, width=8, heads=2, projections=2)))
    x, at = constant(normal(2, 6, 8)), constant(uniform(2, 6, 1))
    keys_values = attention.keys_values(x, at)
    twice = attention(x, at, keys_values, MASK, nystrom=False).value
    again, attention.again = attention.again, None
    once = attention(x, at, keys_values, MASK, nystrom=False).value
    torch.testing.assert_close(twice, F.linear(once, again.weight, again.bias))


def test_far_points_are_not_read_by_heads_that_look_near():
    network, context = tiny_network(1, near=True, layers=1), tiny_context(1)
    with torch.no_grad():
        nearness = network.blocks[0].attention.nearness
        nearness.offset.zero_()
        nearness.log_width.fill_(math.log(0.02))
    maps = []
    at = constant(context.coords[:, 2:3] + 0.001)
    network(context, at, constant(torch.zeros(2, 1, 2).double()), maps)
    assert float(maps[0][..., 2].detach().min()) > 0.99


@pytest.mark.parametrize("order", [0, 1, 3])
def test_many_queries_of_few_points_take_a_shorter_way_to_the_same_answer(order, monkeypatch):
    """Projections taken into the keys (`Attention._read_few`) against the plain order of products."""
    network = tiny_network(1, width=16, heads=2)
    context = tiny_context(1, batch=3)
    observed = context.observed.clone()
    observed[1, 2:] = False  # a sample with fewer points, and one with none
    observed[2] = False
    context = context.replace(observed=observed)
    m = 8 * context.coords.shape[1]
    line = series.straight_line(0.8 * uniform(3, m, 1, seed=3), torch.ones(1, 1, dtype=torch.float64), order)
    start = start_of("cubic", context)(line)
    taken = []
    few = Attention._few

    def answers(allowed: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        def record(self, x, k):
            taken.append(few(self, x, k) and allowed)
            return taken[-1]

        monkeypatch.setattr(Attention, "_few", record)
        y = network(context, line, start)[1].coefs
        return y, torch.autograd.grad(y.square().mean(), list(network.blocks.parameters()))

    (short, gradient), (plain, reference) = answers(True), answers(False)
    assert sum(taken) == len(network.blocks)
    assert relative_error(short, plain) < 1e-12 and plain.isfinite().all()
    for a, b in zip(gradient, reference, strict=True):
        assert relative_error(a, b) < 1e-9 or b.abs().max() < 1e-12
