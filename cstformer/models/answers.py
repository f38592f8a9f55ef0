"""Answers in the shape of the question: `Samples` for queries, frames for the times of a movie."""

from __future__ import annotations

from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.dates import date_unit
from cstformer.data.layout import PatchLayout
from cstformer.data.modes import Modes
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST


def reading_options(model: CST) -> dict[str, Any]:
    """Arguments of `Samples.load` that read a file as the training data of a model were read."""
    covariates, names = model.kind_.covariates, model.names_
    options: dict[str, Any] = {"covariates": list(covariates.names)} if covariates and covariates.names else {}
    if date_unit(names["coord_names"], names["units"]):
        options["relative"] = names.get("relative", False)
    return options


def predict_samples(
    model: CST, context: Samples, coords: np.ndarray, real: np.ndarray, index: tuple[int, ...]
) -> Samples:
    """Predictions as `Samples`: queries as coordinates, answers as values; padding stays padding."""
    # Padding asks again for a real query, so that it can never warn of extrapolation.
    first = coords[np.arange(len(coords)), real.argmax(1)]
    filled = np.where(real[..., None], coords, first[:, None])
    asked = np.flatnonzero(real.any(1))
    values = model.derivative(context[asked], filled[asked], index)
    names = context.coord_names if sum(index) else context.coord_names + context.value_names
    return Samples(
        filled[asked],
        values,
        real[asked],
        coord_names=context.coord_names,
        value_names=context.value_names,
        sample_ids=[context.sample_ids[i] for i in asked],
        origin=context.origin[asked],
        units={k: v for k, v in context.units.items() if k in names},
    )


def predict_movie(
    model: Any,
    movie: np.ndarray,
    times: np.ndarray | None,
    at: np.ndarray,
    index: tuple[int, ...] = (0, 0, 0),
) -> np.ndarray:
    """Whole frames at any times of a recording by CST (or, without derivatives, a rival): (len(at), H, W, C).

    Each time is answered from the window of frames around it, as long as the windows of the training.
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
    out = np.empty((len(at), *movie.shape[1:]))
    for start in np.unique(begin):
        mine = np.flatnonzero(begin == start)
        inside, moved = slice(start, end[mine[0]]), shift[mine[0]]
        context = frames_to_samples(movie[inside], layout.patch, times=clock[inside] - moved)
        queries = frame_queries(layout, at[mine] - moved)
        values = model.derivative(context, queries, index) if any(index) else model.predict(context, queries)
        out[mine] = stitch(values, layout)[0]
    return out


def predict_modes(
    model: CST, modes: Modes, movie: Any, times: np.ndarray | None, at: np.ndarray, order: int = 0
) -> np.ndarray:
    """Whole frames (len(at), H, W[, C]) at any times, or a derivative in time, by a model of coefficients of modes.

    Each time is answered from the window of frames around it, as `predict_movie` does.
    """
    series, at = modes.coefficients(movie, times), _checked_times(at)
    clock = series.coords[0, :, 0]
    begin, end, shift = _windows_around(model, clock, at)
    values = np.where(series.observed[0], series.values[0], np.nan)
    pairs = [(clock[b:e] - moved, values[b:e]) for b, e, moved in zip(begin, end, shift, strict=True)]
    context = Samples.from_list(pairs, coord_names=series.coord_names, value_names=series.value_names)
    answers = model.derivative(context, (at - shift)[:, None, None], (order,))[:, 0]
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
