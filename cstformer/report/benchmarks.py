"""The measurements of ``cst bench`` as tables: on the console, in a JSON file, and as Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from cstformer.errors import CSTError
from cstformer.report.tables import format_number, markdown_table
from cstformer.system.atomic import atomic_path

Rows = Sequence[Mapping[str, Any]]
HIDDEN = ("benchmark", "axis", "system")  # for figures


def benchmark_lines(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of one benchmark.

    >>> benchmark_lines([{"benchmark": "step", "case": "a", "seconds": 0.12345}, {"case": "b", "slope": 1.0}])
    (['case', 'seconds', 'slope'], [['a', '0.123', ''], ['b', '', '1.00']])
    """
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in HIDDEN))
    return columns, [[_text(row.get(key, "")) for key in columns] for row in rows]


def _text(value: Any) -> str:
    return format_number(value) if isinstance(value, float | int) else str(value)


def console_benchmark(name: str, rows: Rows) -> Table:
    """One benchmark as a table."""
    columns, lines = benchmark_lines(rows)
    table = Table(title=name, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for line in lines:
        table.add_row(*line)
    return table


def read_benchmarks(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Rows of an earlier ``cst bench --out``; none if there is no such file."""
    if not Path(path).exists():
        return []
    try:
        rows = json.loads(Path(path).read_text())["rows"]
        assert all(isinstance(row, dict) and "benchmark" in row for row in rows)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise CSTError(f"{path} was not written by cst bench; choose another --out") from None
    return rows


def write_benchmarks(path: str | os.PathLike[str], rows: Rows, facts: Mapping[str, Any]) -> None:
    """Write all rows with what is known of the run, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({**facts, "rows": list(rows)}, indent=1))


def write_benchmarks_md(path: str | os.PathLike[str], rows: Rows, facts: Mapping[str, Any]) -> None:
    """Write the page of all benchmarks."""
    software = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# Benchmarks",
        f"Written by `{facts['command']}`; do not edit it. Compare rows with each other: the machine was "
        f"{facts['machine']}, and others may have used it at the same time. {software}.",
    ]
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        columns, lines = benchmark_lines([row for row in rows if row["benchmark"] == name])
        parts += [f"## {name}", markdown_table(columns, lines, left=1)]
    with atomic_path(path) as temporary:
        temporary.write_text("\n\n".join(parts) + "\n")
