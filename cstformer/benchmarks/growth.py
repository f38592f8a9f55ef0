"""How a training step grows: time and memory against dummy points, order, width and context size.

For ``joint`` with exact attention (the paper's model as published), ``joint`` with Nyström attention (as the paper
describes it) and ``context`` (ours). One curve a step, default sizes elsewhere; slopes are fitted beyond 500 points.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cstformer.benchmarks.step import model_of, taylor_step
from cstformer.benchmarks.stopwatch import best_seconds, peak_megabytes, slope
from cstformer.network.transformer import parameter_count
from cstformer.system.memory import keep_freed_memory
from cstformer.training.settings import Settings

SYSTEMS = {
    "joint, exact": {"pattern": "joint", "attention_kind": "exact"},
    "joint, Nyström": {"pattern": "joint", "attention_kind": "nystrom"},
    "context": {"pattern": "context"},
}
AXES = {
    "dummies": "dummy points",
    "order": "derivative order",
    "width": "width",
    "points": "context points",
}
"""What is varied, and its name in tables and figures."""
SIZES = {
    "dummies": (10, 30, 100, 200, 500, 1000, 2000, 5000, 10_000),
    "order": (0, 1, 2, 3),
    "width": (32, 64, 128, 256, 512),
    "points": (10, 30, 100, 200, 500, 1000, 2000, 4000),
}
BASE = {"order": 1, "hide": 0.0, "noise": 0.0, "p": 2.0, "mu": 1e-6, "sobolev_every": 1, "batch": 1, "dummies": 100}
FROM = 500  # points beyond which slopes are fitted
MEMORY_LIMIT = 4000.0  # MB; a series ends before the size that would pass it
TIME_LIMIT = 20.0  # seconds of the processor that a step takes; the same


def measure(quick: bool) -> list[dict[str, Any]]:
    """One row a system and size, then the fitted slopes."""
    keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for axis, sizes in SIZES.items():
        for system, changes in SYSTEMS.items():
            series = measure_series(axis, sizes[1:3] if quick else sizes, changes, rounds=1 if quick else 3)
            rows += [{"case": f"{AXES[axis]}, {system}", "axis": axis, "system": system, **row} for row in series]
            rows += fitted_slopes(axis, system, series)
    return rows


def measure_series(axis: str, sizes: Sequence[int], changes: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Seconds and memory of a step of one system at growing sizes, as far as the limits allow."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        if rows and axis != "order":
            # The next step is at most quadratic in its size.
            growth = (size / rows[-1]["size"]) ** 2
            if growth * rows[-1]["peak MB"] > 2 * MEMORY_LIMIT or growth * rows[-1]["CPU seconds"] > 2 * TIME_LIMIT:
                break
        points = size if axis == "points" else 10
        settings = Settings(**BASE | changes | ({} if axis == "points" else {axis: size}))
        step = taylor_step(settings, points=points)
        memory = peak_megabytes(step)
        before = time.process_time()
        seconds = best_seconds({"step": step}, rounds)["step"]
        used = (time.process_time() - before) / (rounds + 1)
        parameters = parameter_count(model_of(settings))
        row = {"size": size, "seconds": seconds, "CPU seconds": used, "peak MB": memory, "parameters": parameters}
        rows.append(row)
    return rows


def fitted_slopes(axis: str, system: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row with the exponents of time and memory beyond `FROM`, where there is enough to fit."""
    far = [row for row in rows if row["size"] >= FROM]
    if axis not in ("dummies", "points") or len(far) < 2:
        return []
    sizes = [row["size"] for row in far]
    slopes = {f"slope of {name}": slope(sizes, [row[name] for row in far]) for name in ("seconds", "peak MB")}
    return [{"case": f"{AXES[axis]}, {system}: slope from {FROM}", "axis": axis, "system": system, **slopes}]
