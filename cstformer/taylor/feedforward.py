r"""The feed-forward step W₂ gelu(W₁ x + b₁) + b₂ on Taylor series, a block of tokens at a time.

Between its two matrices a wide layer holds the largest tensors of a training step, and moving them through memory costs
more than computing them. Here each block of tokens goes through both matrices while it is in the cache. Between the
matrices only W₁ x + b₁ is stored; beyond ``_KEEP`` numbers nothing is, and backward recomputes it from the input.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor.kernels import gelu_and_gradient, gelu_coefs, products_in_lower_precision
from cstformer.taylor.series import Series, gelu, linear

# Sizes set the speed only.
_BLOCK = 2**21  # numbers (tokens × wide) of one coefficient between the matrices per block: 8 MB in float32
_FROM = 4 * 10**6  # numbers of all coefficients there from which memory counts: 16 MB in float32
_KEEP = 2**26  # numbers of all coefficients up to which W₁ x + b₁ is stored: 256 MB in float32 per layer


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
    """With z = W₁ x + b₁: y = W₂ gelu(z) + b₂; z̅ follows from W₂ᵀ y̅ as in `kernels.gelu`, and x̅ = W₁ᵀ z̅."""

    @staticmethod
    def forward(
        ctx, x: Tensor, widen: Tensor, bias1: Tensor, narrow: Tensor, bias2: Tensor, order: int, directions: int
    ) -> Tensor:
        ctx.shape = order, directions
        out, kept = torch.empty_like(x), []
        keeps = x[..., 0].numel() * len(widen) <= _KEEP
        for block in _blocks(x, widen):
            wide = _widened(x[:, block], widen, bias1)  # (J, block, wide)
            out[:, block] = F.linear(gelu_coefs(order, directions, wide), narrow)
            if keeps:
                kept.append(wide)
        out[0] += bias2
        ctx.save_for_backward(x, widen, bias1, narrow, *kept)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, widen, bias1, narrow, *kept = ctx.saved_tensors
        order, directions = ctx.shape
        for_x, for_bias1 = torch.empty_like(x), torch.zeros_like(bias1)
        for_widen, for_narrow = torch.zeros_like(narrow), torch.zeros_like(narrow)  # (width, wide): W₁'s is transposed
        for number, block in enumerate(_blocks(x, widen)):
            g = gradient[:, block].flatten(0, 1)  # (J·block, width)
            wide = kept[number] if kept else _widened(x[:, block], widen, bias1)  # (J, block, wide)
            after, for_wide = gelu_and_gradient(order, directions, wide, (g @ narrow).view_as(wide))
            for_narrow.addmm_(g.T, after.flatten(0, 1))
            for_bias1 += for_wide[0].sum(0)  # biases belong to the value alone
            for_widen.addmm_(x[:, block].flatten(0, 1).T, for_wide.flatten(0, 1))
            for_x[:, block] = for_wide @ widen
        return for_x, for_widen.T, for_bias1, for_narrow, gradient[0].sum(0), None, None


def _blocks(x: Tensor, widen: Tensor) -> list[slice]:
    size = max(1, _BLOCK // len(widen))
    return [slice(first, first + size) for first in range(0, x.shape[1], size)]


def _widened(x: Tensor, widen: Tensor, bias: Tensor) -> Tensor:
    """Apply W₁ x + b₁: (J, block, width) → (J, block, wide)."""
    out = F.linear(x, widen)
    out[0] += bias
    return out
