"""Coordinates in [0,1]^d become token features, smoothly."""

from __future__ import annotations

import math

import torch
from torch import nn

from cstformer import series
from cstformer.series import Series


class LinearEncoding(nn.Module):
    """The paper's encoding: one linear layer on the coordinates."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.project = nn.Linear(d, width)

    def forward(self, x: Series) -> Series:
        """(J, ..., d) → (J, ..., width)."""
        return series.linear(x, self.project.weight, self.project.bias)


class FourierEncoding(nn.Module):
    """Sines and cosines of random projections, then a linear layer: smooth at all orders.

    The frequencies are drawn from N(0, ``frequency``²) cycles over the unit interval and stay fixed.
    """

    frequencies: torch.Tensor
    straight: torch.Tensor

    def __init__(self, d: int, width: int, features: int, frequency: float):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(features, d) * frequency * 2 * math.pi)
        self.register_buffer("straight", torch.ones(d), persistent=False)  # axes whose coordinate itself is a feature
        self.project = nn.Linear(2 * features + d, width)

    def wrap(self, axis: int, period: float) -> None:
        """Make the encoding periodic along an axis: only whole waves, and no coordinate."""
        wave = 2 * math.pi / period
        self.frequencies[:, axis] = torch.round(self.frequencies[:, axis] / wave) * wave
        self.straight[axis] = 0

    def forward(self, x: Series) -> Series:
        """(J, ..., d) → (J, ..., width)."""
        sin, cos = series.sin_cos(series.linear(x, self.frequencies))
        straight = x.map(lambda c: c * self.straight)
        return series.linear(series.concatenate([sin, cos, straight], -1), self.project.weight, self.project.bias)
