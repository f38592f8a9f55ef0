"""Rivals with a network, trained by the same loop, schedule, cap and early stopping as CST."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Generator, Tensor

from cstformer.data.batch import Batch
from cstformer.data.holding_out import hold_out
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.neural import NeuralModel
from cstformer.system.devices import choose_device
from cstformer.training.loop import train
from cstformer.training.objective import TOKENS_PER_STEP
from cstformer.training.report import TrainingReport


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralBaseline(NeuralModel):
    """A trained rival. Subclasses write `_network`, `_loss`, `_validation` and `_predict`."""

    @abstractmethod
    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        """Loss of a training step, a scalar; all random numbers come from ``generator``."""

    @abstractmethod
    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Return a function that scores the current weights of the network on fixed data; lower is better."""

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        self.device_ = choose_device(self.device)
        data = self._batch(samples)
        training, held_out = hold_out(samples, self.validation, self.seed)
        self.network_ = self._fresh_network(samples.d, samples.c)
        batch = min(self.batch, max(1, TOKENS_PER_STEP // samples.n))
        self.report_: TrainingReport = train(
            self.network_,
            lambda index, generator: self._loss(data[training[index]], generator),
            self._validation(data[held_out]),
            len(training),
            type(self)(**self.settings() | {"batch": batch, "max_minutes": self._minutes_left()}),
            optimiser=getattr(self, "optimiser", "adamw"),
            state=state,
            progress=self.label if progress else None,
            fingerprint="" if state is None else data.fingerprint(self.seed),
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.precision == "bfloat16":
            raise CSTError(f"precision='bfloat16' is for CST alone; {type(self).__name__} takes float32 or float64")
