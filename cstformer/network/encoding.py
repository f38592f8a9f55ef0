"""Coordinates in [0,1]^d become token features, and distances become attention, smoothly."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cstformer.taylor import series
from cstformer.taylor.series import Series


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


class Nearness(nn.Module):
    r"""Heads that look near a place: what the distance between reader x and read y adds to their logits.

    .. math:: -\sum_a \left(\frac{p_a}{2\pi s_a}\right)^2 \left(1 - \cos\frac{2\pi \delta_a}{p_a}\right)
              \approx -\sum_a \frac{\delta_a^2}{2 s_a^2}, \qquad \delta_a = y_a - x_a - o_a

    Each head learns an offset o and a width s along every axis a, in units of the domain. The period p is that of the
    axis, or else so long that the approximation holds. A cosine of a difference is a product of features of x and y
    (up to a constant, which softmax forgets), so these numbers simply join the queries and keys.
    """

    period: Tensor

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.register_buffer("period", torch.full((d,), 4.0), persistent=False)
        self.offset = nn.Parameter(0.7 * torch.randn(heads, d))
        self.log_width = nn.Parameter(math.log(0.55) + 0.4 * torch.randn(heads, d))

    def wrap(self, axis: int, period: float) -> None:
        """Measure distances along an axis around a circle."""
        self.period[axis] = period

    @torch.no_grad()
    def spread(self, spacing: Float[Tensor, " d"]) -> None:
        """Begin with offsets and widths of the size of the distance between neighbouring tokens."""
        self.offset.mul_(spacing.to(self.offset))
        self.log_width.add_(spacing.to(self.log_width).log())

    def keys(self, y: Series) -> Series:
        """(J, B, n, d) → (J, B, heads, n, 2d)."""
        strength = self._strength()
        return self._waves(y).map(lambda c: c[:, :, None] * strength)

    def queries(self, x: Series) -> Series:
        """(J, B, m, d) → (J, B, heads, m, 2d): the features of x + o, by the addition theorem."""
        turn = (2 * math.pi * self.offset / self.period)[:, None]  # (heads, 1, d)
        sin, cos, strength = turn.sin(), turn.cos(), self._strength()

        def turned(c: Tensor) -> Tensor:
            s, k = c[:, :, None].chunk(2, -1)
            return torch.cat([s * cos + k * sin, k * cos - s * sin], -1) * strength

        return self._waves(x).map(turned)

    def _waves(self, x: Series) -> Series:
        angle = x.map(lambda c: c * (2 * math.pi / self.period))
        return series.concatenate(list(series.sin_cos(angle)), -1)

    def _strength(self) -> Tensor:
        return (self.period / (2 * math.pi) * torch.exp(-self.log_width)).repeat(1, 2)[:, None]  # (heads, 1, 2d)
