"""Query files: the coordinates at which `cst predict` answers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cstformer.data.arrays import as_floats
from cstformer.data.dates import Clock, date_unit, dated_axis, has_dates, read_dates, rebased
from cstformer.data.grouping import Group, is_name_of_ids, sample_column
from cstformer.data.names import name_and_unit
from cstformer.data.samples import Samples
from cstformer.data.table_files import TABLES, TextFormat, file_suffix, read_table
from cstformer.data.tables import COORD_NAMES, is_time
from cstformer.errors import CSTError
from cstformer.system.files import npz_headers, read_npz, readable


def load_queries(
    path: str | os.PathLike[str], context: Samples, form: TextFormat | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read queries (N, m, d), the coordinates to ask for in each context sample, and a mask (N, m) without padding.

    An npz has ``coords`` (N, m, d), (m, d) or, for one axis, (m,). A table has the coordinate columns and perhaps the
    column of samples, which joins its rows to those of the context; without it, all samples get the same
    queries. Dates are those of the context's time axis. A NetCDF or Zarr file gives the points of its samples. Queries
    for samples that the context does not have are refused.
    """
    with readable(path, "queries"):
        return _read_queries(path, context, form)


def _read_queries(
    path: str | os.PathLike[str], context: Samples, form: TextFormat | None
) -> tuple[np.ndarray, np.ndarray]:
    suffix = file_suffix(path)
    if suffix == ".npz":
        return _npz_queries(path, context)
    if suffix in TABLES:
        return table_queries(read_table(path, form, context.group), context, str(path))
    asked = Samples.load(path)
    return _joined(asked, context, len(asked) > 1, str(path))


def query_coordinates(
    path: str | os.PathLike[str], form: TextFormat | None = None, group: Group = None
) -> dict[str, Any] | None:
    """Coordinates by name in a file that has no values: a table of usual coordinates, or an npz with ``coords`` alone.

    Of a table, columns of numbers or dates; ``group`` is its column of samples. None for any other file, which may hold
    samples or a movie.
    """
    suffix = file_suffix(path)
    if suffix == ".npz":
        with readable(path, "queries") as source:
            if set(npz_headers(source)) != {"coords"}:
                return None
            coords = as_floats("coords", read_npz(source)["coords"])
        coords = coords.reshape(-1, coords.shape[-1] if coords.ndim > 1 else 1)
        return {f"{k}": coords[:, k] for k in range(coords.shape[1])}
    if suffix not in TABLES:
        return None
    frame = read_table(path, form, group)
    by = {"sample"} if group is None or group is False else {str(group).casefold()}
    names = [str(c) for c in frame.columns if str(c).casefold() not in by]
    if not by & {str(c).casefold() for c in frame.columns}:
        names = [name for name in names if not is_name_of_ids(name)]
    times = [name for name in names if is_time(name_and_unit(name)[0]) or has_dates(frame[name])]
    if not names or len(frame) == 0:
        return None
    if any(name not in times and name_and_unit(name)[0].casefold() not in COORD_NAMES for name in names):
        return None
    if len(names) > 1 and times:
        return None  # t, x, y: a curve in time
    dates = {name: read_dates(frame[name], name) for name in names if has_dates(frame[name])}
    clocks = {name: (hours, Clock.parse(unit)) for name, (hours, unit) in dates.items()}
    found: dict[str, Any] = {name: clock.dates(hours) for name, (hours, clock) in clocks.items() if clock is not None}
    numbers = {n: frame[n].to_numpy(dtype=np.float64) for n in names if frame[n].dtype.kind in "fiu"}
    return found | numbers or None


def table_queries(frame: Any, context: Samples, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Queries of a pandas table, see `load_queries`; errors call it ``name``."""
    import pandas as pd

    columns = {str(c): c for c in frame.columns}
    by = next((c for c in columns if c == context.group), None) or sample_column(columns, None)
    parts = {name_and_unit(c)[0]: key for c, key in columns.items() if c != by}
    missing = [axis for axis in context.coord_names if axis not in parts]
    if missing:
        raise CSTError(f"{name} has no column {missing[0]!r}, a coordinate of the context, but {list(columns)}")
    table = {axis: frame[parts[axis]] for axis in context.coord_names}
    table |= {"sample": frame[columns[by]]} if by else {}
    asked = Samples.from_frame(
        pd.DataFrame(table).assign(asked=1.0),
        coords=list(context.coord_names),
        values=["asked"],
        relative=False,
        group=None if by else False,
    )
    return _joined(asked, context, by is not None, name)


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
