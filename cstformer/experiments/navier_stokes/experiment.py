"""Navier–Stokes flows from a few noisy frames at irregular times (the paper's experiment with fields).

Command: ``cst run navier-stokes --preset default``. Run time: about an hour and a quarter on two cores.
Expect: mean squared errors of CST of about 2e-4 with 10 given frames and of 5e-4 with 5; 2e-4 and 2.4e-3 for the
space–time Wiener filter, from which CST starts; 4.5e-3 and 1.1e-2 for linear interpolation (paper: CST 4.88e-3, 5 %
below linear interpolation, at an unknown noise).

The equation is solved for 450 initial conditions. CST and its rivals train for three and a half minutes each, with
three seeds, on 10 (or 5) of 20 noisy frames of 300 flows. They predict all frames of the other 150, which are compared
with the noise-free fields. The learning rate of every rival is searched on validation flows. Two rivals are also given
the frames that CST's start has cleaned. `cst run sobolev` has the orders of the Sobolev term.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.datasets.navier_stokes import Law
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.navier_stokes.errors import (
    Arrays,
    Row,
    closer_look,
    frame_errors,
    mean_at,
    zoomed_fields,
)
from cstformer.experiments.navier_stokes.figures import planned_figures
from cstformer.experiments.navier_stokes.rows import (
    CLASSICAL,
    FILTERED,
    JOINT,
    MIXED,
    NOISE_ROWS,
    PAPER_ERROR,
    PUBLISHED,
    RIVALS,
    SMOOTH,
    TO_LINEAR,
    TO_SPLINE,
    TRANSFORMER,
    Config,
    fitted_rows,
    make_model,
    questions,
)
from cstformer.experiments.navier_stokes.task import Flows, filtered_task, flow_task, make_data, unseen_times
from cstformer.experiments.training import ended_notes, finished_result, search_notes, searched, train_cell
from cstformer.report.main_table import comparison
from cstformer.training.settings import PRESETS

SEPARATOR = " | "  # between row, condition and quantity in the names of arrays


class NavierStokesExperiment(Experiment):
    """Fields between given frames; see the module's docstring."""

    name = "navier-stokes"
    needs = ("zarr",)
    presets = {  # noqa: RUF012
        "smoke": Config(
            training=8,
            test=4,
            size=16,
            patch=4,
            given=(6, 4),
            until=8.0,
            seeds=1,
            minutes=1.0,
            closer=3,
            zoom=2,
            preset="smoke",
            cst=PRESETS["smoke"] | {"steps": 3, "order": 1, "dummies": 4, "landmarks": 8, "mu": "auto"},
            rivals={"steps": 3},
        ),
        "default": Config(),
        "paper": Config(minutes=24 * 60, preset="paper"),
    }

    def cells(self, config: Config) -> list[Cell]:
        """Both numbers of given frames, and the noise levels."""
        *levels, mixed = list(config.settings())[len(config.given) :]
        cells = [Cell(SMOOTH, f"given={g}") for g in config.given]
        cells += [Cell(row, f"given={max(config.given)}") for row in (JOINT, *PUBLISHED)]
        others = [row for row in RIVALS if row not in PUBLISHED or (row == TRANSFORMER and len(config.given) > 1)]
        cells += [Cell(row, f"given={config.few}") for row in others]
        cells.append(Cell(MIXED, mixed))
        cells += [Cell(row, f"given={g}") for g in config.given for row in CLASSICAL]
        return cells + [Cell(row, level) for level in levels for row in NOISE_ROWS]

    def repeats(self, cell: Cell, config: Config) -> int:
        """Networks are trained several times, except the paper's operators, whose errors are far larger."""
        return 1 if cell.model in CLASSICAL or cell.model in PUBLISHED[1:] else config.seeds

    def row_name(self, name: str) -> str:
        """Translate keys of `BASELINES` to rows; the Transformer's two rows come from one training."""
        rows = {"cst": SMOOTH, TO_LINEAR: TRANSFORMER, TO_SPLINE: TRANSFORMER, "transformer-spline": TRANSFORMER}
        rows |= {key: row for row, key in CLASSICAL.items()}
        rows |= {key: row for row, (key, _) in reversed(RIVALS.items())}  # of several rows of a rival, the first
        return rows.get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Solve the equation for all flows."""
        make_data(_flows(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on the training flows; measure the test flows, and a few of them between frames."""
        flows = _flows(config, seed, folder.parent.parent)
        given, noise, highest = config.settings()[cell.condition]
        task = flow_task(flows, given, noise, highest)
        task = filtered_task(task, flows) if cell.model.endswith(FILTERED) else task
        model = make_model(cell.model, config, seed + cell.repeat)
        model, facts = searched(model, task.train) if cell.model in RIVALS else (model, {})
        facts |= train_cell(model, task.train, folder, progress)
        looks: dict[Row, Arrays] = {}
        if highest is not None:
            for level in config.levels:
                test = flow_task(flows, given, level)
                looks[cell.model, f"given={given},noise={level:g}"] = frame_errors(model, test, flows, config.overlap)
        else:
            for name, system in fitted_rows(cell.model, model).items():
                looks[name, cell.condition] = look = frame_errors(system, task, flows, config.overlap)
                if noise == config.noise:
                    look |= closer_look(system, task, flows, config.overlap, config.closer)
        if (cell.model, given) == (SMOOTH, config.few):
            fine = zoomed_fields(model, task, flows, 2 * config.overlap, config.closer, config.zoom)
            looks |= {(name, config.zoomed): arrays for name, arrays in fine.items()}
        arrays = {SEPARATOR.join((*row, kind)): x for row, look in looks.items() for kind, x in look.items()}
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Tables of both numbers of given frames (all and unseen times), of noise levels and of the fine grid."""
        flows = _flows(config, seed, out)
        few = f"given={config.few}"
        rows: dict[Row, list[tuple[Cell, dict[str, np.ndarray]]]] = {}
        for results_of_seed in _by_seed(results):
            looks, cells = _looks(results_of_seed)
            # The main table has one of the noise levels: its rows stand in those tables too.
            for row in NOISE_ROWS:
                _alias(looks, cells, (row, few), (row, f"{few},noise={config.noise:g}"))
            for (name, condition), source, metrics in _table_rows(config, flows, looks):
                rows.setdefault((name, condition), []).append((cells[name, source], metrics))
        table: list[dict[str, Any]] = []
        errors: dict[Row, np.ndarray] = {}
        for (name, condition), found in rows.items():
            paper = PAPER_ERROR.get(name) if condition == "given=10,all" else None
            metrics = {metric: np.stack([m[metric] for _, m in found]) for metric in found[0][1]}
            summaries = {metric: summary(x) for metric, x in metrics.items()}
            table.append(table_row(Cell(name, condition, paper), results[found[0][0]], summaries))
            errors[name, condition] = metrics["MSE"]
        looks = _looks(results)[0]
        histories = {cell.condition: r.facts["history"] for cell, r in results.items() if cell.model == SMOOTH}
        conditions = dict.fromkeys(condition for _, condition in errors)
        return {
            "main": _main(table, config),
            "table": table,
            "tests": paired_tests(errors, [pair for condition in conditions for pair in questions(condition)]),
            "figures": write_figures(planned_figures(config, flows, looks, histories), out),
            "notes": _notes(config, results),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The given frames of the test flows."""
        return flow_task(_flows(config, seed, out), *config.settings()[condition]).test


