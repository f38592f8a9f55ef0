"""Cells side by side in worker processes, and their orderly end on Ctrl-C.

Each worker leads a session of its own, so Ctrl-C in a terminal reaches the parent alone. The parent passes the signal
on once: a training in progress stops after its current step and writes its state, and cells that were queued do not
begin. A second signal would end a training at once, without its state.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cstformer.errors import CSTError
from cstformer.system.workers import begin_worker

if TYPE_CHECKING:
    from cstformer.experiments.base import Cell

GRACE = 20.0  # seconds that an interrupted worker has to finish its step, validate and write its state


def compute_in_parallel(
    compute: Callable[[Cell], None], cells: Sequence[Cell], jobs: int, title: str, quiet: bool
) -> None:
    """Call ``compute`` for every cell in ``jobs`` processes of one thread each.

    Small models train faster in several such processes than with several threads in one.
    """
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    others = multiprocessing.active_children()
    with (
        ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (os.getpid(),)) as pool,
        Progress(*columns, console=Console(stderr=True), disable=quiet) as bar,
    ):
        task = bar.add_task(f"{title} ({jobs} at a time)", total=len(cells))
        try:
            with _interrupts_held():  # workers inherit this: they can be interrupted once `_begin` is ready for it
                futures = {pool.submit(_work, compute, cell): cell for cell in cells}
            for future in as_completed(futures):
                future.result()
                cell = futures[future]
                bar.console.print(f"done: {cell.model}, {cell.condition}", highlight=False)
                bar.advance(task)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                _interrupt([worker for worker in multiprocessing.active_children() if worker not in others])
            if isinstance(error, BrokenProcessPool):
                raise CSTError(
                    "a worker process was killed, possibly for lack of memory; finished rows are on disk, run the same "
                    "command to go on"
                ) from None
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay SIGINT to the end of the block, in this thread and in the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(workers: Sequence[BaseProcess]) -> None:
    """Interrupt the workers, and kill those that have not ended after `GRACE` seconds or at a second Ctrl-C."""
    try:
        for pid in [worker.pid for worker in workers if worker.pid is not None]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        running, end = [worker.sentinel for worker in workers], time.monotonic() + GRACE
        while running and (left := end - time.monotonic()) > 0:
            ended = wait(running, timeout=left)
            running = [sentinel for sentinel in running if sentinel not in ended]
    finally:
        for worker in workers:
            worker.kill()


# In a worker


class _State:
    busy = False
    interrupted = False


def _begin(parent: int) -> None:
    """Prepare a new worker: a session of its own, interruptible, one thread."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, _on_interrupt)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    begin_worker(parent)


def _on_interrupt(*_: object) -> None:
    """End the cell at work; without one, only refuse the next. While a model trains, its own handler is in charge."""
    _State.interrupted = True
    if _State.busy:
        raise KeyboardInterrupt


def _work(compute: Callable[[Cell], None], cell: Cell) -> None:
    if _State.interrupted:
        raise KeyboardInterrupt
    _State.busy = True
    try:
        compute(cell)
    except KeyboardInterrupt:
        _State.interrupted = True
        raise
    finally:
        _State.busy = False
