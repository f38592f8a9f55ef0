r"""The start ``median``: which pixels of a corrupted movie are intact, and an estimate of the others from them.

Some pixels are intact, the others carry noise, and nothing says which. Let y be a pixel, m an estimate of it from the
pixels around it, and :math:`d = y - m`. Two squared distances tell noise from signal: that of the brightness,
:math:`q_1 = \bar d^2`, and that of the colour, :math:`q_2 = |d - \bar d|^2`, with :math:`\bar d` the mean over the
channels. Colour tells more: an edge changes all channels alike, noise does not. The log odds that the pixel is intact
are linear in

.. math:: f_i = \log(1 + q_i / s_i^2)

and in the means of :math:`f_i` over the pixels nearby, since noise may come in blocks. The logarithm, where a normal
law would have :math:`q_i` itself, allows for edges, which are far from the pixels around them.

The estimate m is improved three times, and each time the odds are fitted anew, by logistic regression on pairs of clean
and corrupted movies:

1. `median27`: the median of the 3 × 3 × 3 pixels around;
2. `trusted_mean`: the mean of near pixels, weighted by the trust :math:`w = 1 / (1 + e^{-l})`, with l the log odds of
   step 1;
3. `alike_mean`: the mean over offsets in space and time, weighted by how alike pixels at that offset are in this place.
   Where the movie stands still it finds the pixel in other frames, where it moves along the motion, at an edge along
   the edge.

The start is :math:`w y + (1 - w) m`, with w of step 3 and m computed once more with that w.

Shapes: B movies, T frames, H × W pixels, C channels; k = 2 distances, or 1 for movies of one channel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from cstformer.errors import CSTError
from cstformer.starts.pixel_view import LOUDEST
from cstformer.system.described import number, numbers

Movies = Float[Tensor, "B T H W C"]
PerPixel = Float[Tensor, "B T H W 1"]

# The constants were compared on the training drive, on synthetic scenes and on clips of the test drive (docs/video.md).
# Widths are standard deviations of Gaussian windows, in pixels unless frames are named.
FEW = 2**18  # pixels used for a logistic regression, at most; evenly spread over the movies
FLOOR = 0.01  # s_i² as a share of the mean of q_i
LEAST = 1e-30  # of squared distances, which are divisors in float32
COMPANY = (1.0, 3.0)  # widths of the two neighbourhoods over which f_i is averaged
# Of `trusted_mean`:
NEAR_TIME, NEAR = 0.4, 0.65  # widths of its window, in frames and in pixels
DOUBT = 0.02  # weight of the fallback, where a trusted pixel at distance 0 would have weight 1
# Of `alike_mean`:
STEADY, HERE = 0.7, 1.5  # widths, in frames and in pixels, over which v is averaged
BROAD = 6.0  # width, in pixels, of the average that v falls back on where few pairs are trusted
SCARCE = 0.3  # pairs that this fallback counts as
SPARE = 0.02  # weight of the fallback of the mean, relative to a trusted pixel with v = far
FINE = 0.007  # differences whose square is below this share of the movie's variance make no difference


@dataclass(frozen=True)
class Odds:
    """Log odds that a pixel is intact: ``base + Σ slopes · f``, f of the pixel and means of f near it.

    >>> Odds(base=2.0, slopes=(-4.0, 0.0, 0.0), floors=(9.0,))(torch.full((1, 1, 1, 1, 1), 9.0)).item()
    -0.7725887298583984
    """

    base: float
    slopes: Sequence[float]
    """For the k values f of the pixel, then for their k means at each width of `COMPANY`."""
    floors: Sequence[float]
    """s_i², one for each distance."""

    @classmethod
    def from_description(cls, found: dict[str, Any]) -> Odds:
        """The inverse of `dataclasses.asdict`."""
        slopes = numbers("slopes of the trust", found["slopes"])
        floors = numbers("floors of the trust", found["floors"], LEAST)
        if len(slopes) != len(floors) * (1 + len(COMPANY)):
            raise ValueError(f"the trust has {len(slopes)} slopes for {len(floors)} distances")
        return cls(number("base of the trust", found["base"]), slopes, floors)

    def __call__(self, distances: Float[Tensor, "B T H W k"]) -> PerPixel:
        """Log odds of each pixel."""
        features = _features(distances, distances.new_tensor(self.floors))
        odds = self.base + features @ features.new_tensor(self.slopes)[:, None]
        return odds.clamp(-LOUDEST, LOUDEST)


@dataclass(frozen=True)
class Trust:
    """The fitted odds of the three steps, and what `alike_mean` needs to know of the movies."""

    median: Odds
    near: Odds
    alike: Odds
    fine: float
    """Squared difference below which `alike_mean` regards pixels as equal."""
    noise: float
    """Mean squared noise of corrupted pixels."""
    usual: float
    """Mean over the training movies of the squared error that `alike_mean` expects."""

    @classmethod
    def from_description(cls, found: dict[str, Any]) -> Trust:
        """The inverse of `dataclasses.asdict`."""
        median, near, alike = (Odds.from_description(found[name]) for name in ("median", "near", "alike"))
        return cls(
            median, near, alike, *(number(f"{n} of the trust", found[n], LEAST) for n in ("fine", "noise", "usual"))
        )

    def judge(self, movies: Movies) -> tuple[Movies, PerPixel, PerPixel]:
        """Estimate of each pixel from those around it, expected squared error of it, log odds of the pixel itself."""
        around = median27(movies)
        around = trusted_mean(movies, self.median(distances(movies - around)).sigmoid(), around)
        trust = self.near(distances(movies - around)).sigmoid()
        around, _ = alike_mean(movies, trust, around, self.fine, self.noise)
        odds = self.alike(distances(movies - around))
        return *alike_mean(movies, odds.sigmoid(), around, self.fine, self.noise), odds

    def guess(self, movies: Movies) -> Movies:
        """The start: pixel and estimate, mixed by the odds."""
        around, _, odds = self.judge(movies)
        return around + odds.sigmoid() * (movies - around)

    def sight(self, movies: Movies) -> Float[Tensor, "B T H W 2*C+2"]:
        """What the network is shown of each pixel.

        The start (C numbers), pixel minus estimate (C), log odds over `LOUDEST`, and the expected error of the estimate
        in units of its mean over the training movies.
        """
        around, error, odds = self.judge(movies)
        rest, unsure = movies - around, ((error + self.fine) / (self.usual + self.fine)).sqrt()
        return torch.cat([around + odds.sigmoid() * rest, rest, odds / LOUDEST, unsure], -1)


def fit_trust(movies: Movies, given: Movies) -> Trust:
    """Fit to clean movies and the same movies after corruption."""
    intact = ((given - movies).abs() < 1e-6).all(-1)  # (B, T, H, W); 1e-6 sd of the values: rounding of float32
    if bool(intact.all()) or not bool(intact.any()):
        which = "none" if bool(intact.all()) else "all"
        raise CSTError(
            f"given changes {which} of the pixels; start='median' needs a corruption that leaves some pixels intact, "
            "else choose another start"
        )
    fine, noise = FINE * float(movies.var()), float((given - movies)[~intact].square().mean())
    around = median27(given)
    median = _fit_odds(distances(given - around), intact)
    around = trusted_mean(given, median(distances(given - around)).sigmoid(), around)
    near = _fit_odds(distances(given - around), intact)
    around, error = alike_mean(given, near(distances(given - around)).sigmoid(), around, fine, noise)
    return Trust(median, near, _fit_odds(distances(given - around), intact), fine, noise, float(error.mean()))


def _fit_odds(distance: Float[Tensor, "B T H W k"], intact: Bool[Tensor, "B T H W"]) -> Odds:
    """Logistic regression of ``intact`` on the features."""
    from sklearn.linear_model import LogisticRegression

    step = -(-intact.numel() // FEW)
    floors = FLOOR * distance.flatten(0, -2).mean(0)  # (k,)
    x = _features(distance, floors).flatten(0, -2)[::step].double().cpu().numpy()
    # C = 1e6: next to no regularisation, which a few features and many pixels do not need.
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(x, intact.flatten()[::step].cpu().numpy())
    return Odds(float(fitted.intercept_[0]), tuple(map(float, fitted.coef_[0])), tuple(floors.tolist()))


def _features(distance: Float[Tensor, "B T H W k"], floors: Float[Tensor, " k"]) -> Float[Tensor, "B T H W f"]:
    """The f of each pixel, and its means over the other pixels near it in the frame, at each width of `COMPANY`."""
    own = (distance / floors).log1p().movedim(-1, 1)  # (B, k, T, H, W)
    one = torch.ones_like(own[:1, :1, :1])  # (1, 1, 1, H, W): sums of weights, which are smaller at the edges
    others = [(_smooth(own, width) - own) / (_smooth(one, width) - one).clamp_min(1e-6) for width in COMPANY]
    return torch.cat([own, *others], 1).movedim(1, -1)


def distances(d: Movies) -> Float[Tensor, "B T H W k"]:
    """q_1 and, with more than one channel, q_2: squared brightness and squared colour of a difference.

    >>> distances(torch.tensor([3.0, 3.0, 3.0])).tolist(), distances(torch.tensor([1.0, -1.0, 0.0])).tolist()
    ([9.0, 0.0], [0.0, 2.0])
    """
    grey = d.mean(-1, keepdim=True)
    parts = [grey.square(), (d - grey).square().sum(-1, keepdim=True)]
    return torch.cat(parts[: 1 if d.shape[-1] == 1 else 2], -1)


def trusted_mean(movies: Movies, trust: PerPixel, fallback: Movies) -> Movies:
    """Mean of the pixels around each, itself excluded, weighted by nearness and trust.

    (Σ g w y + DOUBT · fallback) / (Σ g w + DOUBT), with the Gaussian window g of `_blur` and the trust w.
    """
    both = torch.cat([trust * movies, trust], -1)
    total = _blur(both) - both  # the window is 1 at distance 0
    return (total[..., :-1] + DOUBT * fallback) / (total[..., -1:] + DOUBT)


def _blur(x: Movies) -> Movies:
    """Sums over a Gaussian window, 1 at distance 0, in frames and pixels; zeros beyond the movie."""
    y = x.movedim(-1, 1).flatten(0, 1)[:, None]  # (B·C, 1, T, H, W)
    for axis, (width, reach) in enumerate(((NEAR_TIME, 1), (NEAR, 2), (NEAR, 2))):  # cut off at about 3 widths
        k = torch.exp(-0.5 * (torch.arange(-reach, reach + 1).to(y) / width).square())
        shape, padding = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[2 + axis], padding[axis] = len(k), reach
        y = F.conv3d(y, k.reshape(shape), padding=tuple(padding))
    return y[:, 0].unflatten(0, (len(x), -1)).movedim(1, -1)


def alike_mean(movies: Movies, trust: PerPixel, fallback: Movies, fine: float, noise: float) -> tuple[Movies, PerPixel]:
    r"""Mean of the pixels at `OFFSETS` from each, weighted by their trust and by how alike they are; expected error.

    For an offset o let v be the mean of |y(x) − y(x + o)|² over trusted pairs near x (`_unlikeness`). The pixel
    x + o, of trust w, gets the weight

    .. math:: \frac{w}{(v + \mathrm{fine})^2} + u, \qquad
              u = \frac{1 - w}{(v + \mathrm{fine})(v + \mathrm{noise})}.

    The second term lets noisy pixels count a little: where none can be trusted, the mean of many of them is still
    better than the fallback. The fallback gets the weight SPARE / (far + fine)², where ``far`` is its mean squared
    error on trusted pixels. With the sum W of all weights, the expected squared error is the mean of v (of ``far`` for
    the fallback) with these weights, plus the noise that averaging leaves, noise · Σ u² / W².

    This is non-local means with the patches compared where they are trusted.
    """
    y, w = (x.movedim(-1, 1).contiguous() for x in (movies, trust))  # (B, C, T, H, W), (B, 1, T, H, W)
    one, doubt = torch.cat([y, torch.ones_like(w)], 1), 1 - w
    total, error, left = torch.zeros_like(one), torch.zeros_like(w), torch.zeros_like(w)  # Σ weight [y | 1], Σ v, Σ u²
    for offset in OFFSETS:
        here, there = _overlap(y.shape[2:], offset)
        pair = w[here] * w[there]
        if not pair.numel():  # the movie is smaller than the offset
            continue
        difference = y[here] - y[there]
        v = _unlikeness(torch.linalg.vecdot(difference, difference, dim=1)[:, None] / y.shape[1], pair)
        trusted = 1 / (v + fine)
        doubted = trusted / (v + noise)
        trusted *= trusted
        for one_side, other in ((here, there), (there, here)):  # v is symmetric: x sees x + o as x + o sees x
            unsure = doubt[other] * doubted
            weight = torch.addcmul(unsure, w[other], trusted)
            total[one_side].addcmul_(weight, one[other])
            error[one_side].addcmul_(weight, v)
            left[one_side].addcmul_(unsure, unsure)
    r, movie = fallback.movedim(-1, 1), (1, 2, 3, 4)
    far = ((w * (r - y).square()).sum(movie) / (y.shape[1] * w.sum(movie)))[:, None, None, None, None]
    spare = SPARE * (far + fine).pow(-2)
    count = total[:, -1:] + spare
    mean, error = (total[:, :-1] + spare * r) / count, (error + spare * far) / count + noise * left / count.square()
    return mean.movedim(1, -1), error.movedim(1, -1)


def _unlikeness(square: Float[Tensor, "B 1 T H W"], pair: Float[Tensor, "B 1 T H W"]) -> Float[Tensor, "B 1 T H W"]:
    """Mean v of squared differences near each place, each weighted by the trust in its pair.

    Where few pairs are trusted nearby, the mean of a broad window counts as SCARCE more pairs, and where few are
    trusted there either, the mean of the whole movie does.
    """
    sums = torch.cat([pair * square, pair], 1)  # (B, 2, T, H, W)
    everywhere = sums.sum((2, 3, 4), keepdim=True)
    typical = everywhere[:, :1] / everywhere[:, 1:].clamp_min(1e-6)
    broad = _smooth(sums, BROAD)
    typical = (broad[:, :1] + SCARCE * typical) / (broad[:, 1:] + SCARCE)
    near = _steady(_smooth(sums, HERE))
    return (near[:, :1] + SCARCE * typical) / (near[:, 1:] + SCARCE)


def _overlap(shape: Sequence[int], offset: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Slices of (B, C, T, H, W): the pixels whose partner at the offset exists, and those partners."""

    def part(sign: int) -> tuple[slice, ...]:
        steps = [(n, sign * d) for n, d in zip(shape, offset, strict=True)]
        return slice(None), slice(None), *(slice(max(0, -d), max(0, n - max(0, d))) for n, d in steps)

    return part(1), part(-1)


