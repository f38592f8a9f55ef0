"""Reading and writing `Samples`: npz, long tables (CSV, TSV, Parquet, pandas), NetCDF and Zarr (xarray)."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.patches import PatchLayout
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.files import MAX_BYTES, check_bytes, check_hdf5, read_npz, readable
from cstformer.system.zarr_files import open_zarr

SUFFIXES = (".npz", ".csv", ".tsv", ".parquet", ".nc", ".zarr")
TIME_NAMES = {"t", "time", "hours"}
COORD_NAMES = TIME_NAMES | {"x", "y", "z", "row", "col", "lat", "lon"}
"""Columns with these names, or names that start with "coord", are coordinates unless `coords=` says else."""

_ATTRIBUTE = "cstformer"  # the Dataset attribute that marks files of our own
_EVERY_DIGIT: dict[str, Any] = {"float_precision": "round_trip"}


def load_samples(
    path: str | os.PathLike[str],
    coords: Sequence[str] | None = None,
    values: Sequence[str] | None = None,
    max_bytes: int = MAX_BYTES,
) -> Samples:
    """Read `Samples` from a file; the suffix says which kind.

    Parameters
    ----------
    path : `.npz`, `.csv`, `.tsv`, `.parquet`, `.nc` or `.zarr`.
    coords : names of the coordinate columns (tables) or dims (gridded NetCDF, Zarr).
    values : names of the value columns or variables; all others by default.
    max_bytes : files that declare larger arrays are refused.
    """
    suffix = _suffix(path)
    with readable(path, f"{suffix} samples") as source:
        if suffix == ".npz":
            if coords is not None or values is not None:
                raise CSTError("coords= and values= choose columns and variables; an .npz has fixed keys")
            return _from_npz(read_npz(source, max_bytes), source)
        if suffix in (".nc", ".zarr"):
            return from_xarray(open_xarray(source, max_bytes), coords, values)
        return from_frame(read_table(source), coords, values)


def save_samples(samples: Samples, path: str | os.PathLike[str]) -> None:
    """Write `samples`, whole or not at all; the suffix says which kind (see `load_samples`)."""
    suffix = _suffix(path)
    if suffix in (".csv", ".tsv", ".parquet") and (samples.origin.any() or samples.layout is not None):
        warnings.warn(
            f"{path}: a table keeps neither the origin of windows nor the patch layout; .npz, .nc, .zarr do",
            CSTWarning,
            stacklevel=3,
        )
    with atomic_path(path) as tmp:
        try:
            if suffix == ".npz":
                arrays = {name: getattr(samples, name) for name in ("coords", "values", "observed")}
                np.savez(tmp, meta=np.array(json.dumps(_meta(samples))), **arrays)
            elif suffix == ".parquet":
                to_frame(samples).to_parquet(tmp, index=False, engine="pyarrow")
            elif suffix == ".nc":
                to_xarray(samples).to_netcdf(tmp, engine="netcdf4")
            elif suffix == ".zarr":
                # Format 2, because format 3 has no settled way yet to store texts (sample ids).
                to_xarray(samples).to_zarr(tmp, zarr_format=2, consolidated=False)
            else:
                to_frame(samples).to_csv(tmp, index=False, sep="\t" if suffix == ".tsv" else ",")
        except ImportError as error:
            raise CSTError(f"{path}: writing {suffix} needs {error.name}; pip install cstformer[files]") from error
        except (
            RuntimeError,
            ValueError,
        ) as error:  # how the NetCDF and Arrow libraries report what they refuse
            raise CSTError(f"cannot write {path}: {error}") from error


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown(f"kind of file for samples ({path})", suffix, SUFFIXES)
    return suffix


def _meta(samples: Samples) -> dict[str, Any]:
    """Everything but the big arrays, for JSON."""
    return {
        "coord_names": samples.coord_names,
        "value_names": samples.value_names,
        "sample_ids": samples.sample_ids,
        "units": samples.units,
        "origin": samples.origin.tolist(),
        "layout": samples.layout and samples.layout.to_dict(),
    }


def _from_npz(arrays: dict[str, np.ndarray], path: Path) -> Samples:
    keys = set(arrays)
    if not {"coords", "values"} <= keys <= {"coords", "values", "observed", "meta"}:
        raise CSTError(
            f"{path} must have the keys coords and values, may have observed and meta, but has: "
            f"{', '.join(sorted(keys)) or 'none'}; a movie is read by load_movie"
        )
    meta: dict[str, Any] = {}
    if "meta" in arrays:
        try:
            meta = json.loads(str(arrays["meta"]))
            unexpected = set(meta) - {"coord_names", "value_names", "sample_ids", "units", "origin", "layout"}
            if unexpected:
                raise unknown(f"entry of meta in {path}", unexpected.pop(), ["coord_names", "units"])
            meta["layout"] = PatchLayout.from_dict(meta["layout"]) if meta.get("layout") else None
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise CSTError(f"{path}: the key meta is not the JSON that save writes: {error}") from error
    return Samples(arrays["coords"], arrays["values"], arrays.get("observed"), **meta)


# --- long tables ---


def read_table(path: str | os.PathLike[str]) -> Any:
    """DataFrame of a `.csv`, `.tsv` or `.parquet` file; a `sample` column of a text file stays text."""
    suffix = Path(path).suffix.lower()
    with readable(path, f"a {suffix} table") as source:
        import pandas as pd

        if suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            about = read_metadata(source)  # a column of one number repeated takes no room in the file
            check_bytes(source, 8 * about.num_rows * about.num_columns)
            return pd.read_parquet(source, engine="pyarrow")
        # Before 3.1, pandas needed to be asked to read every digit, and now it objects to being asked.
        exact = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else _EVERY_DIGIT
        sep, text = "\t" if suffix == ".tsv" else ",", dict.fromkeys(("sample", "Sample", "SAMPLE"), str)
        return pd.read_csv(source, sep=sep, dtype=text, low_memory=False, index_col=False, **exact)


def from_frame(frame: Any, coords: Sequence[str] | None = None, values: Sequence[str] | None = None) -> Samples:
    """Read a long table: one row a point, empty cells are missing.

    Columns: `sample` (absent means one sample), coordinates and values; "name [unit]" carries a unit.
    Coordinates are the columns in `COORD_NAMES` unless `coords` names them; every other column is a value,
    unless `values` names them.
    """
    import pandas as pd

    columns = {str(c): c for c in frame.columns}
    if len(columns) < len(frame.columns):
        raise CSTError(f"the table has two columns of one name among {list(columns)}; rename one")
    parts = {column: _name_and_unit(column) for column in columns if column.casefold() != "sample"}
    for column in [c for c in parts if c.startswith("Unnamed:") or not parts[c][0]]:
        if not frame[columns[column]].isna().all():
            raise CSTError("the table has a column without a name; write it with index=False, or name the column")
        del parts[column]
    if coords is not None:
        coord_columns = _chosen("coords", coords, parts)
    else:
        named = _chosen("values", values, parts) if values is not None else []
        coord_columns = _guessed({column: part for column, part in parts.items() if column not in named})
    rest = [column for column in parts if column not in coord_columns]
    value_columns = _chosen("values", values, parts) if values is not None else rest
    if not coord_columns or not value_columns:
        kind = "value" if coord_columns else "coordinate"
        raise CSTError(f"the table has no {kind} column among {list(parts)}; pass coords=[...] with the axes")
    if len(frame) == 0:
        raise CSTError("the table has no rows; pass at least one point")
    x = np.column_stack([_numbers(frame[columns[c]], c) for c in coord_columns])
    y = np.column_stack([_numbers(frame[columns[c]], c) for c in value_columns])
    lost = np.isnan(x) & ~np.isnan(y).all(axis=1, keepdims=True)
    if lost.any():
        row, k = np.argwhere(lost)[0]
        raise CSTError(f"column {coord_columns[k]!r} is empty in row {row + 1}, which has values; fill it or drop it")

    sample_column = next((columns[c] for c in columns if c.casefold() == "sample"), None)
    ids: list[int | str] = [0]
    code = np.zeros(len(frame), dtype=np.int64)
    if sample_column is not None:
        if frame[sample_column].isna().any():
            row = int(np.flatnonzero(frame[sample_column].isna())[0])
            raise CSTError(f"column 'sample' is empty in row {row + 1}; give every row a sample")
        code, found = pd.factorize(frame[sample_column])
        ids = _ids_from(found)
    position = pd.Series(code).groupby(code).cumcount().to_numpy()
    shape = (len(ids), position.max() + 1)
    padded_x, padded_y = np.zeros((*shape, x.shape[1])), np.full((*shape, y.shape[1]), np.nan)
    padded_x[code, position], padded_y[code, position] = x, y
    return Samples(
        padded_x,
        padded_y,
        coord_names=[parts[c][0] for c in coord_columns],
        value_names=[parts[c][0] for c in value_columns],
        sample_ids=ids,
        units=dict(parts[c] for c in [*coord_columns, *value_columns]),
    )


def to_frame(samples: Samples) -> Any:
    """Long table with one row an observed point; missing channels are NaN. Inverse of `from_frame`."""
    import pandas as pd

    sample, point = np.nonzero(samples.point_observed)
    ids = pd.Series(samples.sample_ids).to_numpy()
    columns = {"sample": ids[sample]}
    for k, name in enumerate(samples.coord_names):
        columns[samples._label(name)] = samples.coords[sample, point, k]
    values = np.where(samples.observed, samples.values, np.nan)
    for k, name in enumerate(samples.value_names):
        columns[samples._label(name)] = values[sample, point, k]
    return pd.DataFrame(columns)


def _name_and_unit(column: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.+?)\s+\[([^\]]*)\]", column.strip())
    return (match[1], match[2]) if match else (column.strip(), "")


def _chosen(option: str, names: Sequence[str], parts: dict[str, tuple[str, str]]) -> list[str]:
    """Columns for names given with or without their unit."""
    names = [names] if isinstance(names, str) else list(names)
    by_name = {name: column for column, (name, _) in parts.items()} | {column: column for column in parts}
    for name in names:
        if name not in by_name:
            raise unknown(f"column in {option}=", name, by_name)
    return [by_name[name] for name in names]


def _guessed(parts: dict[str, tuple[str, str]]) -> list[str]:
    names = {column: name.casefold() for column, (name, _) in parts.items()}
    guess = [column for column, name in names.items() if name in COORD_NAMES or name.startswith("coord")]
    times = [column for column in guess if names[column] in TIME_NAMES]
    if len(times) > 1:
        raise CSTError(f"columns {times} could all be the time; pass coords=[...] with the axes")
    # A table of t, x, y and nothing else is a curve (x, y) in time, not a field without values.
    return times if times and len(guess) == len(parts) else guess


def _numbers(series: Any, column: str) -> np.ndarray:
    import pandas as pd

    is_date = series.dtype.kind in "Mm"  # to_numeric would count nanoseconds
    numbers = pd.Series(np.nan, series.index) if is_date else pd.to_numeric(series, errors="coerce")
    bad = np.flatnonzero(np.asarray(numbers.isna() & series.notna()))
    if len(bad):
        raise CSTError(
            f"column {column!r} has {series.iloc[bad[0]]!r} in row {bad[0] + 1}, which is no number; "
            "correct it, or leave the column out by values=[...]"
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def _ids_from(labels: Any) -> list[int | str]:
    """Labels of any kind as sample ids: integers where all are plainly integers, else text."""
    array = np.asarray(labels)
    if array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array == np.rint(array)).all()):
        return [int(label) for label in array]
    texts = [str(label) for label in array]
    if array.dtype.kind in "OUT" and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts):
        return [int(text) for text in texts]
    return list(texts)


# --- xarray ---


def open_xarray(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Dataset in memory of a NetCDF or Zarr file; dates are decoded, except in files of our own."""
    import xarray as xr

    if path.suffix.lower() == ".zarr":
        open_zarr(path)  # so that a missing library is named, and nothing is unpickled
        options: dict[str, Any] = {"engine": "zarr", "consolidated": False, "chunks": None}
    else:
        import netCDF4  # noqa: F401

        check_hdf5(path)
        options = {"engine": "netcdf4"}
    with xr.open_dataset(path, decode_times=False, **options) as raw:
        check_bytes(path, raw.nbytes, max_bytes)
        if _ATTRIBUTE in raw.attrs:
            return raw.load()
    with xr.open_dataset(path, decode_timedelta=False, **options) as decoded:
        return decoded.load()


