"""The feed-forward step in blocks against the same, step by step."""

import pytest
import torch
from problems import normal

from cstformer.taylor import feedforward as module
from cstformer.taylor.feedforward import feedforward, plain_feedforward
from cstformer.taylor.series import Series


@pytest.mark.parametrize(("order", "directions"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize(("block", "keep"), [(7, 0), (40, 0), (40, 10**6)])
def test_blocks_equal_one_step(order, directions, block, keep, monkeypatch):
    """Values and all five gradients, blocks that do not divide the tokens included, stored and recomputed."""
    monkeypatch.setattr(module, "_KEEP", keep)
    monkeypatch.setattr(module, "_FROM", 0)
    monkeypatch.setattr(module, "_BLOCK", block)
    weights = [normal(*shape, seed=i).requires_grad_() for i, shape in enumerate([(7, 3), (7,), (3, 7), (3,)])]
    x = normal(1 + order * directions, 2, 5, 3, seed=9).requires_grad_()
    towards = normal(*x.shape, seed=10)
    found = []
    for step in (feedforward, plain_feedforward):
        y = step(Series(x, order, directions), *weights)
        assert (y.order, y.directions) == (order, directions)
        found.append([y.coefs, *torch.autograd.grad((y.coefs * towards).sum(), [x, *weights])])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=1e-11)


def test_small_steps_are_not_cut(monkeypatch):
    def refuse(*_):
        raise AssertionError("blocks were made")

    monkeypatch.setattr(module, "_blocks", refuse)
    weights = [torch.ones(4, 2), torch.zeros(4), torch.ones(2, 4), torch.zeros(2)]
    assert feedforward(Series(torch.ones(2, 3, 2), 1, 1), *weights).coefs.shape == (2, 3, 2)
