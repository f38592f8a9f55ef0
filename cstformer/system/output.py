"""Standard output and error that cannot fail, so that a closed pipe or a full disk behind them never ends the work."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any


class LossyFile(io.FileIO):
    """A file descriptor that accepts everything; what cannot be written is lost, and ``error`` says why.

    >>> full = LossyFile("/dev/full", "w")
    >>> full.write(b"lost"), full.error.strerror
    (4, 'No space left on device')
    >>> full.close()
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes; after the first failure do nothing."""
        if self.error is None:
            try:
                while (written := super().write(data)) is None:  # a full pipe that does not block: wait for it
                    select.select([], [self], [])
                return written
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def use_lossy_output() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams that never raise, unless they are replaced already.

    A character that the terminal's encoding lacks is shown as a question mark.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell; the null device takes the free number, so that no other file does
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            raw = LossyFile(stream.fileno(), "w", closefd=False)
            options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            buffer = io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", **options))


def lost_output() -> str | None:
    """Why standard output was lost; None if nothing was, or if its reader, such as ``head``, had seen enough."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, LossyFile):
        return None
    sys.stdout.flush()
    if raw.error is None or raw.error.errno == errno.EPIPE:
        return None
    return raw.error.strerror
