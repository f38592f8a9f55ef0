"""Which rows of a table belong to which sample, and what looks like several samples although nothing says so."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cstformer.data.names import parsed_ids
from cstformer.errors import CSTError, CSTWarning, unknown

Group = str | bool | None
"""Name of the column of samples; None for `sample`, if there is such a column; False for one sample."""

_NAMES = re.compile(
    r"(.*[_ .-])?(id|subject|patient|participant|person|individual|animal|mouse|neuron|session|trial|station|series)s?"
    r"([_ .-]?(id|no|nr|name|number|code))?"
)
MANY_REPEATS = 0.1
"""Share of rows with the coordinates of another row above which a table looks like several samples in one."""


def is_name_of_ids(heading: str) -> bool:
    """Whether a heading is a usual name of samples, such as patient_id.

    >>> is_name_of_ids("Subject"), is_name_of_ids("mouse_id"), is_name_of_ids("time")
    (True, True, False)
    """
    return _NAMES.fullmatch(heading.casefold()) is not None


def sample_column(columns: Iterable[str], group: Group) -> str | None:
    """The heading of the column that names the samples; None if there is none."""
    columns = list(columns)
    if group is None or group is False:
        return next((c for c in columns if c.casefold() == "sample"), None) if group is None else None
    if group not in columns:
        raise unknown("column in group=", group, columns)
    return str(group)


def sample_rows(frame: Any, column: Any) -> tuple[list[int | str], Int[np.ndarray, " rows"]]:
    """Sample ids, and for each row the index of its sample; one sample if ``column`` is None."""
    import pandas as pd

    if column is None:
        return [0], np.zeros(len(frame), dtype=np.int64)
    if frame[column].isna().any():
        row = int(np.flatnonzero(frame[column].isna())[0])
        raise CSTError(f"column {str(column)!r} is empty in row {row + 1}; give every row a sample")
    sample, found = pd.factorize(frame[column])
    return parsed_ids(found), sample


def ask_for_samples(frame: Any, columns: dict[str, Any], x: Float[np.ndarray, "rows d"], chosen: Sequence[str]) -> None:
    """Refuse a table without a column of samples that looks as if it had several of them.

    Parameters
    ----------
    frame : DataFrame
    columns : headings that are neither coordinates nor covariates, with their keys in ``frame``
    x : coordinates of the rows
    chosen : headings that the caller named as values; they are not in doubt
    """
    known = np.isfinite(x).all(1)
    repeats = len(x[known]) - len(np.unique(x[known], axis=0))
    back = np.diff(x[:, 0]) <= 0  # a new sample begins at an earlier time
    ways = "or group=False if all rows belong to one sample"
    for heading, key in columns.items():
        if heading not in chosen and _looks_like_ids(heading, frame[key], back, repeats):
            entries = frame[key].dropna().unique()
            raise CSTError(
                f"column {heading!r} looks like the name of samples ({len(entries)} different entries, such as "
                f"{str(entries[0])!r}); say so by group={heading!r}, {ways}"
            )
    if repeats > MANY_REPEATS * len(x):
        raise CSTError(
            f"{repeats} of {len(x)} rows have the same coordinates as another row; if the table has several samples, "
            f"name their column by group=, {ways} and repeated rows are to be averaged"
        )


def _looks_like_ids(heading: str, series: Any, back: np.ndarray, repeats: int) -> bool:
    """Whether a few integers or texts stay the same over runs of rows, and each run begins at an earlier time.

    A usual name such as `subject` or `patient_id` is enough if entries stay the same over runs, or times repeat.
    """
    import pandas as pd

    is_text = series.dtype.kind not in "fiubMm"
    some = series.dropna()
    if not is_text and (series.dtype.kind in "Mmb" or not (some == np.rint(some)).all()):
        return False
    codes, entries = pd.factorize(series)
    if not 2 <= len(entries) <= len(series) / 2:
        return False
    changes = np.diff(codes) != 0
    runs = int(changes.sum()) == len(entries) - 1
    restarts = bool((changes & back).sum() >= 0.5 * changes.sum())
    named = is_name_of_ids(heading)
    return (
        (runs and restarts) or (named and (runs or repeats > 0)) or (is_text and repeats > MANY_REPEATS * len(series))
    )


def without_blind_samples(
    ids: list[int | str], sample: Int[np.ndarray, " rows"], seen: np.ndarray
) -> tuple[list[int | str], np.ndarray]:
    """Ids of the samples with any observed value, and which rows are theirs; a warning names the others.

    ``seen`` says of each row whether it has a value. If no sample has any, all stay, for `Samples` to refuse.
    """
    some = np.bincount(sample, seen, len(ids)) > 0
    if some.all() or not some.any():
        return ids, np.ones(len(sample), dtype=bool)
    warnings.warn(f"left out {named_samples(ids, ~some)} without any value", CSTWarning, stacklevel=5)
    return [i for i, keep in zip(ids, some, strict=True) if keep], some[sample]


def named_samples(ids: Sequence[int | str], mask: np.ndarray) -> str:
    """The first few ids where ``mask`` is True, for a message.

    >>> named_samples(["ann", "bob", 7], np.array([True, False, True]))
    "samples 'ann', 7"
    """
    found = [ids[int(i)] if i < len(ids) else int(i) for i in np.flatnonzero(mask)]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"sample{'s' if len(found) > 1 else ''} {', '.join(map(repr, found[:5]))}{more}"
