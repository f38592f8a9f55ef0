"""Progress bar for Dask computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def dask_bar(text: str, show: bool = True) -> Iterator[None]:
    """Show, for each computation in the block, how many tasks are done and the time left, on standard error."""
    if not show:
        yield
        return
    from dask.callbacks import Callback
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(text, total=None)

        def start(graph: Any, state: dict[str, Any]) -> None:
            progress.update(task, completed=0, total=len(state["waiting"]) + len(state["ready"]))

        def advance(*_: Any) -> None:
            progress.advance(task)

        with Callback(start_state=start, posttask=advance):
            yield
