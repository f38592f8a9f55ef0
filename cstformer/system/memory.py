"""Memory of the process: how much is left, and an allocator that keeps what was freed.

glibc returns large freed blocks to the kernel at once. The kernel hands them out again page by page, zeroed, and large
training steps spend most of their time in those page faults. Two options of the allocator make the process keep freed
blocks. Set ``CST_KEEP_MEMORY=0`` to leave the allocator alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from glibc's malloc.h
_NEVER = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory, once per process; return whether it agreed. Does nothing on other systems."""
    if os.environ.get("CST_KEEP_MEMORY", "1") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))


def memory_left() -> int:
    """Bytes that this process can still allocate: free memory of the machine, or less under a limit of the process."""
    left = sys.maxsize
    try:
        free = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        left = 1024 * int(free.split()[1])
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            left = min(left, limit - taken)
    except (OSError, ImportError, StopIteration, ValueError):  # a system that does not say
        pass
    return max(0, left)


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
