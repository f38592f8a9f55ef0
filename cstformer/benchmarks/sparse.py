"""Tables with many channels of which most cells are empty, such as those of an intensive care unit.

Simulated patients: 37 channels, about 70 irregular times each. A few channels are measured at most times, most of
them at a few, so that four cells of five are empty. Measured with one thread: the set-up before the first step (kernel
and scaling), and one training step of 32 patients by its start.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cstformer.benchmarks.stopwatch import best_seconds, peak_megabytes
from cstformer.data.samples import Samples
from cstformer.network.architecture import Architecture
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.kinds import kind_of
from cstformer.system.memory import keep_freed_memory
from cstformer.system.threads import thread_limit
from cstformer.training.objective import SobolevObjective
from cstformer.training.schedule import generator_for
from cstformer.training.settings import Settings

CHANNELS, BATCH = 37, 32
SHORTEST, LONGEST = 20, 120  # times of a patient


def patients(count: int, seed: int = 0) -> Samples:
    """Random walks of each channel, observed at rates between 2 and 80 % of the times."""
    rng = np.random.default_rng(seed)
    rates = np.geomspace(0.02, 0.8, CHANNELS)
    coords, values = [], []
    for _ in range(count):
        n = rng.integers(SHORTEST, LONGEST + 1)
        coords.append(np.sort(rng.uniform(0, 48, n)))
        walk = rng.normal(size=CHANNELS) + 0.3 * np.cumsum(rng.normal(size=(n, CHANNELS)), 0)
        seen = rng.random((n, CHANNELS)) < rates
        seen[np.arange(n), rng.integers(CHANNELS, size=n)] = True  # no time without any cell
        values.append(np.where(seen, walk, np.nan))
    return Samples.from_list(list(zip(coords, values, strict=True)))


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds and peak memory."""
    keep_freed_memory()
    with thread_limit(1, 0):
        samples = patients(100 if quick else 1600)
        kind = kind_of(samples)
        batch = kind.batch(samples, torch.float32, torch.device("cpu"))
        began = time.perf_counter()
        kind.fit_prior(batch, "smooth", 0)
        rows: list[dict[str, Any]] = [
            {"case": f"set-up of {len(samples)} patients", "seconds": time.perf_counter() - began}
        ]
        some = batch[torch.arange(BATCH)]
        steps = {start: _step(kind, some, start) for start in ("linear", "smooth")}
        seconds = best_seconds(steps, rounds=2 if quick else 4)
    for start, step in steps.items():
        row = {"case": f"a step of {BATCH} patients, start {start}", "seconds": seconds[start]}
        row |= {"times linear": seconds[start] / seconds["linear"], "peak MB": peak_megabytes(step)}
        rows.append(row)
    return rows


def _step(kind: Any, batch: Any, start: str) -> Callable[[], Tensor]:
    settings = dataclasses.replace(Settings(), start=start, frequency=8.0)
    names = set(Architecture.__dataclass_fields__) & set(Settings.__dataclass_fields__)
    torch.manual_seed(0)
    sizes = {name: getattr(settings, name) for name in names}
    network = ContinuousTransformer(Architecture(d=1, c=CHANNELS, near=True, **sizes))
    network.fit_axes({}, kind.spacing(batch))
    noises = kind.noises
    objective = SobolevObjective(network, kind, settings, noises, noises, 0.0, cells=0.5)

    def step() -> Tensor:
        network.zero_grad()
        loss = objective.loss(batch, generator_for(0, 0))
        loss.backward()
        return loss.detach()

    return step
