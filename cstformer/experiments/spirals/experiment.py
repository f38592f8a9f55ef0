"""The paper's first experiment: interpolation of integral-equation spirals, clean and noisy.

``cst run spirals --preset default`` (about half an hour on two cores) trains CST, its ablations and its rivals on 350
curves observed at 10 points and tests on the 90 unseen points of 150 other curves. Expect CST at about 1.09 × the
floor that the data's own noise sets on clean curves, and about 0.056 with noise 0.1 (paper: 0.0386 on clean curves).
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.baselines.base import NeuralBaseline
from cstformer.baselines.search import search_learning_rate
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import Spirals, irregular_indices, make_spirals, regular_indices, split
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.metrics import euclidean_error, paired_test, roughness, summary
from cstformer.models.cst import CST

CLEAN, IRREGULAR, NOISY = "clean, regular", "clean, irregular", "noise 0.1, regular"
CONDITIONS = (CLEAN, IRREGULAR, NOISY)
NOISE = 0.1
FINE = 1000  # coordinates on which curves are drawn and their roughness is measured

FLOOR = "noise-free curve (floor)"
BERT, BERT_AUGMENTED = "Transformer (BERT)", "Transformer (BERT + augmentation)"
CST_DEFAULT, CST_PAPER = "CST", "CST (paper preset)"
# Rivals of the paper's other experiments that can read curves, by their keys in the registry.
RIVALS = ("lstm", "latent-ode", "lfads")
INTERPOLATION = {"linear": "linear", "cubic": "cubic", "GP": "gp", "mean": "mean", "copy nearest": "nearest"}
# Each ablation changes one idea of the default model.
ABLATIONS: dict[str, dict[str, Any]] = {
    "CST with mu = 0": {"mu": 0.0},
    "CST without noise": {"noise": 0.0},
    "CST without hiding": {"hide": 0.0},
    "CST with linear start": {"start": "linear"},
    "CST with cubic start": {"start": "cubic"},
    "CST joint": {"pattern": "joint"},
    "CST joint without dummy points": {"pattern": "joint", "dummies": 0},
}
PAPER_ERROR = {(CST_PAPER, CLEAN): 0.03859, (BERT, CLEAN): 0.04329}


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 500
    conditions: tuple[str, ...] = CONDITIONS
    paper_sized: tuple[str, ...] = (CLEAN, NOISY)
    """Conditions in which the two models of the paper's size are compared."""
    minutes: float = 5.0
    """Time allowed to each of the two models of the paper's size, the same for both."""
    ablate: tuple[str, ...] = (CLEAN, NOISY)
    """Conditions in which the ablations are run."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the default settings of CST."""
    paper: dict[str, Any] = field(default_factory=dict)
    """Changes to the paper preset of CST."""
    bert: dict[str, Any] = field(default_factory=dict)
    """Changes to the paper preset of the Transformer."""


_RIVAL_KEYS = {cls.label: key for key, cls in BASELINES.items()}
_TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 20, "batch": 8}


