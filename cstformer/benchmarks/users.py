"""CST beside common alternatives: seconds to fit and predict, and the error, in one run on the same data.

Spirals: 350 noisy training curves and 150 test curves observed at 10 points. The error is measured at the unseen points
against the noise-free curve.

ERA5, if ``CST_DATA`` names a folder that has it: hourly temperature over the UK, with noise of a tenth of its standard
deviation. Every sixth hour is given. Models train on the first 70 % of the month; the mean squared error (standardised)
is measured at the other hours of the last 30 %.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator

from cstformer.baselines import BASELINES
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.errors import CSTWarning
from cstformer.models.answers import predict_movie
from cstformer.models.cst import CST
from cstformer.system.files import read_npz
from cstformer.system.memory import keep_freed_memory

ERA5 = Path("era5_uk") / "t2m_744x33x49_f32.npz"
EVERY = 6  # hours from one given frame to the next
SHARE = 0.7  # fraction of the month used for training
NOISE = 0.1  # sd of the added noise, over that of the training frames


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds and errors of each model."""
    keep_freed_memory()
    rows = _spirals(quick)
    file = Path(os.environ.get("CST_DATA", "")) / ERA5
    if file.is_file():
        return rows + _era5(file, quick)
    return [*rows, {"case": f"ERA5: left out, because CST_DATA names no folder with {ERA5.as_posix()}"}]


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
        "SciPy's RBFInterpolator": lambda: _radial(test, spirals.times[unseen], 0.0),
        "SciPy's RBFInterpolator, smoothed": lambda: _radial(test, spirals.times[unseen], 1e-3),
    }
    return [_row("spirals", name, work, error) for name, work in works.items()]


def _radial(context: Samples, at: np.ndarray, smoothing: float) -> np.ndarray:
    """Fit a thin-plate spline to the points of each sample separately."""
    pairs = zip(context.coords, context.values, strict=True)
    return np.stack([RBFInterpolator(x, y, smoothing=smoothing)(at[:, None]) for x, y in pairs])


def _era5(file: Path, quick: bool) -> list[dict[str, Any]]:
    movie = read_npz(file)["t2m"].astype(np.float64)
    hours = np.arange(len(movie), dtype=float)
    cut = int(SHARE * len(movie)) // EVERY * EVERY
    movie = (movie - movie[:cut].mean()) / movie[:cut].std()
    noisy = movie + NOISE * np.random.default_rng(0).normal(size=movie.shape)
    learn, given = slice(0, cut, EVERY), slice(cut, None, EVERY)
    last = hours[given][-1]
    asked = np.setdiff1d(hours[cut : int(last) + 1], hours[given])
    truth = movie[asked.astype(int)]
    minutes: dict[str, Any] = {"max_minutes": 0.06 if quick else 2.0}

    def error(answer: np.ndarray) -> float:
        return float(np.mean((answer.reshape(truth.shape) - truth) ** 2))

    frames = frames_to_samples(noisy[learn], (8, 8), window=10, stride=3, times=hours[learn])
    flat = Samples(hours[given], noisy[given].reshape(1, -1, movie[0].size))

    def learned(model: Any) -> Callable[[], np.ndarray]:
        def work() -> np.ndarray:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CSTWarning)  # max_minutes ends the training on purpose
                return predict_movie(model.fit(frames), noisy[given], hours[given], asked)

        return work

    def classical(name: str) -> Callable[[], np.ndarray]:
        return lambda: BASELINES[name]().fit(flat).predict(flat, asked)

    works = {
        "CST": learned(CST(**minutes)),
        "Transformer (BERT)": learned(BASELINES["transformer"](**minutes, **{"together": 64})),
        "GP": classical("gp"),
        "linear": classical("linear"),
        "cubic": classical("cubic"),
        "SciPy's RBFInterpolator": lambda: _radial(flat, asked, 0.0),
        "SciPy's RBFInterpolator, smoothed": lambda: _radial(flat, asked, 1.0),
    }
    return [_row("ERA5", name, work, error) for name, work in works.items()]


def _row(data: str, name: str, work: Callable[[], np.ndarray], error: Callable) -> dict[str, Any]:
    started = time.perf_counter()
    answer = work()
    return {"case": f"{data}: {name}", "fit + predict seconds": time.perf_counter() - started, "error": error(answer)}
