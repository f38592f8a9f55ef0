r"""Which pixels of a corrupted movie to believe, and a first guess of what it would be without the corruption.

Some pixels are as they should be, the others carry noise, and nobody says which. With :math:`m` an estimate from the
pixels around one and :math:`d = y - m`, two distances count: of the brightness, :math:`q_1 = \bar d^2`, and of the
colour, :math:`q_2 = |d - \bar d|^2`. The second tells far more: an edge changes all channels alike, noise does not. The
log odds that the pixel is as it should be are linear in

.. math:: f_i = \log(1 + q_i / s_i^2)

(pictures have edges, far from what is around them, more often than a normal law would allow) and in the means of
:math:`f_i` near the pixel: noise may come in blocks.

The estimate m is first the median of the 3 × 3 × 3 pixels, then the mean of the near ones weighted by the trust
:math:`w = 1 / (1 + e^{-l})` that the median gave, then `alike_mean`, which finds out at which offsets in space and time
the picture here is like itself: where it stands still those of other frames, where it moves those along the motion, at
an edge those along the edge. The odds are fitted for each of the three to movies of which both versions are known. The
first guess is :math:`w y + (1 - w) m`, with m once more from the last trust.
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

Movies = Float[Tensor, "B T H W C"]
Pixels = Float[Tensor, "B T H W 1"]
FEW = 2**18  # pixels from which trust is fitted
LOUDEST = 8.0  # log odds beyond which more makes no difference
NEAR_TIME, NEAR = 0.4, 0.65  # frames and pixels: standard deviations of nearness
DOUBT = 0.02  # trusted pixels around one that count as much as what is known without them
COMPANY = (1.0, 3.0)  # pixels: standard deviations of nearness for the odds of others
# Of `alike_mean`: frames and pixels over which a likeness is measured, pixels over which it is where those are too few
# (less than SCARCE pairs), weight of what is known without it; share of a movie's variance that makes no difference.
STEADY, HERE, BROAD, SCARCE, SPARE = 0.7, 1.5, 6.0, 0.3, 0.02
FINE = 0.007


@dataclass(frozen=True)
class Odds:
    """Log odds that a pixel is as it should be: ``base + Σ slopes · f``, f of the pixel and the means of f near it.

    >>> Odds(base=2.0, slopes=(-4.0, 0.0, 0.0), floors=(9.0,))(torch.full((1, 1, 1, 1, 1), 9.0)).item()
    -0.7725887298583984
    """

    base: float
    slopes: Sequence[float]
    """First for the f of the pixel, then for their means at each width of `COMPANY`."""
    floors: Sequence[float]

    def __call__(self, distances: Float[Tensor, "B T H W k"]) -> Pixels:
        """Log odds of each pixel."""
        features = _features(distances, distances.new_tensor(self.floors))
        odds = self.base + features @ features.new_tensor(self.slopes)[:, None]
        return odds.clamp(-LOUDEST, LOUDEST)


@dataclass(frozen=True)
class Trust:
    """Odds from the distance to the median, to the mean of near pixels, and to the mean of those that are alike."""

    median: Odds
    near: Odds
    alike: Odds
    fine: float
    """Square of a difference between pixels that makes none to `alike_mean`."""
    noise: float
    """Mean square of the noise of pixels that have it."""
    usual: float
    """Mean of the squares that `alike_mean` expects of its errors."""

    @classmethod
    def from_description(cls, found: dict[str, Any]) -> Trust:
        """The inverse of `dataclasses.asdict`."""
        median, near, alike = (Odds(**found[name]) for name in ("median", "near", "alike"))
        return cls(median, near, alike, found["fine"], found["noise"], found["usual"])

    def judge(self, movies: Movies) -> tuple[Movies, Pixels, Pixels]:
        """What the pixels around say of each, the square of its expected error, and the log odds of the pixel."""
        around = median27(movies)
        around = trusted_mean(movies, self.median(distances(movies - around)).sigmoid(), around)
        trust = self.near(distances(movies - around)).sigmoid()
        around, _ = alike_mean(movies, trust, around, self.fine, self.noise)
        odds = self.alike(distances(movies - around))
        return *alike_mean(movies, odds.sigmoid(), around, self.fine, self.noise), odds

    def guess(self, movies: Movies) -> Movies:
        """The pixel and what is around it, mixed by the odds."""
        around, _, odds = self.judge(movies)
        return around + odds.sigmoid() * (movies - around)

    def sight(self, movies: Movies) -> Float[Tensor, "B T H W 2*C+2"]:
        """All that is known of each pixel.

        The guess, pixel minus what is around it, the odds over `LOUDEST`, and the expected error of what is around it,
        1 where it is as usual.
        """
        around, error, odds = self.judge(movies)
        rest, unsure = movies - around, ((error + self.fine) / (self.usual + self.fine)).sqrt()
        return torch.cat([around + odds.sigmoid() * rest, rest, odds / LOUDEST, unsure], -1)


def fit_trust(movies: Movies, given: Movies) -> Trust:
    """Fit to movies and what was given of them."""
    intact = ((given - movies).abs() < 1e-6).all(-1)
    if bool(intact.all()) or not bool(intact.any()):
        which = "none" if bool(intact.all()) else "all"
        raise CSTError(f"given changes {which} of the pixels; start='median' is for movies of which some are corrupted")
    fine, noise = FINE * float(movies.var()), float((given - movies)[~intact].square().mean())
    around = median27(given)
    median = _fit_odds(distances(given - around), intact)
    around = trusted_mean(given, median(distances(given - around)).sigmoid(), around)
    near = _fit_odds(distances(given - around), intact)
    around, error = alike_mean(given, near(distances(given - around)).sigmoid(), around, fine, noise)
    return Trust(median, near, _fit_odds(distances(given - around), intact), fine, noise, float(error.mean()))


def _fit_odds(distance: Float[Tensor, "B T H W k"], intact: Bool[Tensor, "B T H W"]) -> Odds:
    """Logistic regression on the logarithms of the distances."""
    from sklearn.linear_model import LogisticRegression

    step = -(-intact.numel() // FEW)
    floors = 0.01 * distance.flatten(0, -2).mean(0)
    x = _features(distance, floors).flatten(0, -2)[::step].double().cpu().numpy()
    fitted = LogisticRegression(C=1e6, max_iter=1000).fit(x, intact.flatten()[::step].cpu().numpy())
    return Odds(float(fitted.intercept_[0]), tuple(map(float, fitted.coef_[0])), tuple(floors.tolist()))


def _features(distance: Float[Tensor, "B T H W k"], floors: Float[Tensor, " k"]) -> Float[Tensor, "B T H W f"]:
    """Logarithms of the distances, and their means over the other pixels near each in its frame."""
    own = (distance / floors).log1p().movedim(-1, 1)
    one = torch.ones_like(own[:1, :1, :1])
    others = [(_smooth(own, width) - own) / (_smooth(one, width) - one).clamp_min(1e-6) for width in COMPANY]
    return torch.cat([own, *others], 1).movedim(1, -1)


def distances(d: Movies) -> Float[Tensor, "B T H W k"]:
    """Squares of the brightness of a difference and, if it has channels, of its colour.

    >>> distances(torch.tensor([3.0, 3.0, 3.0])).tolist(), distances(torch.tensor([1.0, -1.0, 0.0])).tolist()
    ([9.0, 0.0], [0.0, 2.0])
    """
    grey = d.mean(-1, keepdim=True)
    parts = [grey.square(), (d - grey).square().sum(-1, keepdim=True)]
    return torch.cat(parts[: 1 if d.shape[-1] == 1 else 2], -1)


def trusted_mean(movies: Movies, trust: Pixels, rather: Movies) -> Movies:
    """Mean of the pixels around each, not of itself, weighted by nearness and trust; ``rather`` where there is none."""
    both = torch.cat([trust * movies, trust], -1)
    total = _blur(both) - both
    return (total[..., :-1] + DOUBT * rather) / (total[..., -1:] + DOUBT)


def _blur(x: Movies) -> Movies:
    """Sums with a Gaussian of nearness, 1 at a distance of 0; nothing beyond the movie."""
    y = x.movedim(-1, 1).flatten(0, 1)[:, None]  # (B·C, 1, T, H, W)
    for axis, (width, reach) in enumerate(((NEAR_TIME, 1), (NEAR, 2), (NEAR, 2))):
        k = torch.exp(-0.5 * (torch.arange(-reach, reach + 1).to(y) / width).square())
        shape, padding = [1, 1, 1, 1, 1], [0, 0, 0]
        shape[2 + axis], padding[axis] = len(k), reach
        y = F.conv3d(y, k.reshape(shape), padding=tuple(padding))
    return y[:, 0].unflatten(0, (len(x), -1)).movedim(1, -1)


def alike_mean(movies: Movies, trust: Pixels, rather: Movies, fine: float, noise: float) -> tuple[Movies, Pixels]:
    """Mean of the pixels at `OFFSETS` from each, weighted by trust and by how alike pixels at that offset are here.

    With v the mean square of y(x) − y(x + offset) over trusted pairs near x, a neighbour of trust w counts
    w / (v + fine)² + (1 − w) / (v + fine)(v + noise): where nothing can be trusted, many pixels with noise still tell
    something. ``rather`` counts `SPARE` times as much as a pixel that is as unlike as ``rather`` is to those that are
    trusted. The mean of v, weighted in the same way, and the noise that is left are the square of the error to expect.
    """
    y, w = (x.movedim(-1, 1).contiguous() for x in (movies, trust))
    one = torch.cat([y, torch.ones_like(w)], 1)
    total, error, left = torch.zeros_like(one), torch.zeros_like(w), torch.zeros_like(w)
    for offset in OFFSETS:
        here, there = _overlap(y.shape[2:], offset)
        pair = w[here] * w[there]
        if not pair.numel():
            continue
        sums = torch.cat([pair * (y[here] - y[there]).square().mean(1, keepdim=True), pair], 1)
        everywhere = sums.sum((2, 3, 4), keepdim=True)
        typical = everywhere[:, :1] / everywhere[:, 1:].clamp_min(1e-6)
        broad = _smooth(sums, BROAD)
        typical = (broad[:, :1] + SCARCE * typical) / (broad[:, 1:] + SCARCE)
        near = _steady(_smooth(sums, HERE))
        v = (near[:, :1] + SCARCE * typical) / (near[:, 1:] + SCARCE)
        trusted, doubted = (v + fine).pow(-2), 1 / ((v + fine) * (v + noise))
        for one_side, other in ((here, there), (there, here)):
            unsure = (1 - w[other]) * doubted
            weight = w[other] * trusted + unsure
            total[one_side] += weight * one[other]
            error[one_side] += weight * v
            left[one_side] += unsure.square()
    r, movie = rather.movedim(-1, 1), (1, 2, 3, 4)
    far = ((w * (r - y).square()).sum(movie) / (y.shape[1] * w.sum(movie)))[:, None, None, None, None]
    spare = SPARE * (far + fine).pow(-2)
    count = total[:, -1:] + spare
    mean, error = (total[:, :-1] + spare * r) / count, (error + spare * far) / count + noise * left / count.square()
    return mean.movedim(1, -1), error.movedim(1, -1)


def _overlap(shape: Sequence[int], offset: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where in (B, C, T, H, W) both a pixel and the one at an offset from it exist: of the first, of the second."""

    def part(sign: int) -> tuple[slice, ...]:
        steps = [(n, sign * d) for n, d in zip(shape, offset, strict=True)]
        return slice(None), slice(None), *(slice(max(0, -d), max(0, n - max(0, d))) for n, d in steps)

    return part(1), part(-1)


