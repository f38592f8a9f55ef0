"""Time to quality: seconds of one core until CST has a given error, and the error of each rival after that time.

A training ends with a decaying step size, so the error halfway through a long training says little about a short one.
CST therefore trains from the beginning with more and more steps, until it reaches the goal; the seconds are those of
the training that did, its set-up and its answers included. Rivals that train get the same time.

Spirals, clean and with noise of 0.1: 350 curves of 10 points, mean distance to the noise-free curve at unseen times.
ETTh1, if ``CST_DATA`` names a folder that has it: half of the cells removed, mean absolute error of the validation
months. Navier–Stokes: 5 of 20 frames with 10 % of noise, mean squared error of all frames. Video: synthetic scenes,
noise on about half of the pixels, mean squared error. Cortex: a simulated widefield recording with noise, every second
frame given, mean squared error of all frames in units of the signal's variance; CST starts from a few spatial modes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cstformer.baselines import BASELINES
from cstformer.data.checks import extrapolation
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.corruption import corrupt, corrupt_frames
from cstformer.datasets.ett import ett_file, ett_task
from cstformer.datasets.moving_scene import MovingScene
from cstformer.datasets.navier_stokes import Law, solutions
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.cst import CST
from cstformer.system.memory import keep_freed_memory

PATCH = (8, 8)
QUICK_STEPS = (5, 10)


@dataclass(frozen=True)
class Problem:
    """Training data, a context, where answers are asked, how wrong they are, and how wrong they may be."""

    name: str
    goal: float
    train: Samples
    context: Samples
    at: np.ndarray
    error: Callable[[np.ndarray], float]
    rivals: tuple[str, ...]
    steps: tuple[int, ...]
    """Steps of CST's trainings, one after the other until the goal is reached."""
    settings: dict[str, Any] = field(default_factory=dict)
    given: Callable[..., Any] | None = None
    """Corruption of the training data; see `CST.fit`."""


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure CPU seconds and errors of CST and its rivals on each problem."""
    keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for make in (_spirals, _noisy_spirals, _ett, _flows, _video, _cortex):
        try:
            problem = make(quick)
        except CSTError as error:
            rows.append({"case": f"left out: {error}"})
        else:
            rows += compare(problem, QUICK_STEPS if quick else problem.steps)
    return rows


def compare(problem: Problem, steps: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Rows of CST, whose last training reached the goal or was the longest, and of the rivals after the same time."""
    for count in steps:
        seconds, error = _measured(CST(**problem.settings | {"steps": count}), problem)
        if error <= problem.goal:
            break
    found = {"goal": problem.goal, "reached": error <= problem.goal}
    yield {"case": f"{problem.name}: CST", "CPU seconds": seconds, "error": error, "steps": count, **found}
    for name in problem.rivals:
        rival = BASELINES[name]()
        if _trains(rival):
            rival.set_params(max_minutes=seconds / 60)
        spent, error = _measured(rival, problem)
        yield {"case": f"{problem.name}: {rival.label}", "CPU seconds": spent, "error": error}


def _trains(model: Any) -> bool:
    """Whether a model trains step by step; others cannot learn from a corruption."""
    return "max_minutes" in model.get_params()


def _measured(model: Any, problem: Problem) -> tuple[float, float]:
    """CPU seconds of fit and predict, and the error."""
    started = time.process_time()
    with warnings.catch_warnings(), extrapolation():
        warnings.simplefilter("ignore", CSTWarning)  # max_minutes ends trainings on purpose
        if problem.given is not None and _trains(model):
            model.fit(problem.train, given=problem.given)
        else:
            model.fit(problem.train)
        answer = model.predict(problem.context, problem.at)
    return time.process_time() - started, problem.error(answer)


def _spirals(quick: bool, noise: float = 0.0) -> Problem:
    count = 60 if quick else 500
    spirals, index = make_spirals(count), regular_indices()
    values = spirals.values[:, index] + noise * np.random.default_rng(0).normal(size=(count, len(index), 2))
    samples, first = Samples(spirals.times[index], values), count * 7 // 10
    unseen = np.setdiff1d(np.arange(len(spirals.times)), index)
    truth = spirals.clean[first:, unseen]
    return Problem(
        f"spirals, noise {noise:g}" if noise else "spirals",
        0.060 if noise else 0.031,
        samples[:first],
        samples[first:],
        spirals.times[unseen],
        lambda answer: float(np.linalg.norm(answer - truth, axis=-1).mean()),
        ("transformer", "gp", "cubic", "linear"),
        (500, 1000, 2000, 4000),
    )


def _noisy_spirals(quick: bool) -> Problem:
    return _spirals(quick, 0.1)


