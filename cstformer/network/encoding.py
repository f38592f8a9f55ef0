"""Encodings of coordinates, and the attention bias of distances; both are smooth functions of the coordinates.

Coordinates are in the model's units, [0, 1]^d. Shapes: J Taylor coefficients, B samples, m queries, n keys, d axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
    r"""Random Fourier features, then a linear layer: :math:`W [\sin(\Omega x) | \cos(\Omega x) | x] + b`.

    The frequencies Ω (features, d) are drawn from N(0, ``frequency``²) cycles per unit of the coordinates and stay
    fixed. The coordinate itself is a feature too, so that a linear trend needs no slow wave.
    """

    frequencies: Tensor  # Ω in radians per unit, (features, d)
    straight: Tensor  # (d,): 1 for axes whose coordinate is a feature, 0 for periodic axes

    def __init__(self, d: int, width: int, features: int, frequency: float):
        super().__init__()
        self.register_buffer("frequencies", _drawn(features, d, lambda x: x * frequency * 2 * math.pi))
        self.register_buffer("straight", torch.ones(d), persistent=False)
        self.project = nn.Linear(2 * features + d, width)

    def wrap(self, axis: int, period: float) -> None:
        """Make the encoding periodic along an axis: round to whole waves, and drop the coordinate."""
        wave = 2 * math.pi / period
        self.frequencies[:, axis] = torch.round(self.frequencies[:, axis] / wave) * wave
        self.straight[axis] = 0

    def forward(self, x: Series) -> Series:
        """(J, ..., d) → (J, ..., width)."""
        sin, cos = series.sin_cos(series.linear(x, self.frequencies))  # (J, ..., features) each
        straight = x.map(lambda c: c * self.straight)
        return series.linear(series.concatenate([sin, cos, straight], -1), self.project.weight, self.project.bias)


class CalendarEncoding(nn.Module):
    r"""Features of the calendar: :math:`W [\sin\theta | \cos\theta]` with :math:`\theta_k = \omega_k x_a + \varphi_k`.

    The rates ω (k,) belong to the model, the phases φ (B, k) to the samples; a is the axis of time. W starts at zero.
    """

    rates: Tensor

    def __init__(self, rates: tuple[float, ...], axis: int, width: int):
        super().__init__()
        self.axis = axis
        self.register_buffer("rates", torch.tensor(rates), persistent=False)
        self.project = nn.Linear(2 * len(rates), width, bias=False)
        nn.init.zeros_(self.project.weight)

    def forward(self, x: Series, phases: Float[Tensor, "B k"]) -> Series:
        """(J, B, m, d) → (J, B, m, width)."""
        angle = x.map(lambda c: c[..., self.axis : self.axis + 1] * self.rates)  # (J, B, m, k)
        sin, cos = series.sin_cos(series.shift(angle, phases[:, None]))
        return series.linear(series.concatenate([sin, cos], -1), self.project.weight)


class Nearness(nn.Module):
    r"""Attention bias that makes each head look near a place relative to the reader.

    To the logit of a reader at x and a token at y it adds

    .. math:: -\sum_a \left(\frac{p_a}{2\pi s_a}\right)^2 \left(1 - \cos\frac{2\pi \delta_a}{p_a}\right)
              \approx -\sum_a \frac{\delta_a^2}{2 s_a^2}, \qquad \delta_a = y_a - x_a - o_a.

    Each head learns an offset o and a width s for every axis a, in units of the domain. p is the period of the axis.

    Why a cosine and not the Gaussian itself: a cosine of a difference is an inner product of features of x and of y,

    .. math:: \cos(\alpha_y - \alpha_x) = \sin\alpha_y \sin\alpha_x + \cos\alpha_y \cos\alpha_x,

    so the bias joins queries and keys as 2d more features, and every attention kernel works unchanged. The constant
    :math:`(p_a / 2\pi s_a)^2` is left out, since softmax ignores it.
    """

    period: Tensor  # (d,)

    def __init__(self, d: int, heads: int):
        super().__init__()
        # An axis without a period gets 4, four times the domain: the bias then grows with the distance over the whole
        # domain, and at distance 1 it is still 0.81 of the parabola.
        self.register_buffer("period", torch.full((d,), 4.0), persistent=False)
        # In units of the spacing of neighbouring tokens, once `spread` has been called: offsets of about 0.7 and widths
        # between 0.37 and 0.82 (one sd), so that heads begin at the reader's own token and its neighbours.
        self.offset = nn.Parameter(_drawn(heads, d, lambda x: 0.7 * x))
        self.log_width = nn.Parameter(_drawn(heads, d, lambda x: math.log(0.55) + 0.4 * x))

    def wrap(self, axis: int, period: float) -> None:
        """Measure distances along an axis around a circle of this circumference."""
        self.period[axis] = period

    @torch.no_grad()
    def spread(self, spacing: Float[Tensor, " d"]) -> None:
        """Scale the initial offsets and widths to the spacing of neighbouring tokens along each axis."""
        self.offset.mul_(spacing.to(self.offset))
        self.log_width.add_(spacing.to(self.log_width).log())

    def keys(self, y: Series) -> Series:
        """(J, B, n, d) → (J, B, heads, n, 2d): the sines and cosines of α_y = 2π y / p, times p / (2π s)."""
        strength = self._strength()
        return self._waves(y).map(lambda c: c[:, :, None] * strength)

    def queries(self, x: Series) -> Series:
        """(J, B, m, d) → (J, B, heads, m, 2d): the features of x + o, by the addition theorems."""
        turn = (2 * math.pi * self.offset / self.period)[:, None]  # (heads, 1, d)
        sin, cos, strength = turn.sin(), turn.cos(), self._strength()

        def turned(c: Tensor) -> Tensor:
            s, k = c[:, :, None].chunk(2, -1)  # sines and cosines, (J, B, 1, m, d) each
            return torch.cat([s * cos + k * sin, k * cos - s * sin], -1) * strength

        return self._waves(x).map(turned)

    def _waves(self, x: Series) -> Series:
        """(J, B, m, d) → (J, B, m, 2d)."""
        angle = x.map(lambda c: c * (2 * math.pi / self.period))
        return series.concatenate(list(series.sin_cos(angle)), -1)

    def _strength(self) -> Float[Tensor, "heads 1 features"]:
        """Factor p / (2π s) of sines and cosines; keys and queries both carry it, which makes (p / 2π s)²."""
        return (self.period / (2 * math.pi) * torch.exp(-self.log_width)).repeat(1, 2)[:, None]


def _drawn(rows: int, columns: int, scale: Callable[[Tensor], Tensor]) -> Tensor:
    """Standard normal numbers, scaled; on the meta device, which only counts weights, their shape alone.

    The first arithmetic on that device imports torch's compiler, which takes longer than reading a model.
    """
    if torch.get_default_device().type == "meta":
        return torch.empty(rows, columns)
    return scale(torch.randn(rows, columns))
