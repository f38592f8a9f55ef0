"""Up-sampling of attention maps on the spirals (the paper's Figures 3, 11 and 12).

``cst run attention --preset default`` (about six minutes on two cores) trains CST with 10 real and 10 random dummy
points and asks for the attention between the 10 observed points and 10 more of 150 other curves, whose values it is
not told. The truth is the map of the same model when it is told them. Against it stand the maps of CST's up-sampling
and of linear interpolation of the 10 × 10 map, with and without rows that sum to one. Expect CST's error to be several
times smaller, P < 0.0001 (the paper gives a figure and no numbers).
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.samples import Samples
from cstformer.datasets.spirals import regular_indices
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.metrics import paired_test, summary
from cstformer.experiments.spirals.experiment import CLEAN, SpiralTask, spiral_task
from cstformer.models.cst import CST

JOINT, CONTEXT, PAPER = "joint", "context", "joint, paper preset"
UPSAMPLED, LINEAR, NORMALISED = "CST", "linear", "linear, rows summing to one"
METHODS = (UPSAMPLED, LINEAR, NORMALISED)
TRUTH, GIVEN = "told the values", "given points alone"
DUMMIES = 10
SHOWN = 4  # curves whose maps are kept for the figures


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 500
    systems: tuple[str, ...] = (JOINT, CONTEXT, PAPER)
    minutes: float = 4.0
    """Time allowed to the model of the paper's size."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every model."""


