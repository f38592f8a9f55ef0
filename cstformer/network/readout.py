"""From the last token of a query to its answer: the readouts ``plain`` and ``skip``.

The latter has a form for each kind of start: plain values, values with an allowed share of change, and pixel views.

An untrained network with any readout but ``plain`` answers with its initial value, because its decoder starts
at zero.
"""

from __future__ import annotations

import torch
from torch import nn

from cstformer.network.architecture import Architecture
from cstformer.network.layers import Linear
from cstformer.starts.pixel_view import PixelView
from cstformer.taylor import series
from cstformer.taylor.series import Series

GATE_GAIN = 4.0  # log odds for each unit of the gate: the gate learns as fast as the change does


class PlainReadout(nn.Module):
    """The paper's: y = decoder(token)."""

    def __init__(self, a: Architecture):
        super().__init__()
        # As in the published code, the decoder after post-norm blocks has no bias.
        self.decode = Linear(a.width, a.c, bias=a.norm != "post")

    def forward(self, token: Series, initial: Series) -> Series:
        """(J, B, m, width) and (J, B, m, c) → (J, B, m, c)."""
        return self.decode(token)


class SkipReadout(PlainReadout):
    """y = A · initial + decoder(token), with the matrix A (c, c) started at the identity.

    A lets the network remove noise from patches, which a plain residual (A = 1) cannot.
    """

    def __init__(self, a: Architecture):
        super().__init__(a)
        self.skip = Linear(a.c, a.c, bias=False)
        _zero(self.decode)
        _zero(self.skip)
        self.skip.weight.data.fill_diagonal_(1)  # `eye_` would import torch's compiler on the meta device

    def forward(self, token: Series, initial: Series) -> Series:
        """(J, B, m, width) and (J, B, m, c) → (J, B, m, c)."""
        return self.decode(token) + self.skip(initial)


class BoundedReadout(PlainReadout):
    """y = initial + f · (A · initial + decoder(token)), A started at 0, and the share f of `bounded_start`."""

    def __init__(self, a: Architecture):
        super().__init__(a)
        self.skip = Linear(a.c, a.c, bias=False)
        _zero(self.decode)
        _zero(self.skip)

    def forward(self, token: Series, initial: Series) -> Series:
        """(J, B, m, width) and (J, B, m, c + 1) → (J, B, m, c)."""
        first, share = initial.map(lambda c: c[..., :-1]), initial.map(lambda c: c[..., -1:])
        return first + share * (self.decode(token) + self.skip(first))


class GatedReadout(PlainReadout):
    """Mix the two estimates of a `PixelView`, with weights and a change that the token decides.

    With first and second estimate a and b, log odds l, expected error e of b, gate g and change δ from the token:
    y = γ a + (1 − γ)(b + e δ), γ = sigmoid(l + GATE_GAIN · g). Multiplying the change by e leaves b alone where it is
    known well.
    """

    def __init__(self, a: Architecture, view: PixelView):
        super().__init__(a)
        self.view = view
        self.gate = Linear(a.width, view.pixels)
        _zero(self.decode)
        _zero(self.gate)

    def forward(self, token: Series, initial: Series) -> Series:
        """(J, B, m, width) and (J, B, m, view.size) → (J, B, m, c)."""
        rows, cols, channels = self.view.rows, self.view.cols, self.view.channels
        change, gate = self.decode(token), self.gate(token)
        guess, difference, odds, error = self.view.split(initial)  # (J, B, m, rows, cols, ·)
        gamma = series.sigmoid(odds + gate.map(lambda c: GATE_GAIN * c.unflatten(-1, (rows, cols, 1))))
        # The guess is the mixture with the weight sigmoid(odds): add what the gate changes of it.
        more = gamma + series.sigmoid(odds).map(torch.neg)
        change = error * change.map(lambda c: c.unflatten(-1, (rows, cols, channels)))
        y = guess + more * difference + change + gamma * change.map(torch.neg)
        return y.map(lambda c: c.flatten(-3))


def make_readout(a: Architecture) -> PlainReadout:
    """The readout of an architecture."""
    if a.view is not None:
        return GatedReadout(a, a.view)
    if a.bounded and a.readout == "skip":
        return BoundedReadout(a)
    return SkipReadout(a) if a.readout == "skip" else PlainReadout(a)


def _zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
