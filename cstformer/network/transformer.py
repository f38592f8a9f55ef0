"""The whole model: tokens in, values (and their Taylor series) out.

Context tokens are the observed points, query tokens the coordinates somebody asks about. Who reads whom:

- ``joint`` (the paper): all tokens attend to all, so an answer depends on the other queries.
- ``context`` (ours): context tokens attend to context tokens, queries to context tokens only. The context is
  encoded once and any number of queries reads it, each independent of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from cstformer.data.batch import Batch
from cstformer.network.architecture import Architecture
from cstformer.network.blocks import Block
from cstformer.network.encoding import CalendarEncoding, FourierEncoding, LinearEncoding, Nearness
from cstformer.network.layers import Dropout, LayerNorm, Linear
from cstformer.network.readout import make_readout
from cstformer.taylor import series
from cstformer.taylor.series import Series, constant


@dataclass(frozen=True)
class Encoded:
    """A context after encoding: what queries need of it at each layer."""

    keys_values: list[tuple[Series, Series]]
    context: Batch

    @property
    def exists(self) -> Bool[Tensor, "B n"]:
        """True where a context point is a token."""
        return self.context.exists


class ContinuousTransformer(nn.Module):
    """The network of CST.

    Examples
    --------
    >>> model = ContinuousTransformer(Architecture(d=1, c=2, width=8, layers=1, feedforward=16))
    >>> context = Batch(torch.rand(3, 5, 1), torch.rand(3, 5, 2), torch.ones(3, 5, 2, dtype=torch.bool))
    >>> at, initial = constant(torch.rand(3, 7, 1)), constant(torch.rand(3, 7, 2))
    >>> model(context, at, initial)[1].value.shape
    torch.Size([3, 7, 2])
    """

    def __init__(self, a: Architecture):
        super().__init__()
        self.architecture = a
        self.embed = Linear(a.initial_size, a.width, bias=False)
        self.missing = Linear(a.c, a.width, bias=False)
        self.residual = Linear(a.c, a.width, bias=False) if a.split_context else None
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
        self.readout = make_readout(a)
        # After everything else, so that a network with covariates starts from the same weights as one without.
        self.covariates = Linear(a.covariates, a.width, bias=False) if a.covariates else None
        self.calendar = CalendarEncoding(a.calendar, a.time_axis, a.width) if a.calendar else None
        # What was missing, what the start left and the covariates begin without a say.
        for layer in (self.missing, self.residual, self.covariates):
            if layer is not None:
                nn.init.zeros_(layer.weight)

    def fit_axes(self, periods: dict[int, float], spacing: Tensor | None = None) -> None:
        """Adapt to the axes of the data, before the training.

        Parameters
        ----------
        periods : period of each axis that has one, in the model's units
        spacing : (d,), distance between neighbouring tokens, from which heads that look near a place begin
        """
        for module in self.modules():
            if isinstance(module, FourierEncoding | Nearness):
                for axis, period in periods.items():
                    module.wrap(axis, period)
            if isinstance(module, Nearness) and spacing is not None:
                module.spread(spacing)

    def forward(
        self,
        context: Batch,
        at: Series,
        initial: Series,
        maps: list | None = None,
        exists: Bool[Tensor, "B m"] | None = None,
    ) -> tuple[Tensor | None, Series]:
        """Answers at context points (only ``joint`` has them) and at the queries.

        Parameters
        ----------
        context : Batch
        at : Series, (J, B, m, d)
            Query coordinates.
        initial : Series, (J, B, m, c)
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
            return None, self.read(self.encode(context), at, initial, maps)
        return self._forward_joint(context, at, initial, maps, exists)

    def prepare(self, context: Batch, start: Callable[[Series], Series]) -> Batch:
        """Add the initial values at the context's own points, if this network reads them.

        In a training step of the pattern ``context`` hidden points are left out, which nobody asks about here.
        """
        if torch.is_grad_enabled() and self.architecture.pattern == "context":
            context = context.packed()
        if not self.architecture.split_context and self.architecture.view is None:
            return context
        with torch.no_grad():
            return context.replace(initial=start(constant(context.coords)).value)

    def encode(self, context: Batch, maps: list | None = None) -> Encoded:
        """Let the context tokens read each other, once (pattern ``context``)."""
        at, values = constant(context.coords), context.known if context.initial is None else context.initial
        x = self._tokens(constant(values), at, context, context.observed)
        if self.residual is not None:
            assert context.initial is not None, "prepare the context first"
            left = (context.values - context.initial[..., : self.architecture.c]).masked_fill(~context.observed, 0)
            x = x + self.residual(constant(left))
        mask, nystrom = context.exists, self.architecture.attention_kind == "nystrom"
        stages = []
        for i, block in enumerate(self.blocks):
            stages.append(block.keys_values(x, at))
            if i + 1 < len(self.blocks) or maps is not None:  # nobody reads the last layer's context tokens
                x = block(x, at, stages[-1], mask, nystrom, maps)
        return Encoded(stages, context)

    def read(self, encoded: Encoded, at: Series, initial: Series, maps: list | None = None) -> Series:
        """Let queries read an encoded context (pattern ``context``); each query is independent of the others."""
        assert self.query_token is not None
        x = series.shift(self._tokens(initial, at, encoded.context), self.query_token)
        mask = encoded.exists
        for block, keys_values in zip(self.blocks, encoded.keys_values, strict=True):
            x = block(x, at, keys_values, mask, False, maps)
        return self._readout(x, initial)

    def _forward_joint(
        self, context: Batch, at: Series, initial: Series, maps: list | None, exists: Tensor | None
    ) -> tuple[Tensor, Series]:
        n = context.coords.shape[1]
        values = series.concatenate([constant(context.known), initial], 1)
        real = self._tokens(constant(context.known), constant(context.coords), context, context.observed)
        x = series.concatenate([real, self._tokens(initial, at, context)], 1)
        if exists is None:
            exists = context.exists.new_ones(at.coefs.shape[1:3])
        mask = torch.cat([context.exists, exists], 1)
        places = series.concatenate([constant(context.coords), at], 1)
        for block in self.blocks:
            x = block(
                x, places, block.keys_values(x, places), mask, self.architecture.attention_kind == "nystrom", maps
            )
        y = self._readout(x, values)
        return y.value[:, :n], y.map(lambda c: c[:, :, n:])

    def _tokens(self, values: Series, coords: Series, context: Batch, observed: Tensor | None = None) -> Series:
        """Tokens (J, B, m, width) at these coordinates, with covariates and calendar of the context's samples."""
        x = self.embed(values) + self.position(coords)
        if observed is not None:
            x = x + self.missing(constant((~observed).to(values.coefs)))
        if self.covariates is not None:
            assert context.covariates is not None, "the batch has no covariates"
            x = x + self.covariates(constant(context.covariates[:, None]))  # (1, B, 1, width)
        if self.calendar is not None:
            assert context.phases is not None, "the batch has no calendar"
            x = x + self.calendar(coords, context.phases)
        return self.dropout(x if self.embed_norm is None else self.embed_norm(x))

    def _readout(self, x: Series, initial: Series) -> Series:
        """Answers (J, B, m, c) of the last tokens (J, B, m, width)."""
        if self.head is not None:
            x = series.gelu(self.head(x))
        return self.readout(self.final_norm(x), initial)
