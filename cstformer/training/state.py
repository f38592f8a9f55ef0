"""The state of a training: weights, their running average, the best so far, optimiser, report; and its file.

The file is safetensors with JSON, written atomically: a run that was interrupted or killed goes on from it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cstformer.errors import CSTError
from cstformer.system.processes import is_first
from cstformer.system.tensor_files import read_tensors, write_tensors
from cstformer.training.report import TrainingReport
from cstformer.training.settings import TrainingSettings
from cstformer.training.sharing import spread_like, whole

FREE = ("max_minutes", "device", "devices", "nodes", "strategy")  # settings that may change when a run is resumed
AVERAGE_DECAY = 0.995  # of the running average of the weights; shorter in the first steps


class TrainingState:
    """What a training needs to go on.

    Parameters
    ----------
    network : nn.Module
    path : Path, optional
        File of the state; read by `resume` if it is there, written by `save`.
    signature : str
        What must agree for a resume: settings, sizes and data.
    """

    def __init__(self, network: nn.Module, path: Path | None, signature: str = ""):
        self.network, self.path, self.signature = network, path, signature
        self.average = {k: v.detach().clone() for k, v in network.state_dict().items()}
        self.best = {k: v.clone() for k, v in self.average.items()}
        self.report = TrainingReport()
        self.optimiser: torch.optim.Optimizer | None = None
        self._saved_optimiser: dict[str, Tensor] = {}

    def shard(self) -> None:
        """Shard the averages as the weights are."""
        parts = self.network.state_dict()
        self.average = {k: spread_like(v, parts[k]) for k, v in self.average.items()}
        self.best = {k: spread_like(v, parts[k]) for k, v in self.best.items()}

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """Follow the weights after a step."""
        decay = min(AVERAGE_DECAY, step / (step + 9))
        now = self.network.state_dict()
        floating = [k for k, v in now.items() if v.is_floating_point()]
        # Buffers are whole where weights are shards, and one call takes one type.
        for kind in {type(now[k]) for k in floating}:
            names = [k for k in floating if type(now[k]) is kind]
            torch._foreach_lerp_([self.average[k] for k in names], [now[k] for k in names], 1 - decay)

    def keep_best(self) -> None:
        """Remember the average as the best weights."""
        self.best = {k: v.clone() for k, v in self.average.items()}

    def use_optimiser(self, optimiser: torch.optim.Optimizer) -> None:
        """Take an optimiser, with the moments of the resumed run if there is one."""
        self.optimiser = optimiser
        for i, parameter in enumerate(self.network.parameters()):
            prefix = f"{i}."
            saved = {k.removeprefix(prefix): v for k, v in self._saved_optimiser.items() if k.startswith(prefix)}
            if saved:
                optimiser.state[parameter] = {
                    k: v if k == "step" else spread_like(v, parameter) for k, v in saved.items()
                }

    def save(self, seconds: float) -> None:
        """Write the whole state, atomically; all processes must call this together."""
        if self.path is None:
            return
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        moments = {} if self.optimiser is None else self.optimiser.state
        for i, parameter in enumerate(self.network.parameters()):
            tensors |= {f"optimiser.{i}.{k}": torch.as_tensor(v) for k, v in moments.get(parameter, {}).items()}
        report = dataclasses.asdict(self.report) | {"seconds": seconds}
        if report["ended"] in ("cap", "interrupted"):
            report["ended"] = "finished"  # such a run may go on
        tensors = {k: whole(v) for k, v in tensors.items()}
        if is_first():
            write_tensors(self.path, tensors, {"report": report, "signature": self.signature})

    def resume(self) -> None:
        """Read the file, if there is one."""
        if self.path is None or not self.path.exists():
            return
        tensors, meta = read_tensors(self.path)
        if meta.get("signature") != self.signature:
            raise CSTError(
                f"{self.path} belongs to a run with other settings or data; remove it or choose another directory"
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        try:
            for prefix in ("average.", "best.", "network."):  # the first two only to see that they fit
                self.network.load_state_dict(part(prefix))
            self.report = TrainingReport.from_description(meta["report"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CSTError(f"{self.path} is incomplete ({reason}); remove it to begin again") from None
        device = next(iter(self.average.values())).device
        self.average = {k: v.to(device) for k, v in part("average.").items()}
        self.best = {k: v.to(device) for k, v in part("best.").items()}
        self._saved_optimiser = part("optimiser.")


def resumed_report(path: Path | None) -> TrainingReport | None:
    """The report of the training that a state file would resume, if there is one that can be read."""
    if path is None or not path.exists():
        return None
    try:
        return TrainingReport.from_description(read_tensors(path)[1]["report"])
    except (CSTError, KeyError, TypeError, ValueError):
        return None  # `TrainingState.resume` says what is wrong with it


def signature(network: nn.Module, settings: TrainingSettings, count: int, fingerprint: str) -> str:
    """What must agree for a resume: the data, the sizes, and all settings but those of `FREE`."""
    names = [f.name for f in dataclasses.fields(settings) if f.name not in FREE]
    values: dict[str, Any] = {name: getattr(settings, name) for name in names}
    shapes = {k: list(v.shape) for k, v in network.state_dict().items()}
    return json.dumps([values, shapes, count, fingerprint], sort_keys=True, default=str)
