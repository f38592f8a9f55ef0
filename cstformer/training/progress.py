"""The progress bar of a training."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cstformer.training.report import TrainingReport

REFRESH = 0.2  # seconds between two updates


class ProgressBar:
    """Loss, best score, speed and time left, on stderr; nothing where the title is None."""

    def __init__(self, title: str | None, steps: int, done: int):
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=title is None,
        )
        self.task = self.bar.add_task(title or "", total=steps, completed=done, note="")
        self.done, self.last, self.began = done, 0.0, time.monotonic()

    def __enter__(self) -> ProgressBar:
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def show(self, loss: float, report: TrainingReport) -> None:
        """Show the state after a step."""
        now = time.monotonic()
        if self.bar.disable or now - self.last < REFRESH:
            return
        self.last = now
        speed = (report.steps - self.done) / max(1e-9, now - self.began)
        note = f"loss {loss:.4g}  best {report.best_score:.4g}  {speed:.1f} steps/s"
        self.bar.update(self.task, completed=report.steps, note=note)
