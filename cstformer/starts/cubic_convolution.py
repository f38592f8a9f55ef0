"""Pixels between pixels: cubic convolution (Keys, 1981; C1, exact at the pixels and for parabolas)."""

from __future__ import annotations

import torch

from cstformer.taylor import series
from cstformer.taylor.series import Series

# Weight of the pixels −1, 0, 1, 2 at fraction f, as coefficients of 1, f, f², f³ (a = −1/2).
_KEYS = (
    (0.0, -0.5, 1.0, -0.5),
    (1.0, 0.0, -2.5, 1.5),
    (0.0, 0.5, 2.0, -1.5),
    (0.0, 0.0, -0.5, 0.5),
)


def keys_weights(fraction: Series) -> list[Series]:
    """Weights of the pixels −1, 0, 1, 2 for places at a fraction in [0, 1) beyond pixel 0.

    >>> [w.value.item() for w in keys_weights(series.constant(torch.tensor(0.5)))]
    [-0.0625, 0.5625, 0.5625, -0.0625]
    """
    f, weights = fraction.value, []
    for a0, a1, a2, a3 in _KEYS:
        derivatives = [a0 + f * (a1 + f * (a2 + f * a3)), a1 + f * (2 * a2 + f * 3 * a3), a2 + f * 3 * a3]
        derivatives += [torch.full_like(f, a3)] + [torch.zeros_like(f)] * max(0, fraction.order - 3)
        weights.append(series.compose(fraction, derivatives[: fraction.order + 1]))
    return weights
