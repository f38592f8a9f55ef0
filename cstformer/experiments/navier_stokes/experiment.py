"""The paper's Navier–Stokes experiment: flows seen at a few irregular times, with noise, asked for at all of them.

``cst run navier-stokes --preset default`` (about an hour on two cores) solves the equation for 1300 initial conditions,
gives 10 (or 5) of 20 noisy frames of each flow, trains CST and its rivals for six minutes each on 1000 flows and tests
on the other 300, against the noise-free fields. Expect linear interpolation at an error of 4.5e-3 with 10 given frames
and 1.1e-2 with 5, the Wiener filter with a spline at 2.6e-4 and 2.9e-3, and the space–time Wiener filter, at which CST
starts, at 2.0e-4 and 2.4e-3 (paper: CST 4.88e-3, 5 % below linear interpolation, at an unknown noise).
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cstformer.baselines import BASELINES, TransformerSpline
from cstformer.data.samples import Samples
from cstformer.datasets.navier_stokes import Law
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.metrics import paired_test, summary
from cstformer.experiments.navier_stokes.errors import ZOOMED, Arrays, closer_look, frame_errors, zoomed_fields
from cstformer.experiments.navier_stokes.noise_levels import CSTOfLevels
from cstformer.experiments.navier_stokes.task import Flows, flow_task, make_data, unseen_times
from cstformer.models.cst import CST
from cstformer.training.settings import PRESETS, setting_fields

Row = tuple[str, str]
"""A system and a condition."""
SEPARATOR = " | "  # of row, condition and quantity in the names of arrays

SMOOTH, LINEAR, JOINT = "CST (smooth start)", "CST (linear start)", "CST (joint, Nyström)"
MIXED = "CST (one model for all noise levels)"
TRANSFORMER = "Transformer"
TO_LINEAR, TO_SPLINE = "Transformer + linear", "Transformer + spline"
WIENER, START = "Wiener + cubic", "space–time Wiener"
# Settings of each CST row. Steps, here and below, are about as many as six minutes of one core allow, or more: a run
# that cannot finish is annealed by the clock.
CST_ROWS: dict[str, dict[str, Any]] = {
    SMOOTH: PRESETS["frames"] | {"start": "smooth"},
    LINEAR: PRESETS["frames"] | {"start": "linear"},
    # The paper's network, pattern, loss and training; Nyström attention as it says. In joint every token carries all
    # derivatives: with k = 3 and ten samples a step they would take more than ten gigabytes. Trials for μ would leave
    # no time to train.
    JOINT: PRESETS["paper"] | {"attention_kind": "nystrom", "order": 2, "mu": "auto", "batch": 2, "steps": 500},
    MIXED: PRESETS["frames"] | {"start": "smooth"},
}
# Trained rivals: key in the registry and changes to its default preset. A padding of 6 is the published operator's.
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    TRANSFORMER: ("transformer-linear", {"steps": 1500}),
    "FNO2D": ("fno2d", {"steps": 1200}),
    "FNO3D (index grid)": ("fno3d", {"steps": 300, "batch": 2, "resample": "index", "slots": 16, "padding": 6}),
    "FNO3D (resampled)": ("fno3d", {"steps": 300, "batch": 2, "resample": "regular", "slots": 26, "padding": 6}),
}
CLASSICAL = {"linear": "linear", "cubic": "cubic", WIENER: "wiener", START: "space-time-wiener", "GP in time": "gp"}
NOISE_ROWS = ("linear", "cubic", WIENER, START)
PAPER_ERROR = {JOINT: 4.88e-3, TO_LINEAR: 5.12e-3, TO_SPLINE: 5.54e-3, "FNO2D": 1.88e-2, "FNO3D (index grid)": 1.38}
ORDERS = (0, 1, 2)  # of the Sobolev term


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    training: int = 1000
    test: int = 300
    size: int = 64
    patch: int = 8
    until: float = 20.0
    given: tuple[int, ...] = (10, 5)
    """Given frames of a flow; the ablation and the noise levels are run with the fewest."""
    noise: float = 0.1
    """Noise of the table, in units of the standard deviation of the training frames."""
    levels: tuple[float, ...] = (0.05, 0.1, 0.2)
    """Noise levels of the figure; one CST is trained on flows of any level between the first and the last."""
    minutes: float = 6.0
    """Time allowed to each training."""
    closer: int = 12
    """Test flows that are asked for between the times of the frames too, and drawn."""
    overlap: int = 2
    """Patches over each pixel along an axis when CST is asked for frames; see `fine_frames`."""
    zoom: int = 4
    """Fine pixels for each pixel in the test of spatial continuity."""
    preset: str = "default"
    """Preset of the trained rivals."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every CST row."""
    rivals: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every trained rival."""

    @property
    def few(self) -> int:
        """The fewest given frames."""
        return min(self.given)

    @property
    def zoomed(self) -> str:
        """Name of the condition of the fine grid."""
        return f"{self.zoom * self.size} × {self.zoom * self.size} points"

    def settings(self) -> dict[str, tuple[int, float, float | None]]:
        """Of each condition of a cell: given frames, noise, and the highest noise where levels are mixed."""
        low, high = min(self.levels), max(self.levels)
        table = {f"given={g}": (g, self.noise, None) for g in self.given}
        levels = {f"given={self.few},noise={n:g}": (self.few, n, None) for n in self.levels if n != self.noise}
        return {**table, **levels, f"given={self.few},noise={low:g} to {high:g}": (self.few, low, high)}


class NavierStokesExperiment(Experiment):
    """Fields between given frames; see the module's text."""

    name = "navier-stokes"
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
        """Both settings of the table, the ablation of the Sobolev term, the noise levels."""
        *levels, mixed = list(config.settings())[len(config.given) :]
        few = f"given={config.few}"
        cells = [Cell(row, f"given={g}") for g in config.given for row in (SMOOTH, LINEAR, JOINT, *RIVALS)]
        own = _order(config)
        cells += [Cell(ablation(k), few) for k in ORDERS if k != own]
        cells.append(Cell(MIXED, mixed))
        cells += [Cell(row, f"given={g}") for g in config.given for row in CLASSICAL]
        return cells + [Cell(row, level) for level in levels for row in NOISE_ROWS]

    def row_name(self, name: str) -> str:
        """Registry keys stand for their rows; the Transformer's two rows come from one training."""
        rows = {"cst": SMOOTH, TO_LINEAR: TRANSFORMER, TO_SPLINE: TRANSFORMER, "transformer-spline": TRANSFORMER}
        rows |= {key: row for row, key in CLASSICAL.items()} | {key: row for row, (key, _) in RIVALS.items()}
        return rows.get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Solve the equation for all flows."""
        make_data(_flows(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on the training flows; errors of the test flows, and a closer look at a few of them."""
        flows = _flows(config, seed, folder.parent.parent)
        given, noise, highest = config.settings()[cell.condition]
        task = flow_task(flows, given, noise, highest)
        model = _model(cell.model, config, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # that a cap was reached is said in the notes
            model.fit(task.train, state=folder / "training.safetensors", progress=progress)
        report, facts = getattr(model, "report_", None), {}
        if report is not None:
            if report.ended == "interrupted":
                raise KeyboardInterrupt  # the state is on disk: the next run goes on
            model.save(folder / "model")
            facts = {"history": report.history, "ended": report.ended, "steps": report.steps}
        looks: dict[Row, Arrays] = {}
        if highest is not None:
            for level in config.levels:
                test = flow_task(flows, given, level)
                looks[cell.model, f"given={given},noise={level:g}"] = frame_errors(model, test, flows, config.overlap)
        else:
            for name, system in _systems(cell.model, model).items():
                looks[name, cell.condition] = look = frame_errors(system, task, flows, config.overlap)
                if noise == config.noise:
                    look |= closer_look(system, task, flows, config.overlap, config.closer)
        if (cell.model, given) == (SMOOTH, config.few):
            fine = zoomed_fields(model, task, flows, 2 * config.overlap, config.closer, config.zoom)
            looks |= {(name, config.zoomed): arrays for name, arrays in fine.items()}
        arrays = {SEPARATOR.join((*row, kind)): x for row, look in looks.items() for kind, x in look.items()}
        return CellResult(arrays, model.n_parameters_, 0.0 if report is None else report.seconds, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Tables of both settings (all and unseen times), of the orders, the noise levels and the fine grid."""
        from cstformer.experiments.navier_stokes.figures import draw

        flows, few = _flows(config, seed, out), f"given={config.few}"
        looks, cells = _looks(results)
        for row in NOISE_ROWS:  # the level of the table is one of the levels, its order one of the orders
            _alias(looks, cells, (row, few), (row, f"{few},noise={config.noise:g}"))
        _alias(looks, cells, (SMOOTH, few), (ablation(_order(config)), few))
        table: list[dict[str, Any]] = []
        errors: dict[Row, np.ndarray] = {}

        def add(name: str, source: str, condition: str, metrics: dict[str, np.ndarray]) -> None:
            cell, paper = cells[name, source], PAPER_ERROR.get(name) if condition == "given=10,all" else None
            summaries = {metric: summary(x) for metric, x in metrics.items()}
            table.append(table_row(Cell(name, condition, paper), results[cell], summaries))
            errors[name, condition] = metrics["MSE"]

        orders = [ablation(k) for k in ORDERS]
        for given in config.given:
            source, unseen = f"given={given}", unseen_times(flows, given)
            names = [name for name, condition in looks if condition == source and name not in orders]
            for name in names:
                add(name, source, f"{source},all", _metrics(looks[name, source]))
            for name in names:
                add(name, source, f"{source},unseen", {"MSE": mean_at(looks[name, source]["mse"], unseen)})
        unseen = unseen_times(flows, config.few)
        if any(cell.model in orders for cell in results):
            for name in [name for name in orders if (name, few) in looks]:
                look = looks[name, few]
                metrics = _metrics(look) | {"MSE, unseen times": mean_at(look["mse"], unseen)}
                add(name, few, f"{few},Sobolev order", metrics)
        for level in [f"{few},noise={n:g}" for n in config.levels if (MIXED, f"{few},noise={n:g}") in looks]:
            for name in [name for name in (MIXED, *NOISE_ROWS) if (name, level) in looks]:
                error = looks[name, level]["mse"]
                add(name, level, level, {"MSE": error.mean(1), "MSE, unseen times": mean_at(error, unseen)})
        for name, condition in looks:
            if condition == config.zoomed:
                look = looks[name, condition]
                add(name, condition, f"{few},{condition}", {"MSE": look["mse"], "seams": look["seams"]})
        tests = _tests(errors)
        histories = {cell.condition: r.facts["history"] for cell, r in results.items() if cell.model == SMOOTH}
        figures = draw(config, flows, looks, unseen, histories, out)
        return {"table": table, "tests": tests, "figures": figures, "notes": _notes(config, results)}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The given frames of the test flows."""
        return flow_task(_flows(config, seed, out), *config.settings()[condition]).test


EXPERIMENT = NavierStokesExperiment()


def ablation(order: int) -> str:
    """Row of the smooth start with another order of the Sobolev term."""
    return f"{SMOOTH}, k = {order}"


def _order(config: Config) -> int:
    """Order of the Sobolev term in the row of the table."""
    settings = CST_ROWS[SMOOTH] | config.cst
    return settings.get("order", setting_fields()["order"].default)


def _flows(config: Config, seed: int, out: Path) -> Flows:
    law = Law(samples=config.training + config.test, until=config.until, size=config.size, seed=seed)
    return Flows(out / "flows.zarr", config.training, law, config.patch, seed)


def _model(name: str, config: Config, seed: int) -> Any:
    """The unfitted system of a cell."""
    common = {"seed": seed, "max_minutes": config.minutes, "validation": 0.04}
    if name in CLASSICAL:
        return BASELINES[CLASSICAL[name]](seed=seed)
    if name in RIVALS:
        key, settings = RIVALS[name]
        return BASELINES[key].preset(config.preset, **common | settings | config.rivals)
    orders = {ablation(k): k for k in ORDERS}
    settings = CST_ROWS[SMOOTH if name in orders else name] | config.cst
    order = {"order": orders[name]} if name in orders else {}
    return (CSTOfLevels if name == MIXED else CST)(**common | settings | order)


def _systems(name: str, model: Any) -> dict[str, Any]:
    """Rows of the table that a cell makes: one, but for the Transformer, whose training serves two."""
    if name != TRANSFORMER:
        return {name: model}
    return {TO_LINEAR: model, TO_SPLINE: TransformerSpline.of(model)}


def _looks(results: dict[Cell, CellResult]) -> tuple[dict[Row, dict[str, np.ndarray]], dict[Row, Cell]]:
    """Arrays of each row and condition, and the cell that they come from."""
    looks: dict[Row, dict[str, np.ndarray]] = {}
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


def _metrics(look: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"MSE": look["mse"].mean(1), "MSE of ∂w/∂t": look["slope"].mean(1), "roughness": look["roughness"]}


def mean_at(error: Float[np.ndarray, "N T"], where: Bool[np.ndarray, "N T"]) -> Float[np.ndarray, " N"]:
    """Mean over the chosen times of each flow."""
    return np.where(where, error, 0.0).sum(1) / where.sum(1)


def _tests(errors: dict[Row, np.ndarray]) -> list[dict[str, Any]]:
    """CST against every other row of its condition; of the paper's rows, its own pair."""
    tests = []
    for condition in dict.fromkeys(condition for _, condition in errors):
        names = [name for name, c in errors if c == condition]
        first = next((name for name in (SMOOTH, MIXED, ablation(0), ZOOMED) if name in names), None)
        pairs = [(first, other) for other in names if first and other != first and "truth" not in other]
        pairs += [(JOINT, TO_LINEAR)] if {JOINT, TO_LINEAR} <= set(names) else []
        for one, other in pairs:
            test = dataclasses.asdict(paired_test(errors[one, condition], errors[other, condition]))
            tests.append({"name": f"{one} vs {other}", "condition": condition, **test})
    return tests


def _notes(config: Config, results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        f"{config.training} flows train, {config.test} test, {config.size} × {config.size} points, times 1 to "
        f"{config.until:g}. The first and the last frame are given, the others drawn for each flow. White noise of "
        f"{config.noise:.0%} of the training frames' standard deviation where no level is named; training targets are "
        f"noisy too. At most {config.minutes:g} minutes for each training.",
        "MSE: against the noise-free field, in raw units, averaged over the frames; a test flow is one observation.",
        f"MSE of ∂w/∂t and roughness: {config.closer} test flows at four times a time unit; the truth is the "
        "right-hand side of the equation, the slope of CST its own derivative, that of others taken by differences. "
        "Roughness is the mean squared second difference in time over that of the noise-free flow.",
        "Seams: mean squared second difference across the borders of patches over that inside.",
        "The space–time Wiener filter is CST's smooth start alone; a Gaussian process in time for each band of waves.",
        "The two rows of the Transformer, and those of one CST at several noise levels, share a training.",
    ]
    for cell, result in results.items():
        if result.facts.get("ended") not in (None, "finished"):
            steps, why = result.facts["steps"], result.facts["ended"]
            notes.append(f"{cell.model}, {cell.condition}: ended after {steps} steps ({why}).")
    return notes
