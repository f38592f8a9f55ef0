"""The rows of the intervals experiment: CST, an ensemble, and the Gaussian process with and without calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from cstformer.data.batch import Batch, as_batches
from cstformer.data.holding_out import hold_out
from cstformer.data.units import Scaling
from cstformer.experiments.intervals.measures import LEVELS, Predicted
from cstformer.experiments.intervals.task import IntervalTask
from cstformer.experiments.training import train_cell
from cstformer.models.calibration import Answer, Calibration, calibrate
from cstformer.models.cst import CST
from cstformer.models.intervals import answer_of, calibration_of
from cstformer.starts.kind import DataKind
from cstformer.starts.kinds import kind_of
from cstformer.taylor import series

CST_ROW, ENSEMBLE, PROCESS, RAW = "CST", "CST, ensemble of 3", "process, calibrated", "process, its own"
ROWS = (CST_ROW, ENSEMBLE, PROCESS, RAW)
MEMBERS = 3
PER_BATCH = 32  # samples that are asked at once


def predict_cst(
    task: IntervalTask, settings: dict[str, Any], folder: Path, progress: bool
) -> tuple[CST, Predicted, dict[str, Any]]:
    """CST with the intervals that `fit` has calibrated."""
    model = CST(**settings)
    facts = train_cell(model, task.train, folder, progress)
    given = model._batch(task.context)
    return model, _predicted(answer_of(model), given, task, model.scaling_, calibration_of(model)), facts


def predict_ensemble(
    task: IntervalTask, settings: dict[str, Any], folder: Path, progress: bool
) -> tuple[CST, Predicted, dict[str, Any]]:
    """Three trainings: their mean, and the variance between them as scale; calibrated on samples that none has seen."""
    training, held = hold_out(task.train, settings["validation"], settings["seed"])
    members, facts = [], {}
    for k in range(MEMBERS):
        (folder / str(k)).mkdir(parents=True, exist_ok=True)
        members.append(CST(**settings | {"seed": settings["seed"] + 1 + k}))
        facts = train_cell(members[-1], task.train[training.numpy()], folder / str(k), progress)
    answers, first = [answer_of(member) for member in members], members[0]

    def answer(context: Batch, at: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.stack([one(context, at)[0].double() for one in answers])
        return found.mean(0), found.var(0) + 1e-8

    calibration = _calibrated(answer, first.kind_, first._batch(task.train[held.numpy()]), first.cells_, first.seed)
    return first, _predicted(answer, first._batch(task.context), task, first.scaling_, calibration), facts


def predict_process(task: IntervalTask, validation: float, seed: int, calibrated: bool) -> tuple[Predicted, Scaling]:
    """The Gaussian process that CST starts from, with its own normal intervals or with calibrated ones."""
    kind, device = kind_of(task.train), torch.device("cpu")
    training, held = hold_out(task.train, validation, seed)
    batch = kind.batch(task.train, torch.float64, device)
    start = kind.fit_prior(batch[training], "auto", seed)

    def answer(context: Batch, at: Tensor) -> tuple[Tensor, Tensor]:
        mean = kind.start(start, context)(series.constant(at)).value
        return mean, kind.spread(start, context)(at, (0,) * at.shape[-1])

    given = kind.batch(task.context, torch.float64, device)
    if calibrated:
        calibration = _calibrated(answer, kind, batch[held], kind.cell_gaps(batch), seed)
        return _predicted(answer, given, task, kind.scaling, calibration), kind.scaling
    assert kind.kernel is not None
    values, process = _ask(answer, given, task, kind.scaling)
    noises = np.array(kind.kernel.noises)
    noise = np.tile(noises, values.shape[-1] // len(noises)) ** 2
    factors = np.repeat([[norm.ppf((1 + level) / 2)] for level in LEVELS], values.shape[-1], 1)
    return Predicted(values, process + noise, factors), kind.scaling


def _calibrated(answer: Answer, kind: DataKind, batch: Batch, cells: float, seed: int) -> Calibration:
    channels = kind.state_shape(batch.values.shape[-1])[-1]
    with torch.no_grad():
        return calibrate(answer, batch, kind.noises, channels, cells, seed)


@torch.no_grad()
def _ask(answer: Answer, context: Batch, task: IntervalTask, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
    """Values and variances of the process at all queries, in the model's units."""
    at = torch.as_tensor(scaling.coords(task.at)).to(context.coords)
    parts = [answer(context[index], at[index]) for index in as_batches(len(context), PER_BATCH)]
    values, process = (torch.cat(x).double().numpy() for x in zip(*parts, strict=True))
    return values, process


def _predicted(
    answer: Answer, context: Batch, task: IntervalTask, scaling: Scaling, calibration: Calibration
) -> Predicted:
    """Ask at all queries, with calibrated intervals."""
    values, process = _ask(answer, context, task, scaling)
    quantiles = np.stack([calibration.quantiles(level) for level in LEVELS])  # (L, C)
    factors = np.tile(quantiles, values.shape[-1] // quantiles.shape[-1])
    return Predicted(values, calibration.variance(process, noise=True), factors)