class SpiralsExperiment(Experiment):
    """Curves in the plane; see the module's text."""

    name = "spirals"
    presets = {  # noqa: RUF012
        "smoke": Config(curves=30, minutes=1.0, ablate=(CLEAN,), cst=_TINY, paper=_TINY, bert=_TINY),
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
        """CST first, then rivals and simple rows, then ablations; further rivals where there are ablations."""
        return self._cells(config, RIVALS)

    def all_cells(self, config: Config) -> list[Cell]:
        """The same with every rival in the registry that can read curves."""
        rows = {*INTERPOLATION.values(), "transformer"}  # these have a row already
        return self._cells(config, [k for k, cls in BASELINES.items() if k not in rows and not cls.frames_only])

    def row_name(self, name: str) -> str:
        """Registry keys stand for their rows."""
        rows = {"cst": CST_DEFAULT, "transformer": BERT} | {key: row for row, key in INTERPOLATION.items()}
        return rows.get(name, BASELINES[name].label if name in BASELINES else name)

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
        """Fit on the training curves, predict the test curves on the grid and on 1000 coordinates."""
        data = spiral_task(config.curves, cell.condition, seed)
        if cell.model == FLOOR:
            return CellResult({"grid": data.clean, "fine": data.clean_fine}, 0, 0.0, {})
        model = _model(cell.model, config, seed)
        facts: dict[str, Any] = {}
        if cell.model in _RIVAL_KEYS and isinstance(model, NeuralBaseline):
            model, search = search_learning_rate(model, data.train)
            facts["search"] = search.record()
        started = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # that a cap was reached is said in the notes
            model.fit(data.train, state=folder / "training.safetensors", progress=progress)
        facts["fit_seconds"] = time.monotonic() - started
        report = getattr(model, "report_", None)
        if report is not None:
            model.save(folder / "model")
            facts |= {"history": report.history, "ended": report.ended, "steps": report.steps}
            facts |= {k: getattr(model, f"{k}_") for k in ("mu", "noise") if hasattr(model, f"{k}_")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CSTWarning)  # irregular curves rarely observe the very ends
            arrays = {
                "grid": model.predict(data.test, data.times),
                "fine": model.predict(data.test, data.fine),
            }
        seconds = facts["fit_seconds"] if report is None else report.seconds
        return CellResult(arrays, model.n_parameters_, seconds, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Errors against the file's values and against the noise-free curve, roughness, paired tests, figures."""
        from cstformer.experiments.spirals.figures import draw

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
        tests = _tests(errors)
        figures = draw(config, seed, results, errors, table, tests, out)
        return {"table": table, "tests": tests, "figures": figures, "notes": _notes(errors, results)}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The observed points of the test curves."""
        return spiral_task(config.curves, condition, seed).test


EXPERIMENT = SpiralsExperiment()


@dataclass(frozen=True)
class SpiralTask:
    """One condition of the experiment: training samples, test context, and what to compare with."""

    train: Samples
    test: Samples
    times: np.ndarray
    fine: np.ndarray
    values: np.ndarray
    """(test curves, points, 2): the file's values, without the added noise."""
    clean: np.ndarray
    clean_fine: np.ndarray
    unseen: np.ndarray
    """(test curves, points): True where the test context has no point."""


@lru_cache(maxsize=4)
def spiral_task(curves: int, condition: str, seed: int) -> SpiralTask:
    """Data of a condition: same curves and split in all, noise on the observed points where it says so."""
    spirals = _spirals(curves, seed)
    train, test = split(curves, 0.7, seed)
    if condition == IRREGULAR:
        index = irregular_indices(curves, len(spirals.times), 10, seed)
    else:
        index = np.tile(regular_indices(len(spirals.times), 10), (curves, 1))
    values = np.take_along_axis(spirals.values, index[..., None], 1)
    if condition == NOISY:
        values = values + NOISE * np.random.default_rng([seed, 10]).normal(size=values.shape)
    samples = Samples(spirals.times[index], values, coord_names=["t"], value_names=["y1", "y2"])
    unseen = np.ones(spirals.values.shape[:2], dtype=bool)
    np.put_along_axis(unseen, index, False, 1)
    fine = np.linspace(0, 1, FINE)
    return SpiralTask(
        samples[train],
        samples[test],
        spirals.times,
        fine,
        spirals.values[test],
        spirals.clean[test],
        spirals.clean_at(fine)[test],
        unseen[test],
    )


@lru_cache(maxsize=2)
def _spirals(curves: int, seed: int) -> Spirals:
    return make_spirals(curves, seed=seed)


def _model(name: str, config: Config, seed: int) -> Any:
    """The unfitted system of a row."""
    if name == CST_PAPER:
        return CST.preset("paper", **{"seed": seed, "max_minutes": config.minutes, **config.paper})
    if name in (BERT, BERT_AUGMENTED):
        noise = NOISE if name == BERT_AUGMENTED else 0.0
        changes = {"seed": seed, "max_minutes": config.minutes, "augmentation": noise, **config.bert}
        return BASELINES["transformer"].preset("paper", **changes)
    if name in INTERPOLATION:
        return BASELINES[INTERPOLATION[name]]()
    if name in _RIVAL_KEYS:
        preset = "smoke" if config.cst == _TINY else "default"
        return BASELINES[_RIVAL_KEYS[name]].preset(preset, seed=seed, max_minutes=config.minutes)
    return CST(**{"seed": seed, **config.cst, **ABLATIONS.get(name, {})})


def _tests(errors: dict[tuple[str, str], np.ndarray]) -> list[dict[str, Any]]:
    """CST against every other row of its condition, and the paper's own pair."""
    pairs = [(CST_DEFAULT, name, condition) for name, condition in errors if name not in (CST_DEFAULT, FLOOR)]
    pairs += [(CST_PAPER, BERT, condition) for condition in CONDITIONS]
    tests = []
    for first, second, condition in pairs:
        if (first, condition) in errors and (second, condition) in errors:
            test = paired_test(errors[first, condition], errors[second, condition])
            tests.append({"name": f"{first} vs {second}", "condition": condition, **dataclasses.asdict(test)})
    return tests


def _notes(errors: dict[tuple[str, str], np.ndarray], results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        "Errors are mean Euclidean distances at the unseen points of test curves, in raw units: `error` against the "
        "values of the file (which carry noise of their own), `error vs noise-free` against the noise-free curve.",
        "Roughness is the mean squared second difference on 1000 coordinates over that of the noise-free curve.",
        "In pattern `context` no token reads a query, so without the Sobolev term dummy points have no effect at all: "
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
        notes.append(f"The learning rates of these were chosen by short trials, beside their training time: {cost}.")
    for cell, result in results.items():
        if result.facts.get("ended") not in (None, "finished"):
            steps, why = result.facts["steps"], result.facts["ended"]
            notes.append(f"{cell.model}, {cell.condition}: ended after {steps} steps ({why}).")
    return notes
