"""Up-sampling of attention maps on the spirals (the paper's Figures 3, 11 and 12).

Command: ``cst run attention --preset default``. Run time: about a quarter of an hour on two cores.
Expect: in pattern ``context`` an error of about 0.011 for CST's maps and of 0.029 for linear interpolation, P < 0.0001
(the paper shows a figure without numbers).

CST trains with 10 real and 10 random dummy points. It is then asked for the attention between the 10 observed points of
150 other curves and 10 more coordinates whose values it is not told. The truth is the map of the same model when it is
told these values. CST's maps are compared with linear interpolation of the 10 × 10 map, with and without rows
normalised to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.experiments.attention.figures import planned_figures
from cstformer.experiments.attention.maps import (
    CONTEXT,
    JOINT,
    LINEAR,
    METHODS,
    NORMALISED,
    PAPER,
    TRUTH,
    UPSAMPLED,
    compare_maps,
    map_error,
)
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.spirals.task import CLEAN, spiral_task
from cstformer.experiments.training import ended_notes, finished_result, train_cell
from cstformer.models.cst import CST
from cstformer.report.main_table import comparison
from cstformer.report.tables import format_number

DUMMIES = 10
SHOWN = 4  # curves whose maps are kept for the figures


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 500
    systems: tuple[str, ...] = (JOINT, CONTEXT, PAPER)
    seeds: int = 3
    """Trainings of each model."""
    minutes: float = 3.0
    """Time limit of the model of the paper's size."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every model."""


class AttentionExperiment(Experiment):
    """Attention maps at new coordinates; see the module's docstring."""

    name = "attention"
    presets = {  # noqa: RUF012
        "default": Config(),
        "smoke": Config(
            curves=40,
            seeds=1,
            systems=(JOINT, CONTEXT),
            cst={"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 30, "batch": 8},
        ),
        "paper": Config(minutes=24 * 60),
    }

    def cells(self, config: Config) -> list[Cell]:
        """One model for each system; its maps give several rows of the table."""
        return [Cell("CST", system) for system in config.systems]

    def repeats(self, cell: Cell, config: Config) -> int:
        """Each model is trained several times."""
        return config.seeds

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Train, then compare the maps of every test curve."""
        data = spiral_task(config.curves, CLEAN, seed)
        model = _model(cell.condition, config, seed + cell.repeat)
        facts = train_cell(model, data.train, folder, progress)
        maps = compare_maps(model, data)
        arrays = {f"map {name}": m[:SHOWN].mean(2) for name, m in maps.all.items()}
        arrays |= {"rows": maps.rows, "columns": maps.columns, "given": maps.given}
        for name in maps.methods:
            arrays[f"average {name}"] = map_error(maps.all[name].mean(2), maps.all[TRUTH].mean(2), maps.new)
            arrays[f"heads {name}"] = map_error(maps.all[name], maps.all[TRUTH], maps.new).mean(2)
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A row for each method, system and layer; CST against both interpolations; the figures."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        for cell, result in results.items():
            methods = [name for name in METHODS if f"average {name}" in result.arrays]
            layers = result.arrays[f"average {UPSAMPLED}"].shape[1]
            for layer in (slice(None), *range(layers)):
                where = "all layers" if isinstance(layer, slice) else f"layer {layer + 1}"
                condition = f"{cell.condition}, {where}"
                for name in methods:
                    average, heads = (
                        result.over_seeds(partial(_of_layer, f"{kind} {name}", layer)) for kind in ("average", "heads")
                    )
                    metrics = {"error, head average": summary(average), "error, each head": summary(heads)}
                    table.append(table_row(Cell(name, condition), result, metrics))
                    errors[name, condition] = average
        whole = [key for key in errors if key[1].endswith("all layers")]
        tests = paired_tests(errors, [(UPSAMPLED, name, where) for name, where in whole if name != UPSAMPLED])
        main = [entry for system in config.systems for entry in _main(table, system)]
        figures = write_figures(planned_figures(results, tests), out)
        notes = [*NOTES, *ended_notes(results)]
        found = {"main": main, "claims": _claims(table, tests, config.systems), "table": table, "tests": tests}
        return found | {"figures": figures, "notes": notes}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test curves."""
        return spiral_task(config.curves, CLEAN, seed).test


EXPERIMENT = AttentionExperiment()

NOTES = (
    "Error: L2 norm over the entries of a map that involve one of the 10 new coordinates; a test curve is one "
    "observation. The truth is the map of the same model when it is told the values there.",
    "In `joint` 20 tokens read each other: a map is 20 × 20, and the map of the 10 given points alone is "
    "interpolated along both axes. Its rows then sum to about 2, not 1; the second variant divides by that sum.",
    "In `context` the new coordinates read the given points only: a map is 10 × 10 and shows which points the model "
    "reads for its answer. Rows between those of given points are interpolated from them, and sum to one.",
)


def _of_layer(name: str, layer: slice | int, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Mean over the chosen layers of each curve's errors (curves, layers)."""
    return arrays[name][:, layer].reshape(len(arrays[name]), -1).mean(1)


def _main(table: list[dict[str, Any]], system: str) -> list[dict[str, Any]]:
    question = f"attention at new coordinates ({system})"
    others = [name for name in METHODS if name != UPSAMPLED]
    return comparison(table, question, f"{system}, all layers", "error, head average", UPSAMPLED, [], others)


def _claims(table: list[dict[str, Any]], tests: list[dict[str, Any]], systems: Sequence[str]) -> list[dict[str, Any]]:
    """The paper's claim for each system, against the interpolation whose rows sum to one where there is one."""
    metric, found = "error, head average", []
    for system in systems:
        condition = f"{system}, all layers"
        rows = {row["model"]: row["metrics"][metric]["mean"] for row in table if row["condition"] == condition}
        other = NORMALISED if NORMALISED in rows else LINEAR
        test = next((t for t in tests if t["condition"] == condition and t["name"].endswith(f"vs {other}")), None)
        clear = test is not None and test["p_value"] <= 0.05
        holds = "not clear" if not clear else "yes" if rows[UPSAMPLED] < rows[other] else "no"
        text = f"{format_number(rows[UPSAMPLED])}, {other} {format_number(rows[other])}"
        claim = f"CST's attention at new coordinates is nearer to the truth than interpolated attention ({system})"
        found.append({"claim": claim, "holds": holds, "text": text})
    return found


def _model(system: str, config: Config, seed: int) -> CST:
    """The model of a system, not fitted. In `joint` real points stay visible beside dummy points, as in the paper."""
    common: dict[str, Any] = {"seed": seed, "dummies": DUMMIES, **config.cst}
    if system == JOINT:
        common["hide"] = 0.0
    if system == PAPER:
        return CST.preset("paper", max_minutes=config.minutes, **common)
    return CST(pattern=system, **common)
