"""What happened in a training, kept beside the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

from cstformer.training.settings import TrainingSettings


@dataclass
class TrainingReport:
    """Steps, scores and time of a training.

    ``ended`` is one of ``finished``, ``patience``, ``cap`` (max_minutes), ``interrupted`` and ``not finite``.
    """

    steps: int = 0
    best_step: int = 0
    best_score: float = math.inf
    seconds: float = 0.0
    ended: str = "finished"
    history: list[tuple[int, float]] = field(default_factory=list)
    trials: list[dict[str, Any]] = field(default_factory=list)
    """Short trainings that chose settings: ``settings``, ``steps`` and ``score`` of each."""
    chosen: dict[str, Any] = field(default_factory=dict)
    """Settings that the trials chose; ``noise`` is a factor of the estimated noise."""

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`, from JSON."""
        report = cls(**about)
        report.history = [(int(step), float(score)) for step, score in report.history]
        return report

    def sentence(self, settings: TrainingSettings) -> str:
        """One readable line."""
        why = {
            "finished": "all steps done",
            "patience": f"no improvement for {settings.patience:.0%} of the steps",
            "cap": f"max_minutes={settings.max_minutes} reached, best weights kept; "
            "allow more time for the full schedule",
            "interrupted": "interrupted, best weights kept",
            "not finite": "the loss was not finite, best weights before that kept",
        }[self.ended]
        idle = "; training never improved on the start, so the model answers with it" if self.useless else ""
        return (
            f"{self.steps} of {settings.steps} steps in {self.seconds:.0f} s ({why}); "
            f"best validation loss {self.best_score:.5g} at step {self.best_step}{idle}"
        )

    @property
    def useless(self) -> bool:
        """Whether the best weights are those before the first step."""
        return self.steps > 0 and self.best_step == 0
