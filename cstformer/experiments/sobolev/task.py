"""Cases of the study of the Sobolev term: their data, and what is measured of a fitted model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.samples import Samples
from cstformer.datasets.navier_stokes import Law
from cstformer.experiments.metrics import euclidean_error, roughness
from cstformer.experiments.navier_stokes.errors import closer_look
from cstformer.experiments.navier_stokes.task import Flows, flow_task, make_data
from cstformer.experiments.spirals.task import CLEAN, NOISY, SpiralTask, spiral_task
from cstformer.models.cst import CST

WAVES = 4  # sines of a track
AWAY = 0.05  # share of the time at either end of a track at which nothing is asked
EVERY = 10  # of the fine coordinates of a spiral, at which its derivative is compared


@dataclass(frozen=True)
class Case:
    """One data set and the model that is trained on it."""

    data: str
    """``spirals``, ``tracks`` or ``flows``."""
    model: str = "default"
    """Preset of CST."""
    noise: float = 0.0
    points: int = 10
    """Observed points of a curve, or given frames of a flow."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to the preset."""
    weights: tuple[float, ...] = ()
    """Weights of the term, in units in which 1 makes the term of the data as large as their variance."""


@dataclass(frozen=True)
class Tracks:
    """Positions at irregular times with noise, and the truth."""

    train: Samples
    test: Samples
    at: Float[np.ndarray, " m"]
    position: Float[np.ndarray, "N m 1"]
    velocity: Float[np.ndarray, "N m 1"]


def make_tracks(count: int, test: int, points: int, noise: float, seed: int) -> Tracks:
    """Smooth positions, sums of `WAVES` sines of random phase and size, seen at ``points`` irregular times."""
    random = np.random.default_rng([seed, 20])
    size, phase = random.normal(size=(2, count + test, 1, WAVES))
    number = 2 * np.pi * np.arange(1, WAVES + 1)
    size, phase = size / np.arange(1, WAVES + 1), 2 * np.pi * phase
    t = np.sort(random.uniform(size=(count + test, points)), axis=1)

    def position(times: np.ndarray) -> np.ndarray:
        return (size * np.sin(number * times[..., None] + phase)).sum(-1)[..., None]

    samples = Samples(t, position(t) + noise * random.normal(size=(*t.shape, 1)), coord_names=["t"], value_names=["x"])
    at = np.linspace(AWAY, 1 - AWAY, 181)
    where = np.broadcast_to(at, (count + test, len(at)))
    velocity = (size * number * np.cos(number * where[..., None] + phase)).sum(-1)[..., None]
    return Tracks(samples[:count], samples[count:], at, position(where)[count:], velocity[count:])


def flows_of(count: int, test: int, seed: int, out: Path, until: float, size: int) -> Flows:
    """Small flows on a coarse grid."""
    law = Law(samples=count + test, until=until, size=size, seed=seed)
    return Flows(out / "flows.zarr", count, law, 8 if size > 16 else 4, seed)


def training_samples(case: Case, curves: int, seed: int, flows: Flows) -> Samples:
    """What the model of a case learns from."""
    if case.data == "flows":
        return flow_task(flows, case.points, case.noise).train
    if case.data == "tracks":
        return _tracks(case, curves, seed).train
    return _spirals(case, curves, seed).train


def measures(model: CST, case: Case, curves: int, seed: int, flows: Flows) -> dict[str, np.ndarray]:
    """``value``, ``slope`` (root mean squares, the slope's relative to the true one) and ``roughness`` of a sample."""
    if case.data == "flows":
        look = closer_look(
            model, flow_task(flows, case.points, case.noise), flows, 1, flows.law.samples - flows.training
        )
        found = {"value": np.sqrt(look["fine"].mean(1)), "slope": np.sqrt(look["slope"].mean(1))}
        return found | {"roughness": look["roughness"]}
    if case.data == "tracks":
        tracks = _tracks(case, curves, seed)
        y, slope = model.predict(tracks.test, tracks.at), model.derivative(tracks.test, tracks.at, (1,))
        errors = {"value": _distance(y, tracks.position), "slope": _distance(slope, tracks.velocity)}
        errors["slope"] /= _distance(tracks.velocity, 0).mean()
        return errors | {"roughness": roughness(y, tracks.position)}
    spirals = _spirals(case, curves, seed)
    fine, truth = spirals.fine[::EVERY], np.gradient(spirals.clean_fine, spirals.fine, axis=1)[:, ::EVERY]
    slope = model.derivative(spirals.test, fine, (1,))
    return {
        "value": euclidean_error(model.predict(spirals.test, spirals.times), spirals.clean, spirals.unseen),
        "slope": _distance(slope, truth) / _distance(truth, 0).mean(),
        "roughness": roughness(model.predict(spirals.test, spirals.fine), spirals.clean_fine),
    }


def solve(flows: Flows, progress: bool) -> None:
    """Solve the flows, unless it is done."""
    make_data(flows, progress)


def _spirals(case: Case, curves: int, seed: int) -> SpiralTask:
    return spiral_task(curves, NOISY if case.noise else CLEAN, seed, case.points)


def _tracks(case: Case, curves: int, seed: int) -> Tracks:
    return make_tracks(curves, max(10, curves // 3), case.points, case.noise, seed)


def _distance(y: np.ndarray, truth: np.ndarray | float) -> Float[np.ndarray, " N"]:
    """Root mean square over the coordinates and channels of each sample."""
    return np.sqrt(np.square(y - truth).mean((1, 2)))
