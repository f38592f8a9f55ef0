"""Experiments that are stopped in the middle, for the tests of all of them."""

import dataclasses
import os
import signal
import time
from typing import Any

import pytest
import torch

from cstformer.experiments.attention.experiment import AttentionExperiment
from cstformer.experiments.base import Cell, Experiment, run_experiment
from cstformer.experiments.spirals.experiment import SpiralsExperiment
from cstformer.training import loop

STEPS = 60


class Stopped(Experiment):
    """Mixed into an experiment, it records the cells that it computes, and stops after ``most`` of them."""

    def __init__(self, most: int):
        self.most = most
        self.computed: list[Cell] = []

    def compute(self, cell, *rest):
        if len(self.computed) == self.most:
            raise KeyboardInterrupt
        self.computed.append(cell)
        return super().compute(cell, *rest)  # type: ignore[safe-super]


def stop_and_go_on(kind: type[Stopped], out, rows: list[str]) -> tuple[dict[str, Any], Any, list[Cell], list[Cell]]:
    """Stop a smoke run of some rows after three cells and run it again: result, folder, cells of either part."""
    first, second = kind(3), kind(99)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(first, "smoke", out, models=rows, quiet=True, jobs=1)
    result = run_experiment(second, "smoke", out, models=rows, quiet=True, jobs=1)
    return result, out, first.computed, second.computed


def longer(experiment: Experiment) -> dict[str, Any]:
    """The smoke preset with `STEPS` steps, all of which are done."""
    smoke = experiment.presets["smoke"]
    return {"smoke": dataclasses.replace(smoke, cst=smoke.cst | {"steps": STEPS, "patience": 1.0, "order": 0})}


class Slow(Experiment):
    """Mixed into an experiment: trainings that last long enough to be interrupted."""

    pause = 0.0
    """Seconds to wait in each step. Trainings with a pause write their state after every step."""

    def compute(self, *args):
        if self.pause:  # here and not in the parent, because workers import everything anew
            loop.SAVE_SECONDS = 0.0
            backward = torch.Tensor.backward
            torch.Tensor.backward = lambda *a, **k: (time.sleep(self.pause), backward(*a, **k))[1]
        return super().compute(*args)  # type: ignore[safe-super]


class SlowSpirals(Slow, SpiralsExperiment):
    presets = longer(SpiralsExperiment())


class SlowAttention(Slow, AttentionExperiment):
    presets = longer(AttentionExperiment())


def die(cell: Cell) -> None:
    """Kill the process that should compute a cell."""
    os.kill(os.getpid(), signal.SIGKILL)
