"""Names of the experiments, and how to load one. Importing this module loads no numerical library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cstformer.experiments.base import Experiment

# `cst run all` runs and reports them in this order.
EXPERIMENTS = (
    *("spirals", "sobolev", "attention", "video", "navier-stokes", "calcium"),
    *("clocks", "imputation", "intervals", "cost"),
)


def load_experiment(name: str) -> Experiment:
    """Import the experiment with this name, one of `EXPERIMENTS`."""
    return importlib.import_module(f"cstformer.experiments.{name.replace('-', '_')}.experiment").EXPERIMENT
