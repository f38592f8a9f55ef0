"""Set up a worker process."""

from __future__ import annotations

import os
import threading
import time


def begin_worker(parent: int) -> None:
    """Use one thread of torch, and end when process ``parent`` has ended, even if it was killed."""
    import torch

    torch.set_num_threads(1)
    watch_parent(parent)


def watch_parent(parent: int) -> None:
    """End this process when process ``parent`` has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
