"""A batch shared by several processes: together they take the step that one process would take.

Inside `sharing` random numbers are those of the whole batch, of which a process keeps the rows of its samples, and
means are those over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch import distributed as torch_distributed


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
