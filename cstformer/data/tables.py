"""Long tables: CSV, TSV, Parquet and pandas DataFrames to arguments of `Samples` and back.

A long table has one row per point. Column headings "name [unit]" carry a unit; empty cells are missing values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cstformer.data.names import heading, name_and_unit, parsed_ids
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_bytes, readable

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

TIME_NAMES = {"t", "time", "hours"}
COORD_NAMES = TIME_NAMES | {"x", "y", "z", "row", "col", "lat", "lon"}
"""Columns with these names, or names that start with "coord", are coordinates unless `coords=` names others."""

_EVERY_DIGIT: dict[str, Any] = {"float_precision": "round_trip"}


def read_table(path: str | os.PathLike[str]) -> Any:
    """DataFrame of a `.csv`, `.tsv` or `.parquet` file; the column `sample` of a text file stays text."""
    suffix = Path(path).suffix.lower()
    with readable(path, f"a {suffix} table") as source:
        import pandas as pd

        if suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            about = read_metadata(source)  # a constant column takes almost no room in the file
            check_bytes(source, 8 * about.num_rows * about.num_columns)
            return pd.read_parquet(source, engine="pyarrow")
        # pandas before 3.1 reads every digit only when asked to; later versions warn about the option.
        exact = {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else _EVERY_DIGIT
        sep, text = "\t" if suffix == ".tsv" else ",", dict.fromkeys(("sample", "Sample", "SAMPLE"), str)
        return pd.read_csv(source, sep=sep, dtype=text, low_memory=False, index_col=False, **exact)


def samples_from_table(
    frame: Any, coords: Sequence[str] | None = None, values: Sequence[str] | None = None
) -> dict[str, Any]:
    """Arguments of `Samples` from a long table; see `Samples.from_frame`."""
    columns = {str(c): c for c in frame.columns}
    if len(columns) < len(frame.columns):
        raise CSTError(f"the table has two columns of one name among {list(columns)}; rename one")
    parts = {column: name_and_unit(column) for column in columns if column.casefold() != "sample"}
    for column in [c for c in parts if c.startswith("Unnamed:") or not parts[c][0]]:
        if not frame[columns[column]].isna().all():
            raise CSTError("the table has a column without a name; write it with index=False, or name the column")
        del parts[column]
    coord_columns, value_columns = _coord_and_value_columns(parts, coords, values)
    if len(frame) == 0:
        raise CSTError("the table has no rows; pass at least one point")
    x = np.column_stack([_numbers(frame[columns[c]], c) for c in coord_columns])
    y = np.column_stack([_numbers(frame[columns[c]], c) for c in value_columns])
    lost = np.isnan(x) & ~np.isnan(y).all(axis=1, keepdims=True)
    if lost.any():
        row, k = np.argwhere(lost)[0]
        raise CSTError(f"column {coord_columns[k]!r} is empty in row {row + 1}, which has values; fill it or drop it")
    ids, sample, point = _sample_rows(frame, columns)
    shape = (len(ids), point.max() + 1)
    padded_x, padded_y = np.zeros((*shape, x.shape[1])), np.full((*shape, y.shape[1]), np.nan)
    padded_x[sample, point], padded_y[sample, point] = x, y
    return {
        "coords": padded_x,
        "values": padded_y,
        "coord_names": [parts[c][0] for c in coord_columns],
        "value_names": [parts[c][0] for c in value_columns],
        "sample_ids": ids,
        "units": dict(parts[c] for c in [*coord_columns, *value_columns]),
    }


def samples_to_table(samples: Samples) -> Any:
    """DataFrame with one row per observed point; missing channels are NaN. Inverse of `samples_from_table`."""
    import pandas as pd

    sample, point = np.nonzero(samples.point_observed)
    ids = pd.Series(samples.sample_ids).to_numpy()
    columns = {"sample": ids[sample]}
    for k, name in enumerate(samples.coord_names):
        columns[heading(name, samples.units)] = samples.coords[sample, point, k]
    values = np.where(samples.observed, samples.values, np.nan)
    for k, name in enumerate(samples.value_names):
        columns[heading(name, samples.units)] = values[sample, point, k]
    return pd.DataFrame(columns)


def _coord_and_value_columns(
    parts: dict[str, tuple[str, str]], coords: Sequence[str] | None, values: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Which of the columns, given as heading → (name, unit), are coordinates and which are values."""
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
    return coord_columns, value_columns


def _chosen(option: str, names: Sequence[str], parts: dict[str, tuple[str, str]]) -> list[str]:
    """Columns for names given with or without their unit."""
    names = [names] if isinstance(names, str) else list(names)
    by_name = {name: column for column, (name, _) in parts.items()} | {column: column for column in parts}
    for name in names:
        if name not in by_name:
            raise unknown(f"column in {option}=", name, by_name)
    return [by_name[name] for name in names]


def _guessed(parts: dict[str, tuple[str, str]]) -> list[str]:
    """Coordinate columns, recognised by their names."""
    names = {column: name.casefold() for column, (name, _) in parts.items()}
    guess = [column for column, name in names.items() if name in COORD_NAMES or name.startswith("coord")]
    times = [column for column in guess if names[column] in TIME_NAMES]
    if len(times) > 1:
        raise CSTError(f"columns {times} could all be the time; pass coords=[...] with the axes")
    # A table of t, x, y and nothing else is a curve (x, y) in time, not a field without values.
    return times if times and len(guess) == len(parts) else guess


def _numbers(series: Any, column: str) -> np.ndarray:
    """A column as float64, empty cells as NaN."""
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


def _sample_rows(frame: Any, columns: dict[str, Any]) -> tuple[list[int | str], np.ndarray, np.ndarray]:
    """Sample ids; and for each row of the table the index of its sample and its position within the sample."""
    import pandas as pd

    column = next((columns[c] for c in columns if c.casefold() == "sample"), None)
    ids: list[int | str] = [0]
    sample = np.zeros(len(frame), dtype=np.int64)
    if column is not None:
        if frame[column].isna().any():
            row = int(np.flatnonzero(frame[column].isna())[0])
            raise CSTError(f"column 'sample' is empty in row {row + 1}; give every row a sample")
        sample, found = pd.factorize(frame[column])
        ids = parsed_ids(found)
    return ids, sample, pd.Series(sample).groupby(sample).cumcount().to_numpy()
