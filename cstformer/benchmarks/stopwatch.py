"""Time and memory of functions, side by side on a noisy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Work = Callable[[], Any]
LONG = 4.0  # seconds after which a work needs no second try: neither warm-up nor noise matters much


def best_seconds(
    works: Mapping[str, Work], rounds: int = 3, compiled: Collection[str] = (), settle: bool = False
) -> dict[str, float]:
    """Shortest time of each work; they take turns, so that a busy moment hits all of them.

    The first turn is a warm-up and does not count, except for works that take long, which are not repeated. Those in
    ``compiled`` always are: their first turn may have compiled something. ``settle``: before every timed turn another
    one that does not count, so that each work finds the memory as it would alone, not as the others left it.
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
    """Largest amount of tensor memory that the work holds at once, beyond what existed before.

    Counted by torch's own allocator, every temporary included, so the number does not depend on the machine.
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
    """Keep the lines that torch's profiler writes about itself off the screen."""
    screen = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Exponent of the power law y ∝ x^a that fits best on log–log axes.

    >>> round(slope([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
