"""Answers to queries as `Samples`, and beside bounds."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from cstformer.data.dates import date_unit
from cstformer.data.samples import Samples
from cstformer.data.table_files import file_suffix
from cstformer.data.windows import from_beginning
from cstformer.errors import CSTError
from cstformer.models import intervals
from cstformer.models.cst import CST
from cstformer.models.labelled import answer_samples, asked_queries, read_remembered

BOUNDS = ("", "_low", "_high")
"""What is appended to the name of a value for the value, its lower and its upper bound."""


def read_context(model: CST, path: str | os.PathLike[str], **given: Any) -> Samples:
    """Samples of a file, read as the training data of a model were: the same columns, covariates and count of dates.

    ``given`` are arguments of `Samples.load`, which come first. A file that has other columns than the training data is
    read as if the model knew none; their number must fit. If the training data were `from_beginning`, so is the
    context, and queries and answers count from there.
    """
    columns = file_suffix(path) != ".npz"
    try:
        context = read_remembered(model, functools.partial(Samples.load, path), given, columns)
        names = model.names_
        own_clocks = (
            names.get("relative") and "window" not in names and not date_unit(names["coord_names"], names["units"])
        )
        if own_clocks and model.layout_ is None and not context.origin.any():
            return from_beginning(context).replace(origin=None)
        return context
    except CSTError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def predict_samples(
    model: CST, context: Samples, coords: np.ndarray, real: np.ndarray, index: tuple[int, ...]
) -> Samples:
    """Predictions as `Samples`: queries as coordinates, answers as values; padding stays padding."""
    asked, queries = asked_queries(coords, real)
    values = model.derivative(context[asked], queries, index)
    return answer_samples(context, asked, queries, values, real[asked], units=not sum(index))


def predict_intervals(
    model: CST, context: Samples, coords: np.ndarray, real: np.ndarray, level: float
) -> tuple[Samples, np.ndarray, np.ndarray]:
    """Predictions as `predict_samples` gives them, and lower and upper bounds (N, m, c) of a new observation."""
    asked, queries = asked_queries(coords, real)
    values, lower, upper = with_bounds(model, context[asked], queries, level)
    return answer_samples(context, asked, queries, values, real[asked]), lower, upper


def beside_bounds(answer: Samples, lower: np.ndarray, upper: np.ndarray) -> Samples:
    """Answers with two more channels for each value, ``NAME_low`` and ``NAME_high``, for files of columns.

    >>> y = Samples([0.0, 1.0], [[1.0, 2.0]], value_names=["u"], units={"u": "m"})
    >>> table = beside_bounds(y, y.values - 1, y.values + 1)
    >>> table.value_names, table.values[0, 0].tolist(), table.units
    (('u', 'u_low', 'u_high'), [1.0, 0.0, 2.0], {'u': 'm', 'u_low': 'm', 'u_high': 'm'})
    """
    values = np.stack([answer.values, lower, upper], -1).reshape(len(answer), answer.n, -1)  # (N, m, 3 c)
    units = {name + end: unit for name, unit in answer.units.items() for end in BOUNDS if name in answer.value_names}
    return answer.replace(
        values=values,
        observed=np.repeat(answer.observed, 3, axis=-1),
        value_names=[name + end for name in answer.value_names for end in BOUNDS],
        units=answer.units | units,
    )


def with_bounds(model: CST, context: Samples, at: np.ndarray, level: float) -> tuple[np.ndarray, ...]:
    """Values, lower and upper bounds of a new observation in one pass, each (N, m, c)."""
    return intervals.bounds(model, *model._inputs(context, at), level, noise=True)
