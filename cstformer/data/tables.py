"""Long tables: pandas DataFrames to arguments of `Samples` and back; `table_files` reads them from files.

A long table has one row per point. Column headings "name [unit]" carry a unit; empty cells are missing values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cstformer.data.arrays import check_size
from cstformer.data.covariates import labels_of
from cstformer.data.dates import begin_each, dated_axis, has_dates, read_dates
from cstformer.data.grouping import Group, ask_for_samples, sample_column, sample_rows, without_blind_samples
from cstformer.data.names import heading, name_and_unit
from cstformer.errors import CSTError, unknown
from cstformer.system.files import MAX_BYTES

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

TIME_NAMES = {"t", "time", "hours", "date", "datetime", "timestamp"}
COORD_NAMES = TIME_NAMES | {"x", "y", "z", "row", "col", "lat", "lon"}
"""Columns with these names, or names that start with "coord", are coordinates unless `coords=` names others."""

_TIME_WITH_UNIT = re.compile(
    r"(?:(?:t|time|elapsed|date|datetime|timestamp)[ _.]?\(?"
    r"(?:ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?|months?|years?|utc|local)\)?"
    r"|seconds|minutes|days|times|time_?stamp|date_?time)"
)
"""Names such as `time_h`, which are times if no column has one of the names above."""

_OTHER_DATE = re.compile(r"\s*(\d{1,2}([./-])\d{1,2}\2\d{2,4}|\d{4}[./]\d{1,2}[./]\d{1,2})\b")  # 01.05.2024, 5/1/24


def is_time(name: str) -> bool:
    """Whether a name is a usual one of times.

    >>> is_time("Time"), is_time("time_h"), is_time("lat")
    (True, True, False)
    """
    return name.casefold() in TIME_NAMES or _TIME_WITH_UNIT.fullmatch(name.casefold()) is not None


MARK = "covariate:"
"""How the heading of a covariate begins in the tables that are written here."""


def samples_from_table(
    frame: Any,
    coords: Sequence[str] | None = None,
    values: Sequence[str] | None = None,
    covariates: Sequence[str] | None = None,
    relative: bool | None = None,
    group: Group = None,
    max_bytes: int = MAX_BYTES,
) -> dict[str, Any]:
    """Arguments of `Samples` from a long table; see `Samples.from_frame`."""
    import pandas as pd

    columns = {str(c): c for c in frame.columns}
    if len(columns) < len(frame.columns):
        raise CSTError(f"the table has two columns of one name among {list(columns)}; rename one")
    by = sample_column(columns, group)
    parts = {c: name_and_unit(c) for c in columns if c != by and (group is not False or c.casefold() != "sample")}
    for column in [c for c in parts if c.startswith("Unnamed:") or not parts[c][0]]:
        if not frame[columns[column]].isna().all():
            raise CSTError("the table has a column without a name; write it with index=False, or name the column")
        del parts[column]
    known = _covariate_columns(parts, covariates)
    dated = lambda column: has_dates(frame[columns[column]])  # noqa: E731
    coord_columns, value_columns = _coord_and_value_columns(parts, coords, values, dated)
    if len(frame) == 0:
        raise CSTError("the table has no rows; pass at least one point")
    ids, sample = sample_rows(frame, None if by is None else columns[by])
    x, origin, dates = _coordinates(frame, {c: columns[c] for c in coord_columns}, sample, relative)
    if by is None and group is not False:
        rest = {c: columns[c] for c in parts if c not in coord_columns}
        ask_for_samples(frame, rest, x, value_columns if values is not None else ())
    y = np.column_stack([_numbers(frame[columns[c]], c, value=True) for c in value_columns])
    lost = np.isnan(x) & ~np.isnan(y).all(axis=1, keepdims=True)
    if lost.any():
        row, k = np.argwhere(lost)[0]
        raise CSTError(f"column {coord_columns[k]!r} is empty in row {row + 1}, which has values; fill it or drop it")
    per_sample = {name: _per_sample(frame[columns[c]], c, sample, ids) for c, (name, _) in known.items()}
    kept_ids, rows = without_blind_samples(ids, sample, ~np.isnan(y).all(axis=1))
    which = np.unique(sample[rows])  # of the samples that stay
    x, y, sample = x[rows], y[rows], np.searchsorted(which, sample[rows])
    point = pd.Series(sample).groupby(sample).cumcount().to_numpy()
    shape = (len(kept_ids), int(point.max()) + 1)
    check_size(*shape, x.shape[1], y.shape[1], len(x), max_bytes)
    padded_x, padded_y = np.zeros((*shape, x.shape[1])), np.full((*shape, y.shape[1]), np.nan)
    padded_x[sample, point], padded_y[sample, point] = x, y
    units = dict([*(parts[c] for c in [*coord_columns, *value_columns]), *known.values()])
    return {
        "coords": padded_x,
        "values": padded_y,
        "coord_names": [parts[c][0] for c in coord_columns],
        "value_names": [parts[c][0] for c in value_columns],
        "sample_ids": kept_ids,
        "units": units | {parts[c][0]: unit for c, unit in dates.items()},
        "origin": None if origin is None else origin[which],
        "covariates": {name: column[which] for name, column in per_sample.items()} or None,
        "group": group,
    }


def samples_to_table(samples: Samples) -> Any:
    """DataFrame with one row per observed point; missing channels are NaN. Inverse of `samples_from_table`."""
    import pandas as pd

    sample, point = np.nonzero(samples.point_observed)
    ids = pd.Series(samples.sample_ids).to_numpy()
    columns: dict[str, Any] = {str(samples.group or "sample"): ids[sample]}
    axis, clock = dated_axis(samples.coord_names, samples.units) or (None, None)
    for k, name in enumerate(samples.coord_names):
        x = samples.coords[sample, point, k]
        if k == axis and clock is not None:
            dates = pd.Series(clock.dates(x + samples.origin[sample, k]))
            columns[name] = dates if clock.zone is None else dates.dt.tz_localize(clock.zone)
        else:
            columns[heading(name, samples.units)] = x
    values = np.where(samples.observed, samples.values, np.nan)
    for k, name in enumerate(samples.value_names):
        columns[heading(name, samples.units)] = values[sample, point, k]
    for name in samples.covariate_names:
        columns[MARK + heading(name, samples.units)] = labels_of(samples, name)[sample]
    return pd.DataFrame(columns)


def _covariate_columns(
    parts: dict[str, tuple[str, str]], covariates: Sequence[str] | None
) -> dict[str, tuple[str, str]]:
    """Take the covariates out of ``parts``: those that were named, or those whose heading is marked."""
    marked = {c: (name.removeprefix(MARK).strip(), unit) for c, (name, unit) in parts.items() if name.startswith(MARK)}
    everything = parts | marked
    chosen = list(marked) if covariates is None else _chosen("covariates", covariates, everything)
    for column in {*chosen, *marked}:
        del parts[column]
    return {column: everything[column] for column in chosen}


def _coordinates(
    frame: Any, columns: dict[str, Any], sample: np.ndarray, relative: bool | None
) -> tuple[np.ndarray, np.ndarray | None, dict[str, str]]:
    """Coordinates (rows, d), the origin (N, d) of samples that count from their own beginning, the units of dates."""
    import pandas as pd

    x, origin, units = [], None, {}
    for k, (name, column) in enumerate(columns.items()):
        series = frame[column]
        if series.dtype.kind == "m":
            units[name] = "hours"
            x.append((series / pd.Timedelta(hours=1)).to_numpy(dtype=np.float64, na_value=np.nan))
        elif not has_dates(series):
            x.append(_numbers(series, name))
        elif origin is not None:
            raise CSTError(
                f"columns {list(units)} and {name!r} are dates, but only one axis can be; choose it by coords=[...]"
            )
        else:
            hours, units[name] = read_dates(series, name)
            begin = begin_each(hours, sample, relative)
            x.append(hours - begin[sample])
            origin = np.zeros((len(begin), len(columns)))
            origin[:, k] = begin
    return np.column_stack(x), origin, units


def _per_sample(series: Any, column: str, sample: np.ndarray, ids: list[int | str]) -> np.ndarray:
    """A covariate (N,) from a column that is constant within each sample: numbers, or text with None."""
    import pandas as pd

    if series.dtype.kind in "Mm":
        raise CSTError(f"column {column!r} holds dates, which cannot be a covariate; give a number such as an age")
    series = series.reset_index(drop=True)
    some = series.dropna()
    is_text = bool(some.map(lambda entry: isinstance(entry, str)).any()) if series.dtype.kind not in "fiub" else False
    if is_text:
        numbers = pd.to_numeric(some, errors="coerce")
        if 0.5 <= numbers.notna().mean() < 1:
            row = numbers.index[numbers.isna()][0]
            raise CSTError(
                f"column {column!r} has {some[row]!r} among numbers in row {row + 1}; leave missing ones empty"
            )
        some = some.astype(str).str.strip()
    else:
        some = pd.Series(_numbers(series, column)).dropna()
    groups = some.groupby(sample[some.index])
    if len(varies := groups.nunique().loc[lambda count: count > 1]):
        which, entries = int(varies.index[0]), groups.get_group(varies.index[0]).unique()[:2].tolist()
        raise CSTError(
            f"column {column!r} changes within sample {ids[which]!r} ({entries[0]!r}, {entries[1]!r}); a covariate is "
            "constant in each sample, what changes is a value"
        )
    out = np.full(len(ids), None if is_text else np.nan, dtype=object if is_text else np.float64)
    firsts = groups.first()
    out[firsts.index] = firsts.to_numpy()
    return out


def _coord_and_value_columns(
    parts: dict[str, tuple[str, str]],
    coords: Sequence[str] | None,
    values: Sequence[str] | None,
    dated: Callable[[str], bool],
) -> tuple[list[str], list[str]]:
    """Which of the columns, given as heading → (name, unit), are coordinates and which are values.

    ``dated`` says whether a column holds dates.
    """
    if coords is not None:
        coord_columns = _chosen("coords", coords, parts)
    else:
        named = _chosen("values", values, parts) if values is not None else []
        coord_columns = _guessed({column: part for column, part in parts.items() if column not in named}, dated)
    rest = [column for column in parts if column not in coord_columns]
    value_columns = _chosen("values", values, parts) if values is not None else rest
    if not coord_columns or not value_columns:
        kind = "value" if coord_columns else "coordinate"
        choose = "values" if coord_columns else "coords"
        raise CSTError(f"the table has no {kind} column among {list(parts)}; name it by {choose}=[...]")
    return coord_columns, value_columns


def _chosen(option: str, names: Sequence[str], parts: dict[str, tuple[str, str]]) -> list[str]:
    """Columns for names given with or without their unit."""
    names = [names] if isinstance(names, str) else list(names)
    by_name = {name: column for column, (name, _) in parts.items()} | {column: column for column in parts}
    for name in names:
        if name not in by_name:
            raise unknown(f"column in {option}=", name, {short for short, _ in parts.values()})
    return [by_name[name] for name in names]


def _guessed(parts: dict[str, tuple[str, str]], dated: Callable[[str], bool]) -> list[str]:
    """Coordinate columns, recognised by their names; a column of dates is the time if none has such a name."""
    names = {column: name.casefold() for column, (name, _) in parts.items()}
    guess = [column for column, name in names.items() if name in COORD_NAMES or name.startswith("coord")]
    if not any(names[column] in TIME_NAMES for column in guess):
        units = [column for column, name in names.items() if _TIME_WITH_UNIT.fullmatch(name)]
        units = units or [column for column in parts if column not in guess and dated(column)]
        guess = [column for column in parts if column in guess or column in units]
        names |= dict.fromkeys(units, "time")
    times = [column for column in guess if names[column] in TIME_NAMES]
    if len(times) > 1:
        raise CSTError(f"columns {times} could all be the time; name the right one by coords=[...]")
    # A table of t, x, y and nothing else is a curve (x, y) in time, not a field without values.
    return times if times and len(guess) == len(parts) else guess


def _numbers(series: Any, column: str, value: bool = False) -> np.ndarray:
    """A column as float64, empty cells as NaN; ``value`` for one that is a channel by default."""
    import pandas as pd

    is_date = series.dtype.kind in "Mm"  # to_numeric would count nanoseconds
    numbers = pd.Series(np.nan, series.index) if is_date else pd.to_numeric(series, errors="coerce")
    bad = np.flatnonzero(np.asarray(numbers.isna() & series.notna()))
    if len(bad) and _OTHER_DATE.match(str(series.iloc[bad[0]])):
        raise CSTError(
            f"column {column!r} has {series.iloc[bad[0]]!r} in row {bad[0] + 1}, where day and month could be "
            "confused; write dates as 2024-05-01T13:30:00"
        )
    if len(bad) and value and numbers.isna().all() and not is_date:
        raise CSTError(
            f"column {column!r} holds text, such as {series.iloc[bad[0]]!r}; if it names the samples, say so by "
            f"group={column!r}; if it labels them, name it in covariates=[...]; else leave it out by values=[...]"
        )
    if len(bad):
        raise CSTError(
            f"column {column!r} has {series.iloc[bad[0]]!r} in row {bad[0] + 1}, which is no number; correct it, or "
            "leave the column out by values=[...]; a word that means a missing value is given by missing=[...]"
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
