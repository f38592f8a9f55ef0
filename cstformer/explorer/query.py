"""Parse the query string of the page's address. It is untrusted, so invalid entries give defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def number(query: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    """Read a number and clip it to the bounds; return the default if it is missing or invalid.

    >>> number({"t": "0.5"}, "t", 0, 0, 1), number({"t": "nan"}, "t", 0, 0, 1), number({"t": "9"}, "t", 0, 0, 1)
    (0.5, 0, 1)
    """
    try:
        x = float(query.get(name, ""))
    except ValueError:
        return default
    return min(max(x, low), high) if math.isfinite(x) else default


def numbers(query: Mapping[str, str], name: str) -> list[int]:
    """Read integers separated by commas; invalid entries are skipped.

    >>> numbers({"without": "3,4,x"}, "without"), numbers({}, "without")
    ([3, 4], [])
    """
    return [int(text) for text in query.get(name, "").split(",")[:10_000] if text.isdecimal() and len(text) < 8]


def chosen(query: Mapping[str, str], name: str, options: Sequence[str], default: str) -> str:
    """Read one of the options; return the default if it is not among them.

    >>> chosen({"value": "y"}, "value", ["x", "y"], "x"), chosen({"value": "?"}, "value", ["x", "y"], "x")
    ('y', 'x')
    """
    return query[name] if query.get(name) in options else default


def switch(query: Mapping[str, str], name: str, default: bool) -> bool:
    """Read a flag, 0 or 1.

    >>> switch({"waves": "1"}, "waves", False), switch({"waves": "?"}, "waves", False), switch({}, "waves", True)
    (True, False, True)
    """
    return chosen(query, name, ["0", "1"], "01"[default]) == "1"
