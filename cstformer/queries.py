"""Query files and movies: where `cst predict` is asked to answer, and answers in the user's shape."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.errors import CSTError
from cstformer.estimator import CST
from cstformer.files import read_npz, readable
from cstformer.patches import PatchLayout, frame_queries, frames_to_samples, stitch
from cstformer.sample_files import from_frame, read_table
from cstformer.samples import Samples, as_floats


def load_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (N, m, d) to ask for in each context sample, and which of them are real (N, m).

    An npz has ``coords`` (N, m, d), (m, d) or, for one axis, (m,). A table has the coordinate columns and may
    have ``sample``, by which it joins the context; without it every sample is asked alike. A NetCDF or Zarr
    file gives its points. Queries of samples that the context does not have are refused.
    """
    with readable(path, "queries"):
        return _read_queries(path, context)


def _read_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        return _npz_queries(path, context)
    if suffix in (".csv", ".tsv", ".parquet"):
        frame = read_table(path).copy()
        with_ids = any(str(c).casefold() == "sample" for c in frame.columns)
        frame["__query__"] = 0.0
        asked = from_frame(frame, coords=list(context.coord_names), values=["__query__"])
    else:
        asked = Samples.load(path)
        with_ids = len(asked) > 1
    if asked.d != context.d:
        raise CSTError(f"{path} has {asked.d} coordinate axes, the context has {context.d}")
    if not with_ids:
        coords = asked.coords[0][asked.point_observed[0]]
        return _everywhere(coords, len(context))
    rows = {str(i): k for k, i in enumerate(asked.sample_ids)}
    strangers = [i for i in rows if i not in {str(j) for j in context.sample_ids}]
    if strangers:
        raise CSTError(f"{path} asks for sample {strangers[0]!r}, which the context does not have")
    coords = np.zeros((len(context), asked.n, context.d))
    real = np.zeros((len(context), asked.n), dtype=bool)
    for k, name in enumerate(context.sample_ids):
        if str(name) in rows:
            coords[k], real[k] = asked.coords[rows[str(name)]], asked.point_observed[rows[str(name)]]
    return coords, real


def _npz_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    arrays = read_npz(path)
    if "coords" not in arrays:
        raise CSTError(f"{path} has no key 'coords' but {', '.join(arrays) or 'nothing'}; save the queries as coords=")
    coords = as_floats(f"coords of {path}", arrays["coords"])
    if coords.ndim == 1 and context.d == 1:
        coords = coords[:, None]
    if coords.ndim == 2:
        return _everywhere(coords, len(context))
    if coords.ndim != 3 or len(coords) != len(context):
        raise CSTError(
            f"{path}: coords has shape {coords.shape}; give (m, {context.d}) or ({len(context)}, m, {context.d})"
        )
    if "observed" in arrays:  # the queries are samples themselves: what they pad is not asked
        real = np.asarray(arrays["observed"]).astype(bool)
        if real.shape[:2] != coords.shape[:2]:
            raise CSTError(f"{path}: observed has shape {real.shape}, coords {coords.shape}; make them agree")
        return coords, np.asarray(real.reshape(*coords.shape[:2], -1).any(-1))
    return coords, np.ones(coords.shape[:2], dtype=bool)


def _everywhere(coords: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.broadcast_to(coords, (count, *coords.shape)), np.ones((count, len(coords)), dtype=bool)


def predict_samples(
    model: CST, context: Samples, coords: np.ndarray, real: np.ndarray, index: tuple[int, ...]
) -> Samples:
    """Predictions as `Samples`: queries as coordinates, answers as values; padding stays padding."""
    # Padding asks again for a real query, so that it can never warn of extrapolation.
    first = coords[np.arange(len(coords)), real.argmax(1)]
    filled = np.where(real[..., None], coords, first[:, None])
    asked = np.flatnonzero(real.any(1))
    values = model.derivative(context[asked], filled[asked], index)
    return Samples(
        filled[asked],
        values,
        real[asked],
        coord_names=context.coord_names,
        value_names=context.value_names,
        sample_ids=[context.sample_ids[i] for i in asked],
        units=context.units
        if sum(index) == 0
        else {k: v for k, v in context.units.items() if k in context.coord_names},
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
    first, span = float(model.scaling_.low[0]), float(model.scaling_.span[0])
    at = as_floats("at", at)
    if at.ndim != 1 or not np.isfinite(at).all() or len(at) == 0:
        raise CSTError(f"a movie is asked at times (m,), got shape {at.shape}")
    wanted = np.clip(at - span / 2, clock[0], max(clock[0], clock[-1] - span))
    starts = np.searchsorted((clock[1:] + clock[:-1]) / 2, wanted)  # the frame nearest to the wanted start
    out = np.empty((len(at), *movie.shape[1:]))
    for start in np.unique(starts):
        inside = (clock >= clock[start]) & (clock <= clock[start] + span * (1 + 1e-9))
        context = frames_to_samples(movie[inside], layout.patch, times=clock[inside] - clock[start] + first)
        mine = np.flatnonzero(starts == start)
        queries = frame_queries(layout, at[mine] - clock[start] + first)
        values = model.derivative(context, queries, index) if any(index) else model.predict(context, queries)
        out[mine] = stitch(values, layout)[0]
    return out
