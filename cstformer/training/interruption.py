"""Ctrl-C and SIGTERM: a training stops after its step, with everything it has learned."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """While active, the first SIGINT or SIGTERM sets ``requested``; the second raises KeyboardInterrupt.

    Signals are handled in the main thread only; in other threads this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self.before = {n: signal.signal(n, self._ask) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
