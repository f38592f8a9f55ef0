"""Query files and movies: where `cst predict` is asked to answer, and answers in the user's shape."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cstformer.data.sample_files import from_frame, read_table
from cstformer.data.samples import Samples, as_floats
from cstformer.errors import CSTError
from cstformer.system.files import read_npz, readable


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
