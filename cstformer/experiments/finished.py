"""Trained CST models of finished runs, with the samples to explore them on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.experiments.base import Experiment, jsonable
from cstformer.experiments.registry import EXPERIMENTS, load_experiment
from cstformer.models.model_files import DESCRIPTION
from cstformer.system.files import readable


@dataclass(frozen=True)
class Trained:
    """One trained model of a run."""

    label: str
    folder: Path
    experiment: Experiment
    condition: str
    config: Any
    """None if the run has other settings than this version's preset, so that its samples cannot be made again."""
    seed: int

    def context(self) -> Samples | None:
        """Test samples of its condition."""
        return None if self.config is None else self.experiment.context(self.condition, *self._run)

    def stimulus(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Stimulus of the recording, on its clock."""
        return None if self.config is None else self.experiment.stimulus(self.condition, *self._run)

    @property
    def _run(self) -> tuple[Any, int, Path]:
        return self.config, self.seed, self.folder.parent.parent.parent


def runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs directly inside it (``cst run all``)."""
    if (folder / "run.json").is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/run.json"))


def trained_models(folder: Path, registry: Sequence[str] = EXPERIMENTS) -> list[Trained]:
    """All CST models in a run, or in the runs of ``cst run all``, in the order of their tables."""
    runs, found = runs_in(folder), []
    for run in runs:
        with readable(run / "run.json", "the description of a run") as path:
            about = json.loads(path.read_text())
            name, preset, seed = about["experiment"], about["preset"], about["seed"]
        if name not in registry:
            raise CSTError(f"{run} is a run of {name!r}, which this version does not know; upgrade")
        experiment = load_experiment(name)
        config = experiment.presets.get(preset)
        cells = [] if config is None else experiment.all_cells(config)
        same = config is not None and jsonable(asdict(config)) == about["config"]
        prefix = f"{name}: " if len(runs) > 1 else ""
        for cell in cells:
            model = run / "cells" / cell.slug / "model"
            if _is_cst(model, run):
                label = f"{prefix}{cell.model} · {cell.condition}"
                found.append(Trained(label, model, experiment, cell.condition, config if same else None, seed))
    if not found:
        raise CSTError(f"{folder} has no trained model of CST; give a directory written by `cst run` or `cst fit`")
    return found


def _is_cst(model: Path, run: Path) -> bool:
    path = model / DESCRIPTION
    # A run may come from an untrusted source: its links must not lead out of it.
    if not path.is_file() or not path.resolve().is_relative_to(run.resolve()):
        return False
    with readable(path, "a model"):
        return json.loads(path.read_text()).get("kind") == "CST"
