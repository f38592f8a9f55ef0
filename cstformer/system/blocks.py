"""Long computations in blocks that do not depend on each other: here, in processes, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from cstformer.errors import CSTError
from cstformer.system.cluster import dask_cluster
from cstformer.system.workers import begin_worker

Work = Callable[[int], int]
"""Computes and writes a block, and returns how many items it has; a function that other processes can import."""


def computed(work: Work, blocks: Sequence[int], jobs: int = 1, scheduler: str | None = None) -> Iterator[int]:
    """Compute the blocks in any order; yield what ``work`` returns for each.

    Parameters
    ----------
    jobs : number of processes, of one thread each; 1 computes in this one.
    scheduler : address of a Dask cluster, which takes the place of processes. If a worker dies, another repeats its
        block, so that a block must be the same however often it is written.
    """
    if scheduler is not None:
        with dask_cluster(scheduler) as client:
            yield from _drained(client.get_executor(pure=False), work, blocks)
    elif jobs > 1:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, spawn, begin_worker, (os.getpid(),)) as pool:
            yield from _drained(pool, work, blocks)
    else:
        yield from map(work, blocks)


@contextmanager
def block_bar(title: str, total: int, done: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that counts items; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


def _drained(pool: Executor, work: Work, blocks: Sequence[int]) -> Iterator[int]:
    futures = [pool.submit(work, block) for block in blocks]
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise CSTError("a worker process was killed (out of memory?); run the same command to go on") from error
    finally:
        for future in futures:
            future.cancel()