def to_xarray(samples: Samples) -> Any:
    """Dataset with dims (sample, point), a variable for each coordinate and channel; NaN is unobserved."""
    import xarray as xr

    arrays: dict[str, Any] = {}
    for k, name in enumerate(samples.coord_names):
        x = np.where(samples.point_observed, samples.coords[..., k], np.nan)
        arrays[name] = (("sample", "point"), x, _unit_attribute(samples, name))
        arrays[f"origin_{name}"] = (("sample",), samples.origin[:, k], _unit_attribute(samples, name))
    for k, name in enumerate(samples.value_names):
        if name in arrays:
            raise CSTError(f"value_names may not use {name!r} in an xarray Dataset; rename it")
        y = np.where(samples.observed[..., k], samples.values[..., k], np.nan)
        arrays[name] = (("sample", "point"), y, _unit_attribute(samples, name))
    meta = {key: entry for key, entry in _meta(samples).items() if key in ("coord_names", "value_names", "layout")}
    # One kind of id in one array: mixed ones become text, as in a table.
    whole = all(isinstance(i, int) for i in samples.sample_ids)
    ids = list(samples.sample_ids) if whole else np.array([str(i) for i in samples.sample_ids], dtype=object)
    return xr.Dataset(arrays, coords={"sample": ids}, attrs={_ATTRIBUTE: json.dumps(meta)})


