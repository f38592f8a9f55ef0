"""Training in several processes, started by `run_processes`, torchrun or SLURM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cstformer.errors import CSTError
from cstformer.system.threads import cores

GRACE = 10.0  # seconds that the other processes get to save their state after one has died


def is_started() -> bool:
    """Whether this process is one of several that torchrun, SLURM or `run_processes` started."""
    return "LOCAL_RANK" in os.environ or (int(os.environ.get("SLURM_NTASKS", 1)) > 1 and "SLURM_LOCALID" in os.environ)


def started_processes() -> int | None:
    """How many processes torchrun, SLURM or `run_processes` started; None if none of them did, or it is not known."""
    count = next((os.environ[k] for k in ("WORLD_SIZE", "SLURM_NTASKS") if k in os.environ), None)
    return int(count) if is_started() and count else None


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return int(next((os.environ[k] for k in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if k in os.environ), 0)) == 0


def take_device() -> None:
    """Let ``cuda`` mean the GPU of this process; each process gets its own."""
    if torch.cuda.is_available():
        local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        torch.cuda.set_device(int(local) % torch.cuda.device_count())


def run_processes(count: int, code: str, folder: Path, progress: bool, saved: Callable[[], str]) -> None:
    """Run Python ``code`` in ``count`` processes on this machine and wait for all; ``folder`` is its argument.

    When a process dies, the others get `GRACE` seconds and are then killed. A `CSTError` says what happened; its
    message ends with the answer of ``saved``. Ctrl-C and SIGTERM are forwarded, so that the processes can stop cleanly.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": str(count)}
    common |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // count)))}
    # SLURM's variables describe the job, not these processes.
    own = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    started: list[subprocess.Popen] = []
    try:
        for rank in range(count):
            log = None if progress and rank == 0 else (folder / f"{rank}.log").open("wb")
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", code, str(folder)],
                    env=own | common | {"LOCAL_RANK": str(rank), "RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal reaches them only through us
                )
            )
            if log is not None:
                log.close()
        with _forwarded_signals(started):
            _wait(started)
    finally:
        _end(started)
    if any(process.returncode for process in started):
        raise CSTError(f"{_what_happened(started, folder)}; {saved()}")


def _wait(started: list[subprocess.Popen]) -> None:
    """Wait for all processes; after one has failed, wait at most `GRACE` seconds for the others."""
    deadline = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() for process in started):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
            process.returncode = 1  # killed by us, so not the cause


def _end(started: list[subprocess.Popen]) -> None:
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def _forwarded_signals(started: list[subprocess.Popen]) -> Iterator[None]:
    """Forward Ctrl-C and SIGTERM to the processes; a second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def forward(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    old = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _what_happened(started: list[subprocess.Popen], folder: Path) -> str:
    """One line on why the processes ended: one was killed, reported an error, or left a traceback."""
    for rank, process in enumerate(started):
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            return f"process {rank + 1} of {len(started)} was killed by {name} (out of memory?)"
    for rank in range(len(started)):
        reason = folder / f"{rank}.error"
        if reason.exists():
            return reason.read_text()
    for rank, process in enumerate(started):
        log = folder / f"{rank}.log"
        if process.returncode and log.exists():
            lines = log.read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no message")
            return f"process {rank + 1} of {len(started)} failed: {last}"
    return f"one of {len(started)} processes failed"
