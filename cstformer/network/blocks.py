"""One transformer block on Taylor series: multi-head attention and a feed-forward step.

Shapes: J coefficients, B samples, m readers, n tokens that are read, h heads of f = width / h features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cstformer.network.architecture import Architecture
from cstformer.network.attention import exact_attention, exact_map, nystrom_attention, nystrom_map, softmax
from cstformer.network.encoding import Nearness
from cstformer.network.layers import Dropout, LayerNorm, Linear
from cstformer.taylor import series
from cstformer.taylor.feedforward import feedforward
from cstformer.taylor.series import Series, constant


class Attention(nn.Module):
    """Multi-head attention: projections around `attention.py`."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.a = a
        self.query = Linear(a.width, a.width)
        self.key_value = Linear(a.width, 2 * a.width)
        self.out = Linear(a.width, a.width)
        # The published Nyström class projects its output twice.
        self.again = Linear(a.width, a.width) if a.projections == 2 else None
        self.nearness = Nearness(a.d, a.heads) if a.near else None

    def keys_values(self, x: Series, at: Series) -> tuple[Series, Series]:
        """Keys and values of (J, B, n, width) tokens at (J, B, n, d), each (J, B, heads, n, width / heads).

        Keys have 2d more features where heads look near a place.
        """
        both = self.key_value(x)
        k, v = (self._split(both.map(lambda _, half=half: half)) for half in both.coefs.chunk(2, -1))
        return k if self.nearness is None else series.concatenate([k, self.nearness.keys(at)], -1), v

    def forward(
        self, x: Series, at: Series, keys_values: tuple[Series, Series], mask: Tensor, nystrom: bool, maps=None
    ):
        """Let the tokens ``x`` (J, B, m, width) read the keys; append the map to ``maps`` if there is such a list."""
        y = self._read(x, at, keys_values, mask, nystrom, maps)
        return y if self.again is None else self.again(y)

    def _read(self, x: Series, at: Series, keys_values: tuple[Series, Series], mask: Tensor, nystrom: bool, maps):
        k, v = keys_values
        if not nystrom and maps is None and self._few(x, k):
            return self._read_few(x, k.value, v.value, mask)
        q = self._split(self.query(x))
        if self.nearness is not None:
            scale = math.sqrt(k.coefs.shape[-1])  # attention divides by it
            q = series.concatenate([q, self.nearness.queries(at).map(lambda c: c * scale)], -1)
        if nystrom:
            y = nystrom_attention(q, k, v, mask, self.a.landmarks, self.a.iterations)
        else:
            y = exact_attention(q, k, v, mask)
        if maps is not None:
            maps.append(
                nystrom_map(q, k, mask, self.a.landmarks, self.a.iterations) if nystrom else exact_map(q, k, mask)
            )
        return self.out(y.map(lambda c: c.transpose(2, 3).flatten(3)))  # (J, B, m, width)

    def _few(self, x: Series, k: Series) -> bool:
        """Whether many queries read few constant keys, so that projecting the keys is cheaper than the queries."""
        n = k.coefs.shape[-2]
        many = x.coefs.shape[2] >= 8 * n
        return k.order == 0 and self.a.heads * n <= self.a.width and many and self.nearness is None

    def _read_few(self, x: Series, k: Tensor, v: Tensor, mask: Tensor) -> Series:
        """The same attention with the query and output projections taken into the keys and values, (B, h, n, f)."""
        f, some = k.shape[-1], mask.any(-1)
        query = self.query.weight.unflatten(0, (-1, f)) / math.sqrt(f)  # (h, f, width)
        project = torch.einsum("bhnf,hfw->bwhn", k, query).flatten(2)
        bias = torch.einsum("bhnf,hf->bhn", k, self.query.bias.unflatten(0, (-1, f)) / math.sqrt(f))
        # A sample without any key reads zeros: let it read something, then forget it.
        bias = bias.masked_fill(~(mask | ~some[:, None])[:, None], -math.inf).flatten(1)[:, None]
        answer = torch.einsum("bhnf,whf->bhnw", v * some[:, None, None, None], self.out.weight.unflatten(1, (-1, f)))
        answer = answer.flatten(1, 2)
        if x.order == 0:  # one query a column: the softmax then runs along whole columns, many at a time
            scores = torch.baddbmm(bias.mT, project.mT, x.value.mT).unflatten(1, (self.a.heads, -1))
            return constant(torch.baddbmm(self.out.bias, scores.softmax(2).flatten(1, 2).mT, answer))
        scores = _affine(x, project, bias).map(lambda c: c.unflatten(-1, (self.a.heads, -1)))  # (J, B, m, h, n)
        return _affine(softmax(scores).map(lambda c: c.flatten(-2)), answer, self.out.bias)

    def _split(self, x: Series) -> Series:
        return x.map(lambda c: c.unflatten(-1, (self.a.heads, -1)).transpose(2, 3))  # (J, B, h, n, f)


class Block(nn.Module):
    """One transformer block, normalised before (``pre``) or after (``post``) each part."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.pre = a.norm == "pre"
        self.attention = Attention(a)
        self.norm1, self.norm2 = LayerNorm(a.width), LayerNorm(a.width)
        self.widen, self.narrow = Linear(a.width, a.feedforward), Linear(a.feedforward, a.width)
        self.dropout = Dropout(a.dropout)

    def keys_values(self, x: Series, at: Series) -> tuple[Series, Series]:
        """What other tokens read of ``x``, whose places are ``at``, in this block."""
        return self.attention.keys_values(self.norm1(x) if self.pre else x, at)

    def forward(
        self, x: Series, at: Series, keys_values: tuple[Series, Series], mask: Tensor, nystrom: bool, maps=None
    ) -> Series:
        """(J, B, m, width) → the same shape."""
        if self.pre:
            x = series.add_to(self.dropout(self.attention(self.norm1(x), at, keys_values, mask, nystrom, maps)), x)
            return series.add_to(self.dropout(self.feedforward(self.norm2(x))), x)
        x = self.norm1(x + self.dropout(self.attention(x, at, keys_values, mask, nystrom, maps)))
        return self.norm2(x + self.dropout(self.feedforward(x)))

    def feedforward(self, x: Series) -> Series:
        """Each token for itself: widen, bend, narrow."""
        return feedforward(x, self.widen.weight, self.widen.bias, self.narrow.weight, self.narrow.bias)


def _affine(x: Series, weight: Tensor, bias: Tensor) -> Series:
    """Compute x W + b with a matrix (B, in, out) for each sample; the bias belongs to the value alone."""
    out = x.coefs @ weight
    out[0] += bias
    return Series(out, x.order, x.directions)
