"""Search for the learning rate of CST or a rival by a few short trainings.

Each trial trains the model with another peak rate for a small share of its steps. The rate with the best score on the
model's own validation set wins; test data are not used. The record of a search includes the cost of its trials, and
tables that use a search say so.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.model import Model
from cstformer.models.neural import NeuralModel
from cstformer.starts.kinds import kind_of
from cstformer.training.settings import resolve

M = TypeVar("M", bound=Model)
FACTORS = (1 / 3, 1.0, 3.0)  # rates tried, over the rate of the model


@dataclass(frozen=True)
class Trial:
    """One short training; ``score`` is infinite if the loss was not finite."""

    learning_rate: float
    score: float
    steps: int
    seconds: float


@dataclass(frozen=True)
class Search:
    """Trials by increasing rate, and the best rate."""

    learning_rate: float
    trials: tuple[Trial, ...]

    @property
    def seconds(self) -> float:
        """Total time of the trials."""
        return sum(trial.seconds for trial in self.trials)

    def record(self) -> dict[str, Any]:
        """As JSON, for a result file."""
        trials = [dataclasses.asdict(t) | {"score": t.score if math.isfinite(t.score) else None} for t in self.trials]
        return {"learning_rate": self.learning_rate, "seconds": round(self.seconds, 1), "trials": trials}


def search_learning_rate(
    model: M, samples: Samples, factors: Sequence[float] = FACTORS, share: float = 0.1, **options: Any
) -> tuple[M, Search]:
    """Find the best of ``factors`` times the model's learning rate.

    Parameters
    ----------
    model : NeuralModel
        `CST` or a trained rival; it is not changed.
    samples : Samples
        Training samples.
    factors : sequence of positive floats
    share : float
        Part of the model's ``steps`` and ``max_minutes`` that each trial gets.
    options
        Further arguments of ``model.fit``, such as ``given``.

    Returns
    -------
    A model with the best rate, not fitted, and the `Search`.
    """
    if not factors or not all(f > 0 and math.isfinite(f) for f in factors):
        raise CSTError(f"factors must be positive numbers, got {list(factors)}; e.g. {list(FACTORS)}")
    if not 0 < share <= 1:
        raise CSTError(f"share={share}: must be above 0 and at most 1")
    settings = model.settings()
    if not isinstance(model, NeuralModel):
        raise CSTError(f"{type(model).__name__} has no learning rate to search for; fit it as it is")
    if "auto" in (settings["steps"], settings["learning_rate"]):  # of CST: what they mean for these data
        numbers = resolve(settings, kind_of(samples).preset)
        settings |= {"steps": numbers.steps, "learning_rate": numbers.learning_rate}
    short: dict[str, Any] = {"steps": max(1, round(share * settings["steps"]))}
    if settings["max_minutes"] is not None:
        short["max_minutes"] = share * settings["max_minutes"]
    if settings.get("mu") == "search":  # scores with different μ could not be compared
        short["mu"] = "auto"
    trials = []
    for factor in sorted(factors):
        rate = factor * settings["learning_rate"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # the time limit, or a loss that was not finite: handled below
            report = type(model)(**settings | short | {"learning_rate": rate}).fit(samples, **options).report_
        if report.ended == "interrupted":
            raise KeyboardInterrupt
        score = math.inf if report.ended == "not finite" else report.best_score
        trials.append(Trial(rate, score, report.steps, report.seconds))
    best = min(trials, key=lambda trial: trial.score)
    if not math.isfinite(best.score):
        raise CSTError(
            f"no learning rate of {[t.learning_rate for t in trials]} gave a finite loss; try smaller factors"
        )
    return type(model)(**settings | {"learning_rate": best.learning_rate}), Search(best.learning_rate, tuple(trials))
