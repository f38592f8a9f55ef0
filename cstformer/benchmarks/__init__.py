"""Speed and memory, as ratios within one run: ``cst bench``. References are kept beside what they measure."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from cstformer.errors import unknown

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # before torch: its profiler, which counts memory, need not talk

BENCHMARKS = ("step", "pipeline", "queries", "precision", "scaling", "users")
"""Name of each benchmark and of its file."""


def run_benchmarks(names: Sequence[str] | None = None, quick: bool = False) -> list[dict[str, Any]]:
    """Run them; each row has ``benchmark``, ``case`` and its numbers."""
    rows = []
    for name in names or BENCHMARKS:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
        measure = importlib.import_module(f"cstformer.benchmarks.{name}").measure
        rows += [{"benchmark": name, **row} for row in measure(quick)]
    return rows
