"""Answers in the shape of the question: `Samples` for queries, frames for the times of a movie."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.layout import PatchLayout
from cstformer.data.modes import Modes
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.data.samples import Samples
from cstformer.data.table_files import file_suffix
from cstformer.errors import CSTError
from cstformer.models import intervals, mode_intervals
from cstformer.models.cst import CST
from cstformer.models.labelled import answer_samples, asked_queries, read_remembered

BOUNDS = ("", "_low", "_high")
"""What is appended to the name of a value for the value, its lower and its upper bound."""


def read_context(model: CST, path: str | os.PathLike[str], **given: Any) -> Samples:
    """Samples of a file, read as the training data of a model were: the same columns, covariates and count of dates.

    ``given`` are arguments of `Samples.load`, which come first. A file that has other columns than the training data is
    read as if the model knew none; their number must fit.
    """
    columns = file_suffix(path) != ".npz"
    try:
        return read_remembered(model, functools.partial(Samples.load, path), given, columns)
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


def predict_movie(
    model: Any,
    movie: np.ndarray,
    times: np.ndarray | None,
    at: np.ndarray,
    index: tuple[int, ...] = (0, 0, 0),
    level: float | None = None,
) -> np.ndarray:
    """Whole frames at any times of a recording by CST (or, without derivatives, a rival): (len(at), H, W, C).

    Each time is answered from the window of frames around it, as long as the windows of the training. With a ``level``
    of intervals the answer is frames, lower and upper bounds: (3, len(at), H, W, C).
    """
    layout: PatchLayout | None = model.layout_
    if layout is None:
        raise CSTError("this model was not fitted on a movie; give it samples as context")
    movie = movie[..., None] if movie.ndim == 3 else movie
    clock = np.arange(len(movie), dtype=float) if times is None else np.asarray(times, dtype=float)
    if movie.ndim != 4 or movie.shape[1:3] != layout.frame or movie.shape[3] != layout.channels:
        raise CSTError(
            f"the movie has shape {movie.shape}; the model was fitted on frames of {layout.frame} pixels "
            f"with {layout.channels} channel(s)"
        )
    at = _checked_times(at)
    begin, end, shift = _windows_around(model, clock, at)
    out = np.empty((1 if level is None else 3, len(at), *movie.shape[1:]))
    for start in np.unique(begin):
        mine = np.flatnonzero(begin == start)
        inside, moved = slice(start, end[mine[0]]), shift[mine[0]]
        context = frames_to_samples(movie[inside], layout.patch, times=clock[inside] - moved)
        queries = frame_queries(layout, at[mine] - moved)
        if level is not None:
            answers = with_bounds(model, context, queries, level)
        else:
            answers = (model.derivative(context, queries, index) if any(index) else model.predict(context, queries),)
        out[:, mine] = [stitch(values, layout)[0] for values in answers]
    return out[0] if level is None else out


def predict_modes(
    model: CST,
    modes: Modes,
    movie: Any,
    times: np.ndarray | None,
    at: np.ndarray,
    order: int = 0,
    level: float | None = None,
) -> np.ndarray:
    """Whole frames (len(at), H, W[, C]) at any times, or a derivative in time, by a model of coefficients of modes.

    Each time is answered from the window of frames around it, as `predict_movie` does. With a ``level`` of intervals
    (order 0, modes with scores of `calibrate_modes`) the answer is frames, lower and upper bounds:
    (3, len(at), H, W[, C]).
    """
    series, at = modes.coefficients(movie, times), _checked_times(at)
    clock = series.coords[0, :, 0]
    begin, end, shift = _windows_around(model, clock, at)
    values = np.where(series.observed[0], series.values[0], np.nan)
    pairs = [(clock[b:e] - moved, values[b:e]) for b, e, moved in zip(begin, end, shift, strict=True)]
    context = Samples.from_list(pairs, coord_names=series.coord_names, value_names=series.value_names)
    queries = (at - shift)[:, None, None]
    if level is not None:
        return mode_intervals.frame_bounds(model, modes, *model._inputs(context, queries), level)[:, :, 0]
    answers = model.derivative(context, queries, (order,))[:, 0]
    return modes.frames(answers, derivative=order > 0)


def _checked_times(at: Any) -> np.ndarray:
    at = as_floats("at", at)
    if at.ndim != 1 or not np.isfinite(at).all() or len(at) == 0:
        raise CSTError(f"a movie is asked at times (m,), got shape {at.shape}")
    return at


def _windows_around(model: Any, clock: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The frames [begin, end) from which each time is answered, and what to subtract from times: each (len(at),).

    A window is as long as those of the training, whose times begin at the same number; the time lies in its middle,
    except near the ends of the recording.
    """
    first, span = float(model.scaling_.low[0]), float(model.scaling_.span[0])
    wanted = np.clip(at - span / 2, clock[0], max(clock[0], clock[-1] - span))
    begin = np.searchsorted((clock[1:] + clock[:-1]) / 2, wanted)  # the frame nearest to the wanted start
    end = np.searchsorted(clock, clock[begin] + span * (1 + 1e-9), side="right")
    return begin, end, clock[begin] - first
