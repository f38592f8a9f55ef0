r"""Which pixels of a corrupted movie to believe, and a first guess of what it would be without the corruption.

Some pixels are as they should be, the others carry noise, and nobody says which. With :math:`m` the median of the
3 × 3 × 3 pixels around one and :math:`d = y - m`, the log odds that the pixel is as it should be are taken as

.. math:: l = a - b \log(1 + |d|^2 / s^2),

because pictures have edges, far from their median, more often than a normal law would allow. s is a tenth of the root
mean square of d; a and b are fitted to movies of which both versions are known. The first guess is
:math:`w y + (1 - w) m` with the trust :math:`w = 1 / (1 + e^{-l})`: a soft switching median.
"""

from __future__ import annotations

import itertools
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


@dataclass(frozen=True)
class Trust:
    """Log odds ``base − slope · log(1 + |d|² / floor)`` that a pixel is as it should be; |d|² is a mean over channels.

    >>> pixel, median = torch.full((1, 1, 1, 1, 3), 3.0), torch.zeros(1, 1, 1, 1, 3)
    >>> Trust(base=2.0, slope=4.0, floor=9.0).logit(pixel, median).item()
    -0.7725887298583984
    """

    base: float
    slope: float
    floor: float

    def logit(self, movies: Movies, median: Movies) -> Float[Tensor, "B T H W 1"]:
        """Log odds of each pixel."""
        far = (movies - median).square().mean(-1, keepdim=True) / self.floor
        odds = self.base - self.slope * far.log1p()
        return odds.clamp(-LOUDEST, LOUDEST)

    def guess(self, movies: Movies) -> Movies:
        """The first guess alone."""
        median = median27(movies)
        return median + self.logit(movies, median).sigmoid() * (movies - median)

    def sight(self, movies: Movies) -> Float[Tensor, "B T H W 2*C+1"]:
        """All that is known of each pixel: the guess, what it leaves of the pixel, and the log odds over `LOUDEST`."""
        median = median27(movies)
        logit = self.logit(movies, median)
        guess = median + logit.sigmoid() * (movies - median)
        return torch.cat([guess, movies - guess, logit / LOUDEST], -1)


def fit_trust(movies: Movies, given: Movies) -> Trust:
    """Fit to movies and what was given of them, by logistic regression."""
    from sklearn.linear_model import LogisticRegression

    distance = (given - median27(given)).square().mean(-1).flatten()
    intact = ((given - movies).abs() < 1e-6).all(-1).flatten()
    step = -(-len(intact) // FEW)
    x, kept = distance[::step].double().cpu().numpy(), intact[::step].cpu().numpy()
    if kept.all() or not kept.any():
        which = "none" if kept.all() else "all"
        raise CSTError(f"given changes {which} of the pixels; start='median' is for movies of which some are corrupted")
    floor = 0.01 * float(x.mean())
    fitted = LogisticRegression(C=1e6).fit(np.log1p(x / floor)[:, None], kept)
    return Trust(float(fitted.intercept_[0]), max(0.0, -float(fitted.coef_[0, 0])), floor)


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
