"""Interpolation of spirals from integral equations, clean and noisy (the paper's first experiment).

Command: ``cst run spirals --preset default``. Run time: about an hour and a half on two cores.
Expect: on clean curves CST has an error of about 0.029 (paper: 0.0386), which is 1.09 times the floor that the noise in
the data sets; with noise 0.1 it has about 0.056.

CST, its ablations and its rivals train on 350 curves observed at 10 points each. They are tested at the 90 unseen
points of 150 other curves. The paper's CST and Transformer, of its size, are compared twice: with equal minutes, and
with equal steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.data.samples import Samples
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import euclidean_error, paired_tests, roughness, summary
from cstformer.experiments.spirals.claims import claims, main_comparisons
from cstformer.experiments.spirals.figures import planned_figures
from cstformer.experiments.spirals.rows import (
    ABLATIONS,
    BERT,
    BERT_AUGMENTED,
    BERT_STEPS,
    CST_DEFAULT,
    CST_DUMMIES,
    CST_PAPER,
    CST_STEPS,
    FLOOR,
    INTERPOLATION,
    KEYS,
    PAPER_ERROR,
    PAPER_ROWS,
    RIVALS,
    TINY,
    Config,
    make_model,
    questions,
    row_name,
)
from cstformer.experiments.spirals.task import CLEAN, CONDITIONS, NOISY, SpiralTask, spiral_task
from cstformer.experiments.training import ended_notes, finished_result, search_notes, searched, train_cell


class SpiralsExperiment(Experiment):
    """Curves in the plane; see the module's docstring."""

    name = "spirals"
    presets = {  # noqa: RUF012
        "smoke": Config(
            curves=40,
            seeds=1,
            fewer=1,
            paper_sized=(CLEAN,),
            minutes=1.0,
            steps=10,
            most_dummies={"dummies": 12},
            ablate=(CLEAN,),
            cst=TINY,
            paper=TINY | {"dummies": 10, "mu": 0.0},
            bert=TINY,
        ),
        # 50 of the paper's 500 dummy points: with all of them three minutes are a tenth of the steps. One row has them.
        "default": Config(paper={"steps": 2000, "dummies": 50}, bert={"steps": 9000}),
        "demo": Config(
            conditions=(CLEAN, NOISY),
            seeds=1,
            paper_sized=(CLEAN,),
            minutes=1.0,
            steps=100,
            most_dummies=None,
            ablate=(),
            cst={"steps": 500},
            paper={"steps": 300, "dummies": 50},
            bert={"steps": 2000},
        ),
        "paper": Config(minutes=24 * 60, steps=10_000, paper={"steps": 350_000}, bert={"steps": 350_000}),
    }

    def cells(self, config: Config) -> list[Cell]:
        """CST, the Transformer, the rivals of the other experiments, interpolation, ablations."""
        return self._cells(config, RIVALS)

    def all_cells(self, config: Config) -> list[Cell]:
        """The same with every baseline that can read curves."""
        rows = {*INTERPOLATION.values(), "transformer"}  # these have a row already
        return self._cells(config, [k for k, cls in BASELINES.items() if k not in rows and not cls.frames_only])

    def row_name(self, name: str) -> str:
        """Translate keys of `BASELINES` to rows."""
        return row_name(name)

    def repeats(self, cell: Cell, config: Config) -> int:
        """Five trainings of the models that the paper compares, three of the others."""
        if cell.model == FLOOR or cell.model in INTERPOLATION:
            return 1
        few = cell.model in (*ABLATIONS, CST_DUMMIES) or (cell.model in KEYS and cell.model != BERT)
        return config.fewer if few else config.seeds

    def _cells(self, config: Config, rivals: Sequence[str]) -> list[Cell]:
        rows = []
        for condition in config.conditions:
            names = [CST_DEFAULT]
            names += [CST_PAPER, BERT, CST_STEPS, BERT_STEPS] if condition in config.paper_sized else []
            # The paper's control, the augmented Transformer, belongs to the clean comparison.
            names += [BERT_AUGMENTED] if condition == CLEAN and config.ablate else []
            names += [CST_DUMMIES] if condition == CLEAN and config.most_dummies is not None else []
            names += [BASELINES[key].label for key in rivals] if condition in config.ablate else []
            names += [*INTERPOLATION, FLOOR]
            names += ABLATIONS if condition in config.ablate else []
            rows += [Cell(name, condition, PAPER_ERROR.get((name, condition))) for name in names]
        return rows

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on the training curves, predict the test curves on the grid and on the fine grid."""
        data = spiral_task(config.curves, cell.condition, seed)
        if cell.model == FLOOR:
            return CellResult({"grid": data.clean, "fine": data.clean_fine}, 0, 0.0, {})
        model = make_model(cell.model, config, seed + cell.repeat)
        # The paper's models have the rate of its notebook, and CST its default.
        rival = cell.model in KEYS and cell.model not in PAPER_ROWS
        model, facts = searched(model, data.train) if rival else (model, {})
        facts |= train_cell(model, data.train, folder, progress)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # irregular curves are rarely observed at both ends
            arrays = {"grid": model.predict(data.test, data.times), "fine": model.predict(data.test, data.fine)}
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Errors against the file's values and against the noise-free curve, roughness, paired tests, figures."""
        table, errors = [], {}
        for cell, result in results.items():
            metrics = _metrics(result, spiral_task(config.curves, cell.condition, seed), _unit(config, seed))
            errors[cell.model, cell.condition] = metrics["error"]
            table.append(table_row(cell, result, {name: summary(x) for name, x in metrics.items()}))
        conditions = dict.fromkeys(cell.condition for cell in results)
        tests = paired_tests(errors, [pair for condition in conditions for pair in questions(condition)])
        means = {key: x.mean(0) for key, x in errors.items()}
        return {
            "main": main_comparisons(table),
            "claims": claims(table, tests),
            "table": table,
            "tests": tests,
            "figures": write_figures(planned_figures(config, seed, results, means, table, tests), out),
            "notes": _notes(means, results, _unit(config, seed)),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test curves."""
        return spiral_task(config.curves, condition, seed).test


EXPERIMENT = SpiralsExperiment()


def _metrics(result: CellResult, task: SpiralTask, unit: float) -> dict[str, np.ndarray]:
    """Errors and roughness (seeds, curves) of a row."""
    observed = result.over_seeds(lambda a: euclidean_error(a["grid"], task.values, task.unseen))
    return {
        "error": observed,
        "scaled error": observed / unit,
        "error vs noise-free": result.over_seeds(lambda a: euclidean_error(a["grid"], task.clean, task.unseen)),
        "roughness": result.over_seeds(lambda a: roughness(a["fine"], task.clean_fine)),
    }


def _unit(config: Config, seed: int) -> float:
    """What the published code divides all values by: the 0.98 quantile of their absolute size."""
    return float(np.quantile(np.abs(spiral_task(config.curves, CLEAN, seed).values), 0.98))


def _notes(errors: dict[tuple[str, str], np.ndarray], results: dict[Cell, CellResult], unit: float) -> list[str]:
    notes = [
        "Errors are mean Euclidean distances at the unseen points of test curves, in raw units: `error` against the "
        "values of the file (which carry noise of their own), `error vs noise-free` against the noise-free curve. "
        f"`scaled error` is in units of {unit:.3f}, by which the published code divides the curves; the paper does not "
        "say which units its errors have.",
        "Roughness is the mean squared second difference on 1000 coordinates, divided by that of the noise-free curve.",
        "The Transformer sees the constant 0.5 at a query and is asked one query at a time.",
    ]
    for condition in CONDITIONS:
        if {(CST_DEFAULT, condition), (FLOOR, condition)} <= set(errors):
            ratio = errors[CST_DEFAULT, condition].mean() / errors[FLOOR, condition].mean()
            notes.append(f"{condition}: CST's error is {ratio:.3f} × the floor set by the file's own noise.")
    for cell, result in results.items():
        if cell.model in (CST_PAPER, CST_STEPS) and "mu" in result.facts:
            weights = ", ".join(f"{r.facts['mu']:.2g}" for r in (result, *result.others))
            notes.append(f"{cell.model}, {cell.condition}: weight μ of the Sobolev term, by short trials: {weights}.")
    return notes + search_notes(results) + ended_notes(results)
