"""Time and memory of functions, measured side by side so that a busy machine affects all of them alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Work = Callable[[], Any]
LONG = 4.0  # seconds from which a function is run only once, since warm-up and noise matter little


def best_seconds(
    works: Mapping[str, Work], rounds: int = 3, compiled: Collection[str] = (), settle: bool = False
) -> dict[str, float]:
    """Shortest time of each function. The functions take turns, so that a busy moment affects all of them.

    The first turn is a warm-up and does not count. Functions that take longer than `LONG` are not repeated, and their
    first turn counts, unless they are in ``compiled``: their first turn may include compilation. ``settle`` adds an
    untimed turn before every timed one, so that each function finds the heap as it left it itself, not as the others
    did.
    """
    first = {name: _seconds(work) for name, work in works.items()}
    again = [name for name, seconds in first.items() if name in compiled or seconds <= LONG]
    best = {name: float("inf") if name in again else seconds for name, seconds in first.items()}
    for _ in range(rounds):
        for name in again:
            if settle:
                works[name]()
            best[name] = min(best[name], _seconds(works[name]))
    return best


def _seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_megabytes(work: Work) -> float:
    """Peak of the tensor memory that a function allocates, beyond what existed before, in MB.

    Torch's allocator counts it, including every temporary, so the number does not depend on the machine.
    """
    from torch.profiler import ProfilerActivity, profile

    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    assert recorded.profiler is not None
    changes = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return float(np.cumsum([0, *(event.nbytes() for event in changes)]).max()) / 2**20


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the log lines that torch's profiler writes to stderr."""
    screen = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Exponent a of the power law y ∝ x^a, fitted by least squares on log–log axes.

    >>> round(slope([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
