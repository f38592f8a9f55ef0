"""Query files: the coordinates at which `cst predict` answers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.samples import Samples
from cstformer.data.tables import read_table
from cstformer.errors import CSTError
from cstformer.system.files import read_npz, readable


def load_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Read queries (N, m, d), the coordinates to ask for in each context sample, and a mask (N, m) without padding.

    An npz has ``coords`` (N, m, d), (m, d) or, for one axis, (m,). A table has the coordinate columns and perhaps a
    column ``sample``, which joins its rows to the samples of the context; without it, all samples get the same
    queries. A NetCDF or Zarr file gives the points of its samples. Queries for samples that the context does not have
    are refused.
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
        asked = Samples.from_frame(frame, coords=list(context.coord_names), values=["__query__"])
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
    exists = np.zeros((len(context), asked.n), dtype=bool)
    for k, name in enumerate(context.sample_ids):
        if str(name) in rows:
            coords[k], exists[k] = asked.coords[rows[str(name)]], asked.point_observed[rows[str(name)]]
    return coords, exists


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
    if "observed" in arrays:  # the queries are samples themselves: skip their padding
        exists = np.asarray(arrays["observed"]).astype(bool)
        if exists.shape[:2] != coords.shape[:2]:
            raise CSTError(f"{path}: observed has shape {exists.shape}, coords {coords.shape}; make them agree")
        return coords, np.asarray(exists.reshape(*coords.shape[:2], -1).any(-1))
    return coords, np.ones(coords.shape[:2], dtype=bool)


def _everywhere(coords: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The same queries (m, d) for `count` samples."""
    return np.broadcast_to(coords, (count, *coords.shape)), np.ones((count, len(coords)), dtype=bool)
