"""Dropped frames and jitter: what becomes of the missing frames of a simulated recording.

Command: ``cst run clocks --preset default``. Run time: about 15 minutes on two cores.
Expect: relative errors of about 0.06 with CST on modes, 1.1 with linear interpolation, and 3.4 if frames are put on a
regular clock by their index.

Each of six simulated recordings of one colour lasts five minutes, at ten frames per second. Five per cent of the frames
are dropped at random, and every frame is late by up to half of the time between two frames of the camera (which also
records a control, unused here). There is no hemodynamic signal, so that all errors are those of noise and clock. Every
method sees the recorded frames and their times, and is asked for the frames that were dropped. The error is the mean
squared one over the cortex, against the noise-free signal, relative to the variance of that signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.modes import Modes
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.clocks.figures import planned_figures
from cstformer.experiments.clocks.task import Gaps, by_index, linear, load_gaps, make_gaps, modes_linear, projected
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.training import MODEL, ended_notes, finished_result, train_cell
from cstformer.models.cst import CST
from cstformer.models.model_files import MODES
from cstformer.models.movie_answers import predict_modes
from cstformer.report.main_table import comparison
from cstformer.training.settings import PRESETS

MAIN, MODES_LINEAR, LINEAR, BY_INDEX = "CST", "modes + linear", "linear", "frames by index"
FLOOR = "noise-free in modes (floor)"
ROWS = (MAIN, MODES_LINEAR, LINEAR, BY_INDEX, FLOOR)
MISSING = "missing frames"
AROUND, FINE = 2.5, 0.02  # seconds shown on each side of a missing frame, and their step


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    recordings: int = 6
    length: float = 5.0
    """Minutes of a recording."""
    camera: int = 64
    """Rows and columns of the camera."""
    electrons: float = 24000.0
    """Electrons of a bright pixel in a frame, as in the calcium experiment."""
    dropped: float = 0.05
    jitter: float = 0.5
    window: int = 32
    stride: int = 16
    """Frames of a training window, and from one to the next."""
    minutes: float = 6.0
    """Time limit of each training."""
    cst: dict[str, Any] = field(default_factory=lambda: {"steps": 200})
    """Changes to the settings of CST."""

    def simulation(self, number: int, seed: int) -> CalciumSimulation:
        """A recording without hemodynamics."""
        return CalciumSimulation(
            minutes=self.length,
            size=self.camera,
            seed=1000 * seed + number,
            electrons=self.electrons,
            dropped=self.dropped,
            jitter=self.jitter,
            hemodynamics=0.0,
            coupling=0.0,
        )


class ClocksExperiment(Experiment):
    """Missing frames; see the module's docstring."""

    name = "clocks"
    needs = ("dask", "zarr")
    presets = {  # noqa: RUF012
        "default": Config(),
        "smoke": Config(recordings=2, length=0.5, camera=16, window=16, cst=PRESETS["smoke"] | {"steps": 3}),
        "paper": Config(length=15.0, camera=256, minutes=60.0),
    }

    def cells(self, config: Config) -> list[Cell]:
        """Every row on every recording; the table has their mean."""
        return [Cell(row, f"recording {i}") for row in ROWS for i in range(config.recordings)]

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Simulate and preprocess the recordings."""
        for i in range(config.recordings):
            make_gaps(config.simulation(i, seed), _path(out, i), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fill the gaps of one recording."""
        gaps = _gaps(cell, config, seed, folder.parent.parent)
        if cell.model in (LINEAR, BY_INDEX):
            fill = linear if cell.model == LINEAR else by_index
            return finished_result(None, _measured(gaps, lambda at: fill(gaps, at)), {})
        modes = Modes(seed=seed).fit(gaps.frames)
        if cell.model == MODES_LINEAR:
            return finished_result(None, _measured(gaps, lambda at: modes_linear(gaps, at, modes)), {})
        if cell.model == FLOOR:
            return finished_result(None, _measured(gaps, lambda at: projected(gaps, at, modes)), {})
        model = CST(**{"seed": seed, "max_minutes": config.minutes} | config.cst)
        samples = modes.coefficients(gaps.frames, gaps.times, config.window, config.stride, time_unit="s")
        facts = train_cell(model, samples, folder, progress) | {"modes": modes.rank_}
        modes.save(folder / MODEL / MODES)
        arrays = _measured(gaps, lambda at: predict_modes(model, modes, gaps.frames, gaps.times, at))
        return finished_result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A row for each method, CST against the others, and the figure."""
        errors = {
            (row, MISSING): np.array([r.arrays["error"][0] for cell, r in results.items() if cell.model == row])
            for row in dict.fromkeys(cell.model for cell in results)
        }
        table = []
        for row, condition in errors:
            mine = [result for cell, result in results.items() if cell.model == row]
            seconds = sum(result.train_seconds for result in mine)
            whole = CellResult({}, mine[0].parameters, seconds, {})
            table.append(table_row(Cell(row, condition), whole, {"relative error": summary(errors[row, condition])}))
        tests = paired_tests(errors, [(MAIN, row, MISSING) for row in ROWS[1:-1]])
        first = next(iter(results))
        example = {cell.model: result.arrays for cell, result in results.items() if cell.condition == first.condition}
        gaps = _gaps(first, config, seed, out)
        drawn = {row: error for (row, _), error in errors.items() if row != FLOOR}
        figures = write_figures(planned_figures(gaps, {row: example[row] for row in drawn}, drawn), out)
        ranks = [result.facts["modes"] for result in results.values() if "modes" in result.facts]
        told = [f"Modes of the recordings, chosen by held-out pixels: {', '.join(map(str, ranks))}."] if ranks else []
        notes = [*NOTES, *told, *ended_notes(results)]
        question, others = "dropped frames of a simulated cortex", list(ROWS[1:-1])
        main = comparison(table, question, MISSING, "relative error", MAIN, [], others)
        return {"main": main, "table": table, "tests": tests, "figures": figures, "notes": notes}


EXPERIMENT = ClocksExperiment()

NOTES = (
    "Error: mean squared error over cortex and dropped frames, relative to the variance of the noise-free signal. A "
    "recording is one observation.",
    "CST trains on each recording itself, on the coefficients of its spatial modes; it never sees the noise-free "
    "signal. `modes + linear` shows how much of the gain the modes alone make.",
    "The floor is the noise-free signal projected on the modes, which are estimated from the noisy frames: no method "
    "that answers in these modes can do better.",
)


def _path(out: Path, number: int) -> Path:
    return out / f"recording{number}.zarr"


def _gaps(cell: Cell, config: Config, seed: int, out: Path) -> Gaps:
    number = int(cell.condition.split()[-1])
    return load_gaps(config.simulation(number, seed), _path(out, number))


def _measured(gaps: Gaps, fill: Any) -> dict[str, np.ndarray]:
    """Error at the missing frames, and for the figure one of them and the course of a pixel around it."""
    when, (row, col) = shown(gaps)
    clock = np.arange(when - AROUND, when + AROUND, FINE)
    return {
        "error": np.array([gaps.error(fill(gaps.missing), gaps.missing)]),
        "frame": fill(np.array([when]))[0],
        "course": fill(clock)[:, row, col],
        "clock": clock,
        "when": np.array(when),
    }


def shown(gaps: Gaps) -> tuple[float, tuple[int, int]]:
    """The missing frame of the second half with the strongest signal, away from the end, and its strongest pixel."""
    late = gaps.missing[(gaps.missing > gaps.times[-1] / 2) & (gaps.missing < gaps.times[-1] - AROUND)]
    truth = np.nan_to_num(gaps.truth(late))
    best = int(np.square(truth).mean((1, 2)).argmax())
    row, col = np.unravel_index(np.abs(truth[best]).argmax(), truth.shape[1:])
    return float(late[best]), (int(row), int(col))
