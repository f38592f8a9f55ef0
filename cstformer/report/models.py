"""The paper's four parameter tables, ours next to the paper's."""

from __future__ import annotations

from rich.table import Table

from cstformer.baselines.sizes import SIZES
from cstformer.errors import CSTError, unknown
from cstformer.report.tables import MISSING


def parameter_tables(experiment: str | None = None) -> list[Table]:
    """Make one table per experiment, or that of ``experiment`` alone."""
    if experiment is not None and experiment not in SIZES:
        raise unknown("experiment", experiment, SIZES)
    tables = []
    for name, rows in SIZES.items():
        if experiment not in (None, name):
            continue
        table = Table(title=f"{name}: trainable numbers", title_justify="left")
        table.add_column("model")
        for column in ("ours", "paper", "ratio"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("note", overflow="fold")
        for label, size in rows.items():
            try:
                count = size.count()
                table.add_row(label, f"{count:,}", size.paper, f"{count / size.published:.3f}", size.note)
            except CSTError as error:  # a package is missing: the other rows do not need it
                table.add_row(label, MISSING, size.paper, MISSING, str(error))
        tables.append(table)
    return tables