def _ett(quick: bool) -> Problem:
    ett_file()
    task = ett_task(0.5, "validation")

    def error(answer: np.ndarray) -> float:
        sums = task.errors(answer)
        return float(sums["absolute"].sum() / sums["cells"].sum())

    rivals = ("linear",) if quick else ("transformer", "boosting", "gp", "linear")
    train = task.train[:20] if quick else task.train
    return Problem("ETTh1, 50 %", 0.20, train, task.context, task.at, error, rivals, (300, 600, 1200, 2400))


def _flows(quick: bool, given: int = 5, noise: float = 0.1) -> Problem:
    training, testing, size = (6, 2, 16) if quick else (300, 40, 64)
    law = Law(samples=training + testing, until=20.0, size=size)
    frames = solutions(np.arange(law.samples), law)[1]
    random = np.random.default_rng(0)
    inner = random.random((law.samples, len(law.times) - 2)).argsort(1)[:, : given - 2] + 1
    index = np.sort(np.concatenate([np.tile([0, len(law.times) - 1], (law.samples, 1)), inner], 1), 1)
    noisy = np.take_along_axis(frames, index[:, :, None, None], 1)
    noisy = noisy + noise * frames[:training].std() * random.standard_normal(noisy.shape, np.float32)
    samples, truth = _tokens(noisy, index), _tokens(frames[training:], np.tile(np.arange(20.0), (testing, 1)))
    return Problem(
        f"Navier–Stokes, {given} given",
        6e-4,
        samples[:training],
        samples[training:],
        truth.coords,
        lambda answer: float(np.square(answer - truth.values).mean()),
        ("space-time-wiener", "wiener", "linear") if quick else ("fno3d", "space-time-wiener", "wiener", "linear"),
        (100, 200, 400, 800),
    )


def _tokens(frames: np.ndarray, times: np.ndarray) -> Samples:
    """Patches of periodic frames (N, T, H, W); each movie has its own times (N, T)."""
    one = frames_to_samples(frames[..., None], PATCH, periodic=True)
    coords = one.coords.copy()
    coords[..., 0] = np.repeat(times, one.n // times.shape[1], axis=1)
    return Samples(coords, one.values, coord_names=one.coord_names, layout=one.layout)


def _video(quick: bool) -> Problem:
    training, testing, length = (6, 2, 5) if quick else (300, 40, 10)
    clips = [
        MovingScene(seed=seed, size=(32, 32)).frames(np.arange(length)).astype(np.float32)
        for seed in range(training + testing)
    ]
    movies, clean = np.stack(clips), frames_to_samples(np.stack(clips[training:]), PATCH)
    seen = frames_to_samples(corrupt_frames(movies[training:], seed=0)[0], PATCH)

    def given(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return corrupt(frames, generator)[0]

    return Problem(
        "video, noise on pixels",
        1e-3,
        frames_to_samples(movies[:training], PATCH),
        seen,
        clean.coords,
        lambda answer: float(np.square(answer - clean.values).mean()),
        ("median", "switching-median") if quick else ("convgru", "vit3d", "median", "switching-median"),
        (100, 200, 400, 800, 1600),
        {"start": "median", "hide": 0.0, "order": 0, "p": 1.25},
        given,
    )


def _cortex(quick: bool, noise: float = 0.5, frames: int = 17) -> Problem:
    minutes, size = (0.5, 16) if quick else (3.0, 32)
    recordings = []
    for seed in (0, 1):  # one animal trains, the other is asked
        animal = CalciumSimulation(minutes=minutes, size=size, seed=seed)
        movie = animal.neural(np.arange(int(60 * minutes * animal.rate)) / animal.rate)
        recordings.append(movie[: len(movie) // frames * frames].reshape(-1, frames, size, size, 1))
    training, truth = (movie / recordings[0].std() for movie in recordings)
    random, given = np.random.default_rng(0), np.arange(0, frames, 2)
    noisy = [m[:, given] + noise * random.standard_normal(m[:, given].shape) for m in (training, truth)]
    train, context = (frames_to_samples(m.astype(np.float32), PATCH, times=given) for m in noisy)
    clean = frames_to_samples(truth, PATCH, times=np.arange(frames))
    return Problem(
        "cortex on modes",
        0.025,  # modes and a Gaussian process reach 0.026
        train,
        context,
        clean.coords,
        lambda answer: float(np.square(answer - clean.values).mean()),
        ("modes-gp", "modes-linear") if quick else ("convgru", "space-time-wiener", "modes-gp", "modes-linear"),
        (100, 200, 400, 800),
        {"start": "modes"},
    )
