"""What the Sobolev term does: orders k and weights μ over decades, at equal steps.

Command: ``cst run sobolev --preset default``. Run time: about 45 minutes on two cores.

CST is trained with k = 0 (no term), 1, 2 and 3 on spirals (default and paper preset, clean and noisy, 10 and 5 points),
on positions with noise whose velocity is asked for, and on small Navier–Stokes flows. Every training of a case has the
same number of steps and each is made with three seeds. The weight μ is given in units in which 1 makes the term of the
data as large as their variance. Errors are those of values and of first derivatives, against the noise-free truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.errors import CSTError
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import PlannedFigure, write_figures
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.sobolev.figures import gains
from cstformer.experiments.sobolev.task import Case, flows_of, measures, solve, training_samples
from cstformer.experiments.training import ended_notes, finished_result, train_cell
from cstformer.models.cst import CST
from cstformer.models.fitting import balanced_mu

WITHOUT = "k = 0"
ORDERS = (1, 2, 3)
LEVEL = 0.05
DECADES = (1e-4, 1e-3, 1e-2, 1e-1)
METRICS = {"value": "error of values", "slope": "error of slopes", "roughness": "roughness"}


def _cases(steps: int, paper_steps: int) -> dict[str, Case]:
    """The cases of the default preset."""
    found: dict[str, Case] = {}
    kinds: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
        "default": ({"steps": steps, "frequency": 1.0, "nearness": "never", "hide": 0.5}, DECADES),
        "paper": ({"steps": paper_steps, "dummies": 20, "sobolev_every": 4}, (1e-3, 1e-1)),
    }
    for model, (settings, weights) in kinds.items():
        for noise in (0.0, 0.1):
            for points in (10, 5):
                name = f"spirals, {model}, {f'noise {noise:g}' if noise else 'clean'}, {points} points"
                found[name] = Case("spirals", model, noise, points, settings, weights)
    tracks = {"steps": steps, "frequency": 4.0, "nearness": "never", "hide": 0.5}
    found["velocity from noisy positions"] = Case("tracks", "default", 0.1, 20, tracks, DECADES)
    found["flows, 5 frames"] = Case("flows", "frames", 0.1, 5, {"steps": steps, "sobolev_every": 4}, DECADES)
    return found


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 300
    flows: tuple[int, int] = (120, 24)
    """Training and test flows."""
    until: float = 12.0
    size: int = 32
    seeds: int = 3
    cases: dict[str, Case] = field(default_factory=lambda: _cases(300, 150))
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every model."""


_TINY = {"width": 16, "layers": 1, "heads": 2, "feedforward": 32, "steps": 5, "batch": 8, "dummies": 4}


