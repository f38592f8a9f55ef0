"""CST beside common alternatives: seconds to fit and predict, and the error, in one run on the same data.

Spirals: 350 noisy training curves and 150 test curves observed at 10 points. The error is measured at the unseen points
against the noise-free curve.

ETTh1 and ERA5, if ``CST_DATA`` names a folder that has them. ETTh1: seven series of an electricity transformer, half of
whose cells are removed. The error is the mean absolute one at these cells of the validation months: a benchmark does
not look at the test months. ERA5: hourly temperature over the UK, every sixth hour given. The error is the mean squared
one at the other hours. `datasets.ett` and `datasets.era5` describe both.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.baselines.interpolation import thin_plate
from cstformer.baselines.peers import MISSING, PEERS, impute, peers_installed
from cstformer.data.checks import extrapolation
from cstformer.data.samples import Samples
from cstformer.datasets.era5 import era5_file, era5_task
from cstformer.datasets.ett import ett_file, ett_task
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.cst import CST
from cstformer.models.movie_answers import predict_movie
from cstformer.system.memory import keep_freed_memory

MINUTES = 2.0  # of each training on ETTh1 and ERA5
QUICK = 0.06
REMOVED = 0.5  # share of the cells of ETTh1
CLASSICAL = {
    "mean": "mean",
    "last value": "last",
    "linear": "linear",
    "cubic": "cubic",
    "GP": "gp",
    "co-kriging": "co-kriging",
}
"""Rows without training, by their keys in `BASELINES`."""


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds and errors of each model."""
    keep_freed_memory()
    rows = _spirals(quick)
    for find, compare in ((ett_file, _ett), (era5_file, _era5)):
        try:
            find()
        except CSTError as error:
            rows.append({"case": f"left out: {error}"})
        else:
            rows += compare(QUICK if quick else MINUTES)
    return rows


def _spirals(quick: bool) -> list[dict[str, Any]]:
    count = 100 if quick else 500
    spirals, index = make_spirals(count), regular_indices()
    noise = 0.1 * np.random.default_rng(0).normal(size=(count, len(index), 2))
    samples = Samples(spirals.times[index], spirals.values[:, index] + noise)
    train, test = samples[: count * 7 // 10], samples[count * 7 // 10 :]
    unseen = np.setdiff1d(np.arange(len(spirals.times)), index)
    truth = spirals.clean[count * 7 // 10 :, unseen]
    short: dict[str, Any] = {"steps": 30} if quick else {}

    def error(answer: np.ndarray) -> float:
        return float(np.linalg.norm(answer - truth, axis=-1).mean())

    def fitted(model: Any) -> Callable[[], np.ndarray]:
        return lambda: model.fit(train).predict(test, spirals.times[unseen])

    works = {
        "CST": fitted(CST(**short)),
        "Transformer (BERT)": fitted(BASELINES["transformer"](**short)),
        "GP": fitted(BASELINES["gp"]()),
        "linear": fitted(BASELINES["linear"]()),
        "cubic": fitted(BASELINES["cubic"]()),
        "SciPy's RBFInterpolator": lambda: thin_plate(test, spirals.times[unseen], 0.0),
        "SciPy's RBFInterpolator, smoothed": lambda: thin_plate(test, spirals.times[unseen], 1e-3),
    }
    return [_row("spirals", name, work, error) for name, work in works.items()]


def _ett(minutes: float) -> list[dict[str, Any]]:
    task = ett_task(REMOVED, "validation")

    def error(answer: np.ndarray) -> float:
        sums = task.errors(answer)
        return float(sums["absolute"].sum() / sums["cells"].sum())

    def fitted(model: Any) -> Callable[[], np.ndarray]:
        return lambda: model.fit(task.train).predict(task.context, task.at)

    def peer(name: str) -> Callable[[], np.ndarray]:
        return lambda: impute(name, task.train, task.context, task.at, minutes).values

    cap: dict[str, Any] = {"max_minutes": minutes}
    works = {
        "CST": fitted(CST(**cap)),
        "CST, p = 1": fitted(CST(p=1.0, **cap)),
        "Transformer (BERT)": fitted(BASELINES["transformer"](**cap)),
        **({name: peer(name) for name in PEERS} if peers_installed() else {}),
        "gradient boosting": fitted(BASELINES["boosting"]()),
        **{row: fitted(BASELINES[key]()) for row, key in CLASSICAL.items()},
    }
    rows = [_row("ETTh1", name, work, error) for name, work in works.items()]
    return rows if peers_installed() else [*rows, {"case": f"ETTh1: {' and '.join(PEERS)} left out: {MISSING}"}]


def _era5(minutes: float) -> list[dict[str, Any]]:
    task = era5_task()

    def error(answer: np.ndarray) -> float:
        return float(np.mean((answer.reshape(task.truth.shape) - task.truth) ** 2))

    def learned(model: Any) -> Callable[[], np.ndarray]:
        return lambda: predict_movie(model.fit(task.train), task.given, task.hours, task.asked)

    def classical(key: str) -> Callable[[], np.ndarray]:
        learned = task.learned if key == "mean" else task.flat  # the kernel of a process is that of the recording
        return lambda: BASELINES[key]().fit(learned).predict(task.flat, task.asked)

    cap: dict[str, Any] = {"max_minutes": minutes}
    works = {
        "CST": learned(CST(**cap)),
        "Transformer (BERT)": learned(BASELINES["transformer"](**cap, **{"together": 64})),
        **{row: classical(key) for row, key in CLASSICAL.items() if row != "co-kriging"},
        "SciPy's RBFInterpolator": lambda: thin_plate(task.flat, task.asked, 0.0),
        "SciPy's RBFInterpolator, smoothed": lambda: thin_plate(task.flat, task.asked, 1.0),
    }
    return [_row("ERA5", name, work, error) for name, work in works.items()]


def _row(data: str, name: str, work: Callable[[], np.ndarray], error: Callable) -> dict[str, Any]:
    started = time.perf_counter()
    with warnings.catch_warnings(), extrapolation():
        warnings.simplefilter("ignore", CSTWarning)  # max_minutes ends trainings on purpose
        answer = work()
    return {"case": f"{data}: {name}", "fit + predict seconds": time.perf_counter() - started, "error": error(answer)}
