"""Models with a network: what CST and every trained rival share besides `Model`."""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cstformer.data.batch import Batch
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.model import Model
from cstformer.network.architecture import parameter_count
from cstformer.starts.kind import Corruption
from cstformer.system.devices import device_or_cpu, storage_dtype
from cstformer.training.report import TrainingReport
from cstformer.training.settings import ChannelSettings, TrainingSettings


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralModel(TrainingSettings, ChannelSettings, Model):
    """A model with a network that `training.loop.train` trains. Subclasses write `_network`.

    Attributes
    ----------
    network_ : nn.Module
    report_ : TrainingReport
    device_ : torch.device
    """

    @abstractmethod
    def _network(self, d: int, c: int) -> nn.Module:
        """Make a fresh network; the global random generator is seeded already, and ``kind_`` is set."""

    @property
    def n_parameters_(self) -> int:
        """Trainable numbers of the fitted network."""
        self._fitted()
        return parameter_count(self.network_)

    def _tensors(self) -> dict[str, Tensor]:
        if not all(bool(w.isfinite().all()) for w in self.network_.parameters()):
            raise CSTError("the network has weights that are not finite, so it answers NaN; it is not saved")
        return dict(self.network_.state_dict())

    def _description(self) -> dict[str, Any]:
        return {"training": dataclasses.asdict(self.report_)}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.device_ = device_or_cpu(self.device)
        self.report_ = TrainingReport.from_description(about["training"])
        self._check_sizes(tensors, d, c)
        network = self._fresh_network(d, c)
        network.load_state_dict(tensors)
        self.network_ = network.eval()

    def _check_sizes(self, tensors: dict[str, Tensor], d: int, c: int) -> None:
        """Refuse settings of a network far larger than the weights in its file, before it takes memory."""

    def _fresh_network(self, d: int, c: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._network(d, c).to(self._dtype()).to(self.device_)

    def _batch(self, samples: Samples) -> Batch:
        return self.kind_.batch(samples, self._dtype(), self.device_)

    def _minutes_left(self) -> float | None:
        """What is left of ``max_minutes``, which counts everything since the call of `fit`."""
        if self.max_minutes is None:
            return None
        return max(0.0, self.max_minutes - (time.monotonic() - self._began) / 60)

    def _scaling(self) -> str:
        return self.scaling

    def _check_kind(self, given: Corruption | None) -> None:
        super()._check_kind(given)
        channels = self.kind_.state_shape(len(self.scaling_.mean))[-1]
        if self.channel_weights is not None and len(self.channel_weights) != channels:
            found = len(self.channel_weights)
            raise CSTError(f"channel_weights has {found} numbers for {channels} channel(s); give one for each")

    def _dtype(self) -> torch.dtype:
        return storage_dtype(self.precision)