EXPERIMENT = NavierStokesExperiment()


def _flows(config: Config, seed: int, out: Path) -> Flows:
    law = Law(samples=config.training + config.test, until=config.until, size=config.size, seed=seed)
    return Flows(out / "flows.zarr", config.training, law, config.patch, seed)


def _by_seed(results: dict[Cell, CellResult]) -> list[dict[Cell, CellResult]]:
    """Results of the first seed, of the second and so on; rows without training are in the first alone."""
    most = max((len(result.others) for result in results.values()), default=0)
    later = [{c: r.others[k] for c, r in results.items() if len(r.others) > k} for k in range(most)]
    return [results, *later]


def _looks(results: dict[Cell, CellResult]) -> tuple[dict[Row, Arrays], dict[Row, Cell]]:
    """Arrays of each row and condition, and the cell that they come from."""
    looks: dict[Row, Arrays] = {}
    cells: dict[Row, Cell] = {}
    for cell, result in results.items():
        for key, x in result.arrays.items():
            name, condition, kind = key.split(SEPARATOR)
            looks.setdefault((name, condition), {})[kind] = x
            cells[name, condition] = cell
    return looks, cells


def _alias(looks: dict[Row, Any], cells: dict[Row, Cell], known: Row, other: Row) -> None:
    """Let a row appear under another name and condition too."""
    if known in looks:
        looks[other], cells[other] = looks[known], cells[known]


