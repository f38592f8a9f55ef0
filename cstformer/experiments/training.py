"""The training of one cell, the same for every model of every experiment."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult

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
        `TrainingReport`) and ``history``, pairs of step and validation loss; CST adds ``mu`` and ``noise``.
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
    facts |= {"steps": report.steps, "ended": report.ended, "history": report.history}
    return facts | {name: getattr(model, f"{name}_") for name in ("mu", "noise") if hasattr(model, f"{name}_")}


def finished_result(model: Any, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> CellResult:
    """Result of a cell; ``facts`` includes those of `train_cell` if the model was fitted. ``model`` may be None.

    The training time of a resumed model is the sum over all its runs.
    """
    report = getattr(model, "report_", None)
    seconds = facts.get("fit_seconds", 0.0) if report is None else report.seconds
    return CellResult(arrays, 0 if model is None else model.n_parameters_, seconds, facts)


def ended_notes(results: dict[Cell, CellResult]) -> list[str]:
    """One note for each training that did not run all its steps.

    >>> capped = CellResult({}, 0, 0.0, {"ended": "cap", "steps": 12})
    >>> ended_notes({Cell("CST", "clean"): capped, Cell("mean", "clean"): CellResult({}, 0, 0.0, {})})
    ['CST, clean: ended after 12 steps (cap).']
    """
    return [
        f"{cell.model}, {cell.condition}: ended after {result.facts['steps']} steps ({result.facts['ended']})."
        for cell, result in results.items()
        if result.facts.get("ended", "finished") != "finished"
    ]