class SobolevExperiment(Experiment):
    """Orders and weights of the Sobolev term; see the module's docstring."""

    name = "sobolev"
    needs = ("zarr",)
    presets = {  # noqa: RUF012
        "smoke": Config(
            curves=40,
            flows=(8, 4),
            until=6.0,
            size=16,
            seeds=1,
            cases={
                "spirals, paper, clean, 10 points": Case("spirals", "paper", 0.0, 10, {}, (1e-2,)),
                "velocity from noisy positions": Case("tracks", "default", 0.1, 12, {}, (1e-2,)),
                "flows, 4 frames": Case("flows", "frames", 0.1, 4, {}, (1e-2,)),
            },
            cst=_TINY,
        ),
        "default": Config(),
        "paper": Config(curves=500, seeds=5, cases=_cases(1200, 1000)),
    }

    def cells(self, config: Config) -> list[Cell]:
        """No term, then each order with each weight."""
        return [
            Cell(row, name)
            for name, case in config.cases.items()
            for row in (WITHOUT, *(row_of(k, mu) for k in ORDERS for mu in case.weights))
        ]

    def repeats(self, cell: Cell, config: Config) -> int:
        """Every training is repeated."""
        return config.seeds

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Solve the flows."""
        if any(case.data == "flows" for case in config.cases.values()):
            solve(_flows(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Train with the order and the weight of the row, and measure."""
        case, flows = config.cases[cell.condition], _flows(config, seed, folder.parent.parent)
        samples = training_samples(case, config.curves, seed, flows)
        order, share = parse_row(cell.model)
        settings = case.settings | {"order": order, "seed": seed + cell.repeat} | config.cst
        mu = share * unit_of(case.model, settings, samples) if share else 0.0
        model = CST.preset(case.model, **settings | {"mu": mu, "patience": 1.0})
        facts = train_cell(model, samples, folder, progress) | {"mu": mu}
        return finished_result(model, measures(model, case, config.curves, seed, flows), facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A table for each case, each order at its best weight against none, and the figure of gains."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        for cell, result in results.items():
            found = {text: result.over_seeds(itemgetter(name)) for name, text in METRICS.items()}
            table.append(table_row(cell, result, {name: summary(x) for name, x in found.items()}))
            for name in ("value", "slope"):
                errors[cell.model, f"{cell.condition}, {METRICS[name]}"] = found[METRICS[name]]
        pairs = _pairs(errors)
        tests = paired_tests(errors, pairs)
        figure = PlannedFigure(
            "gains.png",
            "Error with the Sobolev term over that without",
            "Mean over seeds and test samples, against the weight μ, for each order k. Below 1 the term helps. Bars: "
            "standard deviation over seeds. Solid: values; dashed: first derivatives.",
            lambda: gains(table, WITHOUT, parse_row, METRICS),
        )
        return {
            "claims": claims(table, tests),
            "table": table,
            "tests": tests,
            "figures": write_figures([figure] if results else [], out),
            "notes": [*NOTES, *ended_notes(results)],
        }


EXPERIMENT = SobolevExperiment()

NOTES = (
    "All trainings of a case have the same number of steps and no time limit. μ is in units in which the term of the "
    "data's smooth interpolation, with μ = 1, is as large as the variance of the data.",
    "Error of values: spirals as in `cst run spirals`, against the noise-free curve; tracks and flows by root mean "
    "squares. Error of slopes: root mean square of the first derivative in time, on curves relative to the true one.",
    "Each test compares k = 0 with one order at the weight that is best on the test samples, which favours the term.",
)


def row_of(order: int, share: float) -> str:
    """Name of a row.

    >>> row_of(2, 1e-3), parse_row("k = 2, μ = 0.001"), parse_row("k = 0")
    ('k = 2, μ = 0.001', (2, 0.001), (0, 0.0))
    """
    return f"k = {order}, μ = {share:g}"


def parse_row(row: str) -> tuple[int, float]:
    """Order and weight of a row."""
    order, _, share = row.removeprefix("k = ").partition(", μ = ")
    return int(order), float(share or 0.0)


def unit_of(preset: str, settings: dict[str, Any], samples: Any) -> float:
    """The μ with which the Sobolev term of the smooth start equals the variance of the data, which is 1."""
    model = CST.preset(preset, **settings | {"mu": 0.0, "steps": 1}).fit(samples)
    unit = balanced_mu(model, model._batch(samples[:64]), noise=1.0)
    if not unit > 0:
        raise CSTError(f"the smooth interpolation of these data has no finite derivatives of order {settings['order']}")
    return unit


def _flows(config: Config, seed: int, out: Path) -> Any:
    return flows_of(*config.flows, seed, out, config.until, config.size)


def _pairs(errors: dict[tuple[str, str], np.ndarray]) -> list[tuple[str, str, str]]:
    """For each order, the row with its best weight against none."""
    pairs = []
    for condition in dict.fromkeys(condition for _, condition in errors):
        for k in ORDERS:
            rows = {r: x.mean() for (r, c), x in errors.items() if c == condition and parse_row(r)[0] == k}
            if rows:
                pairs.append((min(rows, key=lambda r: rows[r]), WITHOUT, condition))
    return pairs


def claims(table: list[dict[str, Any]], tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether the term lowers the error in each case, by the tests of the best weights."""
    rows = {(row["condition"], row["model"]): row["metrics"] for row in table}
    found = []
    for condition in dict.fromkeys(row["condition"] for row in table):
        for metric in (METRICS["value"], METRICS["slope"]):
            mine = [t for t in tests if t["condition"] == f"{condition}, {metric}"]
            pairs = {t["name"].split(" vs ")[0]: t["p_value"] for t in mine}
            if not pairs:
                continue
            best = min(pairs, key=lambda r: rows[condition, r][metric]["mean"])
            with_term, without = (rows[condition, r][metric]["mean"] for r in (best, WITHOUT))
            change = with_term / without - 1
            holds = "not clear" if pairs[best] > LEVEL else "yes" if change < 0 else "no"
            text = f"{best}: {change:+.1%}, P = {pairs[best]:.2g}"
            found.append({"claim": f"{condition}: it lowers the {metric}", "holds": holds, "text": text})
    return found