def _table_rows(config: Config, flows: Flows, looks: dict[Row, Arrays]) -> list[tuple[Row, str, dict[str, np.ndarray]]]:
    """All rows in order: row and condition in the table, condition in ``looks``, and metrics of each test flow."""
    rows: list[tuple[Row, str, dict[str, np.ndarray]]] = []
    few = f"given={config.few}"
    for given in config.given:
        source, unseen = f"given={given}", unseen_times(flows, given)
        names = [name for name, condition in looks if condition == source]
        rows += [((name, f"{source},all"), source, _metrics(looks[name, source])) for name in names]
        for name in names:
            rows.append(((name, f"{source},unseen"), source, {"MSE": mean_at(looks[name, source]["mse"], unseen)}))
    unseen = unseen_times(flows, config.few)
    for level in [f"{few},noise={n:g}" for n in config.levels if (MIXED, f"{few},noise={n:g}") in looks]:
        for name in [name for name in (MIXED, *NOISE_ROWS) if (name, level) in looks]:
            error = looks[name, level]["mse"]
            metrics = {"MSE": error.mean(1), "MSE, unseen times": mean_at(error, unseen)}
            rows.append(((name, level), level, metrics))
    for (name, condition), look in looks.items():
        if condition == config.zoomed:
            metrics = {"MSE": look["mse"], "seams": look["seams"]}
            rows.append(((name, f"{few},{condition}"), condition, metrics))
    return rows


def _metrics(look: Arrays) -> dict[str, np.ndarray]:
    return {"MSE": look["mse"].mean(1), "MSE of ∂w/∂t": look["slope"].mean(1), "roughness": look["roughness"]}


def _main(table: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    trained = [row for row in (*RIVALS, TO_LINEAR, TO_SPLINE, f"{TO_LINEAR}{FILTERED}", f"{TO_SPLINE}{FILTERED}")]
    found = []
    for given in config.given:
        question = f"flow from {given} of {len(range(round(config.until)))} noisy frames"
        paper = (4.88e-3, "818 K") if given == 10 else None
        found += comparison(table, question, f"given={given},all", "MSE", SMOOTH, trained, list(CLASSICAL), paper)
    return found


def _notes(config: Config, results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        f"{config.training} flows train, {config.test} test, {config.size} × {config.size} points, times 1 to "
        f"{config.until:g}. The first and the last frame are given, the others drawn for each flow. White noise of "
        f"{config.noise:.0%} of the training frames' standard deviation where no level is named; training targets are "
        f"noisy too. At most {config.minutes:g} minutes for each training.",
        "MSE: against the noise-free field, in raw units, averaged over the frames; a test flow is one observation.",
        f"MSE of ∂w/∂t and roughness: {config.closer} test flows at four times per time unit. The true slope is the "
        "right-hand side of the equation. CST's slope is its own derivative, that of other models is taken by "
        "differences. Roughness is the mean squared second difference in time, divided by that of the noise-free flow.",
        "Seams: mean squared second difference across the borders of patches, divided by that inside patches.",
        "The space–time Wiener filter is CST's smooth start alone: a Gaussian process in time for each band of waves.",
        "The two rows of the Transformer share a training, and so do those of one CST at several noise levels.",
        f"Rows “{FILTERED.strip()}” are given the frames that this filter has cleaned, in training and test.",
    ]
    return notes + search_notes(results) + ended_notes(results)
