"""Intervals: how often they cover new observations, and how wide they are.

Command: ``cst run intervals --preset default``. Run time: about three quarters of an hour on two cores.
Expect: coverage within two points of the level for everything that is calibrated, and intervals of CST that are
narrower than those of the calibrated Gaussian process that it starts from.

Data: spirals in three conditions, ETTh1 with half of its cells removed and PhysioNet 2012 (both if ``CST_DATA`` names
their folder), and Navier–Stokes flows and a simulated cortex of which every second given frame is hidden. Rows: CST as
`fit` calibrates it; an ensemble of three trainings, whose spread is the scale; the process with intervals calibrated in
the same way; and its own normal intervals.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from cstformer.data.samples import Samples
from cstformer.datasets.spirals import OBSERVATION_NOISE
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.intervals.figures import planned_figures
from cstformer.experiments.intervals.measures import LEVELS, SHOWN, measure, width_that_covers, worst_stratum
from cstformer.experiments.intervals.rows import (
    CST_ROW,
    ENSEMBLE,
    PROCESS,
    RAW,
    ROWS,
    predict_cst,
    predict_ensemble,
    predict_process,
)
from cstformer.experiments.intervals.task import (
    CORTEX,
    ETT,
    ETT_MIXED,
    FLOWS,
    PHYSIONET,
    SPIRALS,
    make_task,
    missing_data,
    prepare_flows,
)
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.spirals.task import NOISE, NOISY
from cstformer.experiments.training import ended_notes, finished_result
from cstformer.report.main_table import comparison
from cstformer.training.settings import PRESETS

REPORTED = (0.8, 0.9, 0.95)
WINKLER = "Winkler score at 90 %"
"""Width, plus a penalty for values outside: small for intervals that are both narrow and true."""


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    conditions: tuple[str, ...] = (*SPIRALS, ETT, ETT_MIXED, PHYSIONET, FLOWS, CORTEX)
    samples: int = 500
    """Curves, and windows of the cortex; patients are eight times and flows half as many, but at least 100."""
    part: str = "test"
    """Part of ETTh1 and PhysioNet that is scored."""
    validation: float = 0.15
    """Share of the training samples that is held out, for CST and for the process alike."""
    minutes: float = 2.0
    """Time limit of each training."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of CST."""

    def size(self, condition: str) -> int:
        """Number of samples of a condition."""
        return max(100, self.samples // 2) if condition == FLOWS else self.samples

    def settings(self, seed: int) -> dict[str, Any]:
        """Settings of CST."""
        return {"seed": seed, "validation": self.validation, "max_minutes": self.minutes} | self.cst


class IntervalsExperiment(Experiment):
    """Coverage and width of intervals; see the module's docstring."""

    name = "intervals"
    presets = {  # noqa: RUF012
        "smoke": Config(
            conditions=(SPIRALS[-1], CORTEX), samples=100, validation=0.4, cst=PRESETS["smoke"] | {"steps": 2}
        ),
        "quick": Config(conditions=(*SPIRALS, ETT), part="validation", minutes=2.0),
        "default": Config(),
        "validation": Config(part="validation"),
    }

    def cells(self, config: Config) -> list[Cell]:
        """Every row of every condition whose data are there."""
        left_out = missing_data(config.conditions)
        return [Cell(row, condition) for condition in config.conditions if condition not in left_out for row in ROWS]

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Solve the flows."""
        if FLOWS in config.conditions:
            prepare_flows(config.size(FLOWS), seed, out, progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Predict the held-back observations and measure the intervals."""
        task = make_task(cell.condition, config.size(cell.condition), config.part, seed, folder.parent.parent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # samples rarely reach the ends of the domain
            if cell.model in (CST_ROW, ENSEMBLE):
                predict = predict_cst if cell.model == CST_ROW else predict_ensemble
                model, predicted, facts = predict(task, config.settings(seed), folder, progress)
                return finished_result(model, measure(task, predicted, model.scaling_), facts)
            predicted, scaling = predict_process(task, config.validation, seed, cell.model == PROCESS)
            return finished_result(None, measure(task, predicted, scaling), {})

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Coverage, width and scores of each row, CST against the others by their Winkler scores, and the figures."""
        table, scores, found = [], {}, dict[str, dict[str, dict]]()
        for cell, result in results.items():
            arrays = result.arrays
            found.setdefault(cell.condition, {})[cell.model] = arrays
            scores[cell.model, cell.condition] = arrays["winkler"][SHOWN]
            metrics = {
                f"coverage at {100 * level:.0f} %": summary(arrays["coverage"][LEVELS.index(level)])
                for level in REPORTED
            }
            worst = worst_stratum(arrays)
            metrics |= {
                "width at 90 %": summary(arrays["width"][SHOWN]),
                WINKLER: summary(arrays["winkler"][SHOWN]),
                "CRPS": summary(arrays["crps"]),
            }
            metrics |= {} if worst != worst else {"worst stratum at 90 %": {"mean": worst, "std": 0.0, "n": 1}}
            table.append(table_row(cell, result, metrics))
        tests = paired_tests(scores, [(CST_ROW, row, condition) for condition in found for row in ROWS[1:]])
        left_out = [f"{name} is left out: {why}" for name, why in missing_data(config.conditions).items()]
        return {
            "main": [
                entry
                for condition in config.conditions
                if condition not in SPIRALS[:-1]  # of the spirals, those with noise
                for entry in comparison(
                    table, f"intervals, {condition}", condition, WINKLER, CST_ROW, [ENSEMBLE], [PROCESS, RAW]
                )
            ],
            "table": table,
            "tests": tests,
            "figures": write_figures(planned_figures(found), out),
            "notes": [*NOTES, *_ratios(found), *left_out, *ended_notes(results)],
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test samples."""
        return make_task(condition, config.size(condition), config.part, seed, out).context


EXPERIMENT = IntervalsExperiment()

NOTES = (
    "Coverage is that of new observations, noise included: mean and standard deviation over samples. The worst stratum "
    "is the one of at least 500 cells, by distance to the nearest observation, by channel or, in the simulated cortex, "
    "by the noise of the pixel, whose coverage at 90 % is furthest from it.",
    "ETTh1 is scored on later months than those that calibrate: its samples are not exchangeable. With mixed months "
    "they are: the same windows, dealt to training and test at random.",
)


def _ratios(found: dict[str, dict[str, dict]]) -> list[str]:
    """Width of CST over that of the calibrated process, as they are and where both cover the same."""
    notes = []
    for condition, rows in found.items():
        if not {CST_ROW, PROCESS} <= set(rows):
            continue
        promised = [rows[row]["width"][SHOWN].mean() for row in (CST_ROW, PROCESS)]
        covering = [width_that_covers(rows[row], LEVELS[SHOWN]) for row in (CST_ROW, PROCESS)]
        note = (
            f"{condition}: intervals of CST at 90 % are {promised[0] / promised[1]:.2f} times as wide as those of the "
            f"calibrated process, and those that do cover 90 % {covering[0] / covering[1]:.2f} times"
        )
        if condition.endswith(NOISY):
            floor = 2 * norm.ppf((1 + LEVELS[SHOWN]) / 2) * np.hypot(NOISE, OBSERVATION_NOISE)
            note += f"; an interval that knew the curve would be {floor / covering[1]:.2f} times as wide"
        notes.append(f"{note}.")
    return notes
