"""Data of the Navier–Stokes experiment: the given frames, their noise, and the true fields.

All data come from the solutions in one Zarr file in the run directory, which `make_data` writes before the first cell.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from cstformer.baselines import BASELINES
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.navier_stokes import VISCOSITY, Law, forcing, make_navier_stokes, solutions
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.datasets.vorticity import tendency

FINE = 4  # fine time steps between two frames
WORTH_WORKERS = 100  # solving fewer flows takes less time than starting processes


@dataclass(frozen=True)
class Flows:
    """The solutions of a run: the first ``training`` of them train, the others test."""

    path: Path
    training: int
    law: Law
    patch: int
    seed: int

    @property
    def times(self) -> Float[np.ndarray, " T"]:
        """Times of the frames."""
        return self.law.times

    @property
    def layout(self) -> PatchLayout:
        """Patches of a frame."""
        size = self.law.size
        return PatchLayout((size, size), (self.patch, self.patch), periodic=True)

    @property
    def fine_times(self) -> Float[np.ndarray, " F"]:
        """Times of the fine grid: those of the frames, and others between them."""
        steps = round(FINE * (self.times[-1] - self.times[0]) / self.law.every)
        return np.linspace(self.times[0], self.times[-1], steps + 1)


@dataclass(frozen=True)
class FlowTask:
    """Samples of one condition; times are in the units of the solver."""

    train: Samples
    test: Samples
    truth: Float[np.ndarray, "N T size size"]
    """Noise-free frames of the test flows, at all times."""
    unseen: Bool[np.ndarray, "N T"]
    """True where a test flow has no given frame."""


def make_data(flows: Flows, progress: bool) -> None:
    """Solve the equation, or resume where an earlier run stopped."""
    jobs = 1 if flows.law.samples < WORTH_WORKERS else None
    make_navier_stokes(flows.path, flows.law, jobs=jobs, progress=progress)


@lru_cache(maxsize=1)
def flow_task(flows: Flows, given: int, noise: float, highest: float | None = None) -> FlowTask:
    """Noisy frames at ``given`` times of each flow: the first, the last, and others at random.

    The noise is white. Its standard deviation is ``noise`` times that of all training frames. With ``highest``, each
    training flow has a level of its own, drawn uniformly between ``noise`` and ``highest``.
    """
    file, sd = Solutions(flows.path), _sd(flows)
    index = given_times(flows.law.samples, len(flows.times), given, flows.seed)

    def noisy(frames: np.ndarray, rows: slice, levels: tuple[float, float]) -> Samples:
        chosen = np.take_along_axis(frames, index[rows, :, None, None], 1)
        random = np.random.default_rng([flows.seed, 1, given, rows.start, *(round(1000 * x) for x in levels)])
        level = sd * random.uniform(*levels, len(chosen)).astype(np.float32)[:, None, None, None]
        chosen += level * random.standard_normal(chosen.shape, np.float32)
        return tokens(chosen, flows.times[index[rows]], flows)

    training, testing = slice(0, flows.training), slice(flows.training, flows.law.samples)
    train = noisy(file.frames(training), training, (noise, highest or noise))
    truth = file.frames(testing)
    return FlowTask(train, noisy(truth, testing, (noise, noise)), truth, unseen_times(flows, given))


def filtered_task(task: FlowTask, flows: Flows) -> FlowTask:
    """The same task with frames that the space–time Wiener filter, the start of CST, has cleaned.

    The filter is fitted to the noisy training frames and sees all given frames of a flow.
    """
    wiener = BASELINES["space-time-wiener"]().fit(task.train)

    def clean(samples: Samples) -> Samples:
        return samples.replace(values=wiener.predict(samples, samples.coords))

    return dataclasses.replace(task, train=clean(task.train), test=clean(task.test))


@lru_cache(maxsize=2)
def _sd(flows: Flows) -> float:
    """Standard deviation of all training frames."""
    return float(Solutions(flows.path).frames(slice(0, flows.training)).std(dtype=np.float64))


def given_times(flows: int, count: int, given: int, seed: int) -> Int[np.ndarray, "flows given"]:
    """Indices of the given times of each flow, sorted; the first and the last are always given.

    >>> given_times(2, 6, 4, seed=0).tolist()
    [[0, 2, 4, 5], [0, 2, 3, 5]]
    """
    inner = np.random.default_rng([seed, 0, given]).random((flows, count - 2)).argsort(1)[:, : given - 2] + 1
    ends = np.tile([0, count - 1], (flows, 1))
    return np.sort(np.concatenate([ends, inner], 1), 1)


def unseen_times(flows: Flows, given: int) -> Bool[np.ndarray, "N T"]:
    """True at the times of each test flow that are not given."""
    unseen = np.ones((flows.law.samples, len(flows.times)), dtype=bool)
    np.put_along_axis(unseen, given_times(*unseen.shape, given, flows.seed), False, 1)
    return unseen[flows.training :]


def tokens(frames: Float[np.ndarray, "N T H W"], times: Float[np.ndarray, "N T"], flows: Flows) -> Samples:
    """Patch tokens of periodic frames; each flow has its own times."""
    one = frames_to_samples(frames[..., None], (flows.patch, flows.patch), periodic=True, time_unit="1")
    coords = one.coords.copy()
    coords[..., 0] = np.repeat(times, one.n // times.shape[1], axis=1)
    return Samples(coords, one.values, coord_names=one.coord_names, units=one.units, layout=one.layout)


@lru_cache(maxsize=1)
def closer_truth(flows: Flows, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Vorticity and its time derivative of the first ``count`` test flows at `fine_times`, (count, F, size, size)."""
    law = dataclasses.replace(flows.law, every=flows.law.every / FINE)
    w = solutions(range(flows.training, flows.training + count), law)[1][:, FINE - 1 :]
    force = torch.as_tensor(forcing(law.size))
    slope = tendency(torch.as_tensor(w, dtype=torch.float64), viscosity=VISCOSITY, forcing=force)
    return w, slope.numpy().astype(np.float32)


def zoomed_truth(flows: Flows, count: int, time: float, zoom: int) -> Float[np.ndarray, "count fine fine"]:
    """The first ``count`` test flows at one time, solved from the same initial condition on a finer grid."""
    size, step = zoom * flows.law.size, flows.law.step / zoom
    law = dataclasses.replace(flows.law, size=size, step=step, until=time, every=time)
    return solutions(range(flows.training, flows.training + count), law)[1][:, -1]
