"""Rows of the spirals table: their names, the settings of a preset, and the model of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cstformer.baselines import BASELINES
from cstformer.experiments.spirals.task import CLEAN, CONDITIONS, NOISE, NOISY
from cstformer.models.cst import CST
from cstformer.training.settings import preset

FLOOR = "noise-free curve (floor)"
BERT, BERT_AUGMENTED = "Transformer (BERT)", "Transformer (BERT + augmentation)"
CST_DEFAULT, CST_PAPER = "CST", "CST (paper preset)"
EQUAL_STEPS = ", equal steps"
"""End of the names of the paper's two models with the same number of steps; without it they have the same minutes."""
CST_STEPS, BERT_STEPS = CST_PAPER + EQUAL_STEPS, BERT + EQUAL_STEPS
# Rivals of the paper's other experiments that can read curves, by their keys in `BASELINES`.
RIVALS = ("lstm", "latent-ode", "lfads")
INTERPOLATION = {"linear": "linear", "cubic": "cubic", "GP": "gp", "mean": "mean", "copy nearest": "nearest"}
# Each ablation changes one idea of the default model; `cst run sobolev` has those of the Sobolev term.
ABLATIONS: dict[str, dict[str, Any]] = {
    "CST without noise": {"noise": 0.0},
    "CST without hiding": {"hide": 0.0},
    "CST with linear start": {"start": "linear"},
    "CST joint": {"pattern": "joint"},
}
PAPER_ROWS = (CST_PAPER, BERT, CST_STEPS, BERT_STEPS, BERT_AUGMENTED)
"""Rows of the paper's size, with the learning rate of its notebook."""
CST_DUMMIES = "CST (paper preset), 500 dummy points"
PAPER_ERROR = {(CST_PAPER, CLEAN): 0.03859, (BERT, CLEAN): 0.04329}
TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 20, "batch": 8}
"""Sizes of the networks of the preset ``smoke``."""
KEYS = {cls.label: key for key, cls in BASELINES.items()}
"""Key in `BASELINES` of each label."""


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 500
    conditions: tuple[str, ...] = CONDITIONS
    seeds: int = 5
    """Trainings of CST and of the models of the paper's size."""
    fewer: int = 3
    """Trainings of each rival and ablation."""
    paper_sized: tuple[str, ...] = CONDITIONS
    """Conditions in which the models of the paper's size are compared."""
    minutes: float = 2.0
    """Time limit of each of these models, and of each rival."""
    steps: int = 525
    """Steps of the rows with `EQUAL_STEPS`, whatever their time; the published notebook had its best weights there."""
    most_dummies: dict[str, Any] | None = field(default_factory=dict)
    """Changes to the row with the notebook's number of dummy points; None leaves it out."""
    ablate: tuple[str, ...] = (CLEAN, NOISY)
    """Conditions with ablations and rivals."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the default settings of CST."""
    paper: dict[str, Any] = field(default_factory=dict)
    """Changes to the paper preset of CST."""
    bert: dict[str, Any] = field(default_factory=dict)
    """Changes to the paper preset of the Transformer."""


def row_name(name: str) -> str:
    """Name in the table of a row that ``--models`` may call by its key in `BASELINES`."""
    rows = {"cst": CST_DEFAULT, "transformer": BERT} | {key: row for row, key in INTERPOLATION.items()}
    return rows.get(name, BASELINES[name].label if name in BASELINES else name)


def make_model(name: str, config: Config, seed: int) -> Any:
    """The model of a row, not fitted."""
    budget: dict[str, Any] = {"seed": seed, "max_minutes": config.minutes}
    equal: dict[str, Any] = {"steps": config.steps, "max_minutes": None} if name.endswith(EQUAL_STEPS) else {}
    if name in (CST_PAPER, CST_STEPS):
        return CST.preset("paper", **budget | config.paper | equal)
    if name == CST_DUMMIES:  # a search for μ would take half an hour
        fixed = {"steps": config.steps, "max_minutes": None, "mu": 0.0, "dummies": preset("paper")["dummies"]}
        return CST.preset("paper", **budget | config.paper | fixed | (config.most_dummies or {}))
    if name in (BERT, BERT_STEPS, BERT_AUGMENTED):
        noise = NOISE if name == BERT_AUGMENTED else 0.0
        return BASELINES["transformer"].preset("paper", **budget | {"augmentation": noise} | config.bert | equal)
    if name in INTERPOLATION:
        return BASELINES[INTERPOLATION[name]]()
    if name in KEYS:
        return BASELINES[KEYS[name]].preset("smoke" if config.cst == TINY else "default", **budget)
    return CST(**{"seed": seed, **config.cst, **ABLATIONS.get(name, {})})


def questions(condition: str) -> list[tuple[str, str, str]]:
    """Pairs of rows that are tested: CST against its nearest rivals, and the paper's claims about its own models."""
    pairs = [(CST_DEFAULT, BERT), (CST_DEFAULT, "GP"), (CST_DEFAULT, "cubic")]
    pairs += [(CST_PAPER, BERT), (CST_STEPS, BERT_STEPS), (CST_PAPER, "linear"), (CST_PAPER, "cubic")]
    pairs += [(BERT_AUGMENTED, BERT)]
    return [(first, second, condition) for first, second in pairs]