class AttentionExperiment(Experiment):
    """Maps of a model that is told the values, of one that is not, and interpolated ones."""

    name = "attention"
    presets = {  # noqa: RUF012
        "default": Config(),
        "smoke": Config(
            curves=40,
            systems=(JOINT, CONTEXT),
            cst={"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 30, "batch": 8},
        ),
        "paper": Config(minutes=24 * 60),
    }

    def cells(self, config: Config) -> list[Cell]:
        """One model a system; the rows of the table are made of their maps."""
        return [Cell("CST", system) for system in config.systems]

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Train, then compare the maps of every test curve."""
        data = spiral_task(config.curves, CLEAN, seed)
        model = _model(cell.condition, config, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # that the cap was reached is said in the notes
            model.fit(data.train, state=folder / "training.safetensors", progress=progress)
        model.save(folder / "model")
        maps = compare_maps(model, data)
        arrays = {f"map {name}": m[:SHOWN].mean(2) for name, m in maps.all.items()}
        arrays |= {"rows": maps.rows, "columns": maps.columns, "given": maps.given}
        for name in maps.methods:
            arrays[f"average {name}"] = map_error(maps.all[name].mean(2), maps.all[TRUTH].mean(2), maps.new)
            arrays[f"heads {name}"] = map_error(maps.all[name], maps.all[TRUTH], maps.new).mean(2)
        facts = {"ended": model.report_.ended, "steps": model.report_.steps}
        return CellResult(arrays, model.n_parameters_, model.report_.seconds, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A row a method, system and layer; CST against both interpolations; the figures."""
        from cstformer.experiments.attention.figures import draw

        table, tests = [], []
        for cell, result in results.items():
            errors = {name: result.arrays[f"average {name}"] for name in METHODS if f"average {name}" in result.arrays}
            layers = errors[UPSAMPLED].shape[1]
            for layer in (slice(None), *range(layers)):
                where = "all layers" if isinstance(layer, slice) else f"layer {layer + 1}"
                condition = f"{cell.condition}, {where}"
                mean = {name: e[:, layer].reshape(len(e), -1).mean(1) for name, e in errors.items()}
                for name, e in mean.items():
                    heads = result.arrays[f"heads {name}"][:, layer].reshape(len(e), -1).mean(1)
                    metrics = {"error, head average": summary(e), "error, each head": summary(heads)}
                    table.append(table_row(Cell(name, condition), result, metrics))
                for other in [name for name in mean if name != UPSAMPLED]:
                    test = dataclasses.asdict(paired_test(mean[UPSAMPLED], mean[other]))
                    tests.append({"name": f"{UPSAMPLED} vs {other}", "condition": condition, **test})
        return {"table": table, "tests": tests, "figures": draw(results, tests, out), "notes": _notes(results)}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test curves."""
        return spiral_task(config.curves, CLEAN, seed).test


EXPERIMENT = AttentionExperiment()


@dataclass(frozen=True)
class Maps:
    """Attention of the test curves, tokens in the order of time."""

    all: dict[str, Float[np.ndarray, "N layers heads _m _n"]]
    """By method, and the truth and what is interpolated."""
    rows: np.ndarray
    columns: np.ndarray
    """Times of the readers and of what they read."""
    given: np.ndarray
    """Times of the observed points."""
    new: np.ndarray
    """(rows, columns): entries that involve a coordinate without a value."""

    @property
    def methods(self) -> list[str]:
        """What is compared with the truth."""
        return [name for name in METHODS if name in self.all]


def compare_maps(model: CST, data: SpiralTask) -> Maps:
    """Maps of all test curves: told the values, up-sampled by CST, and interpolated from the map of the given points.

    ``joint``: 20 tokens read each other, and the map of 10 tokens is interpolated along rows and columns. ``context``:
    10 new coordinates read the 10 given points, and the rows of the given points are interpolated.
    """
    index, extra = regular_indices(len(data.times)), extra_indices(len(data.times))
    given, new = data.times[index], data.times[extra]
    known, unknown = data.test.values, data.values[:, extra]
    told = model.attention(data.test, new, values=unknown).maps
    asked = model.attention(data.test, new).maps
    weights = linear_weights(given, new)
    if model.pattern == "context":
        coarse = model.attention(data.test, given, values=known).maps
        maps = {TRUTH: told, GIVEN: coarse, UPSAMPLED: asked, LINEAR: weights @ coarse}
        return Maps(maps, new, given, given, np.ones((len(new), len(given)), dtype=bool))
    # Of ten tokens alone: nine given points and the tenth as a query whose value is told.
    nine = Samples(given[:-1], known[:, :-1])
    coarse = model.attention(nine, given[-1:], values=known[:, -1:]).maps
    times = np.concatenate([given, new])
    order = np.argsort(times)
    by_time = np.ix_(order, order)
    full = np.concatenate([np.eye(len(given)), weights])[order]
    linear = full @ coarse @ full.T
    fresh = np.arange(len(times)) >= len(given)
    maps = {
        TRUTH: told[..., by_time[0], by_time[1]],
        GIVEN: coarse,
        UPSAMPLED: asked[..., by_time[0], by_time[1]],
        LINEAR: linear,
        NORMALISED: linear / linear.sum(-1, keepdims=True),
    }
    return Maps(maps, times[order], times[order], given, (fresh[:, None] | fresh)[by_time])


def extra_indices(n: int = 100, count: int = 10) -> np.ndarray:
    """Fixed further points: halfway between the given ones, and one more in the first gap.

    >>> extra_indices().tolist()
    [3, 6, 17, 28, 39, 50, 61, 72, 83, 94]
    """
    given = regular_indices(n, count)
    return np.concatenate([[given[1] // 4 + 1], (given[1:] + given[:-1] + 1) // 2])


def linear_weights(x: Float[np.ndarray, " n"], at: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m n"]:
    """Matrix of linear interpolation from values at x to values at other coordinates.

    >>> linear_weights(np.array([0.0, 1.0]), np.array([0.25])).tolist()
    [[0.75, 0.25]]
    """
    return np.stack([np.interp(at, x, unit) for unit in np.eye(len(x))], axis=1)


def map_error(maps: np.ndarray, truth: np.ndarray, new: np.ndarray) -> np.ndarray:
    """L2 norm of the difference over the entries that involve new coordinates: (..., m, n) → (...)."""
    return np.sqrt((((maps - truth) * new) ** 2).sum((-2, -1)))


def _model(system: str, config: Config, seed: int) -> CST:
    """The unfitted model: real points are visible tokens beside the dummy points, as in the paper."""
    common: dict[str, Any] = {"seed": seed, "dummies": DUMMIES, **config.cst}
    if system == JOINT:
        common["hide"] = 0.0
    if system == PAPER:
        return CST.preset("paper", max_minutes=config.minutes, **common)
    return CST(pattern=system, **common)


def _notes(results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        "Error: L2 norm over the entries of a map that involve one of the 10 new coordinates; a test curve is one "
        "observation. The truth is the map of the same model when it is told the values there.",
        "In `joint` 20 tokens read each other: a map is 20 × 20, and the map of the 10 given points alone is "
        "interpolated along both axes. Its rows then sum to about 2, not 1: the second variant divides by that sum.",
        "In `context` the new coordinates read the given points only: a map is 10 × 10 and says where the model looks "
        "for its answer; between given points the rows of these are interpolated, and sum to one by themselves.",
    ]
    for cell, result in results.items():
        if result.facts.get("ended") != "finished":
            notes.append(
                f"{cell.condition}: training ended after {result.facts['steps']} steps ({result.facts['ended']})."
            )
    return notes
