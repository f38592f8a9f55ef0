r"""The feed-forward step W₂ gelu(W₁ x + b₁) + b₂ on Taylor series, a block of tokens at a time.

Between its two matrices a wide layer holds the largest tensors of a training step, and moving them through memory costs
more than computing them. Here each block of tokens goes through both matrices while it is in the cache. Nothing between
the matrices is stored: backward recomputes it from the input.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor.kernels import gelu_coefs, gelu_gradient, products_in_lower_precision
from cstformer.taylor.series import Series, gelu, linear

# Sizes set the speed only.
_BLOCK = 2**21  # numbers (tokens × wide) of one coefficient between the matrices per block: 8 MB in float32
_FROM = 5 * 10**7  # numbers of all coefficients there from which blocks are faster (measured on a CPU: docs/speed.md)


def feedforward(x: Series, widen: Tensor, bias1: Tensor, narrow: Tensor, bias2: Tensor) -> Series:
    """Tokens (J, ..., width) → the same shape; ``widen`` is W₁ (wide, width), ``narrow`` is W₂ (width, wide)."""
    numbers = x.coefs[..., 0].numel() * len(widen)
    if x.order == 0 or not torch.is_grad_enabled() or numbers < _FROM or products_in_lower_precision():
        return plain_feedforward(x, widen, bias1, narrow, bias2)
    rows = x.coefs.flatten(1, -2)  # (J, tokens, width)
    y = _Feedforward.apply(rows, widen, bias1, narrow, bias2, x.order, x.directions)
    return x.map(y.view_as)


def plain_feedforward(x: Series, widen: Tensor, bias1: Tensor, narrow: Tensor, bias2: Tensor) -> Series:
    """All tokens at once, as the formula says."""
    return linear(gelu(linear(x, widen, bias1)), narrow, bias2)


class _Feedforward(torch.autograd.Function):
    """With z = W₁ x + b₁: y = W₂ gelu(z) + b₂; z̅ is `gelu_gradient` of W₂ᵀ y̅, and x̅ = W₁ᵀ z̅."""

    @staticmethod
    def forward(
        ctx, x: Tensor, widen: Tensor, bias1: Tensor, narrow: Tensor, bias2: Tensor, order: int, directions: int
    ) -> Tensor:
        ctx.save_for_backward(x, widen, bias1, narrow)
        ctx.shape = order, directions
        out = torch.empty_like(x)
        for block in _blocks(x, widen):
            wide = gelu_coefs(order, directions, _widened(x[:, block], widen, bias1))  # (J, block, wide)
            out[:, block] = F.linear(wide, narrow)
        out[0] += bias2
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, widen, bias1, narrow = ctx.saved_tensors
        order, directions = ctx.shape
        for_x, for_widen, for_bias1 = torch.empty_like(x), torch.zeros_like(widen), torch.zeros_like(bias1)
        for_narrow = torch.zeros_like(narrow)
        for block in _blocks(x, widen):
            g = gradient[:, block].flatten(0, 1)  # (J·block, width)
            wide = _widened(x[:, block], widen, bias1)  # (J, block, wide)
            for_narrow.addmm_(g.T, gelu_coefs(order, directions, wide).flatten(0, 1))
            for_wide = gelu_gradient(order, directions, wide, (g @ narrow).view_as(wide))
            for_bias1 += for_wide[0].sum(0)  # biases belong to the value alone
            for_widen.addmm_(for_wide.flatten(0, 1).T, x[:, block].flatten(0, 1))
            for_x[:, block] = for_wide @ widen
        return for_x, for_widen, for_bias1, for_narrow, gradient[0].sum(0), None, None


def _blocks(x: Tensor, widen: Tensor) -> list[slice]:
    size = max(1, _BLOCK // len(widen))
    return [slice(first, first + size) for first in range(0, x.shape[1], size)]


def _widened(x: Tensor, widen: Tensor, bias: Tensor) -> Tensor:
    """Apply W₁ x + b₁: (J, block, width) → (J, block, wide)."""
    out = F.linear(x, widen)
    out[0] += bias
    return out
