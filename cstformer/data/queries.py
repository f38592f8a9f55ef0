"""Query files: the coordinates at which `cst predict` answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.dates import date_unit, dated_axis, rebased
from cstformer.data.samples import Samples
from cstformer.data.tables import read_table
from cstformer.errors import CSTError
from cstformer.system.files import read_npz, readable


def load_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Read queries (N, m, d), the coordinates to ask for in each context sample, and a mask (N, m) without padding.

    An npz has ``coords`` (N, m, d), (m, d) or, for one axis, (m,). A table has the coordinate columns and perhaps a
    column ``sample``, which joins its rows to the samples of the context; without it, all samples get the same
    queries. Dates are those of the context's time axis. A NetCDF or Zarr file gives the points of its samples. Queries
    for samples that the context does not have are refused.
    """
    with readable(path, "queries"):
        return _read_queries(path, context)


def _read_queries(path: str | os.PathLike[str], context: Samples) -> tuple[np.ndarray, np.ndarray]:
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        return _npz_queries(path, context)
    if suffix in (".csv", ".tsv", ".parquet"):
        return table_queries(read_table(path), context, str(path))
    asked = Samples.load(path)
    return _joined(asked, context, len(asked) > 1, str(path))


def table_queries(frame: Any, context: Samples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Queries of a pandas table, see `load_queries`; errors call it ``name``."""
    with_ids = any(str(c).casefold() == "sample" for c in frame.columns)
    frame = frame.assign(__query__=0.0)
    names = list(context.coord_names)
    asked = Samples.from_frame(frame, coords=names, values=["__query__"], covariates=[], relative=False)
    return _joined(asked, context, with_ids, name)


def _joined(asked: Samples, context: Samples, with_ids: bool, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Queries (N, m, d) of the context's samples and their mask; without ids the same for all."""
    if asked.d != context.d:
        raise CSTError(f"{name} has {asked.d} coordinate axes, the context has {context.d}")
    begin = np.zeros((len(context), context.d))
    if (dated := dated_axis(asked.coord_names, asked.units)) and dated_axis(context.coord_names, context.units):
        # From dates to coordinates of the context, which may count from the beginning of each sample.
        axis = dated[0]
        absolute = asked.coords.copy()
        absolute[..., axis] += asked.origin[:, None, axis]
        asked = rebased(asked.replace(coords=absolute), date_unit(context.coord_names, context.units), relative=False)
        begin[:, axis] = context.origin[:, axis]
    if not with_ids:
        coords, exists = _everywhere(asked.coords[0][asked.point_observed[0]], len(context))
        return coords - begin[:, None], exists
    rows = {str(i): k for k, i in enumerate(asked.sample_ids)}
    strangers = [i for i in rows if i not in {str(j) for j in context.sample_ids}]
    if strangers:
        raise CSTError(f"{name} asks for sample {strangers[0]!r}, which the context does not have")
    coords = np.zeros((len(context), asked.n, context.d))
    exists = np.zeros((len(context), asked.n), dtype=bool)
    for k, label in enumerate(context.sample_ids):
        if str(label) in rows:
            row = rows[str(label)]
            coords[k], exists[k] = asked.coords[row] - begin[k], asked.point_observed[row]
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
