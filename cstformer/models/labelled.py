"""pandas and xarray in, pandas and xarray out: models read tables and grids, and answer in the same form."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cstformer.data.checks import check_queries, date_queries
from cstformer.data.dates import are_dates, date_unit, dated_axis
from cstformer.data.grids import OURS, answers_to_dataset
from cstformer.data.queries import table_queries
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, UnknownName

if TYPE_CHECKING:
    from cstformer.models.model import Model

Method = TypeVar("Method", bound=Callable[..., Any])


def is_table(data: Any) -> bool:
    """Whether this is a pandas DataFrame, without importing pandas."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


def is_grid(data: Any) -> bool:
    """Whether this is an xarray Dataset or DataArray, without importing xarray."""
    return hasattr(data, "dims") and hasattr(data, "isel")


def as_samples(data: Any, columns: Mapping[str, Any] | None = None) -> Any:
    """Samples from a DataFrame, Dataset or DataArray; anything else as it is.

    ``columns`` are arguments of `Samples.from_frame` or `Samples.from_xarray`, such as ``{"group": "subject"}``.
    """
    if is_table(data):
        return Samples.from_frame(data, **columns or {})
    if is_grid(data):
        return Samples.from_xarray(data, **columns or {})
    if columns:
        raise CSTError(f"columns= is for a DataFrame or a Dataset, got {type(data).__name__}; leave it out")
    return data


def read_remembered(model: Model, read: Callable[..., Samples], given: Mapping[str, Any], columns: bool) -> Samples:
    """Read data as the training data of a model were: the same columns, covariates and count of dates.

    Parameters
    ----------
    model : Model
    read : makes samples from the arguments ``coords``, ``values``, ``group``, ``covariates`` and ``relative``
    given : arguments that come first
    columns : whether columns have names at all. Data that have other columns than the training data are read as if the
        model knew none; their number must fit.
    """
    covariates, names = model.kind_.covariates, model.names_
    options: dict[str, Any] = {"covariates": list(covariates.names)} if covariates and covariates.names else {}
    if date_unit(names["coord_names"], names["units"]):
        options["relative"] = names.get("relative", False)
    options |= given
    known = {"coords": names["coord_names"], "values": names["value_names"]}
    if known.keys() & given.keys() or not columns:
        known = {}
    group = {"group": names["group"]} if "group" in names else {}
    for remembered in (group | known, known):
        with contextlib.suppress(UnknownName):
            return read(**remembered | options)
    samples = read(**options)
    if (samples.d, samples.c) != model._fitted():
        raise CSTError(
            f"the data have {samples}; the model was trained on coordinates {', '.join(names['coord_names'])} and "
            f"values {', '.join(names['value_names'])}; name the columns by coords=[...] and values=[...]"
        )
    return samples


def as_context(model: Model, data: Any) -> Any:
    """Samples from a DataFrame, Dataset or DataArray, read as the training data were; anything else as it is."""
    table = is_table(data)
    if not table and not is_grid(data):
        return data
    model._fitted()

    def read(**chosen: Any) -> Samples:
        if not table:
            chosen.pop("relative", None)  # which a grid does not have
        return (Samples.from_frame if table else Samples.from_xarray)(data, **chosen)

    return read_remembered(model, read, {}, columns=True)


def labelled(method: Method) -> Method:
    """Let a method ``(context, at, …)`` that answers with arrays (N, m, c) take DataFrames and Datasets too.

    The answers then are of the same kind. A table has a row for each query, with sample, coordinates and values; its
    ``at`` may be a DataFrame of queries, whose column of samples picks those of the context. A grid has the dims of the
    one that was given, with the queries as coordinates; its ``at`` may be a Dataset, whose coordinates span the
    queries.
    """

    @functools.wraps(method)
    def answer(self: Model, context: Any, at: Any, *args: Any, **options: Any) -> Any:
        table, grid = is_table(context), is_grid(context)
        if not table and not grid:
            return method(self, context, at, *args, **options)
        samples, axes = as_context(self, context), None
        d, c = self._fitted()
        if is_table(at):
            coords, exists = table_queries(at, samples, "at")
        else:
            if is_grid(at):
                at, axes = grid_queries(at, samples)
            coords = check_queries(samples, date_queries(samples, at), d, c)
            exists = np.ones(coords.shape[:2], dtype=bool)
        asked, queries = asked_queries(coords, exists)
        found = method(self, samples[asked], queries, *args, **options)
        units = method.__name__ != "derivative"

        def like(values: np.ndarray) -> Any:
            answers = answer_samples(samples, asked, queries, values, exists[asked], units)
            if table:
                return answers.to_frame()
            return like_grid(answers, context, axes if axes is not None or d > 1 else [queries[0, :, 0]])

        return tuple(map(like, found)) if isinstance(found, tuple) else like(found)

    return answer  # type: ignore[return-value]


def grid_queries(at: Any, samples: Samples) -> tuple[np.ndarray, list[np.ndarray] | None]:
    """Queries of a DataArray; or of a Dataset all points of the grid of its coordinates, with the axes of that."""
    if not hasattr(at, "data_vars"):
        return at.values, None
    for name in samples.coord_names:
        if name not in at.coords:
            raise CSTError(f"at has no coordinate {name!r}, an axis of the context, but {[*map(str, at.coords)]}")
    axes = [at[name].values for name in samples.coord_names]
    if samples.d == 1:
        return axes[0], None  # perhaps dates
    if dated := dated_axis(samples.coord_names, samples.units):
        axes[dated[0]] = dated[1].coords(axes[dated[0]]) if are_dates(axes[dated[0]]) else axes[dated[0]]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, samples.d), axes


def like_grid(answers: Samples, context: Any, axes: list[np.ndarray] | None) -> Any:
    """Answers as a Dataset or DataArray with the dims of the context; samples of their own grids as `to_xarray`."""
    if OURS in context.attrs or (answers.coords != answers.coords[:1]).any():
        return answers.to_xarray()
    found = answers_to_dataset(answers, axes, alone=(answers.group or "sample") not in context.dims)
    return found if hasattr(context, "data_vars") else found[answers.value_names[0]].rename(context.name)


def asked_queries(coords: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples that have a query, and their queries; padding asks again for a real one, so that it never warns."""
    first = coords[np.arange(len(coords)), real.argmax(1)]
    asked = np.flatnonzero(real.any(1))
    return asked, np.where(real[..., None], coords, first[:, None])[asked]


def answer_samples(
    context: Samples, asked: np.ndarray, queries: np.ndarray, values: np.ndarray, real: np.ndarray, units: bool = True
) -> Samples:
    """Answers as samples, with the names and ids of the context; of derivatives, values have no units."""
    names = context.coord_names + context.value_names if units else context.coord_names
    return Samples(
        queries,
        values,
        real,
        coord_names=context.coord_names,
        value_names=context.value_names,
        sample_ids=[context.sample_ids[i] for i in asked],
        origin=context.origin[asked],
        group=context.group,
        units={k: v for k, v in context.units.items() if k in names},
    )
