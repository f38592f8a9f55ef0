"""Speed and memory, as ratios within one run: ``cst bench``. References are kept beside what they measure."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from cstformer.errors import unknown

BENCHMARKS = ("step", "pipeline", "queries", "precision", "scaling", "users", "solver", "calcium", "explorer")
"""Name of each benchmark and of its file."""


def chosen(names: Sequence[str] | None) -> Sequence[str]:
    """The benchmarks of these names, or all."""
    for name in names or ():
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    return names or BENCHMARKS


def run_benchmark(name: str, quick: bool = False) -> list[dict[str, Any]]:
    """Run one; each row has ``benchmark``, ``case`` and its numbers."""
    measure = importlib.import_module(f"cstformer.benchmarks.{name}").measure
    return [{"benchmark": name, **row} for row in measure(quick)]
