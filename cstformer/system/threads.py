"""CPU threads: small networks are slower on two threads than on one, above all on a busy machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LARGE = 500_000  # parameters; larger networks gain from a second thread


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def thread_limit(threads: int | str, parameters: int) -> Iterator[None]:
    """Run the block on this many threads; ``auto`` is one for a small network, torch's own number for a large one.

    The choice depends on the size of the network, not on the current load, so that results reproduce. torch's own
    number follows OMP_NUM_THREADS and `torch.set_num_threads`.

    >>> with thread_limit("auto", parameters=1000):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    if isinstance(threads, str):
        threads = 1 if parameters < LARGE else before
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
