"""Names of coordinates and values, units in column headings, and sample ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cstformer.errors import CSTError


def checked_names(what: str, given: Sequence[str] | None, count: int, single: str, prefix: str) -> tuple[str, ...]:
    """Check `count` names; None gives `single` for one, `prefix` and a number for several.

    >>> checked_names("coord_names", None, 2, "t", "coord")
    ('coord0', 'coord1')
    """
    if given is None:
        return (single,) if count == 1 else tuple(f"{prefix}{i}" for i in range(count))
    names = (given,) if isinstance(given, str) else tuple(str(name) for name in given)
    if len(names) != count:
        raise CSTError(f"{what} must have {count} names, got {len(names)}: {list(names)}")
    if len(set(names)) < count:
        raise CSTError(f"{what} must differ, got {list(names)}")
    if reserved := {"", "sample", "point"} & set(names):
        raise CSTError(f"{what} may not use {reserved.pop()!r}, which files need for themselves; rename it")
    return names


def checked_units(units: Mapping[str, str] | None, *groups: tuple[str, ...]) -> dict[str, str]:
    """Check the names of coordinates, values and covariates against each other, and the units against all of them."""
    names = [name for group in groups for name in group]
    if both := sorted(name for name, count in Counter(names).items() if count > 1):
        raise CSTError(f"coord_names, value_names and covariate_names share {both}; rename one of them")
    known = {str(name): str(unit) for name, unit in (units or {}).items() if unit}
    if strange := set(known) - set(names):
        raise CSTError(f"units names {sorted(strange)}, which are no coordinate, value or covariate: {names}")
    return known


def checked_ids(given: Iterable[int | str] | None, count: int) -> tuple[int | str, ...]:
    """Check sample ids; None gives 0..N-1. 1 and "1" count as equal, because a text file cannot tell them apart."""
    if given is None:
        return tuple(range(count))
    ids = tuple(i if isinstance(i, str) else int(i) if isinstance(i, int | np.integer) else None for i in given)
    if len(ids) != count:
        raise CSTError(f"sample_ids must have one id for each of the {count} samples, got {len(ids)}")
    good = tuple(i for i in ids if i is not None)
    if len(good) < count:
        raise CSTError("sample_ids must be integers or strings")
    texts, times = np.unique([str(i) for i in good], return_counts=True)
    if (times > 1).any():
        raise CSTError(f"sample_ids must be unique, got {str(texts[times > 1][0])!r} more than once")
    return good


def parsed_ids(labels: Any) -> list[int | str]:
    """Sample ids from labels in a file: integers if every label is a plain integer, else strings.

    >>> parsed_ids(["7", "-1"]), parsed_ids(["7", "007"])
    ([7, -1], ['7', '007'])
    """
    array = np.asarray(labels)
    if array.dtype.kind in "iu" or (array.dtype.kind == "f" and (array == np.rint(array)).all()):
        return [int(label) for label in array]
    texts = [str(label) for label in array]
    if array.dtype.kind in "OUT" and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts):
        return [int(text) for text in texts]
    return list(texts)


def heading(name: str, units: Mapping[str, str]) -> str:
    """Column heading: the name, with its unit if it has one. Inverse of `name_and_unit`.

    >>> heading("t", {"t": "s"}), name_and_unit("t [s]")
    ('t [s]', ('t', 's'))
    """
    return f"{name} [{units[name]}]" if name in units else name


def name_and_unit(column: str) -> tuple[str, str]:
    """Split a column heading "name [unit]"."""
    match = re.fullmatch(r"(.+?)\s+\[([^\]]*)\]", column.strip())
    return (match[1], match[2]) if match else (column.strip(), "")
