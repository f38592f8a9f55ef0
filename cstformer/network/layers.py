"""Layers of PyTorch that act on Taylor series."""

from __future__ import annotations

import torch
from torch import nn

from cstformer.taylor import series
from cstformer.taylor.series import Series


class Linear(nn.Linear):
    """Linear layer on a series."""

    def forward(self, x: Series) -> Series:  # type: ignore[override]
        """(J, ..., in) → (J, ..., out)."""
        return series.linear(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """LayerNorm on a series."""

    def forward(self, x: Series) -> Series:  # type: ignore[override]
        """(J, ..., width) → the same shape."""
        return series.layer_norm(x, self.weight, self.bias, self.eps)


class Dropout(nn.Dropout):
    """Dropout that drops a feature in all orders at once."""

    def forward(self, x: Series) -> Series:  # type: ignore[override]
        """(J, ..., width) → the same shape."""
        if not self.training or self.p == 0:
            return x
        keep = super().forward(torch.ones_like(x.value))
        return x.map(lambda c: c * keep)
