"""Data of the imputation experiment: conditions, their tasks, and data sets that are not on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float

from cstformer.datasets.era5 import FieldTask, era5_file, era5_task
from cstformer.datasets.ett import ett_file, ett_task
from cstformer.datasets.gaps import GapTask
from cstformer.datasets.oscillators import oscillator_task
from cstformer.datasets.physionet import physionet_file, physionet_task
from cstformer.errors import CSTError
from cstformer.experiments.imputation.rows import ERA5, ETT, PHYSIONET, Config

FILES: dict[str, Callable[[], Path]] = {ETT: ett_file, PHYSIONET: physionet_file, ERA5: era5_file}
"""Finds the file of each data set that has one, or raises a `CSTError` that says where to get it."""
CURVE_POINTS = 193  # coordinates at which shown samples are drawn


def missing_data(config: Config) -> dict[str, str]:
    """Why a data set of the preset has to be left out, by name."""
    reasons = {}
    for data in config.data:
        try:
            FILES.get(data, Path)()
        except CSTError as error:
            reasons[data] = str(error)
    return reasons


def data_of(condition: str) -> str:
    """Name of the data set of a condition, which begins with it."""
    return condition.split(",")[0]


def make_task(condition: str, config: Config, seed: int) -> GapTask | FieldTask:
    """The task of a condition; every seed has its own gaps."""
    data, share = data_of(condition), config.conditions()[condition]
    if data == ERA5:
        return era5_task(config.part, seed)
    if data == PHYSIONET:
        return physionet_task(config.part, seed, config.records)
    assert share is not None, condition
    if data == ETT:
        return ett_task(share, config.part, seed)
    return oscillator_task(share, config.part, seed, config.train, config.scored)


def shown_samples(task: GapTask) -> list[int]:
    """Two samples to draw: those at a third and at two thirds of the ranks of asked cells."""
    order = np.argsort(task.asked.sum((1, 2)), kind="stable")
    return [int(order[len(order) // 3]), int(order[2 * len(order) // 3])]


def curve_times(task: GapTask) -> Float[np.ndarray, " m"]:
    """Coordinates at which shown samples are drawn."""
    return np.linspace(task.at.min(), task.at.max(), CURVE_POINTS)
