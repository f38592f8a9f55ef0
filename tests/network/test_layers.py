"""Layers of PyTorch on Taylor series."""

import pytest
import torch
from problems import normal
from torch import nn

from cstformer.network.layers import Dropout, LayerNorm, Linear
from cstformer.taylor.series import Series


@pytest.mark.parametrize("layer", [Linear(5, 5), LayerNorm(5)])
def test_the_value_is_that_of_the_layer_of_torch(layer):
    layer = layer.double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(normal(*p.shape, seed=3))
    x = Series(normal(3, 2, 4, 5), 2)
    parent = nn.Linear if isinstance(layer, Linear) else nn.LayerNorm
    torch.testing.assert_close(layer(x).value, parent.forward(layer, x.value))


def test_the_bias_of_a_linear_layer_belongs_to_the_value_alone():
    layer, x = Linear(5, 2).double(), Series(normal(3, 2, 4, 5), 2)
    torch.testing.assert_close(layer(x).coefs[1:], x.coefs[1:] @ layer.weight.T)


def test_dropout_drops_a_feature_in_all_orders_at_once():
    drop, ones = Dropout(0.5), Series(torch.ones(3, 40, 5), 2)
    dropped = drop(ones)
    assert set(dropped.coefs.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped.coefs[0], dropped.coefs[1]) and torch.equal(dropped.coefs[0], dropped.coefs[2])
    assert drop.eval()(ones) is ones
