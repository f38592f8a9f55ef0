"""The learning rate of a model by a few short trainings, the same for every rival and for CST.

Each trial is the model's own training with a small share of its steps and another peak rate; the best score on the
model's own validation set wins. Test data are never seen. What the trials cost is part of the record, and a table
that uses the search says so.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning

FACTORS = (1 / 3, 1.0, 3.0)


@dataclass(frozen=True)
class Trial:
    """One short training; ``score`` is infinite where the loss was not finite."""

    learning_rate: float
    score: float
    steps: int
    seconds: float


@dataclass(frozen=True)
class Search:
    """Trials in the order of their rates, and the rate that won."""

    learning_rate: float
    trials: tuple[Trial, ...]

    @property
    def seconds(self) -> float:
        """Cost of all trials."""
        return sum(trial.seconds for trial in self.trials)

    def record(self) -> dict[str, Any]:
        """As JSON, for a result file."""
        trials = [dataclasses.asdict(t) | {"score": t.score if math.isfinite(t.score) else None} for t in self.trials]
        return {"learning_rate": self.learning_rate, "seconds": round(self.seconds, 1), "trials": trials}


def search_learning_rate(
    model: Any, samples: Samples, factors: Sequence[float] = FACTORS, share: float = 0.1
) -> tuple[Any, Search]:
    """Try ``factors`` times the model's learning rate; the model with the best one, not fitted, and the search.

    Parameters
    ----------
    model : a `NeuralBaseline` or `CST` with its settings; it is left alone
    samples : the training samples
    factors : positive numbers
    share : of the model's steps, and of its ``max_minutes``, that each trial gets
    """
    if not factors or not all(f > 0 and math.isfinite(f) for f in factors):
        raise CSTError(f"factors must be positive numbers, got {list(factors)}; e.g. {list(FACTORS)}")
    if not 0 < share <= 1:
        raise CSTError(f"share={share}: must be above 0 and at most 1")
    settings = _settings(model)
    if "learning_rate" not in settings:
        raise CSTError(f"{type(model).__name__} has no learning rate to search for; fit it as it is")
    short: dict[str, Any] = {"steps": max(1, round(share * settings["steps"]))}
    if settings["max_minutes"] is not None:
        short["max_minutes"] = share * settings["max_minutes"]
    if settings.get("mu") == "search":  # a μ of its own would make the scores of the trials incomparable
        short["mu"] = "auto"
    trials = []
    for factor in sorted(factors):
        rate = factor * settings["learning_rate"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # a cap, or a loss that was not finite: judged below
            report = type(model)(**settings | short | {"learning_rate": rate}).fit(samples).report_
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


def _settings(model: Any) -> dict[str, Any]:
    return model.settings() if hasattr(model, "settings") else model.get_params()
