"""Answers anywhere: a context is encoded once, then any number of queries reads it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cstformer.data.arrays import as_floats
from cstformer.data.batch import PAIRS_PER_PASS, Batch, as_batches
from cstformer.data.checks import check_queries, from_model_epoch
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError
from cstformer.models.arithmetic import COMPILE_ANSWERS_FROM, arithmetic, compiles
from cstformer.network.architecture import parameter_count
from cstformer.system.devices import is_out_of_memory
from cstformer.system.memory import keep_freed_memory
from cstformer.system.threads import thread_limit
from cstformer.taylor import series
from cstformer.taylor.derivatives import DerivativePlan, MultiIndex, check_multi_index, plan
from cstformer.taylor.series import Series

if TYPE_CHECKING:
    from cstformer.models.cst import CST

TOKENS_PER_PASS = 2**16  # queries × coefficients of one pass: bounds the memory
MAPS_PER_PASS = 16  # samples whose attention maps are made at once


@dataclass(frozen=True)
class AttentionMaps:
    """Attention of every layer and head.

    Attributes
    ----------
    maps : array (N, layers, heads, rows, columns)
        ``maps[i, l, h, r]`` says how token r of sample i shares its attention; rows sum to one with exact
        attention.
    rows, columns : arrays (N, ·, d)
        Coordinates of the readers and of what they read, in the user's units. In ``context`` queries read
        observed points; in ``joint`` observed points and queries (in this order) read each other.
    exists : array (N, columns) of bool
        False where a column is padding of a ragged sample.
    """

    maps: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    exists: np.ndarray


class Reader:
    """A model and a context, ready to answer again and again.

    In pattern ``context`` the context is encoded here and now. In ``joint`` every answer depends on all queries of its
    call, so that nothing can be kept. `CST.reader` makes one from samples.

    Parameters
    ----------
    model : CST, fitted
    context : Samples, sorted and without repeated coordinates
    batch : the same in the model's units, optional
    """

    def __init__(self, model: CST, context: Samples, batch: Batch | None = None):
        self.model, self.context = model, context
        self.network, self.scaling = model.network_, model.scaling_
        batch = model._batch(context) if batch is None else batch
        with torch.no_grad():
            self.start = model.kind_.initial(model.run_.start, batch, self.network.architecture.bounded)
            self.batch = self.network.prepare(batch, self.start)
            joint = self.network.architecture.pattern == "joint"
            self.encoded = None if joint else self.network.encode(self.batch)

    @functools.cached_property
    def spread(self) -> Callable[[Tensor, MultiIndex], Tensor]:
        """Variance of the process at queries in the model's units, see `DataKind.spread`."""
        with torch.no_grad():
            return self.model.kind_.spread(self.model.run_.start, self.batch)

    def series(self, at: Float[Tensor, "B m d"], terms: DerivativePlan, maps: list | None = None) -> Series:
        """Taylor series (J, B, m, c) of the answers at queries in the model's units."""
        with torch.no_grad():
            x = series.straight_line(at, terms.directions, terms.order)
            return self.read(x, self.start(x), maps)

    def read(self, at: Series, initial: Series, maps: list | None = None) -> Series:
        """Answers at queries with these initial values."""
        if self.encoded is None:
            return self.network(self.batch, at, initial, maps)[1]
        return self.network.read(self.encoded, at, initial, maps)

    def partials(
        self, at: Float[np.ndarray, "m d"], indices: Sequence[Sequence[int]]
    ) -> list[Float[np.ndarray, "N m c"]]:
        """Partial derivatives at these coordinates, in the user's units; order 0 is the value."""
        d = self.network.architecture.d
        wanted = [check_multi_index(index, d) for index in indices]
        terms = plan(d, wanted)
        parts = []
        threads = thread_limit(self.model.threads, parameter_count(self.network))
        with arithmetic(self.model), threads:
            for x in self._queries(at).split(self._chunk(len(at), terms), 1):
                y = self.series(x, terms)
                parts.append(_partials(y, terms, wanted, self.scaling))
        joined = [np.concatenate(part, axis=1) for part in zip(*parts, strict=True)]
        return [self.scaling.derivative(y, q) for y, q in zip(joined, wanted, strict=True)]

    @property
    def domain(self) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
        """Corners of the box of the training data and the context together, in the user's units."""
        low, points = self.scaling.low, self.context.coords[self.context.point_observed]
        return np.minimum(low, points.min(0)), np.maximum(low + self.scaling.span, points.max(0))

    def attention(self, at: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "N layers heads m n"]:
        """How each query shares its attention among the context points; ``joint`` has a share for queries too."""
        maps: list[Tensor] = []
        with arithmetic(self.model):
            self.series(self._queries(at), plan(self.network.architecture.d, []), maps)
        n = self.batch.coords.shape[1]
        return torch.stack(maps, 1)[:, :, :, -len(at) :, :n].cpu().double().numpy()

    def _queries(self, at: np.ndarray) -> Tensor:
        x = torch.as_tensor(self.scaling.coords(np.asarray(at, dtype=np.float64))).to(self.batch.coords)
        return x.expand(len(self.batch), -1, -1)

    def _chunk(self, m: int, terms: DerivativePlan) -> int:
        return m if self.encoded is None else max(1, TOKENS_PER_PASS // _coefficients(terms))


def make_reader(model: CST, context: Samples) -> Reader:
    """Check the context and encode it."""
    a = model.network_.architecture
    check_queries(context, np.zeros((1, a.d)), a.d, a.c)
    context, _ = from_model_epoch(context, np.zeros((1, 1, a.d)), model.names_)
    with arithmetic(model):
        return Reader(model, context.merged().sorted())


def derivatives(
    model: CST,
    context: Samples,
    queries: Float[np.ndarray, "N m d"],
    wanted: list[MultiIndex],
    spread: bool = False,
) -> list[Float[np.ndarray, "N m c"]]:
    """Partial derivatives at the queries, all in the user's units.

    With ``spread`` the variances of the process follow, one for each of them, in the model's units.
    """
    keep_freed_memory()
    a = model.network_.architecture
    terms = plan(a.d, wanted)
    compiled = compiles(model.resolved(), terms, queries.shape[0] * queries.shape[1], COMPILE_ANSWERS_FROM)
    scaled = model.scaling_.coords(queries)
    with arithmetic(model, compiled), thread_limit(model.threads, parameter_count(model.network_)):
        parts = list(_stream(model, context, scaled, terms, wanted, spread))
    shape = (*queries.shape[:2], a.c)
    out = []
    try:
        for k in range(len(wanted) * (1 + spread)):
            y = np.concatenate([part[k].reshape(-1, a.c) for part in parts]).reshape(shape)
            out.append(model.scaling_.derivative(y, wanted[k]) if k < len(wanted) else y)
    except MemoryError:
        size = len(wanted) * (1 + spread) * math.prod(shape)
        raise CSTError(f"there is not enough memory for {size:,} answers; ask for fewer at a time") from None
    return out


def _stream(
    model: CST,
    context: Samples,
    queries: np.ndarray,
    terms: DerivativePlan,
    wanted: list[MultiIndex],
    spread: bool,
) -> Iterator[list[np.ndarray]]:
    """Wanted derivatives and, with ``spread``, their variances.

    A few samples and a chunk of queries at a time; fewer where memory runs out.
    """
    data = model._batch(context)
    joint = model.network_.architecture.pattern == "joint"
    m = queries.shape[1]
    size = max(1, TOKENS_PER_PASS // _coefficients(terms))
    sample = query = 0
    while sample < len(data):
        per_batch = max(1, min(64, size // m, size // context.n, PAIRS_PER_PASS // context.n**2))
        chunk = m if joint or per_batch > 1 else size
        rows = torch.arange(sample, min(sample + per_batch, len(data)))
        try:
            reader, mine = Reader(model, context, data[rows]), queries[rows.numpy()]
            while query < m:
                x = torch.as_tensor(np.ascontiguousarray(mine[:, query : query + chunk])).to(data.coords)
                y = reader.series(x, terms)
                variances = [reader.spread(x, q).cpu().numpy() for q in wanted] if spread else []
                yield _partials(y, terms, wanted, reader.scaling) + variances
                query += chunk
            sample, query = sample + per_batch, 0
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if per_batch == 1 and (joint or chunk == 1):
                raise CSTError(
                    f"there is not enough memory to answer {m if joint else 1:,} queries from a context of "
                    f"{context.n:,} points; give a shorter context (samples.windows), or fewer queries in `joint`"
                ) from None
            size = max(1, min(size, m * per_batch) // 2)


def _partials(y: Series, terms: DerivativePlan, wanted: list[MultiIndex], scaling: Scaling) -> list[np.ndarray]:
    """Partial derivatives (B, m, c) of answers (J, B, m, c), as `Scaling.derivative` expects them.

    The inverse of a robust channel is sinh(b·z + a). It is applied to the whole series, so that derivatives of every
    order follow the chain rule, and in double precision, because sinh multiplies errors in the tails.
    """
    if scaling.asinh is not None:
        mean, sd = torch.as_tensor(scaling.asinh)
        y = y.map(lambda coefs: coefs.cpu().double())
        unbent = series.sinh(series.shift(y.map(lambda coefs: coefs * sd), mean))
        y = unbent.map(lambda coefs: torch.where(sd > 0, coefs, y.coefs))
    return [terms.partial(y, q).cpu().double().numpy() for q in wanted]


def attention_maps(model: CST, context: Samples, queries: np.ndarray, values: Any) -> AttentionMaps:
    """Maps of every layer and head; ``values`` (N, m, c), if given, take the place of the initial values."""
    known = None if values is None else _known(model, values, queries)
    data, scaled = model._batch(context), model.scaling_.coords(queries)
    collected = []
    for index in as_batches(len(data), MAPS_PER_PASS):
        maps: list[Tensor] = []
        reader = Reader(model, context, data[index])
        x = series.constant(torch.as_tensor(np.ascontiguousarray(scaled[index.numpy()])).to(data.coords))
        with torch.no_grad():
            initial = reader.start(x) if known is None else series.constant(known[index].to(data.coords))
            reader.read(x, initial, maps)
        collected.append(torch.stack(maps, 1).cpu().double().numpy())
    exists = context.point_observed
    rows, columns = queries, context.coords
    if model.network_.architecture.pattern == "joint":
        rows = columns = np.concatenate([context.coords, queries], 1)
        exists = np.concatenate([exists, np.ones(queries.shape[:2], dtype=bool)], 1)
    return AttentionMaps(np.concatenate(collected), rows, columns, exists)


def _known(model: CST, values: Any, queries: np.ndarray) -> Tensor:
    """Check the values of queries; in the model's units."""
    a = model.network_.architecture
    if a.initial_size > a.c:
        start = model.run_.start
        raise CSTError(f"values cannot replace the initial values of start={start!r}, which are more; omit them")
    y = as_floats("values", values)
    shape = (*queries.shape[:2], a.c)
    if y.shape != shape or not np.isfinite(y).all():
        raise CSTError(f"values has shape {y.shape}; give finite numbers of shape {shape}, one row a query")
    return torch.as_tensor(model.scaling_.standardised(y))


def _coefficients(terms: DerivativePlan) -> int:
    """Taylor coefficients of a query."""
    return 1 + terms.order * len(terms.directions)
