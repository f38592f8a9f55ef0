r"""How a movie moves from each of its frames to the next.

Between the frames :math:`y_0` and :math:`y_1` the motion m, in pixels, is given at the pixels x of the moment halfway:

.. math:: y_0(x - m(x) / 2) ≈ y_1(x + m(x) / 2),

so that both frames count alike (`Film` says what the movie shows on the way).

The motion is first looked for among the even displacements 2k, k whole, with one cost for each pixel and k: the mean of
:math:`d / (d + s)` around the pixel, :math:`d = |y_0(x - k) - y_1(x + k)|^2`, in a narrow and in a broad window, plus a
little for each pixel of motion; once more with a little for each pixel by which it differs from the motion around.
Pixels that leave the frame do not count. Then least squares refine it (Lucas and Kanade, symmetric): with
:math:`δ = y_0(x - m/2) - y_1(x + m/2)` and g the mean slope of the two sides, m grows by the u with

.. math:: \Big(\sum w\, g g^\top + λ\Big) u = \sum w\, g δ + λ (\bar m - m),
          \qquad w = \frac{1}{1 + |δ|^2 / r},

sums over a window, :math:`\bar m` the motion around, weighted by texture: where there is none, motion comes from
where there is some. Where the sides then are as different as without motion, m = 0. All this is in units of the
standard deviation of the two frames.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from cstformer.errors import CSTError

Frames = Float[Tensor, "B T H W C"]
Field = Float[Tensor, "B T-1 H W 2"]
# Of the search: largest |k|, at most a quarter of the frame; every so manieth pixel; pixels of blur before; windows in
# pixels (standard deviations, like all widths here) and what the broad one counts; the square difference s.
REACH, STRIDE, BLUR, NARROW, BROAD, SHARE, LIKE = 7, 2, 1.0, 3.5, 5.0, 0.5, 0.5
SMALL, ALONG = 0.004, 0.015  # cost of a pixel of motion, and of a pixel of difference to the motion around
AROUND, SEEN = 4.0, 0.3  # width of what is around; share of a window that must lie inside of both frames
STEPS, WINDOW, DAMP, ROBUST = 4, 1.5, 0.04, 0.3  # of least squares: how often, width, λ, r
CHECK, GAIN = 2.5, 0.98  # width over which the sides are compared; motion must leave less than this share
PIXELS = 2**16  # at a time


@torch.no_grad()
def motion(frames: Frames) -> Field:
    """Motion from each frame to the next, (rows, columns) in pixels, at the pixels of the moment halfway.

    >>> row, col = torch.arange(24.0)[:, None], torch.arange(24.0)
    >>> frames = torch.stack([torch.sin(0.5 * row) + torch.cos(0.6 * (col - 1.5 * t)) for t in range(2)])
    >>> [round(float(x), 1) for x in motion(frames[None, ..., None])[0, 0, 12, 12]]
    [0.0, 1.5]
    """
    batch, length, height, width, _ = frames.shape
    if length < 2:
        raise CSTError(f"frames has {length} frame(s) in time; motion needs at least 2")
    pairs = torch.stack([frames[:, :-1], frames[:, 1:]]).flatten(1, 2).movedim(-1, 2)
    some = max(1, PIXELS // (height * width))
    found = torch.cat([_pair_motion(part) for part in pairs.split(some, 1)])
    return found.movedim(1, -1).unflatten(0, (batch, length - 1))


def _pair_motion(pairs: Float[Tensor, "2 n C H W"]) -> Float[Tensor, "n 2 H W"]:
    """Motion of pairs of frames."""
    y = pairs - pairs.mean((0, 3, 4), keepdim=True)
    y = y / y.square().mean((0, 2, 3, 4), keepdim=True).sqrt().clamp_min(torch.finfo(y.dtype).tiny)
    m = _search(y)
    for _ in range(STEPS):
        m = _least_squares(y, m)
    before, after, _ = _halfway(y, m)
    moved, still = (window_mean((a - b).square().sum(1), CHECK) for a, b in ((before, after), (y[0], y[1])))
    return torch.where((moved < GAIN * still)[:, None], m, 0)


def _search(y: Float[Tensor, "2 n C H W"]) -> Float[Tensor, "n 2 H W"]:
    """The best even displacement around each pixel."""
    *_, height, width = y.shape
    down, across = (min(REACH, (size - 1) // 4) for size in (height, width))
    blurred = window_mean(y, BLUR).flatten(0, 2)
    y = F.pad(blurred, (across, across, down, down), mode="replicate").unflatten(0, y.shape[:3])
    ks = [(a, b) for a in range(-down, down + 1) for b in range(-across, across + 1)]
    d = torch.stack(
        [(_part(y[0], -a, -b, down, across) - _part(y[1], a, b, down, across)).square().sum(1) for a, b in ks], 1
    )
    k = y.new_tensor(ks)[..., None, None]  # (K, 2, 1, 1)
    row, col = (torch.arange(0, size, STRIDE, device=y.device).to(y) for size in (height, width))
    inside = (torch.minimum(row, height - 1 - row)[:, None] >= k[:, 0].abs()) & (
        torch.minimum(col, width - 1 - col) >= k[:, 1].abs()
    )
    inside = inside.to(y)  # (K, h, w)
    unlike = d / (d + LIKE) * inside
    seen = _sum(inside, NARROW / STRIDE)
    cost = (1 - SHARE) * _sum(unlike, NARROW / STRIDE) / (seen + 1e-3)
    cost += SHARE * _sum(unlike, BROAD / STRIDE) / (_sum(inside, BROAD / STRIDE) + 1e-3)
    cost += 2 * SMALL * k.square().sum(1).sqrt() + 1e3 * (seen < SEEN)
    best, at = cost.min(1)
    k, m = 2 * k, 2 * k[at, :, 0, 0].movedim(-1, 1)
    sure = (cost.clamp_max(1).mean(1) - best).clamp_min(1e-3).square()[:, None]
    around = _sum(sure * m, AROUND / STRIDE) / _sum(sure, AROUND / STRIDE)
    far = ((k[:, 0] - around[:, :1]).square() + (k[:, 1] - around[:, 1:]).square()).sqrt()
    m = k[(cost + ALONG * far).argmin(1), :, 0, 0].movedim(-1, 1)
    rows, cols = (_hats(size, of, m) for size, of in zip((height, width), m.shape[-2:], strict=True))
    return rows @ _median(m) @ cols.T


def _part(y: Float[Tensor, "n C P Q"], a: int, b: int, down: int, across: int) -> Float[Tensor, "n C h w"]:
    """Every so manieth pixel of padded frames, from a and b on."""
    *_, height, width = y.shape
    return y[..., down + a : height - down + a : STRIDE, across + b : width - across + b : STRIDE]


def _least_squares(y: Float[Tensor, "2 n C H W"], m: Float[Tensor, "n 2 H W"]) -> Float[Tensor, "n 2 H W"]:
    """One step towards the motion at which the two sides differ least."""
    before, after, inside = _halfway(y, m)
    rest = before - after
    edge = F.pad((before + after) / 2, (1, 1, 1, 1), mode="replicate")
    down = (edge[..., 2:, 1:-1] - edge[..., :-2, 1:-1]) / 2
    across = (edge[..., 1:-1, 2:] - edge[..., 1:-1, :-2]) / 2
    weight = inside / (1 + rest.square().sum(1) / ROBUST)
    products = [(down, down), (down, across), (across, across), (down, rest), (across, rest)]
    sums = torch.stack([weight * (p * q).sum(1) for p, q in products], 1)
    texture = sums[:, :1] + sums[:, 2:3] + 1e-4
    sums, texture, moved = _sum(torch.cat([sums, texture, texture * m], 1), WINDOW).split([5, 1, 2], 1)
    rr, rc, cc, r, c = sums.unbind(1)
    r, c = torch.stack([r, c]) + DAMP * (moved / texture - m).movedim(1, 0)
    rr, cc = rr + DAMP, cc + DAMP
    step = torch.stack([cc * r - rc * c, rr * c - rc * r], 1) / (rr * cc - rc * rc)[:, None]
    return m + step.clamp(-1, 1)


def _halfway(
    y: Float[Tensor, "2 n C H W"], m: Float[Tensor, "n 2 H W"]
) -> tuple[Float[Tensor, "n C H W"], Float[Tensor, "n C H W"], Float[Tensor, "n H W"]]:
    """Both frames moved halfway, and 1 where both are known.

    Linear interpolation is fast and has the right slopes; with the built-in cubic (a = -3/4) motion is 0.07 pixels off.
    """
    height, width = m.shape[-2:]
    by = torch.cat([-m, m]) / 2
    row = (torch.arange(height, device=m.device).to(m)[:, None] + by[:, 0]) * 2 + 1
    col = (torch.arange(width, device=m.device).to(m) + by[:, 1]) * 2 + 1
    at = torch.stack([col / width - 1, row / height - 1], -1)
    moved = F.grid_sample(y.flatten(0, 1), at, mode="bilinear", padding_mode="border", align_corners=False)
    inside = (at.abs() <= 1).all(-1).to(m)
    n = len(m)
    return moved[:n], moved[n:], inside[:n] * inside[n:]


def _gauss(size: int, width: float, like: Tensor) -> Float[Tensor, "size size"]:
    """Weights of the pixels of a line around each, of sum one for an endless line."""
    x = torch.arange(size, device=like.device).to(like)
    return torch.exp(-((x[:, None] - x) / width).square() / 2) / (width * math.sqrt(2 * math.pi))


def _sum(x: Float[Tensor, "*n H W"], width: float) -> Float[Tensor, "*n H W"]:
    """Sum over a window; less is in it at the edges."""
    return _gauss(x.shape[-2], width, x) @ x @ _gauss(x.shape[-1], width, x)


def window_mean(x: Float[Tensor, "*n H W"], width: float) -> Float[Tensor, "*n H W"]:
    """Mean over a window (a Gaussian of this standard deviation in pixels), at the edges over what is in it."""
    row, col = (_gauss(size, width, x) for size in x.shape[-2:])
    return (row / row.sum(1, keepdim=True)) @ x @ (col / col.sum(1, keepdim=True)).T


def _hats(size: int, of: int, like: Tensor) -> Float[Tensor, "size of"]:
    """Linear interpolation of every so manieth pixel of a line; the last one continues."""
    at = (torch.arange(size, device=like.device).to(like) / STRIDE).clamp_max(of - 1)
    return (1 - (at[:, None] - torch.arange(of, device=like.device)).abs()).clamp_min(0)


def _median(m: Float[Tensor, "n 2 h w"]) -> Float[Tensor, "n 2 h w"]:
    """Median of 3 × 3 pixels, of each component."""
    height, width = m.shape[-2:]
    edge = F.pad(m, (1, 1, 1, 1), mode="replicate")
    return torch.stack([edge[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]).median(0).values
