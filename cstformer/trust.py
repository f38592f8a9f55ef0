r"""Which pixels of a corrupted movie to believe, and a first guess of what it would be without the corruption.

Some pixels are as they should be, the others carry noise, and nobody says which. With :math:`m` an estimate from the
pixels around one and :math:`d = y - m`, the log odds that the pixel is as it should be are taken as

.. math:: l = a - \sum_i b_i \log(1 + q_i / s_i^2),

because pictures have edges, far from what is around them, more often than a normal law would allow. Two distances
count: of the brightness, :math:`q_1 = \bar d^2`, and of the colour, :math:`q_2 = |d - \bar d|^2`. The second tells far
more: an edge changes all channels alike, noise does not.

First m is the median of the 3 × 3 × 3 pixels, then the mean of those around weighted by the trust
:math:`w = 1 / (1 + e^{-l})` that the median gave. a and b are fitted for both to movies of which both versions are
known. The first guess is :math:`w y + (1 - w) m`, with m once more from the better trust.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from cstformer.errors import CSTError

Movies = Float[Tensor, "B T H W C"]
FEW = 2**18  # pixels from which trust is fitted
LOUDEST = 8.0  # log odds beyond which more makes no difference
NEAR_TIME, NEAR = 0.4, 0.65  # frames and pixels: standard deviations of nearness
DOUBT = 0.02  # trusted pixels around one that count as much as what is known without them


@dataclass(frozen=True)
class Odds:
    """Log odds ``base − Σ slope · log(1 + distance / floor)`` that a pixel is as it should be.

    >>> Odds(base=2.0, slopes=(4.0,), floors=(9.0,))(torch.tensor([[9.0]])).item()
    -0.7725887298583984
    """

    base: float
    slopes: Sequence[float]
    floors: Sequence[float]

    def __call__(self, distances: Float[Tensor, "... k"]) -> Float[Tensor, "... 1"]:
        """Log odds of each pixel."""
        slopes, floors = (distances.new_tensor(x) for x in (self.slopes, self.floors))
        odds = self.base - (slopes * (distances / floors).log1p()).sum(-1, keepdim=True)
        return odds.clamp(-LOUDEST, LOUDEST)


@dataclass(frozen=True)
class Trust:
    """Odds from the distance to the median, and from that to the mean of the pixels around that are trusted."""

    first: Odds
    second: Odds

    def judge(self, movies: Movies) -> tuple[Movies, Float[Tensor, "B T H W 1"]]:
        """The first guess, and the log odds of each pixel."""
        median = median27(movies)
        around = trusted_mean(movies, self.first(distances(movies - median)).sigmoid(), median)
        odds = self.second(distances(movies - around))
        trust = odds.sigmoid()
        around = trusted_mean(movies, trust, around)
        return around + trust * (movies - around), odds

    def guess(self, movies: Movies) -> Movies:
        """The first guess alone."""
        return self.judge(movies)[0]

    def sight(self, movies: Movies) -> Float[Tensor, "B T H W 2*C+1"]:
        """All that is known of each pixel: the guess, what it leaves of the pixel, and the log odds over `LOUDEST`."""
        guess, odds = self.judge(movies)
        return torch.cat([guess, movies - guess, odds / LOUDEST], -1)


def fit_trust(movies: Movies, given: Movies) -> Trust:
    """Fit to movies and what was given of them."""
    intact = ((given - movies).abs() < 1e-6).all(-1)
    if bool(intact.all()) or not bool(intact.any()):
        which = "none" if bool(intact.all()) else "all"
        raise CSTError(f"given changes {which} of the pixels; start='median' is for movies of which some are corrupted")
    median = median27(given)
    far = distances(given - median)
    first = _fit_odds(far, intact)
    around = trusted_mean(given, first(far).sigmoid(), median)
    return Trust(first, _fit_odds(distances(given - around), intact))


def _fit_odds(distance: Float[Tensor, "B T H W k"], intact: Bool[Tensor, "B T H W"]) -> Odds:
    """Logistic regression on the logarithms of the distances."""
    from sklearn.linear_model import LogisticRegression

    step = -(-intact.numel() // FEW)
    x = distance.flatten(0, -2)[::step].double().cpu().numpy()
    floors = 0.01 * x.mean(0)
    fitted = LogisticRegression(C=1e6).fit(np.log1p(x / floors), intact.flatten()[::step].cpu().numpy())
    slopes = np.maximum(0, -fitted.coef_[0])
    return Odds(float(fitted.intercept_[0]), tuple(map(float, slopes)), tuple(map(float, floors)))


def distances(d: Movies) -> Float[Tensor, "B T H W k"]:
    """Squares of the brightness of a difference and, if it has channels, of its colour.

    >>> distances(torch.tensor([3.0, 3.0, 3.0])).tolist(), distances(torch.tensor([1.0, -1.0, 0.0])).tolist()
    ([9.0, 0.0], [0.0, 2.0])
    """
    grey = d.mean(-1, keepdim=True)
    parts = [grey.square(), (d - grey).square().sum(-1, keepdim=True)]
    return torch.cat(parts[: 1 if d.shape[-1] == 1 else 2], -1)


def trusted_mean(movies: Movies, trust: Float[Tensor, "B T H W 1"], rather: Movies) -> Movies:
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
