"""Interpolation of spirals from integral equations, clean and noisy (the paper's first experiment).

Command: ``cst run spirals --preset default``. Run time: about half an hour on two cores.
Expect: on clean curves CST has an error of about 0.029 (paper: 0.0386), which is 1.09 times the floor that the noise in
the data sets; with noise 0.1 it has about 0.056.

CST, its ablations and its rivals train on 350 curves observed at 10 points each. They are tested at the 90 unseen
points of 150 other curves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.baselines.search import search_learning_rate
from cstformer.data.samples import Samples
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import euclidean_error, paired_tests, roughness, summary
from cstformer.experiments.spirals.figures import planned_figures
from cstformer.experiments.spirals.rows import (
    ABLATIONS,
    BERT,
    BERT_AUGMENTED,
    CST_DEFAULT,
    CST_PAPER,
    FLOOR,
    INTERPOLATION,
    KEYS,
    PAPER_ERROR,
    RIVALS,
    TINY,
    Config,
    make_model,
    row_name,
)
from cstformer.experiments.spirals.task import CLEAN, CONDITIONS, NOISY, spiral_task
from cstformer.experiments.training import ended_notes, finished_result, train_cell


class SpiralsExperiment(Experiment):
    """Curves in the plane; see the module's docstring."""

    name = "spirals"
    presets = {  # noqa: RUF012
        "smoke": Config(curves=30, minutes=1.0, ablate=(CLEAN,), cst=TINY, paper=TINY, bert=TINY),
        "default": Config(paper={"steps": 2000}, bert={"steps": 9000}),
        "demo": Config(
            conditions=(CLEAN, NOISY),
            paper_sized=(CLEAN,),
            minutes=1.0,
            ablate=(),
            cst={"steps": 500},
            paper={"steps": 300},
            bert={"steps": 2000},
        ),
        "paper": Config(minutes=24 * 60, paper={"steps": 350_000, "dummies": 500}, bert={"steps": 350_000}),
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

    def _cells(self, config: Config, rivals: Sequence[str]) -> list[Cell]:
        rows = []
        for condition in config.conditions:
            names = [CST_DEFAULT]
            names += [CST_PAPER, BERT] if condition in config.paper_sized else []
            # The paper's control, the augmented Transformer, belongs to the clean comparison.
            names += [BERT_AUGMENTED] if condition == CLEAN and config.ablate else []
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
        model = make_model(cell.model, config, seed)
        facts: dict[str, Any] = {}
        if cell.model in KEYS and hasattr(model, "learning_rate"):
            model, search = search_learning_rate(model, data.train)
            facts["search"] = search.record()
        facts |= train_cell(model, data.train, folder, progress)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # irregular curves are rarely observed at both ends
            arrays = {"grid": model.predict(data.test, data.times), "fine": model.predict(data.test, data.fine)}
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Errors against the file's values and against the noise-free curve, roughness, paired tests, figures."""
        table, errors = [], {}
        for cell, result in results.items():
            data = spiral_task(config.curves, cell.condition, seed)
            observed = euclidean_error(result.arrays["grid"], data.values, data.unseen)
            clean = euclidean_error(result.arrays["grid"], data.clean, data.unseen)
            rough = roughness(result.arrays["fine"], data.clean_fine)
            errors[cell.model, cell.condition] = observed
            metrics = {
                "error": summary(observed),
                "error vs noise-free": summary(clean),
                "roughness": summary(rough),
            }
            table.append(table_row(cell, result, metrics))
        # CST against every other row of its condition, and the paper's own pair.
        pairs = [(CST_DEFAULT, name, condition) for name, condition in errors if name not in (CST_DEFAULT, FLOOR)]
        pairs += [(CST_PAPER, BERT, condition) for condition in CONDITIONS]
        tests = paired_tests(errors, pairs)
        planned = planned_figures(config, seed, results, errors, table, tests)
        return {
            "table": table,
            "tests": tests,
            "figures": write_figures(planned, out),
            "notes": _notes(errors, results),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test curves."""
        return spiral_task(config.curves, condition, seed).test


EXPERIMENT = SpiralsExperiment()


def _notes(errors: dict[tuple[str, str], np.ndarray], results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        "Errors are mean Euclidean distances at the unseen points of test curves, in raw units: `error` against the "
        "values of the file (which carry noise of their own), `error vs noise-free` against the noise-free curve.",
        "Roughness is the mean squared second difference on 1000 coordinates, divided by that of the noise-free curve.",
        "In pattern `context` no token reads a query, so dummy points have no effect without the Sobolev term: "
        "mu = 0 and no dummy points are the same model.",
        "The Transformer sees the constant 0.5 at a query and is asked one query at a time.",
    ]
    for condition in CONDITIONS:
        if {(CST_DEFAULT, condition), (FLOOR, condition)} <= set(errors):
            ratio = errors[CST_DEFAULT, condition].mean() / errors[FLOOR, condition].mean()
            notes.append(f"{condition}: CST's error is {ratio:.3f} × the floor set by the file's own noise.")
    searches = {c.model: f"{r.facts['search']['seconds']:.0f} s" for c, r in results.items() if "search" in r.facts}
    if searches:
        cost = ", ".join(f"{model} {seconds}" for model, seconds in searches.items())
        notes.append(
            "The learning rates of these models were chosen by short trials, whose time is not part of the training "
            f"time: {cost}."
        )
    return notes + ended_notes(results)
