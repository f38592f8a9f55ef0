r"""Cubic convolution (Keys, *IEEE Trans. ASSP* 29, 1981): values between pixels from the four nearest ones.

At the fraction f in [0, 1) of the way from pixel 0 to pixel 1, :math:`y(f) = \sum_{i=-1}^{2} w_i(f)\, y_i` with cubic
polynomials :math:`w_i`. The interpolant is C1 and exact at the pixels. Keys' parameter is a = −1/2, the only value with
an error of third order: it makes the interpolant exact for parabolas.
"""

from __future__ import annotations

import torch

from cstformer.taylor import series
from cstformer.taylor.series import Series

# Rows: the pixels −1, 0, 1, 2. Columns: coefficients of 1, f, f², f³ in w_i, for a = −1/2.
_KEYS = (
    (0.0, -0.5, 1.0, -0.5),
    (1.0, 0.0, -2.5, 1.5),
    (0.0, 0.5, 2.0, -1.5),
    (0.0, 0.0, -0.5, 0.5),
)


def keys_weights(fraction: Series) -> list[Series]:
    """Weights of the pixels −1, 0, 1, 2 at a fraction in [0, 1) beyond pixel 0, each of the shape of ``fraction``.

    >>> [w.value.item() for w in keys_weights(series.constant(torch.tensor(0.5)))]
    [-0.0625, 0.5625, 0.5625, -0.0625]
    """
    f, weights = fraction.value, []
    for a0, a1, a2, a3 in _KEYS:
        # The polynomial and its derivatives over m!, as `compose` wants them; zero from the fourth on.
        derivatives = [a0 + f * (a1 + f * (a2 + f * a3)), a1 + f * (2 * a2 + f * 3 * a3), a2 + f * 3 * a3]
        derivatives += [torch.full_like(f, a3)] + [torch.zeros_like(f)] * max(0, fraction.order - 3)
        weights.append(series.compose(fraction, derivatives[: fraction.order + 1]))
    return weights
