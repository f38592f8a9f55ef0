"""The one error class for bad input, and the helper that suggests the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CSTError(ValueError):
    """Something the caller gave cannot be used; the message names it, what arrived and what to do."""


class UnknownName(CSTError):
    """A name that does not exist, such as that of a column; made by `unknown`."""


class CSTWarning(UserWarning):
    """Something was accepted but the caller should know about it (extrapolation, averaged duplicates)."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> UnknownName:
    """Error for a name that does not exist, with the nearest valid one.

    >>> print(unknown("setting", "learning_rat", ["learning_rate", "order"]))
    unknown setting 'learning_rat'; did you mean 'learning_rate'? Valid: learning_rate, order
    """
    valid = sorted(valid)
    near = difflib.get_close_matches(str(name), valid, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UnknownName(f"unknown {kind} {name!r}{hint} Valid: {', '.join(valid)}")
