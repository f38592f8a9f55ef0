r"""Exact attention on Taylor series as one fused step with its own backward.

For queries q, keys k and values v it computes numerator and denominator of the softmax, side by side. With the
coefficients of order j of each series,

.. math:: L_j = \sum_i q_i k_{j-i}^T, \qquad E = \exp(L), \qquad y_j = \sum_i E_i\, [v_{j-i} \mid \delta_{ij} 1].

The last column of y is the denominator: the ones are constant, so they meet :math:`E_j` alone. The answer of attention
is the series quotient of the other columns by the last.

E is the one large tensor, queries × keys for each order. Three decisions keep it fast:

- It is computed for a piece at a time: some samples, or heads of a sample, or queries of a head. So it stays in the
  cache. A piece of few queries of all heads would be slower: the gradients of all keys are added up once a piece.
- Backward recomputes it where storing it would take too much memory (``_KEEP``).
- Sums over orders are taken inside the matrix products, by concatenating the features of all terms:
  :math:`\sum_i q_i k_{j-i}^T = [q_0 | q_1 | \dots]\,[k_j | k_{j-1} | \dots]^T`.

Shapes: B samples, h heads, m queries, n keys, f features; a piece has p queries. Every tensor has a first axis
for the directions: 1 for order 0, D above.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor import kernels, recurrences
from cstformer.taylor.recurrences import LOG2_E, Split
from cstformer.taylor.series import Series

# Sizes set speed and memory only.
_PIECE = 2**21  # numbers of one order of E per piece, 8 MB in float32; 5000 joint points took 18 % longer at 2**19
_KEEP = 2**26  # numbers of all orders of E up to which they are stored for backward: 256 MB in float32 per layer

Parts = list[Tensor]  # by order: (1, ...), then (D, ...)
Orders = tuple[int, ...]  # orders of q, k and v, then the number of directions D


def softmax_sums(q: Series, k: Series, v: Series, exists: Bool[Tensor, "B n"]) -> Series:
    """Sums Σ exp(q·k − max) [v | 1] over the keys that exist, (J, B, h, m, f_v + 1).

    q is (J, B, h, m, f), k (J, B, h, n, f), v (J, B, h, n, f_v); each may be a constant. The caller scales q by 1/√f.
    """
    like = max((q, k, v), key=lambda x: x.order)
    orders = (q.order, k.order, v.order, like.directions)
    return Series(_SoftmaxSums.apply(q.coefs, k.coefs, v.coefs, exists, orders), like.order, like.directions)


class _SoftmaxSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, exists: Tensor, orders: Orders) -> Tensor:
        ctx.orders = orders
        *each, directions = orders
        top = max(each)
        numbers = (1 + top * directions) * math.prod(q.shape[1:4]) * k.shape[3]
        kept: Parts | None = [] if numbers <= _KEEP and any(ctx.needs_input_grad) else None
        out = q.new_empty(1 + top * directions, *q.shape[1:-1], v.shape[-1] + 1)
        sums = Split(out, top, directions)
        all_exist = bool(exists.all())
        for piece in _pieces(q, k):
            queries, keys, values = _take(q, k, v, orders, piece)
            weights = _weights(queries, keys, None if all_exist else exists[piece.samples], top)
            if kept is not None:
                kept += weights
            for j, y in enumerate(_convolve(weights, values, top)):
                sums[j][piece.queries] = y
        ctx.save_for_backward(q, k, v, exists, *(kept or ()))
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        q, k, v, exists, *kept = ctx.saved_tensors
        *each, directions = ctx.orders
        top = max(each)
        all_exist = bool(exists.all())
        # Stored as `_products` computes them, transposed. The column of ones is included in for_v, cut off at the end.
        for_q, for_k = torch.empty_like(q), torch.zeros_like(k.mT, memory_format=torch.contiguous_format).mT
        for_v = v.new_zeros(*v.shape[:-2], v.shape[-1] + 1, v.shape[-2]).mT
        q_parts, k_parts, v_parts = (
            Split(x, order, directions) for x, order in zip((for_q, for_k, for_v), each, strict=True)
        )
        y_parts = Split(gradient, top, directions)
        for number, piece in enumerate(_pieces(q, k)):
            queries, keys, values = _take(q, k, v, ctx.orders, piece)
            weights = kept[number * (top + 1) : (number + 1) * (top + 1)]
            weights = weights or _weights(queries, keys, None if all_exist else exists[piece.samples], top)
            y = [part[piece.queries] for part in y_parts]
            for_weights = [_outer(y[i:], values, i) for i in range(top + 1)]
            for_logits = _exp_adjoint(for_weights, weights)
            # A key is read by all pieces of the queries, so its gradient and its value's are sums over the pieces.
            for order, g in enumerate(_correlate(weights, y, each[2])):
                v_parts[order][piece.keys] += g
            for order, g in enumerate(_correlate_back(for_logits, keys, each[0])):
                q_parts[order][piece.queries] = g
            for order, g in enumerate(_correlate_back(for_logits, queries, each[1], transposed=True)):
                k_parts[order][piece.keys] += g
        return for_q, for_k, for_v[..., :-1], None, None


class _Piece(NamedTuple):
    """What is computed at a time: all heads of some samples, or some heads of a sample, or some queries of a head."""

    samples: slice
    heads: slice
    rows: slice

    @property
    def queries(self) -> tuple[slice, ...]:
        """Its part of (·, B, h, m, f)."""
        return slice(None), *self

    @property
    def keys(self) -> tuple[slice, ...]:
        """Its part of (·, B, h, n, f)."""
        return slice(None), self.samples, self.heads


def _pieces(q: Tensor, k: Tensor) -> Iterator[_Piece]:
    """The pieces of `_PIECE` numbers of E, or of one query if it has more."""
    count, heads, m = q.shape[1:4]
    row = k.shape[3]  # numbers of E for one query
    steps = []  # at most this many samples, heads and queries, from the largest axis that fits
    for size, one in ((count, heads * m * row), (heads, m * row), (m, row)):
        steps.append(max(1, min(size, _PIECE // one)))
    for s, h, r in itertools.product(*(range(0, n, step) for n, step in zip((count, heads, m), steps, strict=True))):
        yield _Piece(*(slice(first, first + step) for first, step in zip((s, h, r), steps, strict=True)))


def _take(q: Tensor, k: Tensor, v: Tensor, orders: Orders, piece: _Piece) -> tuple[Parts, Parts, Parts]:
    """A piece by order: queries (·, B, h, p, f), keys (·, B, h, n, f), values with ones (·, B, h, n, f_v + 1)."""
    *each, directions = orders
    queries, keys, values = (Split(x, order, directions) for x, order in zip((q, k, v), each, strict=True))
    return (
        [x[piece.queries] for x in queries],
        [x[piece.keys] for x in keys],
        [F.pad(x[piece.keys], (0, 1), value=float(j == 0)) for j, x in enumerate(values)],  # ones are constant
    )


def _weights(q: Parts, k: Parts, exists: Bool[Tensor, "B n"] | None, top: int) -> Parts:
    """E_0..E_top, each (·, B, h, p, n); a sample without any key gets zeros. None means that all keys exist."""
    logits = []
    for j in range(top + 1):
        pairs = [(q[i], k[j - i]) for i in range(len(q)) if 0 <= j - i < len(k)]
        if not pairs:  # q and k end below this order
            break
        logits.append(_joined([a for a, _ in pairs], j) @ _joined([b for _, b in pairs], j).mT)
    # Subtracting the largest logit of a row changes neither the quotient nor, being a constant, the higher orders.
    first = logits[0] if exists is None else logits[0].masked_fill_(~exists[:, None, None, :], -math.inf)
    largest = first.amax(-1, keepdim=True)
    if exists is not None:
        largest = largest.masked_fill(largest.isneginf(), 0)
    first.sub_(largest)
    if top and len(logits) == top + 1 and kernels.compiling():
        return _in_one_loop(_exp, logits)
    out = [first.mul_(LOG2_E).exp2_()]  # as `recurrences.exponential`
    for j in range(1, top + 1):  # j·E_j = Σ_i i·L_i·E_{j−i}, as in `recurrences.exp`, in one buffer
        last = min(j, len(logits) - 1)
        if last == 0:  # the logits are constant
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
    """Gradient for the logits, L̅_i = Σ_{j ≥ i} E̅_j·E_{j−i}, written over the gradient for E."""
    if len(weights) > 1 and kernels.compiling():
        return _in_one_loop(_adjoint, [*gradient, *weights])
    for i, total in enumerate(gradient):  # order i needs the gradients of orders ≥ i, which are not overwritten yet
        total *= weights[0]
        for j in range(i + 1, len(weights)):
            if i or len(gradient[j]) == 1:
                total.addcmul_(gradient[j], weights[j - i])
            else:  # the value is shared by the directions
                total += (gradient[j] * weights[j]).sum(0, keepdim=True)
    return gradient


def _in_one_loop(kernel: Callable[..., tuple[Tensor, ...]], parts: Parts) -> Parts:
    """A compiled elementwise kernel on tensors by order, each (1 or D, ...)."""
    flat = kernels.compiled(kernel)(*(x.reshape(len(x), -1) for x in parts))
    return [y.view_as(x) for y, x in zip(flat, parts, strict=False)]


def _exp(*logits: Tensor) -> tuple[Tensor, ...]:
    return tuple(recurrences.exp(logits))


def _adjoint(*parts: Tensor) -> tuple[Tensor, ...]:
    gradient, weights = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    return tuple(recurrences.adjoint_product(gradient, weights))


def _convolve(weights: Parts, values: Parts, top: int) -> Parts:
    """y_j = Σ_i E_i v_{j−i}, each (·, B, h, p, f_v + 1): one product for all values that an E_i meets."""
    out: dict[int, Tensor] = {}
    for i, weight in enumerate(weights):
        for order, y in enumerate(_products(weight, values[: top - i + 1])):
            _add(out, i + order, y)
    return [out[j] for j in range(top + 1)]


def _correlate(weights: Parts, y: Parts, top: int) -> Parts:
    """Gradient for the values, v̅_l = Σ_i E_iᵀ y̅_{i+l} for l = 0..top, each (·, B, h, n, f_v + 1)."""
    out: dict[int, Tensor] = {}
    for i, weight in enumerate(weights):
        for order, g in enumerate(_products(weight, y[i : i + top + 1], transposed=True)):
            _add(out, order, _shared(g, order))
    return [out[order] for order in range(top + 1)]


def _correlate_back(logits: Parts, others: Parts, top: int, transposed: bool = False) -> Parts:
    """Gradient for the queries, q̅_i = Σ_{j ≥ i} L̅_j k_{j−i} for i = 0..top, each (·, B, h, p, f).

    With ``transposed``, that for the keys: k̅_i = Σ_{j ≥ i} L̅_jᵀ q_{j−i}, each (·, B, h, n, f).
    """
    out: dict[int, Tensor] = {}
    for j, g in enumerate(logits):
        for order, part in enumerate(_products(g, others[: j + 1], transposed)):
            if j - order <= top:
                _add(out, j - order, _shared(part, j - order))
    return [out[i] for i in range(top + 1)]


def _outer(y: Parts, values: Parts, i: int) -> Float[Tensor, "D B h p n"]:
    """Gradient for the exponentials, E̅_i = Σ_{j ≥ i} y̅_j v_{j−i}ᵀ, in one product; ``y`` begins at order i."""
    pairs = list(zip(y, values, strict=False))
    if i == 0:  # the value is shared by the directions: sum over them in the product, as over features
        left, right = ([_folded(t) for t in side] for side in zip(*pairs, strict=True))
        return torch.cat(left, -1) @ torch.cat(right, -1).mT
    return _joined([a for a, _ in pairs], i) @ _joined([b for _, b in pairs], i).mT


def _joined(parts: Parts, order: int) -> Tensor:
    """Features of several orders side by side, (·, ..., Σ f); the value is repeated for every direction."""
    if len(parts) == 1:
        return parts[0]
    most = 1 if order == 0 else max(len(p) for p in parts)
    return torch.cat([p.expand(most, *p.shape[1:]) for p in parts], -1)


def _folded(x: Tensor) -> Tensor:
    """(D, ..., f) → (1, ..., D·f)."""
    return x if len(x) == 1 else x.movedim(0, -2).flatten(-2).unsqueeze(0)


def _shared(gradient: Tensor, order: int) -> Tensor:
    """Sum over the directions at order 0, which all of them share."""
    return gradient.sum(0, keepdim=True) if order == 0 and len(gradient) > 1 else gradient


def _add(sums: dict[int, Tensor], order: int, term: Tensor) -> None:
    sums[order] = sums[order] + term if order in sums else term


def _products(large: Tensor, small: Parts, transposed: bool = False) -> Parts:
    """The product of a large matrix (··· p, n), or of its transpose, with each of several small ones.

    Small matrices of equal length go side by side into one product. Lᵀ S is computed as (Sᵀ L)ᵀ, which was measured to
    be two to three times faster on a CPU (docs/speed.md).
    """

    def product(x: Tensor) -> Tensor:
        return (x.mT @ large).mT if transposed else large @ x

    if len(small) > 1 and all(len(s) == len(small[0]) for s in small):
        return list(product(torch.cat(small, -1)).split(small[0].shape[-1], -1))
    return [product(x) for x in small]
