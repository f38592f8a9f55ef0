"""Imputation: missing values of real and simulated series, from the values that are there.

Command: ``cst run imputation --preset default``. Run time: about an hour on two cores, most of it for three
repetitions of a minute and a half of each trained model; ``--preset long`` gives each ten minutes, and takes five
hours. Without the files that ``CST_DATA`` should name, only the simulated oscillators are run, in ten minutes.

Data sets: ETTh1 with 10, 50 and 90 % of the cells removed, PhysioNet 2012 with half of the time points given, ERA5 with
every sixth hour given, and simulated oscillators with half of the cells removed. CST has no settings but its time limit
and the seed, and on ETTh1 a second row with p = 1, because the published measure is the absolute error. Scores are
those of the asked cells of test samples; the preset ``validation`` scores validation samples instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines.interpolation import thin_plate
from cstformer.baselines.peers import MISSING, PEERS, impute, peers_installed
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.era5 import PATCH, FieldTask
from cstformer.datasets.gaps import GapTask, error_sums
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.imputation.figures import planned_figures
from cstformer.experiments.imputation.rows import (
    BOOSTING,
    CLASSICAL,
    CST_ABSOLUTE,
    CST_ROW,
    ETT,
    OSCILLATORS,
    QUESTIONS,
    SMOOTHING,
    TRANSFORMER,
    Config,
    make_model,
    published,
    row_name,
    rows_of,
)
from cstformer.experiments.imputation.task import (
    curve_times,
    data_of,
    make_task,
    missing_data,
    shown_samples,
)
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.training import ended_notes, finished_result, train_cell
from cstformer.models.movie_answers import predict_movie
from cstformer.report.main_table import comparison
from cstformer.training.settings import PRESETS

UNITS = {"MAE": "absolute", "MSE": "squared"}
"""Sums of a cell from which each measure is made."""


class ImputationExperiment(Experiment):
    """Missing values of several data sets; see the module's docstring."""

    name = "imputation"
    presets = {  # noqa: RUF012
        "smoke": Config(
            data=(OSCILLATORS,),
            seeds=2,
            minutes=0.02,
            train=16,
            scored=12,
            preset="smoke",
            cst=PRESETS["smoke"],
            peers={"n_layers": 1},
        ),
        "quick": Config(shares=(0.5,), part="validation", seeds=1, minutes=2.0),
        "single": Config(seeds=1, minutes=10.0),
        "default": Config(),
        "long": Config(minutes=10.0),
        "validation": Config(part="validation"),
    }

    def cells(self, config: Config) -> list[Cell]:
        """Every row of every condition whose data are there."""
        left_out = missing_data(config)
        return [
            Cell(row, condition, published(row, condition, config))
            for condition in config.conditions()
            if data_of(condition) not in left_out
            for row in rows_of(data_of(condition))
        ]

    def repeats(self, cell: Cell, config: Config) -> int:
        """Every row, because each seed has gaps of its own."""
        return config.seeds

    def row_name(self, name: str) -> str:
        """Translate keys of `BASELINES` to rows."""
        return row_name(name)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on the training samples and measure the answers at the asked cells."""
        number = seed + cell.repeat
        task = make_task(cell.condition, config, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # samples rarely reach the ends of the domain
            if isinstance(task, FieldTask):
                return _fields(cell.model, task, config, number, folder, progress)
            if cell.model in PEERS:
                return _peer(cell.model, task, config, number)
            model = make_model(cell.model, config, number, movie=False)
            facts = train_cell(model, task.train, folder, progress)
            arrays = task.errors(model.predict(task.context, task.at))
            if cell.repeat == 0:
                arrays["curve"] = model.predict(task.context[shown_samples(task)], curve_times(task))
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """One table for each condition: errors over seeds and over samples; paired tests over samples."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        for cell, result in results.items():
            metrics = {}
            for name in list(UNITS) if data_of(cell.condition) == ETT else list(UNITS)[::-1]:
                key = cell.model, f"{cell.condition}, {name}"
                errors[key] = _by_sample((result, *result.others), name)
                pooled = np.array([_pooled(r, name) for r in (result, *result.others)])
                seeds = {"seeds": len(pooled), "seed_std": float(pooled.std(ddof=1))} if len(pooled) > 1 else {}
                metrics[name] = summary(errors[key]) | {"mean": float(pooled.mean())} | seeds
            table.append(table_row(cell, result, metrics))
        return {
            "main": _main(table, config),
            "table": table,
            "tests": paired_tests(errors, _pairs(errors)),
            "figures": write_figures(planned_figures(config, seed, results, table), out),
            "notes": _notes(config, results),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """What is given of the scored samples."""
        task = make_task(condition, config, seed)
        if isinstance(task, GapTask):
            return task.context
        return frames_to_samples(task.given[:10], PATCH, times=task.hours[:10] - task.hours[0])


EXPERIMENT = ImputationExperiment()


def _fields(row: str, task: FieldTask, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
    """A row of ERA5: CST and the Transformer read patches, all others a curve for each pixel."""
    model: Any = None
    facts: dict[str, Any] = {}
    if row in SMOOTHING:
        answer = thin_plate(task.flat, task.asked, SMOOTHING[row])
    else:
        movie = row in (CST_ROW, TRANSFORMER)
        model = make_model(row, config, seed, movie)
        # The kernel of a Gaussian process is that of the recording itself; the mean is that of the training hours.
        learned = task.train if movie else task.learned if row == "mean" else task.flat
        facts = train_cell(model, learned, folder, progress)
        answer = (
            predict_movie(model, task.given, task.hours, task.asked) if movie else model.predict(task.flat, task.asked)
        )
    asked = np.ones(task.truth.shape, dtype=bool)
    return finished_result(model, error_sums(answer.reshape(task.truth.shape), task.truth, asked), facts)


def _peer(name: str, task: GapTask, config: Config, seed: int) -> CellResult:
    """A row of PyPOTS."""
    sizes = config.peers if name == "SAITS" else None
    done = impute(name, task.train, task.context, task.at, config.minutes, seed, sizes)
    return CellResult(task.errors(done.values), done.parameters, done.seconds, {"steps": done.steps})


def _pooled(result: CellResult, measure: str) -> float:
    """Mean error over all asked cells of all samples."""
    return float(result.arrays[UNITS[measure]].sum() / result.arrays["cells"].sum())


def _by_sample(results: Sequence[CellResult], measure: str) -> np.ndarray:
    """Mean error over the asked cells of each sample and all seeds; samples without such cells are left out."""
    total = sum(r.arrays[UNITS[measure]] for r in results)
    cells = np.asarray(sum(r.arrays["cells"] for r in results))
    return np.asarray(total)[cells > 0] / cells[cells > 0]


def _pairs(errors: dict[tuple[str, str], np.ndarray]) -> list[tuple[str, str, str]]:
    """CST against `QUESTIONS` in squared error; on ETTh1 the row with p = 1 in absolute error too."""
    conditions = dict.fromkeys(condition for _, condition in errors)
    firsts = {c: CST_ROW if c.endswith("MSE") else CST_ABSOLUTE for c in conditions}
    return [(firsts[condition], row, condition) for condition in conditions for row in QUESTIONS]


def _main(table: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    """The middle share of ETTh1, and every other data set."""
    found = []
    for condition, share in config.conditions().items():
        if data_of(condition) == ETT and share != 0.5:
            continue
        trained, classical = [TRANSFORMER, *PEERS, BOOSTING], [*CLASSICAL, *SMOOTHING]
        found += comparison(table, f"missing values, {condition}", condition, "MSE", CST_ROW, trained, classical)
    return found


def _notes(config: Config, results: dict[Cell, CellResult]) -> list[str]:
    notes = [f"Left out: {reason}." for reason in missing_data(config).values()]
    if not peers_installed():
        notes.append(f"Left out: {' and '.join(PEERS)}. {MISSING}.")
    notes += [
        f"Scored: {config.part} samples. Errors are averages over all asked cells. ± is the standard deviation over "
        f"samples (windows, patients, frames), whose means over the {config.seeds} seeds the tests compare. Each seed "
        "has its own gaps and weights.",
        "Every model learns from the same training samples and holds out its own part of them to choose its weights. "
        f"Each training ends after {config.minutes:g} minutes at the latest; SAITS and BRITS take all of this time.",
    ]
    if ETT in config.data and config.part == "test":
        notes.append(
            "The column “paper” has the absolute errors printed in TSI-Bench (Du et al. 2024), of larger networks."
        )
    return notes + ended_notes({c: r for c, r in results.items() if "ended" in r.facts})