def _offsets() -> list[tuple[int, int, int]]:
    """64 offsets (frames, rows, columns), one of each pair ±o.

    Up to two pixels in the same and the next frame, up to one pixel in the three frames after that.
    """
    found = itertools.product(range(5), range(-2, 3), range(-2, 3))
    return [(t, i, j) for t, i, j in found if (t, i, j) > (0, 0, 0) and (t <= 1 or max(abs(i), abs(j)) <= 1)]


OFFSETS = _offsets()


def _smooth(x: Float[Tensor, "B C T H W"], width: float) -> Float[Tensor, "B C T H W"]:
    """Sums over a Gaussian window in each frame, 1 at distance 0; zeros beyond the frame."""
    return _nearness(x.shape[3], width, x) @ (x @ _nearness(x.shape[4], width, x))


def _steady(x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C T H W"]:
    """Sums over a Gaussian window in time."""
    return torch.einsum("ts,bcshw->bcthw", _nearness(x.shape[2], STEADY, x), x)


def _nearness(size: int, width: float, like: Tensor) -> Float[Tensor, "n n"]:
    return _nearness_of(size, width, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _nearness_of(size: int, width: float, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n n"]:
    """Gaussian window about each place of a line, as a matrix; cut off at 0.05, which is 2.4 widths away."""
    place = torch.arange(size, dtype=dtype, device=device)
    near = torch.exp(-0.5 * ((place[:, None] - place) / width).square())
    return near * (near > 0.05)


def median27(movies: Movies) -> Movies:
    """Median of the 3 × 3 × 3 pixels around each; beyond the movie its edge continues.

    The median of 27 numbers has 13 below and 13 above. Among any 15 of them, the smallest has 14 above and the largest
    14 below, so neither can be the median of all. They are dropped, the next number joins, and so on until one is left.
    With minima and maxima of whole tensors this is two to three times faster than `torch.median` on a CPU.
    """
    (_, t, h, w, _), x = movies.shape, movies.movedim(-1, 1)  # x: (B, C, T, H, W)
    padded = F.pad(x, (1,) * 6, mode="replicate")
    shifts = itertools.product(range(3), repeat=3)
    rest = [padded[:, :, a : a + t, b : b + h, c : c + w].contiguous() for a, b, c in shifts]
    some, rest = rest[:15], rest[15:]
    while len(some) > 1:
        for i in range(1, len(some)):  # the smallest to the front
            low = torch.minimum(some[0], some[i])
            some[i], some[0] = torch.maximum(some[0], some[i]), low
        for i in range(1, len(some) - 1):  # the largest to the back
            high = torch.maximum(some[-1], some[i])
            some[i], some[-1] = torch.minimum(some[-1], some[i]), high
        some = some[1:-1] + ([rest.pop()] if rest else [])
    return some[0].movedim(1, -1)


def continued(movies: Movies, exists: Bool[Tensor, "B T"]) -> Movies:
    """The movies with padding, which comes last in time, replaced by the last frame that exists."""
    number = torch.arange(exists.shape[1], device=exists.device)
    last = torch.minimum(number, exists.sum(1, keepdim=True) - 1)
    return movies.gather(1, last[..., None, None, None].expand_as(movies))
