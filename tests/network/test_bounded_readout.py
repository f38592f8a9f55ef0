"""The readout that changes its start by an allowed share."""

import torch

from cstformer.network.architecture import Architecture
from cstformer.network.readout import BoundedReadout, make_readout
from cstformer.taylor.series import Series, constant


def test_the_change_is_the_allowed_share_of_a_linear_map():
    torch.manual_seed(0)
    readout = make_readout(Architecture(d=3, c=2, width=4, bounded=True))
    assert isinstance(readout, BoundedReadout)
    token, first = torch.randn(1, 3, 4), torch.randn(1, 3, 2)
    share = torch.tensor([0.0, 0.5, 1.0])[None, :, None]
    initial = constant(torch.cat([first, share], -1))
    assert torch.equal(readout(constant(token), initial).value, first)  # before training
    for weight in (readout.decode.weight, readout.skip.weight):
        torch.nn.init.normal_(weight)
    change = token @ readout.decode.weight.T + readout.decode.bias + first @ readout.skip.weight.T
    assert torch.allclose(readout(constant(token), initial).value, first + share * change)


def test_the_slope_follows_the_product_rule():
    torch.manual_seed(0)
    readout = make_readout(Architecture(d=3, c=1, width=2, bounded=True)).double()
    torch.nn.init.normal_(readout.decode.weight)
    token, initial = torch.randn(2, 1, 1, 2).double(), torch.randn(2, 1, 1, 2).double()
    y = readout(Series(token, 1), Series(initial, 1)).coefs
    change = token @ readout.decode.weight.T
    change[0] += readout.decode.bias
    slope = initial[1, ..., :1] + initial[1, ..., 1:] * change[0] + initial[0, ..., 1:] * change[1]
    assert torch.allclose(y[1], slope)
