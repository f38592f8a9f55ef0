"""Numbers from JSON, checked: a description may have been edited by hand or damaged."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 1e150
"""Larger numbers have no square, and no model needs them."""


def number(name: str, value: Any, low: float = -LARGEST) -> float:
    """A finite number of at least ``low``.

    >>> number("noise", -1, low=0)
    Traceback (most recent call last):
    ...
    ValueError: noise must be a number of at least 0, got -1
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= LARGEST:
        bound = "" if low == -LARGEST else f" of at least {low:g}"
        raise ValueError(f"{name} must be a number{bound}, got {str(value)[:40]}")
    return float(value)


def numbers(name: str, values: Any, low: float = -LARGEST) -> tuple[float, ...]:
    """A list of finite numbers of at least ``low``."""
    if not isinstance(values, list | tuple):
        raise ValueError(f"{name} must be a list of numbers, got {str(values)[:40]}")
    return tuple(number(f"{name}[{i}]", value, low) for i, value in enumerate(values))


TINY = math.ulp(0.0)
"""The smallest positive number, as a lower bound of what must not be 0."""


def texts(name: str, values: Any, count: int) -> list[str]:
    """A list of ``count`` texts."""
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{name} must be a list of {count} texts, got {str(values)[:40]}")
    return values
