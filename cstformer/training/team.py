"""The processes of a training: one, or several that Lightning Fabric joins.

A team takes the backward pass and agrees on clocks and scores. The loop itself is the same for one process and for
many; see `sharing` for how several processes compute the loss of one batch.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Generator, Tensor, nn

from cstformer.training.settings import ScaleSettings
from cstformer.training.sharing import Share, agree, from_first, sharing, whole

Loss = Callable[[Tensor, Generator], Tensor]


class Alone:
    """One process: plain PyTorch."""

    rank = 0
    count = 1
    shards = False
    """Whether every process keeps a shard of the weights only."""

    def join(self, network: nn.Module, loss: Loss) -> None:
        """Take part in a training of this network, before its optimiser is made."""
        self.loss = loss

    def compute(self, index: Tensor, generator: Generator) -> Tensor:
        """Loss of the samples with these numbers."""
        return self.loss(index, generator)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the weights."""
        loss.backward()

    def agree(self, numbers: list[float]) -> list[float]:
        """Largest of each number over all processes."""
        return numbers

    def from_first(self, number: float) -> float:
        """The number that the first process has."""
        return number

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Give the first process all weights."""
        yield

    def leave(self, network: nn.Module) -> None:
        """Make the network a plain one again."""


class Several(Alone):
    """Several processes, started already (`system.processes`, torchrun or SLURM)."""

    def __init__(self, scale: ScaleSettings, device: str):
        self.count = scale.devices * scale.nodes
        self.shards = scale.strategy == "fsdp"
        # Imported here: training in one process, the usual case, should not wait for Lightning.
        from lightning.fabric import Fabric
        from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy

        strategy: Any = DDPStrategy(broadcast_buffers=False)
        if self.shards:
            strategy = ModelParallelStrategy(_shard, data_parallel_size=self.count, tensor_parallel_size=1)
        with quiet():
            self.fabric = Fabric(
                accelerator="cpu" if device == "cpu" else "auto",
                devices=scale.devices,
                num_nodes=scale.nodes,
                strategy=strategy,
            )
            self.fabric.launch()
        self.rank = self.fabric.global_rank

    def join(self, network: nn.Module, loss: Loss) -> None:
        """Wrap network and loss, so that their backward pass synchronises the gradients."""
        self.step = _Step(network, loss)
        with quiet():
            self.wrapped = self.fabric.setup_module(self.step)

    def compute(self, index: Tensor, generator: Generator) -> Tensor:
        """Loss of the whole batch, of which this process computes its share."""
        share = Share.of(self.rank, self.count, len(index))
        with sharing(share):
            return self.wrapped(index[share.rows], generator)

    def backward(self, loss: Tensor) -> None:
        """Gradients of the weights, synchronised."""
        self.fabric.backward(loss)

    def agree(self, numbers: list[float]) -> list[float]:
        """Largest of each number over all processes."""
        return agree(numbers, self.fabric.device)

    def from_first(self, number: float) -> float:
        """The number that the first process has."""
        return from_first(number, self.fabric.device)

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """Unshard the weights, where they are sharded."""
        if self.shards:
            self.step.unshard()  # type: ignore[operator]
        yield
        if self.shards:
            self.step.reshard()  # type: ignore[operator]

    def leave(self, network: nn.Module) -> None:
        """Gather sharded weights."""
        if not self.shards:
            return
        for module in network.modules():
            module._load_state_dict_post_hooks.clear()  # of FSDP, for which every weight is a shard
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(whole(parameter.detach()), parameter.requires_grad)


class _Step(nn.Module):
    """A module whose forward pass is the loss of a step, for wrappers that synchronise gradients."""

    def __init__(self, network: nn.Module, loss: Loss):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, index: Tensor, generator: Generator) -> Tensor:
        return self.loss(index, generator)


def _shard(step: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(step, mesh=mesh["data_parallel"])
    return step


def make_team(scale: ScaleSettings | None, device: str) -> Alone:
    """The processes that a training runs in."""
    return Alone() if scale is None or scale.devices * scale.nodes == 1 else Several(scale, device)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's notices that our users cannot act upon."""
    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning.pytorch.utilities.rank_zero")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
