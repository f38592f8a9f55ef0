r"""Plain softmax attention as one step with its own backward, a few samples at a time.

Through `attention.plain_attention` autograd keeps and moves several tensors of readers × keys, each larger than all
others of a training step. Here there is one, the weights :math:`P = \mathrm{softmax}(s\, q k^T)`, changed in place
while a few samples are in the cache. With the answer y = P v and its gradient :math:`\bar y`, backward is

.. math:: \bar v = P^T \bar y, \qquad
          \bar L = P \circ (\bar y v^T - \bar y \cdot y), \qquad
          \bar q = s\, \bar L k, \qquad \bar k = s\, \bar L^T q,

where :math:`\bar y \cdot y` is one number for each reader.

Shapes: B samples, h heads, m readers, n keys, f features of queries and keys, g features of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.taylor.recurrences import LOG2_E

_PIECE = 2**18  # weights of a piece, if it has more than one sample: 1 MB in float32; speed only
_LOW = -1e30  # logit of a key that does not exist: beside any other key its weight is 0

Queries = Float[Tensor, "B h m f"]
Keys = Float[Tensor, "B h n f"]
Values = Float[Tensor, "B h n g"]


def softmax_attention(q: Queries, k: Keys, v: Values, exists: Bool[Tensor, "B n"]) -> Float[Tensor, "B h m g"]:
    """softmax(q kᵀ / √f) v over the keys that exist; zeros for a sample without any."""
    return _SoftmaxAttention.apply(q, k, v, exists)


class _SoftmaxAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, exists: Tensor) -> Tensor:
        y, kept = q.new_empty(*q.shape[:3], v.shape[-1]), []
        ctx.pieces, ctx.scale = list(_pieces(q, exists)), 1 / math.sqrt(q.shape[-1])
        for samples, n, full in ctx.pieces:
            keys, values = k[samples, :, :n].flatten(0, 1), v[samples, :, :n].flatten(0, 1)
            # In base 2, as `recurrences.exponential`.
            queries = (q[samples] * (LOG2_E * ctx.scale)).flatten(0, 1)
            weights = _softmax(queries, keys, None if full else exists[samples, :n])
            torch.bmm(weights, values, out=y[samples].flatten(0, 1))
            kept.append(weights)
        ctx.save_for_backward(q, k, v, exists, y, *kept)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):
        q, k, v, exists, y, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody asks for derivatives of this backward pass
            return *torch.autograd.grad(_textbook(q, k, v, exists), (q, k, v), gradient, create_graph=True), None
        # Transposed, as the products of readers × keys with few features are fastest (see `taylor.attention`).
        for_q, for_k, for_v = torch.empty_like(q, memory_format=torch.contiguous_format), _like(k.mT), _like(v.mT)
        for (samples, n, _), weights in zip(ctx.pieces, kept, strict=True):
            g, answer = (x[samples].reshape(-1, *x.shape[2:]) for x in (gradient, y))
            keys, values = k[samples, :, :n].flatten(0, 1), v[samples, :, :n].flatten(0, 1)
            for_v[samples, :, :, :n] = (g.mT @ weights).view(-1, *for_v.shape[1:3], n)
            own = torch.linalg.vecdot(g, answer).neg_()[..., None].expand_as(weights)  # (b·h, m, n)
            for_logits = torch.baddbmm(own, g, values.mT).mul_(weights)
            torch.bmm(for_logits, keys, out=for_q[samples].flatten(0, 1))
            queries = q[samples].flatten(0, 1)
            for_k[samples, :, :, :n] = (queries.mT @ for_logits).view(-1, *for_k.shape[1:3], n)
        return for_q.mul_(ctx.scale), for_k.mul_(ctx.scale).mT, for_v.mT, None


def _textbook(q: Queries, k: Keys, v: Values, exists: Tensor) -> Tensor:
    """`softmax_attention` as its formula says."""
    logits = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~exists[:, None, None], _LOW)
    return logits.softmax(-1) @ v * exists.any(1)[:, None, None, None]


def _pieces(q: Tensor, exists: Bool[Tensor, "B n"]) -> Iterator[tuple[slice, int, bool]]:
    """Samples that are computed together, their keys up to the last that exists, and whether all of those exist."""
    number = torch.arange(1, exists.shape[1] + 1, device=exists.device)
    lengths = (exists * number).amax(1).tolist()
    whole = bool(exists.all())
    size = max(1, _PIECE // max(1, math.prod((*q.shape[1:3], exists.shape[1]))))
    for first in range(0, len(q), size):
        samples = slice(first, first + size)
        n = max(1, *lengths[samples])
        yield samples, n, whole or bool(exists[samples, :n].all())


def _softmax(queries: Tensor, keys: Tensor, exists: Tensor | None) -> Float[Tensor, "bh m n"]:
    """Weights of the keys (b·h, n, f) for queries (b·h, m, f), whose products are the logits in base 2."""
    if exists is None:
        logits = queries @ keys.mT
    else:
        low = queries.new_zeros(exists.shape).masked_fill_(~exists, _LOW)
        logits = torch.baddbmm(low.repeat_interleave(len(queries) // len(exists), 0)[:, None], queries, keys.mT)
    weights = logits.sub_(logits.amax(-1, keepdim=True)).exp2_()
    weights.mul_(weights.sum(-1, keepdim=True).reciprocal_())
    if exists is not None and not bool((some := exists.any(1)).all()):
        weights.mul_(some.repeat_interleave(len(queries) // len(exists))[:, None, None])
    return weights


def _like(x: Tensor) -> Tensor:
    return torch.zeros_like(x, memory_format=torch.contiguous_format)
