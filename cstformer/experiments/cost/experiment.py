"""Cost of a training step against the number of dummy points (the paper's Figure 15).

Command: ``cst run cost --preset default``. Run time: about three minutes on two cores.
Expect: time grows with about the square of the number for exact attention, and about linearly for the other two systems
(the paper claims a linear growth of memory, in a figure without numbers).

Time and peak memory of a step are measured with one curve and 10 to 10 000 dummy points, for three systems: joint with
exact attention (the paper's model as published), joint with Nyström attention (as the paper describes it) and context
(ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.benchmarks import growth
from cstformer.benchmarks.stopwatch import slope
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import PlannedFigure, write_figures
from cstformer.experiments.metrics import summary
from cstformer.report.scaling import scaling_figure

MEASURES = ("seconds", "peak MB")


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    dummies: tuple[int, ...] = growth.SIZES["dummies"]
    rounds: int = 3
    """Number of timings of a step; the shortest counts."""


class CostExperiment(Experiment):
    """Time and memory of a step; see the module's docstring."""

    name = "cost"
    presets = {  # noqa: RUF012
        "default": Config(),
        "smoke": Config(dummies=(10, 30), rounds=1),
        "paper": Config(),
    }
    parallel = False

    def cells(self, config: Config) -> list[Cell]:
        """One series of measurements for each system."""
        return [Cell(system, "dummy points") for system in growth.SYSTEMS]

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Measure a step at every size that fits into memory."""
        rows = growth.measure_series("dummies", config.dummies, growth.SYSTEMS[cell.model], config.rounds)
        arrays = {key: np.array([row[key] for row in rows]) for key in ("size", *MEASURES)}
        return CellResult(arrays, rows[0]["parameters"], 0.0, {})

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A row for each system and size, the fitted slopes in the notes, the figure."""
        table, measured, notes = [], [], [NOTE]
        for n in config.dummies:
            for cell, result in results.items():
                for i in np.flatnonzero(result.arrays["size"] == n):
                    metrics = {key: summary(result.arrays[key][i : i + 1]) for key in MEASURES}
                    table.append(table_row(Cell(cell.model, f"{n} dummy points"), result, metrics))
        for cell, result in results.items():
            sizes = result.arrays["size"]
            rows = [
                {"size": int(n), **{key: float(result.arrays[key][i]) for key in MEASURES}} for i, n in enumerate(sizes)
            ]
            measured += [{"axis": "dummies", "system": cell.model, **row} for row in rows]
            measured += growth.fitted_slopes("dummies", cell.model, rows)
            far = sizes >= growth.FROM
            if far.sum() > 1:
                time, memory = (slope(sizes[far], result.arrays[key][far]) for key in MEASURES)
                notes.append(
                    f"{cell.model}: from {growth.FROM} to {sizes[-1]} dummy points time grows with the power "
                    f"{time:.2f} of their number, memory with {memory:.2f}."
                )
            if sizes[-1] < config.dummies[-1]:
                notes.append(f"{cell.model}: sizes beyond {sizes[-1]} would have taken too much memory or time.")
        figure = PlannedFigure(
            "figure15_cost.png",
            "Cost of a training step against the number of dummy points",
            "Paper's Figure 15: seconds, and peak memory of all tensors, of a step with one curve.",
            partial(scaling_figure, measured),
        )
        return {"table": table, "tests": [], "figures": write_figures([figure], out), "notes": notes}


NOTE = (
    "One curve with 10 real points, default sizes, derivatives of first order in every step. Memory is the peak of "
    "torch's allocator, temporaries included. Seconds are the best of a few timings on a machine that may be busy: "
    "compare rows with each other only."
)
EXPERIMENT = CostExperiment()
