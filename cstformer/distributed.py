"""Training on several processes: each takes its share of every batch, and together they take the step one would take.

Inside `sharing` random numbers are those of the whole batch, of which a process keeps the rows of its samples, and
means are those over the whole batch. The processes are started by `run_processes`, or by torchrun or SLURM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as torch_distributed

from cstformer.errors import CSTError
from cstformer.threads import cores

GRACE = 10.0  # seconds that the other processes get to save what they have, when one has died


@dataclass(frozen=True)
class Share:
    """Rows ``first`` to ``last`` of a batch of ``total`` samples.

    >>> [Share.of(rank, 3, 8).rows for rank in range(3)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    first: int
    last: int
    total: int

    @classmethod
    def of(cls, rank: int, processes: int, total: int) -> Share:
        """The share of one of so many processes; they differ by one sample at most."""
        return cls(rank * total // processes, (rank + 1) * total // processes, total)

    @property
    def rows(self) -> slice:
        """The rows as a slice."""
        return slice(self.first, self.last)


_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Compute a loss of this share of the batch as a part of that of the whole batch; None: the share is all."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def draw(law: Callable[..., Tensor], shape: Sequence[int], generator: Generator | None, **options: Any) -> Tensor:
    """Random numbers (B, ...) by ``torch.rand`` or ``torch.randn``, those of this process's rows of the batch.

    >>> seeded = lambda: Generator().manual_seed(0)
    >>> whole = draw(torch.rand, (4, 2), seeded())
    >>> with sharing(Share(1, 3, 4)):
    ...     bool((draw(torch.rand, (2, 2), seeded()) == whole[1:3]).all())
    True
    """
    share = _SHARE.get()
    if share is None:
        return law(tuple(shape), generator=generator, **options)
    return law((share.total, *shape[1:]), generator=generator, **options)[share.rows]


def mean(x: Tensor) -> Tensor:
    """Mean over all numbers of the whole batch; 0 where there are none."""
    if _SHARE.get() is None:
        return x.mean() if x.numel() else x.sum()  # 0 that backward can pass through
    count = torch.tensor(x.numel(), device=x.device)
    torch_distributed.all_reduce(count)
    return _Total.apply(x.sum()) / count.clamp_min(1)


def maximum(x: Tensor) -> Tensor:
    """Largest of all numbers of the whole batch, none of which is negative; 0 where there are none."""
    largest = x.max() if x.numel() else x.sum()
    return largest if _SHARE.get() is None else _Largest.apply(largest)


class _Total(torch.autograd.Function):
    """Sum over processes. All of them go on to the same loss, so each knows the gradient of the sum already.

    Lightning's strategies average the gradients of the weights over processes where the true gradient is their sum:
    hence the factor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch_distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch_distributed.get_world_size()


class _Largest(torch.autograd.Function):
    """Maximum over processes; its gradient belongs to the process that has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        largest = x.clone()
        torch_distributed.all_reduce(largest, torch_distributed.ReduceOp.MAX)
        ctx.mine = bool(x == largest)
        return largest

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (torch_distributed.get_world_size() if ctx.mine else 0)


def agree(numbers: Sequence[float], device: torch.device) -> list[float]:
    """Elementwise maximum over processes: what every one of them then goes by."""
    news = torch.tensor(numbers, dtype=torch.float32, device=device)
    torch_distributed.all_reduce(news, torch_distributed.ReduceOp.MAX)
    return news.tolist()


def from_first(number: float, device: torch.device) -> float:
    """The number that the first process has."""
    news = torch.tensor(number, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    torch_distributed.broadcast(news, 0)
    return float(news)


# Weights of which every process holds a part (FSDP)


def whole(x: Tensor) -> Tensor:
    """Put a tensor together that is spread over processes; all of them must ask."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def spread_like(x: Tensor, parameter: Tensor) -> Tensor:
    """Spread a tensor over processes as this parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor) or isinstance(x, DTensor):
        return x.to(parameter.device)
    return distribute_tensor(x.to(parameter.device), parameter.device_mesh, parameter.placements)


# Starting processes


def is_started() -> bool:
    """Whether this process is one of several that torchrun, SLURM or `run_processes` started."""
    return "LOCAL_RANK" in os.environ or (int(os.environ.get("SLURM_NTASKS", 1)) > 1 and "SLURM_LOCALID" in os.environ)


def started_processes() -> int | None:
    """How many processes torchrun, SLURM or `run_processes` started; None where nobody did or nobody says."""
    count = next((os.environ[k] for k in ("WORLD_SIZE", "SLURM_NTASKS") if k in os.environ), None)
    return int(count) if is_started() and count else None


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return int(next((os.environ[k] for k in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if k in os.environ), 0)) == 0


def take_device() -> None:
    """Let ``cuda`` mean the GPU of this process, one each."""
    if torch.cuda.is_available():
        local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        torch.cuda.set_device(int(local) % torch.cuda.device_count())


def run_processes(count: int, code: str, folder: Path, progress: bool, saved: str) -> None:
    """Run Python ``code`` in ``count`` processes of this machine, ``folder`` being its argument, until all have ended.

    When one of them dies, the others get a few seconds and are ended: a `CSTError` says what happened. ``saved`` ends
    its message. Ctrl-C and SIGTERM are handed on, so that the processes can end well.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": str(count)}
    common |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // count)))}
    own = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}  # of the job, not of these processes
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
                    start_new_session=True,  # the terminal's Ctrl-C comes from us alone
                )
            )
            if log is not None:
                log.close()
        with _handing_on(started):
            _wait(started)
    finally:
        _end(started)
    if any(process.returncode for process in started):
        raise CSTError(f"{_what_happened(started, folder)}; {saved}")


def _wait(started: list[subprocess.Popen]) -> None:
    """Wait for all; when one fails, no longer than `GRACE` for the others."""
    deadline = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() for process in started):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
            process.returncode = 1  # by us: not the cause


def _end(started: list[subprocess.Popen]) -> None:
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def _handing_on(started: list[subprocess.Popen]) -> Iterator[None]:
    """Hand Ctrl-C and SIGTERM on to the processes; a second one ends them, and this, at once."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def hand_on(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    old = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _what_happened(started: list[subprocess.Popen], folder: Path) -> str:
    """One line on why the processes ended: one was killed, said why itself, or left a traceback."""
    for rank, process in enumerate(started):
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            return f"process {rank + 1} of {len(started)} was killed by {name} (memory?)"
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
