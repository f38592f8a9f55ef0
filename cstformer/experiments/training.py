"""The training of one cell, the same for every model of every experiment."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines.search import search_learning_rate
from cstformer.data.samples import Samples
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult
from cstformer.models.neural import NeuralModel

STILL_FALLING = 0.05  # of the validation loss, in the last fifth of the steps
STATE, MODEL = "training.safetensors", "model"


def train_cell(model: Any, samples: Samples, folder: Path, progress: bool, **options: Any) -> dict[str, Any]:
    """Fit ``model``, save it to ``folder/model`` and return the facts of its training.

    The training writes its state to ``folder/training.safetensors`` and resumes from that file. A signal (Ctrl-C,
    SIGTERM) stops it after the current step; `KeyboardInterrupt` then leaves the cell unfinished, with its state on
    disk. Models that fit in closed form have no steps to resume and are not saved.

    Parameters
    ----------
    model : `CST` or a baseline, with its settings, not fitted
    samples : training samples
    folder : folder of the cell
    progress : whether to show a progress bar
    options : further arguments of ``model.fit``, such as ``given``

    Returns
    -------
    dict
        ``fit_seconds``, the duration of this call. Models with a training loop add ``steps``, ``ended`` (see
        `TrainingReport`), ``history``, pairs of step and validation loss, ``epochs``, how often each training sample
        was seen, and ``converged``, see `has_converged`; CST adds ``mu`` and ``noise``.
    """
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CSTWarning)  # `ended_notes` reports trainings that stopped early
        model.fit(samples, state=folder / STATE, progress=progress, **options)
    facts: dict[str, Any] = {"fit_seconds": time.monotonic() - started}
    report = getattr(model, "report_", None)
    if report is None:
        return facts
    if report.ended == "interrupted":
        raise KeyboardInterrupt
    model.save(folder / MODEL)
    run = getattr(model, "run_", model)  # of CST: the settings that its `auto` became
    epochs = report.steps * run.batch / (len(samples) * (1 - run.validation))
    facts |= {"steps": report.steps, "ended": report.ended, "history": report.history, "epochs": epochs}
    facts["converged"] = has_converged(report.ended, report.history, epochs)
    return facts | {name: getattr(model, f"{name}_") for name in ("mu", "noise") if hasattr(model, f"{name}_")}


OPTIMISERS = ("adamw", "muon")


def searched(model: Any, samples: Samples, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model with the best learning rate and optimiser, by short trainings on its own validation samples; the facts.

    Every rate is tried with each optimiser that the model can have, CST's among them. Models without a learning rate
    are returned as they are.
    """
    if not isinstance(model, NeuralModel):
        return model, {}
    settings, tried = model.settings(), []
    for optimiser in OPTIMISERS if "optimiser" in settings else (None,):
        choice = {} if optimiser is None else {"optimiser": optimiser}
        found, search = search_learning_rate(type(model)(**settings | choice), samples, **options)
        tried.append((min(trial.score for trial in search.trials), found, choice | search.record()))
    _, best, record = min(tried, key=lambda one: one[0])
    record["seconds"] = round(sum(other["seconds"] for _, _, other in tried), 1)
    return best, {"search": record}


def search_notes(results: dict[Cell, CellResult]) -> list[str]:
    """One note on the rows whose learning rate was searched, and what this cost.

    >>> search_notes({Cell("LSTM", "clean"): CellResult({}, 0, 0.0, {"search": {"learning_rate": 1e-3, "seconds": 5}})})
    ['Learning rates chosen by three short trials for each optimiser, not part of the training time: LSTM 0.001 (5 s).']
    """
    found = {}
    for cell, result in results.items():
        if search := result.facts.get("search"):
            with_optimiser = f" {search['optimiser']}" if "optimiser" in search else ""
            rate = f"{search['learning_rate']:.2g}{with_optimiser} ({search['seconds']:.0f} s)"
            found[cell.model] = f"{cell.model} {rate}"
    text = "Learning rates chosen by three short trials for each optimiser, not part of the training time: "
    return [f"{text}{', '.join(found.values())}."] if found else []


def has_converged(ended: str, history: Sequence[tuple[int, float]], epochs: float) -> bool:
    """Whether a training saw every sample, stayed finite, and was not stopped by the clock while it still improved.

    It still improved if the best loss of the last fifth of its steps is more than `STILL_FALLING` below the best
    before. A training that ends by its own steps or patience counts as converged: its length was a choice.

    >>> falling = [(0, 1.0), (50, 0.5), (100, 0.3)]
    >>> [has_converged(*case) for case in (("cap", falling, 9), ("finished", falling, 9), ("finished", falling, 0.4))]
    [False, True, False]
    """
    if epochs < 1 or ended == "not finite":
        return False
    early = [loss for step, loss in history if step <= 0.8 * history[-1][0]]
    late = [loss for step, loss in history if step > 0.8 * history[-1][0]]
    return ended != "cap" or not early or not late or min(late) >= (1 - STILL_FALLING) * min(early)


def finished_result(model: Any, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> CellResult:
    """Result of a cell; ``facts`` includes those of `train_cell` if the model was fitted. ``model`` may be None.

    The training time of a resumed model is the sum over all its runs.
    """
    report = getattr(model, "report_", None)
    seconds = facts.get("fit_seconds", 0.0) if report is None else report.seconds
    return CellResult(arrays, 0 if model is None else model.n_parameters_, seconds, facts)


def ended_notes(results: dict[Cell, CellResult]) -> list[str]:
    """One note for each row of which a training did not run all its steps; numbers of steps are means over seeds.

    >>> capped = CellResult({}, 0, 0.0, {"ended": "cap", "steps": 12})
    >>> ended_notes({Cell("CST", "clean"): capped, Cell("mean", "clean"): CellResult({}, 0, 0.0, {})})
    ['CST, clean: ended after 12 steps (cap).']
    """
    notes = []
    for cell, result in results.items():
        trained = [r.facts for r in (result, *result.others) if "ended" in r.facts]
        if reasons := dict.fromkeys(f["ended"] for f in trained if f["ended"] != "finished"):
            steps = np.mean([f["steps"] for f in trained])
            notes.append(f"{cell.model}, {cell.condition}: ended after {steps:.0f} steps ({', '.join(reasons)}).")
    return notes
