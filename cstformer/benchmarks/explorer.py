"""Latency of the explorer: what `cst explore` computes when a control moves, with models of default size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cstformer.benchmarks.stopwatch import best_seconds
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.explorer import curves, fields
from cstformer.models.cst import CST

GOAL = 200.0  # milliseconds that may pass between the slider and the picture


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure milliseconds for each control, and for the same answer if the context is encoded again each time."""
    works = _curve_works() | _frame_works("frames 64 × 64", (64, 64), 1)
    if not quick:
        works |= _frame_works("frames 128 × 160, colours", (128, 160), 3)
    seconds = best_seconds(works, rounds=3)
    rows = []
    for name, spent in seconds.items():
        row: dict[str, Any] = {"case": name, "milliseconds": 1000 * spent}
        if "slider" in name:
            row["share of 200 ms"] = 1000 * spent / GOAL
        rows.append(row)
    return rows


def _curve_works() -> dict[str, Callable[[], Any]]:
    spirals, index = make_spirals(40), regular_indices()
    samples = Samples(spirals.times[index], spirals.values[:, index])
    model = CST(steps=2).fit(samples)
    reader, at = model.reader(samples[0]), np.linspace(0, 1, curves.POINTS)
    noisy = curves.Changes(noise=0.1, removed=2)

    def refit() -> None:
        curves.curves(model.reader(curves.disturbed(samples[0], noisy, model.scaling_.sd)), at)

    return {
        "curve: time slider, value and two derivatives": lambda: reader.partials(np.array([[0.3]]), curves.ORDERS),
        "curve: noise slider, the whole fit anew": refit,
    }


def _frame_works(title: str, size: tuple[int, int], channels: int) -> dict[str, Callable[[], Any]]:
    movie = np.random.default_rng(0).normal(size=(2, 10, *size, channels))
    samples = frames_to_samples(movie, patch=(8, 8))
    model = CST(steps=1, batch=1).fit(samples)
    reader = model.reader(samples[0])
    return {
        f"{title}: time slider, picture": lambda: fields.pictures(reader, 3.3, slope=False),
        f"{title}: the same, context encoded again": lambda: fields.pictures(
            model.reader(samples[0]), 3.3, slope=False
        ),
        f"{title}: at rest, time derivative too": lambda: fields.pictures(reader, 3.3),
        f"{title}: at rest, waves too": lambda: fields.pictures(reader, 3.3, gradient=True),
        f"{title}: click, attention": lambda: fields.attention_frames(reader, (3.3, 20.0, 20.0)),
        f"{title}: click, pixel over time": lambda: fields.pixel_trace(reader, (20, 20), np.linspace(0, 9, 161)),
    }
