"""Time and memory of functions, side by side on a noisy machine."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

Work = Callable[[], Any]


def best_seconds(works: Mapping[str, Work], rounds: int = 3) -> dict[str, float]:
    """Shortest time of each work; they take turns, so that a busy moment hits all of them."""
    best = dict.fromkeys(works, float("inf"))
    for work in works.values():
        work()  # warm-up: compilation, caches
    for _ in range(rounds):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def peak_megabytes(work: Work) -> float:
    """How much the resident memory of a process grows at most while it does the work, in a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_grow, args=(work, send))
    child.start()
    send.close()
    try:
        return receive.recv()
    finally:
        child.join()


def _grow(work: Work, send) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    send.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
