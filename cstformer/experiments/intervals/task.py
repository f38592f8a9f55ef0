"""Data of the intervals experiment: samples to learn from, and observations of other samples that were held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.ett import ett_file, ett_task
from cstformer.datasets.gaps import GapTask
from cstformer.datasets.navier_stokes import Law
from cstformer.datasets.physionet import physionet_file, physionet_task
from cstformer.errors import CSTError
from cstformer.experiments.navier_stokes.task import Flows, flow_task, make_data
from cstformer.experiments.spirals.task import CONDITIONS, NOISE, NOISY, spiral_task

SPIRALS = tuple(f"spirals, {condition}" for condition in CONDITIONS)
ETT, PHYSIONET, FLOWS = "ETTh1, 50 % removed", "PhysioNet", "Navier–Stokes, noise 0.1"
ETT_MIXED = "ETTh1, months mixed"
"""As `ETT`, but the windows of all months are dealt to training and test at random: exchangeable."""
CORTEX = "simulated cortex"
FILES: dict[str, Callable[[], Path]] = {ETT: ett_file, ETT_MIXED: ett_file, PHYSIONET: physionet_file}
"""Finds the file of each data set that has one, or raises a `CSTError` that says where to get it."""
REMOVED = 0.5  # share of the cells of ETTh1
GIVEN, FLOW_NOISE, PATCH = 10, 0.1, 8  # frames that are given of a movie, noise of a flow, and the side of a patch
CAMERA, INSIDE = 32, slice(8, 24)  # pixels of the camera along an axis, and those that show cortex alone
ELECTRONS = 24000.0  # of a bright pixel in a frame, as in the calcium experiment


@dataclass(frozen=True)
class IntervalTask:
    """Samples to learn from, and observations that intervals should cover.

    Attributes
    ----------
    train, context : Samples
    at : coordinates of the queries
    truth : new observations at the queries, with noise
    asked : cells that are scored
    noise : standard deviation of the noise of each query, where it is known and differs between them
    """

    train: Samples
    context: Samples
    at: Float[np.ndarray, "N m d"]
    truth: Float[np.ndarray, "N m c"]
    asked: Bool[np.ndarray, "N m c"]
    noise: Float[np.ndarray, "N m c"] | None = None

    @property
    def distance(self) -> Float[np.ndarray, "N m"]:
        """From each query to the nearest observed point of its sample, along the first axis (time)."""
        seen = np.where(self.context.point_observed, self.context.coords[..., 0], np.inf)  # (N, n)
        found = np.empty(self.at.shape[:2])
        for i, (times, queries) in enumerate(zip(seen, self.at[..., 0], strict=True)):
            real = np.unique(times[np.isfinite(times)])
            after = np.clip(np.searchsorted(real, queries), 1, max(1, len(real) - 1))
            ends = real[np.stack([after - 1, np.minimum(after, len(real) - 1)])]
            found[i] = np.abs(queries - ends).min(0)
        return found


def missing_data(conditions: tuple[str, ...]) -> dict[str, str]:
    """Why a condition has to be left out, by name."""
    reasons = {}
    for condition in conditions:
        try:
            FILES.get(condition, Path)()
        except CSTError as error:
            reasons[condition] = str(error)
    return reasons


def flows_of(samples: int, seed: int, out: Path) -> Flows:
    """Solutions of the run, two thirds of which train."""
    law = Law(samples=samples, until=20.0, size=32, seed=seed)
    return Flows(out / "flows.zarr", 2 * samples // 3, law, PATCH, seed)


def prepare_flows(samples: int, seed: int, out: Path, progress: bool) -> None:
    """Solve the equation."""
    make_data(flows_of(samples, seed, out), progress)


@lru_cache(maxsize=2)
def make_task(condition: str, samples: int, part: str, seed: int, out: Path) -> IntervalTask:
    """Data of a condition.

    Parameters
    ----------
    condition : name of the condition
    samples : number of curves, patients, flows or windows of the cortex; ETTh1 has as many as it has
    part : ``test`` or ``validation``, of data sets that have both
    seed : of everything random
    out : folder of the run, with the flows
    """
    if condition in (ETT, ETT_MIXED):
        return _from_gaps(ett_task(REMOVED, part, seed, mixed=condition == ETT_MIXED))
    if condition == PHYSIONET:
        return _from_gaps(physionet_task(part, seed, 8 * samples))
    if condition == FLOWS:
        flows = flows_of(samples, seed, out)
        found = flow_task(flows, GIVEN, FLOW_NOISE)
        return _between_frames(found.train, found.test)
    if condition == CORTEX:
        return _cortex_task(samples, seed)
    data = spiral_task(samples, condition.removeprefix("spirals, "), seed)
    noise = NOISE if condition.endswith(NOISY) else 0.0
    truth = data.values + noise * np.random.default_rng([seed, 11]).normal(size=data.values.shape)
    at = np.tile(data.times[:, None], (len(truth), 1, 1))
    return IntervalTask(data.train, data.test, at, truth, np.repeat(data.unseen[..., None], 2, -1))


def _from_gaps(task: GapTask) -> IntervalTask:
    return IntervalTask(task.train, task.context, task.at, task.truth, task.asked)


def _cortex_task(windows: int, seed: int) -> IntervalTask:
    """Windows of a simulated recording, the first two thirds of which train; dark pixels have more shot noise."""
    times = 0.1 * np.arange(windows * GIVEN)
    made = CalciumSimulation(
        minutes=windows * GIVEN / 600,
        size=CAMERA,
        seed=seed,
        electrons=ELECTRONS,
        hemodynamics=0.0,
        coupling=0.0,
        bleaching=0.0,
    )
    noise = 1 / np.sqrt(made.brightness()[INSIDE, INSIDE].astype(float))  # of ΔF/F: √(electrons) / electrons
    clean = made.neural(times)[:, INSIDE, INSIDE]
    movie = clean + noise * np.random.default_rng([seed, 12]).normal(size=clean.shape)
    samples = frames_to_samples(movie, (PATCH, PATCH), GIVEN, GIVEN, times=times)
    levels = frames_to_samples(np.tile(noise, (GIVEN, 1, 1)), (PATCH, PATCH)).values  # (1, n, c)
    return _between_frames(samples[: 2 * windows // 3], samples[2 * windows // 3 :], levels)


def _between_frames(train: Samples, test: Samples, noise: Float[np.ndarray, "1 n c"] | None = None) -> IntervalTask:
    """Half of the inner frames among the first `GIVEN` of each test sample are hidden, every second one."""
    assert test.layout is not None
    frame = np.arange(test.n) // len(test.layout.centres)
    hidden = (frame % 2 == 1) & (frame < GIVEN - 1)
    context = test.subset_points(np.tile(~hidden, (len(test), 1)))
    truth = test.values[:, hidden]
    levels = None if noise is None else np.broadcast_to(noise[:, hidden], truth.shape)
    return IntervalTask(train, context, test.coords[:, hidden], truth, np.ones(truth.shape, dtype=bool), levels)
