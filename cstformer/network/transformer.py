"""The whole model: tokens in, values (and their Taylor series) out.

Context tokens are the observed points, query tokens the coordinates somebody asks about. Who reads whom:

- ``joint`` (the paper): all tokens attend to all, so an answer depends on the other queries.
- ``context`` (ours): context tokens attend to context tokens, queries to context tokens only. The context is
  encoded once and any number of queries reads it, each independent of the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from cstformer.data.batch import Context
from cstformer.network.attention import exact_attention, exact_map, nystrom_attention, nystrom_map, softmax
from cstformer.network.encoding import FourierEncoding, LinearEncoding, Nearness
from cstformer.starts.trust import LOUDEST
from cstformer.taylor import series
from cstformer.taylor.feedforward import feedforward
from cstformer.taylor.series import Series, constant


@dataclass(frozen=True)
class Architecture:
    """Everything that fixes the shape of the network; the fields mean what they mean in `Settings`."""

    d: int
    c: int
    width: int = 64
    layers: int = 4
    heads: int = 4
    feedforward: int = 128
    pattern: str = "context"
    attention_kind: str = "exact"
    landmarks: int = 32
    projections: int = 1
    iterations: int = 6
    norm: str = "pre"
    encoding: str = "fourier"
    features: int = 32
    frequency: float = 1.0
    readout: str = "skip"
    dropout: float = 0.0
    near: bool = False
    """Whether heads look near a place (`Nearness`)."""
    guess: bool = False
    """Whether context tokens carry the start at their own place, and apart from it what it leaves of their value."""
    sight: tuple[int, int, int, int] | None = None
    """Rows, columns, halo and channels of a start that shows pixels around a patch as well (`Trust.sight`, `Film`)."""

    @property
    def seen(self) -> int:
        """Numbers of a start."""
        if self.sight is None:
            return self.c
        rows, cols, halo, channels = self.sight
        return (rows + 2 * halo) * (cols + 2 * halo) * (2 * channels + 2)


@dataclass(frozen=True)
class Encoded:
    """A context after encoding: what queries need of it at each layer."""

    keys_values: list[tuple[Series, Series]]
    tokens: Bool[Tensor, "B n"]


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
        k, v = (self._split(both.map(lambda c, i=i: c.chunk(2, -1)[i])) for i in (0, 1))
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


class ContinuousTransformer(nn.Module):
    """The network of CST.

    Examples
    --------
    >>> model = ContinuousTransformer(Architecture(d=1, c=2, width=8, layers=1, feedforward=16))
    >>> context = Context(torch.rand(3, 5, 1), torch.rand(3, 5, 2), torch.ones(3, 5, 2, dtype=torch.bool))
    >>> at, start = constant(torch.rand(3, 7, 1)), constant(torch.rand(3, 7, 2))
    >>> model(context, at, start)[1].value.shape
    torch.Size([3, 7, 2])
    """

    def __init__(self, a: Architecture):
        super().__init__()
        self.architecture = a
        self.embed = Linear(a.seen, a.width, bias=False)
        self.missing = Linear(a.c, a.width, bias=False)
        self.rest = Linear(a.c, a.width, bias=False) if a.guess else None
        self.position = (
            LinearEncoding(a.d, a.width)
            if a.encoding == "linear"
            else FourierEncoding(a.d, a.width, a.features, a.frequency)
        )
        self.query_token = nn.Parameter(torch.zeros(a.width)) if a.pattern == "context" else None
        self.blocks: Sequence[Block] = nn.ModuleList(Block(a) for _ in range(a.layers))  # type: ignore[assignment]
        self.dropout = Dropout(a.dropout)
        # As in the published code, post-norm comes with a norm on the embedding and a hidden step in the head.
        post = a.norm == "post"
        self.embed_norm = LayerNorm(a.width) if post else None
        self.head = Linear(a.width, a.width) if post else None
        self.final_norm = LayerNorm(a.width)
        self.decode = Linear(a.width, a.c, bias=not post)
        self.skip = Linear(a.c, a.c, bias=False) if a.readout == "skip" and a.sight is None else None
        self.gate = None if a.sight is None else Linear(a.width, a.sight[0] * a.sight[1])
        nn.init.zeros_(self.missing.weight)
        if self.rest is not None:
            nn.init.zeros_(self.rest.weight)
        if self.skip is not None:
            nn.init.eye_(self.skip.weight)
        if a.readout == "skip" or self.gate is not None:
            for layer in (self.decode, *([] if self.gate is None else [self.gate])):
                nn.init.zeros_(layer.weight)  # an untrained network answers with its start
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(
        self,
        context: Context,
        at: Series,
        start: Series,
        maps: list | None = None,
        exists: Bool[Tensor, "B m"] | None = None,
    ) -> tuple[Tensor | None, Series]:
        """Answers at context points (only ``joint`` has them) and at the queries.

        Parameters
        ----------
        context : Context
        at : Series, (J, B, m, d)
            Query coordinates.
        start : Series, (J, B, m, c)
            The value first put on each query.
        maps : list, optional
            Receives one attention map (B, heads, ·, ·) per layer.
        exists : Tensor, optional
            False for queries that are only padding; matters in ``joint``, where queries are read.

        Returns
        -------
        (B, n, c) tensor or None, and a series (J, B, m, c)
        """
        if self.architecture.pattern == "context":
            return None, self.read(self.encode(context), at, start, maps)
        return self._forward_joint(context, at, start, maps, exists)

    def prepare(self, context: Context, start: Callable[[Series], Series]) -> Context:
        """Add the start at the context's own points, if this network wants it."""
        if not self.architecture.guess and self.architecture.sight is None:
            return context
        with torch.no_grad():
            return dataclasses.replace(context, guess=start(constant(context.coords)).value)

    def encode(self, context: Context, maps: list | None = None) -> Encoded:
        """Let the context tokens read each other, once (pattern ``context``)."""
        at = constant(context.coords)
        if self.gate is not None:
            assert context.guess is not None, "prepare the context first"
            x = self._tokens(constant(context.guess), at, context.observed)
        elif self.rest is None:
            x = self._tokens(constant(context.known), at, context.observed)
        else:
            assert context.guess is not None, "prepare the context first"
            rest = (context.values - context.guess).masked_fill(~context.observed, 0)
            x = self._tokens(constant(context.guess), at, context.observed) + self.rest(constant(rest))
        mask, nystrom = context.tokens, self.architecture.attention_kind == "nystrom"
        stages = []
        for i, block in enumerate(self.blocks):
            stages.append(block.keys_values(x, at))
            if i + 1 < len(self.blocks) or maps is not None:  # nobody reads the last layer's context tokens
                x = block(x, at, stages[-1], mask, nystrom, maps)
        return Encoded(stages, mask)

    def read(self, encoded: Encoded, at: Series, start: Series, maps: list | None = None) -> Series:
        """Let queries read an encoded context (pattern ``context``); each query is independent of the others."""
        assert self.query_token is not None
        x = series.shift(self._tokens(start, at), self.query_token)
        for block, keys_values in zip(self.blocks, encoded.keys_values, strict=True):
            x = block(x, at, keys_values, encoded.tokens, False, maps)
        return self._readout(x, start)

    def _forward_joint(
        self, context: Context, at: Series, start: Series, maps: list | None, exists: Tensor | None
    ) -> tuple[Tensor, Series]:
        n = context.coords.shape[1]
        values = series.concatenate([constant(context.known), start], 1)
        real = self._tokens(constant(context.known), constant(context.coords), context.observed)
        x = series.concatenate([real, self._tokens(start, at)], 1)
        if exists is None:
            exists = context.tokens.new_ones(at.coefs.shape[1:3])
        mask = torch.cat([context.tokens, exists], 1)
        places = series.concatenate([constant(context.coords), at], 1)
        for block in self.blocks:
            x = block(
                x, places, block.keys_values(x, places), mask, self.architecture.attention_kind == "nystrom", maps
            )
        y = self._readout(x, values)
        return y.value[:, :n], y.map(lambda c: c[:, :, n:])

    def _tokens(self, values: Series, coords: Series, observed: Tensor | None = None) -> Series:
        x = self.embed(values) + self.position(coords)
        if observed is not None:
            x = x + self.missing(constant((~observed).to(values.coefs)))
        return self.dropout(x if self.embed_norm is None else self.embed_norm(x))

    def _readout(self, x: Series, start: Series) -> Series:
        """Y = A·start + decoder(token), or the paper's decoder alone; `_gated` where the start says what to trust."""
        if self.head is not None:
            x = series.gelu(self.head(x))
        x = self.final_norm(x)
        y = self.decode(x)
        if self.gate is not None:
            return self._gated(y, self.gate(x), start)
        return y if self.skip is None else y + self.skip(start)

    def _gated(self, change: Series, gate: Series, start: Series) -> Series:
        """Mix γ·pixel + (1 − γ)·(around + change), with γ from the log odds of the pixel and what the token adds.

        The start has the guess w·pixel + (1 − w)·around, w by the odds alone, the rest pixel − around, and the error to
        expect of what is around, which the change is multiplied by: where all is known it should stay. Of a `Film`, the
        frame before and the frame after take the places of the pixel and of what is around it.
        """
        assert self.architecture.sight is not None
        rows, cols, halo, channels = self.architecture.sight

        def part(first: int, last: int) -> Series:
            def cut(c: Tensor) -> Tensor:
                c = c.unflatten(-1, (rows + 2 * halo, cols + 2 * halo, 2 * channels + 2))
                return c[..., halo : halo + rows, halo : halo + cols, first:last]

            return start.map(cut)

        guess, rest = part(0, channels), part(channels, 2 * channels)
        odds = part(2 * channels, 2 * channels + 1).map(lambda c: LOUDEST * c)
        believed = series.sigmoid(odds + gate.map(lambda c: 4 * c.unflatten(-1, (rows, cols, 1))))
        more = believed + series.sigmoid(odds).map(torch.neg)
        unsure = part(2 * channels + 1, 2 * channels + 2)
        change = unsure * change.map(lambda c: c.unflatten(-1, (rows, cols, channels)))
        y = guess + more * rest + change + believed * change.map(torch.neg)
        return y.map(lambda c: c.flatten(-3))


def parameter_count(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