def _unit_attribute(samples: Samples, name: str) -> dict[str, str]:
    return {"units": samples.units[name]} if name in samples.units else {}


def from_xarray(data: Any, coords: Sequence[str] | None = None, values: Sequence[str] | None = None) -> Samples:
    """Read what `to_xarray` made, or a gridded Dataset or DataArray.

    Gridded: an optional dim `sample`, all other dims are coordinate axes, in the order of the array (or of
    `coords`); every sample gets all grid points. Each variable with all these dims (or those in `values`) is
    a channel. Dates become hours since the first; a dim without coordinates counts 0, 1, 2...
    """
    data = data.to_dataset(name=data.name or "value") if not hasattr(data, "data_vars") else data
    if _ATTRIBUTE in data.attrs:
        return _from_own(data)
    names = [values] if isinstance(values, str) else list(values or map(str, data.data_vars))
    for name in names:
        if name not in data.data_vars:
            raise unknown("variable in values=", name, map(str, data.data_vars))
    if not names:
        raise CSTError("the dataset has no variables; pass one with at least one data variable")
    grid = max((data[name].dims for name in names), key=len)
    axes = [str(dim) for dim in grid if dim != "sample"]
    if coords is not None:
        wanted = [coords] if isinstance(coords, str) else list(coords)
        if sorted(wanted) != sorted(axes):
            raise CSTError(f"coords must name the dims {axes} in the order you want, got {wanted}")
        axes = wanted
    if not axes:
        raise CSTError(f"variable {names[0]!r} has no coordinate dim, only {list(grid)}; add one, e.g. time")
    if left_out := [name for name in names if set(data[name].dims) != set(grid)]:
        if values is not None:
            raise CSTError(f"variables {left_out} do not have all the dims {list(grid)}; choose others by values=")
        warnings.warn(f"left out {left_out}, without all the dims {list(grid)}", CSTWarning, stacklevel=3)
        names = [name for name in names if name not in left_out]
    if strange := [name for name in names if data[name].dtype.kind not in "fiub"]:
        raise CSTError(f"variables {strange} are not numbers; choose the numeric ones by values=[...]")

    order = ["sample", *axes] if "sample" in grid else axes
    y = np.stack([data[name].transpose(*order).values.astype(np.float64) for name in names], axis=-1)
    y = y if "sample" in grid else y[None]
    numbers, axis_units = zip(*(axis_numbers(data, axis) for axis in axes), strict=True)
    x = np.stack(np.meshgrid(*numbers, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return Samples(
        x[None].repeat(len(y), axis=0),
        y.reshape(len(y), -1, len(names)),
        coord_names=axes,
        value_names=names,
        sample_ids=_ids_from(data["sample"].values) if "sample" in data.coords and "sample" in grid else None,
        units=dict(zip(axes, axis_units, strict=True)) | {n: str(data[n].attrs.get("units", "")) for n in names},
    )


def axis_numbers(data: Any, axis: str) -> tuple[np.ndarray, str]:
    """Coordinates along a dim as float64, and their unit; dates become hours since the first."""
    x = data[axis].values  # a dim without coordinates gives 0, 1, 2...
    if x.dtype.kind == "M":
        return (x - x[0]) / np.timedelta64(1, "h"), f"hours since {np.datetime_as_string(x[0], unit='s')}"
    if x.dtype.kind == "m":
        return x / np.timedelta64(1, "h"), "hours"
    if x.dtype.kind not in "fiu":
        raise CSTError(f"the coordinates of dim {axis!r} are {x.dtype}, not numbers or dates; convert them first")
    return x.astype(np.float64), str(data[axis].attrs.get("units", ""))


def _from_own(data: Any) -> Samples:
    try:
        meta = json.loads(data.attrs[_ATTRIBUTE])
        coord_names, value_names, layout = meta["coord_names"], meta["value_names"], meta["layout"]
        stacks = [
            np.stack([data[name].values for name in group], axis=-1)
            for group in (coord_names, value_names, [f"origin_{name}" for name in coord_names])
        ]
        units = {name: data[name].attrs.get("units", "") for name in [*coord_names, *value_names]}
    except (KeyError, TypeError, ValueError) as error:
        raise CSTError(f"the dataset is marked as ours but is incomplete: {error}; save it again") from error
    return Samples(
        stacks[0],
        stacks[1],
        coord_names=coord_names,
        value_names=value_names,
        sample_ids=_ids_from(data["sample"].values),
        units=units,
        origin=stacks[2],
        layout=PatchLayout.from_dict(layout) if layout else None,
    )
