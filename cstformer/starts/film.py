r"""The start ``motion``: a movie at any moment between its frames, with both frames moved along the motion.

Let m be the `motion` from the frame :math:`y_0` to the next, :math:`y_1`. At the fraction τ of the way the movie is

.. math:: y(τ, x) = (1 - τ)\, y_0(x - τ m(x)) + τ\, y_1(x + (1 - τ)\, m(x)),

with cubic convolution between pixels. At τ = 0 and 1 these are the frames themselves; in between, things move where a
linear blend would show them twice. Like every start it is a Taylor series, here in time.

Shapes: J Taylor coefficients, B movies, T frames, u moments, H × W pixels, C channels.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cstformer.starts.cubic_convolution import keys_weights
from cstformer.starts.motion import motion, window_mean
from cstformer.starts.pixel_view import LOUDEST
from cstformer.starts.trust import continued
from cstformer.taylor import series
from cstformer.taylor.series import Series

# Of the expected error at a moment, √(mean squared difference of the two sides + LEAST) / USUAL. Units: the standard
# deviation of the frames.
NEAR = 2.5  # width in pixels (sd of a Gaussian window) over which the difference is averaged
LEAST = 0.01  # squared difference to expect even where the sides agree
USUAL = 0.2  # difference that makes the expected error 1


class Film:
    """Frames, and the motion between them.

    Parameters
    ----------
    times : (B, T), increasing where frames exist
    exists : (B, T)
    frames : (B, T, H, W, C), in units in which their standard deviation is about 1
    """

    def __init__(
        self, times: Float[Tensor, "B T"], exists: Bool[Tensor, "B T"], frames: Float[Tensor, "B T H W C"]
    ) -> None:
        if frames.shape[1] == 1:  # there is no pair: repeat the frame as padding
            times, exists, frames = (torch.cat([x, x], 1) for x in (times, exists, frames))
            exists[:, 1] = False
        # Frames that exist come first. Drop padding beyond the longest movie, but keep a pair.
        order = exists.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        kept = order[:, : max(2, int(exists.sum(1).max()))]
        times, exists, frames = _of(times, kept), _of(exists, kept), _of(frames, kept)
        self.frames = continued(frames, exists)
        self.times = times.masked_fill(~exists, torch.inf)
        self.last = (exists.sum(1, keepdim=True) - 2).clamp_min(0)  # (B, 1): number of the last pair of frames
        self.field = motion(self.frames)  # (B, T-1, H, W, 2)
        # The expected error of a pair follows from the difference of the two sides halfway.
        pair = torch.arange(frames.shape[1] - 1, device=frames.device).expand(len(frames), -1)
        half = series.constant(torch.full(pair.shape, 0.5).to(frames))
        before, after = (side.value for side in self._sides(pair, half))
        apart = window_mean((before - after).square().mean(-1), NEAR)[..., None]  # (B, T-1, H, W, 1)
        self.unsure = (apart + LEAST).sqrt() / USUAL

    def __call__(self, t: Float[Tensor, "B u"], order: int = 0) -> Series:
        """What the network is shown of each pixel at these moments, (1 + order, B, u, H, W, 2C + 2).

        The same quantities as `Trust.sight`, with the two moved frames in place of the pixel and its estimate: the
        start y (C numbers), the moved frame before minus the moved frame after (C), the log odds log((1 − τ) / τ) of
        the frame before over `LOUDEST`, and the expected error times 4 τ (1 − τ), so that it is 0 at a frame.
        """
        pair, tau = self._fraction(t, order)
        before, after = self._sides(pair, tau)
        rest, tau = before + after.map(torch.neg), tau.map(_on_pixels)
        share = series.shift(tau.map(torch.neg), 1.0)  # 1 − τ, (J, B, u, 1, 1, 1)
        guess = after + share * rest  # (1 − τ) before + τ after
        unsure = (tau * share).map(lambda c: 4 * c * _of(self.unsure, pair))
        odds = _log_odds(tau).map(lambda c: c.expand(*c.shape[:3], *rest.coefs.shape[3:5], 1) / LOUDEST)
        return series.concatenate([guess, rest, odds, unsure], -1)

    def _fraction(self, t: Float[Tensor, "B u"], order: int) -> tuple[Int[Tensor, "B u"], Series]:
        """Number of the frame before each moment and the fraction τ of the way to the next, kept in [0, 1]."""
        pair = torch.searchsorted(self.times.contiguous(), t.contiguous(), right=True) - 1
        pair = torch.minimum(pair.clamp_min(0), self.last)
        first, gap = self.times.gather(1, pair), self.times.diff(dim=1).gather(1, pair)
        gap = torch.where(gap.isfinite() & (gap > 0), gap, torch.ones_like(gap))
        tau = (t - first) / gap
        inside = ((tau >= 0) & (tau <= 1)).to(t)
        tail = [inside / gap, *[torch.zeros_like(t)] * (order - 1)][:order]  # τ is linear in time
        return pair, Series(torch.stack([tau.clamp(0, 1), *tail]), order)

    def _sides(self, pair: Int[Tensor, "B u"], tau: Series) -> tuple[Series, Series]:
        """The frames before and after some moments, both moved there, each (J, B, u, H, W, C)."""
        m, t = _of(self.field, pair), tau.map(_on_pixels)  # (B, u, H, W, 2), (J, B, u, 1, 1, 1)
        back, onward = t.map(torch.neg), series.shift(t.map(torch.neg), 1.0)
        before, after = _of(self.frames, pair), _of(self.frames, pair + 1)
        return shifted(before, back.map(lambda c: c * m)), shifted(after, onward.map(lambda c: c * m))


def shifted(y: Float[Tensor, "B u H W C"], by: Series) -> Series:
    """Frames at x + by(x), by (J, B, u, H, W, 2) in pixels; the pixels at the edges continue.

    Cubic convolution in both axes: 4 × 4 pixels around each place, weighted by the product of their weights.

    >>> by = series.constant(torch.tensor([0.0, 0.25]).expand(1, 1, 1, 6, 2))
    >>> shifted(torch.arange(6.0).reshape(1, 1, 1, 6, 1), by).value.flatten().tolist()[1:4]
    [1.25, 2.25, 3.25]
    """
    height, width, channels = y.shape[2:]
    flat = y.reshape(-1, channels)
    # Index of the first pixel of each frame in `flat`, (B, u, 1, 1).
    first = height * width * torch.arange(len(flat) // (height * width), device=y.device).view(*y.shape[:2], 1, 1)
    row, down = _taps(Series(by.coefs[..., 0], by.order, by.directions), 0)
    col, across = _taps(Series(by.coefs[..., 1], by.order, by.directions), 1)
    lines = []
    for i, weight in zip(row, down, strict=True):
        pixels = [series.constant(flat[first + i * width + j]) for j in col]
        lines.append(weight * _sum(w * x for w, x in zip(across, pixels, strict=True)))
    return _sum(lines)


def _sum(terms: Iterable[Series]) -> Series:
    return functools.reduce(operator.add, terms)


def _taps(by: Series, axis: int) -> tuple[list[Tensor], list[Series]]:
    """Indices of the four pixels around each place along an axis (0: rows, 1: columns), and their weights.

    ``by`` is (J, B, u, H, W); each index is (B, u, H, W), each weight (J, B, u, H, W, 1).
    """
    size = by.coefs.shape[-2 + axis]
    here = torch.arange(size, device=by.coefs.device).view((-1, 1) if axis == 0 else (1, -1))
    whole = by.value.floor()
    fraction = series.shift(by, -whole)  # in [0, 1); the whole part is locally constant, so it has no derivative
    index = [(here + whole.long() + tap).clamp(0, size - 1) for tap in (-1, 0, 1, 2)]
    return index, [w.map(lambda c: c[..., None]) for w in keys_weights(fraction)]


def _log_odds(tau: Series) -> Series:
    """log((1 − τ) / τ), constant beyond ±`LOUDEST`."""
    low = 1 / (1 + torch.tensor(LOUDEST).exp().item())  # τ at which the log odds are LOUDEST
    inside = (tau.value > low) & (tau.value < 1 - low)
    held = Series(torch.cat([tau.coefs[:1].clamp(low, 1 - low), tau.coefs[1:] * inside]), tau.order, tau.directions)
    return series.log(series.shift(held.map(torch.neg), 1.0)) + series.log(held).map(torch.neg)


def _on_pixels(c: Tensor) -> Tensor:
    """(..., u) → (..., u, 1, 1, 1)."""
    return c[..., None, None, None]


def _of(x: Tensor, pair: Int[Tensor, "B u"]) -> Tensor:
    """Items of (B, n, ...) with these numbers along the second axis: (B, u, ...)."""
    return x[torch.arange(len(x), device=x.device)[:, None], pair]
