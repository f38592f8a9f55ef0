"""Growth of a training step: time and memory against dummy points, order, width and context size.

The systems are ``joint`` with exact attention (the paper's model as published), ``joint`` with Nyström attention (as
the paper describes it) and ``context`` (ours). A step has one curve, and all other sizes are the defaults. Slopes are
fitted from 500 points on. On the command line this benchmark is called ``scaling``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cstformer.benchmarks.step import model_of, taylor_step
from cstformer.benchmarks.stopwatch import best_seconds, peak_megabytes, slope
from cstformer.network.architecture import parameter_count
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
"""The varied settings, and their names in tables and figures."""
SIZES = {
    "dummies": (10, 30, 100, 200, 500, 1000, 2000, 5000, 10_000),
    "order": (0, 1, 2, 3),
    "width": (32, 64, 128, 256, 512),
    "points": (10, 30, 100, 200, 500, 1000, 2000, 4000),
}
BASE = {"order": 1, "hide": 0.0, "noise": 0.0, "p": 2.0, "mu": 1e-6, "sobolev_every": 1, "batch": 1, "dummies": 100}
FROM = 500  # smallest size that slopes are fitted to
MEMORY_LIMIT = 4000.0  # MB per step; a series stops before the size that would exceed it
TIME_LIMIT = 20.0  # CPU seconds per step; a series stops before the size that would exceed it


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure one row per system and size, followed by the fitted slopes."""
    keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for axis, sizes in SIZES.items():
        for system, changes in SYSTEMS.items():
            series = measure_series(axis, sizes[1:3] if quick else sizes, changes, rounds=1 if quick else 3)
            rows += [{"case": f"{AXES[axis]}, {system}", "axis": axis, "system": system, **row} for row in series]
            rows += fitted_slopes(axis, system, series)
    return rows


def measure_series(axis: str, sizes: Sequence[int], changes: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Measure seconds and memory of a step of one system at growing sizes, as far as the limits allow."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        if rows and axis != "order":
            # The cost of a step grows at most quadratically with its size.
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
    """Make a row with the exponents of time and memory from `FROM` on, if at least two sizes allow a fit."""
    far = [row for row in rows if row["size"] >= FROM]
    if axis not in ("dummies", "points") or len(far) < 2:
        return []
    sizes = [row["size"] for row in far]
    slopes = {f"slope of {name}": slope(sizes, [row[name] for row in far]) for name in ("seconds", "peak MB")}
    return [{"case": f"{AXES[axis]}, {system}: slope from {FROM}", "axis": axis, "system": system, **slopes}]
