"""Processes to be killed, starved and interrupted: real ones, forked from a server that has imported everything."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "cstformer.cli",
        "cstformer.models.cst",
        "cstformer.data.sample_files",
        "lightning",
        "zarr",
        "xarray",
        "dask.array",
    ]
)


def _command(arguments: list[str], output: Path, save_seconds: float, pause: float) -> None:
    import torch

    from cstformer import cli
    from cstformer.training import loop as training
    from cstformer.training import objective

    torch.set_num_threads(1)
    training.SAVE_SECONDS = save_seconds
    if pause:
        loss = objective.SobolevObjective.loss
        objective.SobolevObjective.loss = lambda *a: (time.sleep(pause), loss(*a))[1]
    with output.open("w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = cli.main(arguments)
    os._exit(code)


def start_cst(*arguments: object, output: Path, save_seconds: float = 0.0, pause: float = 0.0) -> Any:
    """Begin ``cst ARGUMENTS`` in a process of its own that saves its state after every step, and may be slow."""
    process = FORKS.Process(target=_command, args=([str(a) for a in arguments], output, save_seconds, pause))
    process.start()
    return process


def run_cst(*arguments: object, output: Path, code: int = 0) -> float:
    """Run ``cst ARGUMENTS`` to its end, which must have this exit code; the seconds it took."""
    began = time.monotonic()
    process = start_cst(*arguments, output=output, save_seconds=30.0)
    process.join()
    assert process.exitcode == code, output.read_text()
    return time.monotonic() - began


def kill_after(process: Any, seconds: float) -> bool:
    """Send SIGKILL after a while; whether the process was still at work."""
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -9


class Killer:
    """Kills processes at random moments of the time that they take when nobody kills them."""

    def __init__(self, usual: float, seed: int):
        self.usual, self.rng, self.kills = usual, np.random.default_rng(seed), 0

    def __call__(self, process: Any) -> bool:
        """Whether the process was killed; one that ended before tells how long processes take now."""
        began = time.monotonic()
        killed = kill_after(process, float(self.rng.uniform(0, self.usual)))
        if not killed:
            self.usual = time.monotonic() - began
        self.kills += killed
        return killed


def wait_for(condition: Callable[[], bool], process: Any, seconds: float = 120.0) -> None:
    """Wait until something is so; the process must not end before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.is_alive(), f"the process ended early with {process.exitcode}"
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def limit_memory(extra: int) -> None:
    """Allow this process so many bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _starved(pipe: Any, extra: int, function: Callable, arguments: tuple) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    warm = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit_memory(extra)
    try:
        answer = ("done", function(*arguments))
    except Exception as error:
        answer = (type(error).__name__, str(error))
    pipe.send((*answer, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm)))


def starved(extra: int, function: Callable, *arguments: Any) -> tuple[str, Any, int]:
    """Call a function in a process with ``extra`` bytes of memory.

    ``done`` and its answer, or the class and text of its error; and the bytes that it came to use.
    """
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_starved, args=(there, extra, function, arguments))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        return "died", process.exitcode, 0
    finally:
        process.join()
