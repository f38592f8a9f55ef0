"""A million queries of one context: time, memory and second derivatives, against the bare matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cstformer.benchmarks.stopwatch import best_seconds, peak_megabytes, slope
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.models.cst import CST
from cstformer.models.reader import TOKENS_PER_PASS
from cstformer.system.memory import keep_freed_memory


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds by number of queries, the exponent of their growth, memory, and ratios to the bare products."""
    keep_freed_memory()
    spirals, index = make_spirals(40), regular_indices()
    samples = Samples(spirals.times[index], spirals.values[:, index])
    model = CST(steps=2, validation=0.3).fit(samples)  # enough held-out curves for intervals
    context = samples[0]
    most = 100_000 if quick else 1_000_000
    counts = [n for n in (10_000, 30_000, 100_000, 300_000, 1_000_000) if n <= most]

    def ask(count: int) -> Callable[[], Any]:
        return lambda: model.predict(context, np.linspace(0, 1, count))

    works = {f"{n:,} queries": ask(n) for n in counts}
    works["intervals of 90 %"] = lambda: model.interval(context, np.linspace(0, 1, most))
    works["second derivatives"] = lambda: model.derivative(context, np.linspace(0, 1, most), (2,))
    works["bare matrix products, as the model is written"] = _products(model, context, most, shorter=False)
    works["bare matrix products, as computed here"] = _products(model, context, most, shorter=True)
    seconds = best_seconds(works, rounds=2, compiled=works)
    values = seconds[f"{most:,} queries"]
    rows: list[dict[str, Any]] = []
    for name, spent in seconds.items():
        row: dict[str, Any] = {"case": name, "seconds": spent, "queries per second": most / spent}
        if name.endswith("queries"):
            row["queries per second"] = int(name.split()[0].replace(",", "")) / spent
        else:
            row["times the values"] = spent / values
        if name.startswith("bare"):
            row["share of their rate reached"] = spent / values
        rows.append(row)
    times = [seconds[f"{n:,} queries"] for n in counts]
    rows.append({"case": "slope of log time against log queries", "slope": slope(counts, times)})
    for n in (most // 10, most):
        rows.append({"case": f"memory, {n:,} queries", "peak MB": peak_megabytes(ask(n))})
    bounds = peak_megabytes(lambda: model.interval(context, np.linspace(0, 1, most)))
    rows.append({"case": f"memory, {most:,} intervals", "peak MB": bounds})
    return rows


def _products(model: CST, context: Samples, count: int, shorter: bool) -> Callable[[], None]:
    """Only the matrix products that ``count`` queries need in the blocks, in chunks of the same size.

    With ``shorter`` the query and output projections are folded into the few keys and values, as `_read_few` does.
    """
    a, n = model.network_.architecture, context.n
    chunk = min(count, TOKENS_PER_PASS)
    between = a.heads * n if shorter else a.width
    shapes = [(a.width, between), (between, a.width), (a.width, a.feedforward), (a.feedforward, a.width)]
    weights = [torch.randn(shape) for shape in shapes]
    inputs = {size: torch.randn(chunk, size) for size, _ in shapes}
    heads = torch.randn(a.heads, chunk, a.width // a.heads)
    keys = torch.randn(a.heads, a.width // a.heads, n)

    @torch.no_grad()
    def work() -> None:
        for _ in range(-(-count // chunk) * a.layers):
            for weight in weights:
                inputs[weight.shape[0]] @ weight
            if not shorter:
                (heads @ keys) @ keys.transpose(1, 2)

    return work
