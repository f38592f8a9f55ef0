r"""Motion of a movie from each frame to the next.

Between the frames :math:`y_0` and :math:`y_1` the motion m(x), in pixels (rows, columns), is defined at the pixels x of
the moment halfway,

.. math:: y_0(x - m(x) / 2) ≈ y_1(x + m(x) / 2),

so that neither frame is preferred. `Film` blends frames along it. All differences below are in units of the standard
deviation of the two frames.

1. *Search* (`_search`) among the even displacements m = 2k, k whole, where no interpolation is needed. With
   :math:`d_k(x) = |y_0(x - k) - y_1(x + k)|^2`, the cost of k at x is the windowed mean of :math:`d_k / (d_k + s)` in a
   narrow and a broad window, plus a small price for every pixel of motion. The quotient bounds what one bad pixel
   costs. A second pass adds a price for every pixel by which m differs from the motion around.
2. *Refinement* (`_least_squares`) to fractions of a pixel: symmetric Lucas–Kanade. With the residual
   :math:`δ = y_0(x - m/2) - y_1(x + m/2)` and the mean gradient g of the two sides, m changes by the solution u of

   .. math:: \Big(\sum w\, g g^\top + λ\Big) u = \sum w\, g δ + λ (\bar m - m),
             \qquad w = \frac{1}{1 + |δ|^2 / r},

   with sums over a window and the motion around :math:`\bar m`, weighted by texture. λ lets motion spread from places
   with texture to places without; w reduces the weight of occluded pixels.
3. *Check* (`_pair_motion`): where the two sides are then no more alike than without motion, m = 0.

Shapes: B movies, T frames, H × W pixels, C channels; n pairs of frames; K displacements; h × w every STRIDE-th pixel.
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

# The constants were chosen on the training drive and on synthetic scenes (docs/video.md). Widths are standard
# deviations of Gaussian windows in pixels; squared differences are in units of the variance of the two frames.
# Search:
REACH = 7  # largest |k| along an axis, so motion up to 14 pixels; at most a quarter of the frame
STRIDE = 2  # the cost is evaluated at every STRIDE-th pixel of each axis
BLUR = 1.0  # width of the blur before the search, which makes whole displacements comparable
NARROW, BROAD = 3.5, 5.0  # widths of the two windows of the cost
SHARE = 0.5  # share of the broad window in the cost
LIKE = 0.5  # s: squared difference that costs half of the most
SMALL = 0.004  # cost of a pixel of motion
ALONG = 0.015  # cost of a pixel of difference to the motion around
AROUND = 4.0  # width of the window of the motion around
SEEN = 0.3  # share of the narrow window that must lie inside both frames; displacements below it are excluded
# Refinement:
STEPS = 4  # steps of least squares
WINDOW = 1.5  # width of their window
DAMP = 0.04  # λ
ROBUST = 0.3  # r: squared residual at which the weight w falls to a half
# Check:
CHECK = 2.5  # width over which the two sides are compared
GAIN = 0.98  # motion stays where its mean squared residual is below this share of that without motion
PIXELS = 2**16  # pixels of the pairs handled at once: memory and speed only


@torch.no_grad()
def motion(frames: Frames) -> Field:
    """Motion from each frame to the next, (rows, columns) in pixels, at the pixels of the moment halfway.

    Examples
    --------
    A pattern that moves by 1.5 columns per frame:

    >>> row, col = torch.arange(24.0)[:, None], torch.arange(24.0)
    >>> frames = torch.stack([torch.sin(0.5 * row) + torch.cos(0.6 * (col - 1.5 * t)) for t in range(2)])
    >>> [round(float(x), 1) for x in motion(frames[None, ..., None])[0, 0, 12, 12]]
    [0.0, 1.5]
    """
    batch, length, height, width, _ = frames.shape
    if length < 2:
        raise CSTError(f"frames has {length} frame(s) in time; motion needs at least 2")
    pairs = torch.stack([frames[:, :-1], frames[:, 1:]]).flatten(1, 2).movedim(-1, 2)  # (2, B·(T-1), C, H, W)
    some = max(1, PIXELS // (height * width))
    found = torch.cat([_pair_motion(part) for part in pairs.split(some, 1)])
    return found.movedim(1, -1).unflatten(0, (batch, length - 1))


def _pair_motion(pairs: Float[Tensor, "2 n C H W"]) -> Float[Tensor, "n 2 H W"]:
    """Search, refinement and check for pairs of frames."""
    y = pairs - pairs.mean((0, 3, 4), keepdim=True)
    y = y / y.square().mean((0, 2, 3, 4), keepdim=True).sqrt().clamp_min(torch.finfo(y.dtype).tiny)
    m = _search(y)
    for _ in range(STEPS):
        m = _least_squares(y, m)
    before, after, _ = _halfway(y, m)
    moved, still = (window_mean((a - b).square().sum(1), CHECK) for a, b in ((before, after), (y[0], y[1])))
    return torch.where((moved < GAIN * still)[:, None], m, 0)


def _search(y: Float[Tensor, "2 n C H W"]) -> Float[Tensor, "n 2 H W"]:
    """The best even displacement at each pixel."""
    *_, height, width = y.shape
    down, across = (min(REACH, (size - 1) // 4) for size in (height, width))
    ks = [(a, b) for a in range(-down, down + 1) for b in range(-across, across + 1)]
    k = y.new_tensor(ks)[..., None, None]  # (K, 2, 1, 1)
    cost = _costs(y, ks, k, down, across)
    best, at = cost.min(1)  # (n, h, w)
    k, m = 2 * k, 2 * k[at, :, 0, 0].movedim(-1, 1)  # m (n, 2, h, w)
    # Second pass: prefer what the pixels around found, weighted by how far their best cost is below the average one.
    sure = (cost.clamp_max(1).mean(1) - best).clamp_min(1e-3).square()[:, None]  # (n, 1, h, w)
    around = _sum(sure * m, AROUND / STRIDE) / _sum(sure, AROUND / STRIDE)
    far = ((k[:, 0] - around[:, :1]).square() + (k[:, 1] - around[:, 1:]).square()).sqrt()  # (n, K, h, w)
    m = k[(cost + ALONG * far).argmin(1), :, 0, 0].movedim(-1, 1)
    rows, cols = (_hats(size, of, m) for size, of in zip((height, width), m.shape[-2:], strict=True))
    return rows @ _median(m) @ cols.T  # back to all pixels, (n, 2, H, W)


def _costs(
    y: Float[Tensor, "2 n C H W"], ks: list[tuple[int, int]], k: Float[Tensor, "K 2 1 1"], down: int, across: int
) -> Float[Tensor, "n K h w"]:
    """Cost of each displacement k at every STRIDE-th pixel."""
    *_, height, width = y.shape
    blurred = window_mean(y, BLUR).flatten(0, 2)  # (2·n·C, H, W)
    y = F.pad(blurred, (across, across, down, down), mode="replicate").unflatten(0, y.shape[:3])
    d = torch.stack(  # (n, K, h, w)
        [(_part(y[0], -a, -b, down, across) - _part(y[1], a, b, down, across)).square().sum(1) for a, b in ks], 1
    )
    row, col = (torch.arange(0, size, STRIDE, device=y.device).to(y) for size in (height, width))
    inside = (torch.minimum(row, height - 1 - row)[:, None] >= k[:, 0].abs()) & (
        torch.minimum(col, width - 1 - col) >= k[:, 1].abs()
    )
    inside = inside.to(y)  # (K, h, w): 1 where both x − k and x + k lie in the frame; other pixels do not count
    unlike = d / (d + LIKE) * inside
    seen = _sum(inside, NARROW / STRIDE)
    cost = (1 - SHARE) * _sum(unlike, NARROW / STRIDE) / (seen + 1e-3)  # 1e-3: no division by zero
    cost += SHARE * _sum(unlike, BROAD / STRIDE) / (_sum(inside, BROAD / STRIDE) + 1e-3)
    cost += 2 * SMALL * k.square().sum(1).sqrt() + 1e3 * (seen < SEEN)  # the motion is 2k; 1e3 excludes
    return cost


def _part(y: Float[Tensor, "n C P Q"], a: int, b: int, down: int, across: int) -> Float[Tensor, "n C h w"]:
    """Every STRIDE-th pixel of the frames shifted by (a, b); y is padded by (down, across)."""
    *_, height, width = y.shape
    return y[..., down + a : height - down + a : STRIDE, across + b : width - across + b : STRIDE]


def _least_squares(y: Float[Tensor, "2 n C H W"], m: Float[Tensor, "n 2 H W"]) -> Float[Tensor, "n 2 H W"]:
    """One Gauss–Newton step towards the motion with the least residual."""
    before, after, inside = _halfway(y, m)
    rest = before - after  # δ (n, C, H, W)
    edge = F.pad((before + after) / 2, (1, 1, 1, 1), mode="replicate")  # g by central differences
    down = (edge[..., 2:, 1:-1] - edge[..., :-2, 1:-1]) / 2
    across = (edge[..., 1:-1, 2:] - edge[..., 1:-1, :-2]) / 2
    weight = inside / (1 + rest.square().sum(1) / ROBUST)  # w (n, H, W)
    products = [(down, down), (down, across), (across, across), (down, rest), (across, rest)]
    sums = torch.stack([weight * (p * q).sum(1) for p, q in products], 1)  # (n, 5, H, W)
    texture = sums[:, :1] + sums[:, 2:3] + 1e-4  # w |g|²; 1e-4 defines the motion around where nothing has texture
    sums, texture, moved = _sum(torch.cat([sums, texture, texture * m], 1), WINDOW).split([5, 1, 2], 1)
    rr, rc, cc, r, c = sums.unbind(1)
    r, c = torch.stack([r, c]) + DAMP * (moved / texture - m).movedim(1, 0)
    rr, cc = rr + DAMP, cc + DAMP
    step = torch.stack([cc * r - rc * c, rr * c - rc * r], 1) / (rr * cc - rc * rc)[:, None]  # Cramer's rule
    return m + step.clamp(-1, 1)  # the linearisation holds for about a pixel


def _halfway(
    y: Float[Tensor, "2 n C H W"], m: Float[Tensor, "n 2 H W"]
) -> tuple[Float[Tensor, "n C H W"], Float[Tensor, "n C H W"], Float[Tensor, "n H W"]]:
    """The sides y_0(x − m/2) and y_1(x + m/2), and 1 where both lie inside their frames.

    Linear interpolation, because it is fast and its mean gradient is right: with torch's bicubic mode (a = −3/4) the
    motion is 0.07 pixels off.
    """
    height, width = m.shape[-2:]
    by = torch.cat([-m, m]) / 2
    row = (torch.arange(height, device=m.device).to(m)[:, None] + by[:, 0]) * 2 + 1
    col = (torch.arange(width, device=m.device).to(m) + by[:, 1]) * 2 + 1
    at = torch.stack([col / width - 1, row / height - 1], -1)  # (2n, H, W, 2): x, y in [−1, 1], as grid_sample wants
    moved = F.grid_sample(y.flatten(0, 1), at, mode="bilinear", padding_mode="border", align_corners=False)
    inside = (at.abs() <= 1).all(-1).to(m)
    n = len(m)
    return moved[:n], moved[n:], inside[:n] * inside[n:]


def _gauss(size: int, width: float, like: Tensor) -> Float[Tensor, "size size"]:
    """Gaussian window about each pixel of a line, as a matrix; rows sum to one except at the ends of the line."""
    x = torch.arange(size, device=like.device).to(like)
    return torch.exp(-((x[:, None] - x) / width).square() / 2) / (width * math.sqrt(2 * math.pi))


def _sum(x: Float[Tensor, "*n H W"], width: float) -> Float[Tensor, "*n H W"]:
    """Sums over a Gaussian window; those at the edges miss what would lie outside."""
    return _gauss(x.shape[-2], width, x) @ x @ _gauss(x.shape[-1], width, x)


def window_mean(x: Float[Tensor, "*n H W"], width: float) -> Float[Tensor, "*n H W"]:
    """Mean over a Gaussian window of this width in pixels; at the edges, over the part inside the frame."""
    row, col = (_gauss(size, width, x) for size in x.shape[-2:])
    return (row / row.sum(1, keepdim=True)) @ x @ (col / col.sum(1, keepdim=True)).T


def _hats(size: int, of: int, like: Tensor) -> Float[Tensor, "size of"]:
    """Matrix of linear interpolation from every STRIDE-th pixel of a line to all; constant beyond the last one."""
    at = (torch.arange(size, device=like.device).to(like) / STRIDE).clamp_max(of - 1)
    return (1 - (at[:, None] - torch.arange(of, device=like.device)).abs()).clamp_min(0)


def _median(m: Float[Tensor, "n 2 h w"]) -> Float[Tensor, "n 2 h w"]:
    """Median of 3 × 3 pixels of each component, which removes single wrong displacements."""
    height, width = m.shape[-2:]
    edge = F.pad(m, (1, 1, 1, 1), mode="replicate")
    return torch.stack([edge[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]).median(0).values
