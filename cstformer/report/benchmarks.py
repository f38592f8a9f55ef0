"""Tables of the measurements of ``cst bench``: on the console, as JSON and as Markdown."""

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
HIDDEN = ("benchmark", "axis", "system")  # keys that only figures use


def benchmark_lines(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Return the columns and formatted lines of one benchmark.

    >>> benchmark_lines([{"benchmark": "step", "case": "a", "seconds": 0.12345}, {"case": "b", "slope": 1.0}])
    (['case', 'seconds', 'slope'], [['a', '0.123', ''], ['b', '', '1.00']])
    """
    columns = list(dict.fromkeys(key for row in rows for key in row if key not in HIDDEN))
    return columns, [[_text(row.get(key, "")) for key in columns] for row in rows]


def _text(value: Any) -> str:
    return format_number(value) if isinstance(value, float | int) else str(value)


def console_benchmark(name: str, rows: Rows) -> Table:
    """Format one benchmark as a table for the console."""
    columns, lines = benchmark_lines(rows)
    table = Table(title=name, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for line in lines:
        table.add_row(*line)
    return table


def read_benchmarks(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the rows of an earlier ``cst bench --out``; an empty list if the file does not exist."""
    if not Path(path).exists():
        return []
    try:
        rows = json.loads(Path(path).read_text())["rows"]
        assert all(isinstance(row, dict) and "benchmark" in row for row in rows)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise CSTError(f"{path} was not written by cst bench; choose another --out") from None
    return rows


def write_benchmarks(path: str | os.PathLike[str], rows: Rows, facts: Mapping[str, Any]) -> None:
    """Write all rows and the facts of the run as JSON, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({**facts, "rows": list(rows)}, indent=1))


def write_benchmarks_md(path: str | os.PathLike[str], rows: Rows, facts: Mapping[str, Any]) -> None:
    """Write docs/benchmarks.md: one table per benchmark, below its picture if there is one in ``figures``."""
    software = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# Benchmarks",
        f"`{facts['command']}` writes this page; do not edit it. Compare rows with each other only: they were measured "
        f"on {facts['machine']}, which other work may have shared. {software}.",
    ]
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        columns, lines = benchmark_lines([row for row in rows if row["benchmark"] == name])
        picture = f"figures/{name}.png"
        drawn = [f"![{name}]({picture})"] if (Path(path).parent / picture).exists() else []
        parts += [f"## {name}", *drawn, markdown_table(columns, lines, left=1)]
    with atomic_path(path) as temporary:
        temporary.write_text("\n\n".join(parts) + "\n")
