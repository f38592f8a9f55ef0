"""Keep freed memory: on Linux, large steps otherwise spend most of their time in page faults.

glibc returns large freed blocks to the kernel at once, which hands them out again page by page, zeroed. Two options of
its allocator make the process keep them. Set ``CST_KEEP_MEMORY=0`` to leave the allocator alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # from glibc's malloc.h
_NEVER = 2**31 - 1


@functools.cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory; whether it agreed. Harmless elsewhere, done once a process."""
    if os.environ.get("CST_KEEP_MEMORY", "1") == "0" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
