"""How a training tells that it goes on: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cstformer.training.report import TrainingReport

REFRESH = 0.2  # seconds between two updates of the bar
LINE = 30.0  # seconds between two lines, where there is no terminal: a log of an hour stays readable


class ProgressBar:
    """Loss, best score, speed and time left, on stderr; nothing where the title is None.

    Parameters
    ----------
    title : name of what is trained
    steps, done : steps in all, and those taken before a resume
    max_minutes : cap of the training, which bounds the time left
    """

    def __init__(self, title: str | None, steps: int, done: int, max_minutes: float | None = None):
        self.console = Console(stderr=True)
        self.title, self.steps, self.done, self.max_minutes = title, steps, done, max_minutes
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=title is None or not self.console.is_terminal,
        )
        self.task = self.bar.add_task(title or "", total=steps, completed=done, note="")
        self.began = time.monotonic()
        self.last = 0.0 if self.console.is_terminal else self.began

    def __enter__(self) -> ProgressBar:
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def show(self, loss: float, report: TrainingReport) -> None:
        """Show the state after a step."""
        now = time.monotonic()
        if self.title is None or now - self.last < (LINE if self.bar.disable else REFRESH):
            return
        self.last = now
        speed = (report.steps - self.done) / max(1e-9, now - self.began)
        left = duration(self.seconds_left(speed, report))
        note = f"loss {loss:.4g}  best {report.best_score:.4g}  {speed:.1f} steps/s  {left} left"
        if self.bar.disable:
            self.console.print(f"{self.title}: step {report.steps} of {self.steps}  {note}", soft_wrap=True)
        else:
            self.bar.update(self.task, completed=report.steps, note=note)

    def seconds_left(self, speed: float, report: TrainingReport) -> float:
        """Time until the last step at this speed (steps/s), or until the cap if that comes first."""
        left = (self.steps - report.steps) / max(speed, 1e-9)
        return left if self.max_minutes is None else max(0.0, min(left, 60 * self.max_minutes - report.seconds))


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    >>> duration(59.6), duration(125), duration(7380)
    ('1:00 min', '2:05 min', '2:03 h')
    """
    small = round(seconds) if seconds < 3600 else round(seconds / 60)
    return f"{small // 60}:{small % 60:02d} {'min' if seconds < 3600 else 'h'}"
