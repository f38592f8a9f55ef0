r"""Exact attention on Taylor series as one step with its own backward.

For query, key and value series q, k, v it gives the two series whose quotient is the answer, numerator and
denominator of the softmax, side by side:

.. math:: L_j = \sum_i q_i k_{j-i}^T, \qquad E = \exp(L), \qquad y_j = \sum_i E_i\, [v_{j-i} \mid \delta_{ij} 1]

The exponentials are the one large thing here, queries × keys for each order. They are made for a piece of the batch and
of the queries at a time; where they are many they are not stored but made again in backward. Sums over orders are taken
inside the matrix products, by joining the features of all terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor.series import Series

_PIECE = 2**19  # numbers of one order handled at once: some pieces of this size stay in the cache
_KEEP = 2**26  # numbers of all exponentials up to which they are stored for backward, which is then faster

Parts = list[Tensor]  # by order: (1, ...) for the value, which all directions share, then (D, ...)


def softmax_sums(q: Series, k: Series, v: Series, mask: Tensor) -> Series:
    """Σ exp(q·k − top) [v | 1] over the keys that exist, (J, B, h, m, f + 1); the scale belongs into q.

    Shapes as in `attention`: q (J, B, h, m, f), k and v (J, B, h, n, f), mask (B, n). Each may be constant.
    """
    like = max((q, k, v), key=lambda x: x.order)
    orders = (q.order, k.order, v.order, like.directions)
    return Series(_SoftmaxSums.apply(q.coefs, k.coefs, v.coefs, mask, orders), like.order, like.directions)


class _SoftmaxSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, orders: tuple[int, int, int, int]) -> Tensor:
        ctx.orders = orders
        *each, directions = orders
        top = max(each)
        numbers = (1 + top * directions) * math.prod(q.shape[1:4]) * k.shape[3]
        kept: Parts | None = [] if numbers <= _KEEP and any(ctx.needs_input_grad) else None
        out = q.new_empty(1 + top * directions, *q.shape[1:-1], v.shape[-1] + 1)
        everyone = bool(mask.all())
        for batch, rows in _pieces(q, k):
            queries, keys, values = _take(q, k, v, orders, batch, rows)
            weights = _weights(queries, keys, None if everyone else mask[batch], top)
            if kept is not None:
                kept += weights
            for j, y in enumerate(_convolve(weights, values, top)):
                _order(out, j, directions)[:, batch, :, rows] = y
        ctx.save_for_backward(q, k, v, mask, *(kept or ()))
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        q, k, v, mask, *kept = ctx.saved_tensors
        *each, directions = ctx.orders
        top = max(each)
        everyone = bool(mask.all())
        for_q, for_k = torch.empty_like(q), torch.zeros_like(k)
        for_v = v.new_zeros(*v.shape[:-1], v.shape[-1] + 1)
        for number, (batch, rows) in enumerate(_pieces(q, k)):
            queries, keys, values = _take(q, k, v, ctx.orders, batch, rows)
            weights = kept[number * (top + 1) : (number + 1) * (top + 1)]
            weights = weights or _weights(queries, keys, None if everyone else mask[batch], top)
            y = [_order(gradient, j, directions)[:, batch, :, rows] for j in range(top + 1)]
            for_weights = [_outer(y[i:], values, i) for i in range(top + 1)]
            for_logits = _exp_adjoint(for_weights, weights)
            for order, g in enumerate(_correlate(weights, y, each[2])):
                _order(for_v, order, directions)[:, batch] += g
            for order, g in enumerate(_correlate_back(for_logits, keys, each[0])):
                _order(for_q, order, directions)[:, batch, :, rows] = g
            for order, g in enumerate(_correlate_back(for_logits, queries, each[1], turned=True)):
                _order(for_k, order, directions)[:, batch] += g
        return for_q, for_k, for_v[..., :-1], None, None


def _pieces(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Samples and queries of each piece."""
    batch, heads, m = q.shape[1:4]
    row = heads * k.shape[3]
    rows = max(1, min(m, _PIECE // row))
    samples = max(1, _PIECE // (row * m)) if rows == m else 1
    for b in range(0, batch, samples):
        for r in range(0, m, rows):
            yield slice(b, b + samples), slice(r, r + rows)


def _take(
    q: Tensor, k: Tensor, v: Tensor, orders: tuple[int, int, int, int], batch: slice, rows: slice
) -> tuple[Parts, Parts, Parts]:
    """The piece of queries, keys, and values with their column of ones, by order."""
    *each, directions = orders
    queries = [_order(q, j, directions)[:, batch, :, rows] for j in range(each[0] + 1)]
    keys = [_order(k, j, directions)[:, batch] for j in range(each[1] + 1)]
    values = [F.pad(_order(v, j, directions)[:, batch], (0, 1), value=float(j == 0)) for j in range(each[2] + 1)]
    return queries, keys, values


def _order(coefs: Tensor, j: int, directions: int) -> Tensor:
    return coefs[:1] if j == 0 else coefs[1 + (j - 1) * directions : 1 + j * directions]


def _weights(q: Parts, k: Parts, mask: Tensor | None, top: int) -> Parts:
    """E_0..E_top; rows without any key are zeros."""
    logits = []
    for j in range(top + 1):
        pairs = [(q[i], k[j - i]) for i in range(len(q)) if 0 <= j - i < len(k)]
        if not pairs:  # q and k end before this order
            break
        logits.append(_joined([a for a, _ in pairs], j) @ _joined([b for _, b in pairs], j).mT)
    first = logits[0] if mask is None else logits[0].masked_fill_(~mask[:, None, None, :], -math.inf)
    shift = first.amax(-1, keepdim=True)
    if mask is not None:
        shift = shift.masked_fill(shift.isneginf(), 0)
    out = [first.sub_(shift).exp_()]
    for j in range(1, top + 1):  # j·E_j = Σ i·L_i·E_{j−i}
        last = min(j, len(logits) - 1)
        if last == 0:
            out.append(torch.zeros_like(out[0]))
            continue
        total = logits[last] * out[j - last]
        if last < j:
            total *= last / j
        for i in range(1, last):
            total.addcmul_(logits[i], out[j - i], value=i / j)
        out.append(total)
    return out


def _exp_adjoint(gradient: Parts, weights: Parts) -> Parts:
    """Gradient for the logits, L̅_i = Σ_{j ≥ i} E̅_j·E_{j−i}, in the place of the gradient for E."""
    for i, total in enumerate(gradient):  # what order i needs of the higher ones is still there
        total *= weights[0]
        for j in range(i + 1, len(weights)):
            if i or len(gradient[j]) == 1:
                total.addcmul_(gradient[j], weights[j - i])
            else:
                total += (gradient[j] * weights[j]).sum(0, keepdim=True)
    return gradient


def _convolve(weights: Parts, values: Parts, top: int) -> Parts:
    """y_j = Σ_i E_i v_{j−i}: one product for all values that an E_i meets."""
    out: dict[int, Tensor] = {}
    for i, weight in enumerate(weights):
        for order, y in enumerate(_products(weight, values[: top - i + 1])):
            _add(out, i + order, y)
    return [out[j] for j in range(top + 1)]


def _correlate(weights: Parts, y: Parts, top: int) -> Parts:
    """v̅_l = Σ_i E_iᵀ y̅_{i+l} for l = 0..top."""
    out: dict[int, Tensor] = {}
    for i, weight in enumerate(weights):
        for order, g in enumerate(_products(weight, y[i : i + top + 1], turned=True)):
            _add(out, order, _shared(g, order))
    return [out[order] for order in range(top + 1)]


def _correlate_back(logits: Parts, others: Parts, top: int, turned: bool = False) -> Parts:
    """q̅_i = Σ_{j ≥ i} L̅_j k_{j−i} for i = 0..top; turned, k̅_i = Σ_{j ≥ i} L̅_jᵀ q_{j−i}."""
    out: dict[int, Tensor] = {}
    for j, g in enumerate(logits):
        for order, part in enumerate(_products(g, others[: j + 1], turned)):
            if j - order <= top:
                _add(out, j - order, _shared(part, j - order))
    return [out[i] for i in range(top + 1)]


def _add(sums: dict[int, Tensor], order: int, term: Tensor) -> None:
    sums[order] = sums[order] + term if order in sums else term


def _outer(y: Parts, values: Parts, i: int) -> Tensor:
    """E̅_i = Σ_{j ≥ i} y̅_j v_{j−i}ᵀ, one product for all j; ``y`` begins at order i."""
    pairs = list(zip(y, values, strict=False))
    if i == 0:  # the value belongs to all directions: sum over them, as over features
        left, right = ([_folded(t) for t in side] for side in zip(*pairs, strict=True))
        return torch.cat(left, -1) @ torch.cat(right, -1).mT
    return _joined([a for a, _ in pairs], i) @ _joined([b for _, b in pairs], i).mT


def _joined(parts: Parts, order: int) -> Tensor:
    """Features of several orders side by side, the value repeated for every direction of a higher order."""
    if len(parts) == 1:
        return parts[0]
    most = 1 if order == 0 else max(len(p) for p in parts)
    return torch.cat([p.expand(most, *p.shape[1:]) for p in parts], -1)


def _folded(x: Tensor) -> Tensor:
    """(D, ..., f) → (1, ..., D·f)."""
    return x if len(x) == 1 else x.movedim(0, -2).flatten(-2).unsqueeze(0)


def _shared(gradient: Tensor, order: int) -> Tensor:
    return gradient.sum(0, keepdim=True) if order == 0 and len(gradient) > 1 else gradient


def _products(large: Tensor, small: Parts, turned: bool = False) -> Parts:
    """The product of a large matrix (turned: of its transpose) with each of several small ones.

    One product where they fit side by side; and rather Sᵀ L than Lᵀ S, which is two to three times slower.
    """

    def product(x: Tensor) -> Tensor:
        return (x.mT @ large).mT if turned else large @ x

    if len(small) > 1 and all(len(s) == len(small[0]) for s in small):
        return list(product(torch.cat(small, -1)).split(small[0].shape[-1], -1))
    return [product(x) for x in small]