def _offsets() -> list[tuple[int, int, int]]:
    """One of each pair ±(frames, rows, columns): two pixels around in the frames next to each, one in three more."""
    found = itertools.product(range(5), range(-2, 3), range(-2, 3))
    return [(t, i, j) for t, i, j in found if (t, i, j) > (0, 0, 0) and (t <= 1 or max(abs(i), abs(j)) <= 1)]


OFFSETS = _offsets()


def _smooth(x: Float[Tensor, "B C T H W"], width: float) -> Float[Tensor, "B C T H W"]:
    """Sums with a Gaussian of nearness in each frame, 1 at a distance of 0; nothing beyond the frame."""
    return _nearness(x.shape[3], width, x) @ (x @ _nearness(x.shape[4], width, x))


def _steady(x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C T H W"]:
    """Sums over the frames near each."""
    return torch.einsum("ts,bcshw->bcthw", _nearness(x.shape[2], STEADY, x), x)


def _nearness(size: int, width: float, like: Tensor) -> Float[Tensor, "n n"]:
    return _nearness_of(size, width, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _nearness_of(size: int, width: float, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n n"]:
    place = torch.arange(size, dtype=dtype, device=device)
    near = torch.exp(-0.5 * ((place[:, None] - place) / width).square())
    return near * (near > 0.05)


def median27(movies: Movies) -> Movies:
    """Median of the 3 × 3 × 3 pixels around each; beyond the movie its edge continues.

    Of the 15 numbers at hand the smallest and the largest cannot be the median of all 27: they are left out, the next
    number joins, and so on until one is left.
    """
    (_, t, h, w, _), x = movies.shape, movies.movedim(-1, 1)
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
    """The movies with their last frame in the place of those that do not exist, which come last."""
    number = torch.arange(exists.shape[1], device=exists.device)
    last = torch.minimum(number, exists.sum(1, keepdim=True) - 1)
    return movies.gather(1, last[..., None, None, None].expand_as(movies))
