"""Navier–Stokes flows from a few noisy frames at irregular times (the paper's experiment with fields).

Command: ``cst run navier-stokes --preset default``. Run time: about an hour on two cores.
Expect: mean squared errors of CST of 2.0e-4 with 10 given frames and of 5.0e-4 with 5; 2.0e-4 and 2.4e-3 for the
space–time Wiener filter, from which CST starts; 2.6e-4 and 2.9e-3 for the Wiener filter with a spline; 4.5e-3 and
1.1e-2 for linear interpolation (paper: CST 4.88e-3, 5 % below linear interpolation, at an unknown noise).

The equation is solved for 1300 initial conditions. CST and its rivals train for six minutes each on 10 (or 5) of 20
noisy frames of 1000 flows. They predict all frames of the other 300, which are compared with the noise-free fields.
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
    ZOOMED,
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
    JOINT,
    LINEAR,
    MIXED,
    NOISE_ROWS,
    ORDERS,
    PAPER_ERROR,
    RIVALS,
    SMOOTH,
    TO_LINEAR,
    TO_SPLINE,
    TRANSFORMER,
    Config,
    ablation,
    fitted_rows,
    make_model,
    table_order,
)
from cstformer.experiments.navier_stokes.task import Flows, flow_task, make_data, unseen_times
from cstformer.experiments.training import ended_notes, finished_result, train_cell
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
        """Both numbers of given frames, the ablation of the Sobolev term, the noise levels."""
        *levels, mixed = list(config.settings())[len(config.given) :]
        few = f"given={config.few}"
        cells = [Cell(row, f"given={g}") for g in config.given for row in (SMOOTH, LINEAR, JOINT, *RIVALS)]
        own = table_order(config)
        cells += [Cell(ablation(k), few) for k in ORDERS if k != own]
        cells.append(Cell(MIXED, mixed))
        cells += [Cell(row, f"given={g}") for g in config.given for row in CLASSICAL]
        return cells + [Cell(row, level) for level in levels for row in NOISE_ROWS]

    def row_name(self, name: str) -> str:
        """Translate keys of `BASELINES` to rows; the Transformer's two rows come from one training."""
        rows = {"cst": SMOOTH, TO_LINEAR: TRANSFORMER, TO_SPLINE: TRANSFORMER, "transformer-spline": TRANSFORMER}
        rows |= {key: row for row, key in CLASSICAL.items()} | {key: row for row, (key, _) in RIVALS.items()}
        return rows.get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Solve the equation for all flows."""
        make_data(_flows(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on the training flows; measure the test flows, and a few of them between frames."""
        flows = _flows(config, seed, folder.parent.parent)
        given, noise, highest = config.settings()[cell.condition]
        task = flow_task(flows, given, noise, highest)
        model = make_model(cell.model, config, seed)
        facts = train_cell(model, task.train, folder, progress)
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
        """Tables of both numbers of given frames (all and unseen times), of orders, noise levels and the fine grid."""
        flows = _flows(config, seed, out)
        looks, cells = _looks(results)
        few = f"given={config.few}"
        # The main table has one of the noise levels and one of the orders: its rows stand in those tables too.
        for row in NOISE_ROWS:
            _alias(looks, cells, (row, few), (row, f"{few},noise={config.noise:g}"))
        _alias(looks, cells, (SMOOTH, few), (ablation(table_order(config)), few))
        table: list[dict[str, Any]] = []
        errors: dict[Row, np.ndarray] = {}
        for (name, condition), source, metrics in _table_rows(config, flows, results, looks):
            cell, paper = cells[name, source], PAPER_ERROR.get(name) if condition == "given=10,all" else None
            summaries = {metric: summary(x) for metric, x in metrics.items()}
            table.append(table_row(Cell(name, condition, paper), results[cell], summaries))
            errors[name, condition] = metrics["MSE"]
        histories = {cell.condition: r.facts["history"] for cell, r in results.items() if cell.model == SMOOTH}
        return {
            "table": table,
            "tests": paired_tests(errors, _pairs(errors)),
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


def _table_rows(
    config: Config, flows: Flows, results: dict[Cell, CellResult], looks: dict[Row, Arrays]
) -> list[tuple[Row, str, dict[str, np.ndarray]]]:
    """All rows in order: row and condition in the table, condition in ``looks``, and metrics of each test flow."""
    rows: list[tuple[Row, str, dict[str, np.ndarray]]] = []
    few, orders = f"given={config.few}", [ablation(k) for k in ORDERS]
    for given in config.given:
        source, unseen = f"given={given}", unseen_times(flows, given)
        names = [name for name, condition in looks if condition == source and name not in orders]
        rows += [((name, f"{source},all"), source, _metrics(looks[name, source])) for name in names]
        for name in names:
            rows.append(((name, f"{source},unseen"), source, {"MSE": mean_at(looks[name, source]["mse"], unseen)}))
    unseen = unseen_times(flows, config.few)
    if any(cell.model in orders for cell in results):
        for name in [name for name in orders if (name, few) in looks]:
            look = looks[name, few]
            metrics = _metrics(look) | {"MSE, unseen times": mean_at(look["mse"], unseen)}
            rows.append(((name, f"{few},Sobolev order"), few, metrics))
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


def _pairs(errors: dict[Row, np.ndarray]) -> list[tuple[str, str, str]]:
    """CST against every other row of its condition, and the paper's own pair."""
    pairs = []
    for condition in dict.fromkeys(condition for _, condition in errors):
        names = [name for name, c in errors if c == condition]
        first = next((name for name in (SMOOTH, MIXED, ablation(0), ZOOMED) if name in names), None)
        pairs += [(first, other, condition) for other in names if first and other != first and "truth" not in other]
        pairs.append((JOINT, TO_LINEAR, condition))
    return pairs


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
    ]
    return notes + ended_notes(results)
