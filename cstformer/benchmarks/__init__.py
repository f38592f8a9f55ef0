"""Benchmarks of speed and memory for ``cst bench``. Each keeps the plain reference that it is compared with."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from cstformer.errors import unknown

BENCHMARKS = (
    "step",
    "sparse",
    "pipeline",
    "queries",
    "precision",
    "scaling",
    "users",
    "quality",
    "solver",
    "calcium",
    "explorer",
)
"""Names of the benchmarks on the command line and in result files."""
# Modules that are not called as their benchmark.
MODULES = {"scaling": "growth"}


def chosen(names: Sequence[str] | None) -> Sequence[str]:
    """Check the names of benchmarks; without names, return all of them."""
    for name in names or ():
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    return names or BENCHMARKS


def run_benchmark(name: str, quick: bool = False) -> list[dict[str, Any]]:
    """Run one benchmark; each row has ``benchmark``, ``case`` and the measured numbers."""
    measure = importlib.import_module(f"cstformer.benchmarks.{MODULES.get(name, name)}").measure
    return [{"benchmark": name, **row} for row in measure(quick)]
