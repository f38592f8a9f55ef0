"""Rows of the spirals table: their names, the settings of a preset, and the model of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cstformer.baselines import BASELINES
from cstformer.experiments.spirals.task import CLEAN, CONDITIONS, NOISE, NOISY
from cstformer.models.cst import CST

FLOOR = "noise-free curve (floor)"
BERT, BERT_AUGMENTED = "Transformer (BERT)", "Transformer (BERT + augmentation)"
CST_DEFAULT, CST_PAPER = "CST", "CST (paper preset)"
# Rivals of the paper's other experiments that can read curves, by their keys in `BASELINES`.
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
TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 20, "batch": 8}
"""Sizes of the networks of the preset ``smoke``."""
KEYS = {cls.label: key for key, cls in BASELINES.items()}
"""Key in `BASELINES` of each label."""


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    curves: int = 500
    conditions: tuple[str, ...] = CONDITIONS
    paper_sized: tuple[str, ...] = (CLEAN, NOISY)
    """Conditions in which the two models of the paper's size are compared."""
    minutes: float = 5.0
    """Time limit of each of these two models, and of each rival."""
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
    if name == CST_PAPER:
        return CST.preset("paper", **{"seed": seed, "max_minutes": config.minutes, **config.paper})
    if name in (BERT, BERT_AUGMENTED):
        noise = NOISE if name == BERT_AUGMENTED else 0.0
        changes = {"seed": seed, "max_minutes": config.minutes, "augmentation": noise, **config.bert}
        return BASELINES["transformer"].preset("paper", **changes)
    if name in INTERPOLATION:
        return BASELINES[INTERPOLATION[name]]()
    if name in KEYS:
        preset = "smoke" if config.cst == TINY else "default"
        return BASELINES[KEYS[name]].preset(preset, seed=seed, max_minutes=config.minutes)
    return CST(**{"seed": seed, **config.cst, **ABLATIONS.get(name, {})})
