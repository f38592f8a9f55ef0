"""Where the time of a training step goes: at least nine tenths of it should be spent in the model.

Real trainings by `CST.fit`, with a clock around each part: curves (spirals) and frames (a travelling pattern), at the
default settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from cstformer.data.batch import Batch
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.models.cst import CST
from cstformer.network.transformer import ContinuousTransformer
from cstformer.system.memory import keep_freed_memory
from cstformer.training import sampling
from cstformer.training.disturbance import Disturbance
from cstformer.training.loop import Run
from cstformer.training.objective import SobolevObjective
from cstformer.training.optimiser import Muon
from cstformer.training.state import TrainingState

MODEL = ("network, forward", "backward", "optimiser")
PARTS: dict[str, list[tuple[Any, str]]] = {
    "network, forward": [(ContinuousTransformer, name) for name in ("encode", "read", "_forward_joint")],
    "backward": [(torch.Tensor, "backward")],
    "optimiser": [(torch.optim.AdamW, "step"), (Muon, "step"), (TrainingState, "update_average")],
    "choice of the batch": [(Batch, "__getitem__")],
    "hiding, noise, dummy points": [
        (Disturbance, "keep"),
        (sampling, "box"),
        (sampling, "dummy_coords"),
        (SobolevObjective, "disturb"),
    ],
    "loss": [(SobolevObjective, "combine")],
    "validation": [(Run, "validate")],
}


class Clock:
    """Time of nested parts, each without the parts inside it; validation with all that is inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[str] = []
        self.last = time.perf_counter()

    def around(self, part: str, function: Callable) -> Callable:
        """The same function, its time charged to ``part``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.charged_to(part):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def charged_to(self, part: str) -> Iterator[None]:
        """Charge the time inside to ``part``."""
        self._charge()
        self.running.append(part)
        try:
            yield
        finally:
            self._charge()
            self.running.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self.running:
            part = "validation" if "validation" in self.running else self.running[-1]
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now


def profile(model: CST, samples: Samples) -> dict[str, float]:
    """Seconds of a training by part; validation, which is not part of a step, is left out."""
    clock = Clock()
    start_of = SobolevObjective.start

    def start(self: SobolevObjective, context: Batch) -> Any:
        with clock.charged_to("start of the queries"):
            return clock.around("start of the queries", start_of(self, context))

    with ExitStack() as patches:
        for part, places in PARTS.items():
            for owner, name in places:
                patches.enter_context(mock.patch.object(owner, name, clock.around(part, getattr(owner, name))))
        patches.enter_context(mock.patch.object(SobolevObjective, "start", start))
        patches.enter_context(mock.patch.object(Run, "go", clock.around("everything else", Run.go)))
        model.fit(samples)
    clock.seconds.pop("validation", None)
    return clock.seconds


def measure(quick: bool) -> list[dict[str, Any]]:
    """Rows of milliseconds a step and shares, and the share of the model."""
    keep_freed_memory()
    rows = []
    for case, (samples, steps) in _cases(quick).items():
        seconds = profile(CST(steps=steps), samples)
        total = sum(seconds.values())
        for part, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            rows.append({"case": f"{case}: {part}", "ms a step": 1e3 * spent / steps, "share": spent / total})
        share = sum(seconds[part] for part in MODEL) / total
        rows.append({"case": f"{case}: in the model", "ms a step": 1e3 * share * total / steps, "share": share})
    return rows


def _cases(quick: bool) -> dict[str, tuple[Samples, int]]:
    spirals, index = make_spirals(100), regular_indices()
    curves = Samples(spirals.times[index], spirals.values[:, index])
    t, row, col = np.ogrid[:40, :32, :32]
    movie = np.sin(0.3 * row + 0.2 * t) * np.cos(0.25 * col - 0.3 * t)
    frames = frames_to_samples(movie, (8, 8), window=10, stride=5)
    return {"curves": (curves, 40 if quick else 200), "frames": (frames, 8 if quick else 60)}
