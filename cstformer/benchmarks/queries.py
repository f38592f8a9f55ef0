"""A million questions to one context: time, memory, second derivatives, against the bare matrix products."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from cstformer.benchmarks.stopwatch import best_seconds
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.estimator import CST, TOKENS_PER_PASS
from cstformer.memory import keep_freed_memory
from cstformer.samples import Samples


def measure(quick: bool) -> list[dict[str, Any]]:
    """Rows of seconds per million queries, the slope against their number, and ratios."""
    keep_freed_memory()
    spirals = make_spirals(40)
    index = regular_indices()
    samples = Samples(spirals.times[index], spirals.values[:, index])
    model = CST(steps=2).fit(samples)
    context = samples[0]
    counts = [10_000, 100_000] if quick else [10_000, 100_000, 1_000_000]
    seconds = [_ask(model, context, count) for count in counts]
    slope = float(np.polyfit(np.log(counts), np.log(seconds), 1)[0])
    at = np.linspace(0, 1, counts[-1])
    started = time.perf_counter()
    model.derivative(context, at, (2,))
    second = time.perf_counter() - started
    bare = _matrix_products(model, counts[-1])
    return [
        {"case": f"{n:,} queries", "seconds": s, "queries per second": n / s}
        for n, s in zip(counts, seconds, strict=True)
    ] + [
        {"case": "slope of log time against log queries", "slope": slope},
        {"case": "second derivatives", "seconds": second, "times the values": second / seconds[-1]},
        {"case": "bare matrix products", "seconds": bare, "share of their rate reached": bare / seconds[-1]},
    ]


def _ask(model: CST, context: Samples, count: int) -> float:
    at = np.linspace(0, 1, count)
    return best_seconds({"ask": lambda: model.predict(context, at)}, rounds=3 if count < 1e6 else 1)["ask"]


def _matrix_products(model: CST, count: int) -> float:
    """Seconds of the matrix products alone that ``count`` queries need, in chunks of the same size."""
    a = model.network_.architecture
    shapes = [(a.width, a.width), (a.width, a.width), (a.width, a.feedforward), (a.feedforward, a.width)]
    weights = [torch.randn(out, inp) for inp, out in shapes]
    chunk = min(count, TOKENS_PER_PASS)
    inputs = {inp: torch.randn(chunk, inp) for inp, _ in shapes}
    heads = torch.randn(a.heads, chunk, a.width // a.heads)
    keys = torch.randn(a.heads, a.width // a.heads, 10)

    def work() -> None:
        for _ in range(-(-count // chunk)):
            for _ in range(a.layers):
                for weight in weights:
                    F.linear(inputs[weight.shape[1]], weight)
                (heads @ keys) @ keys.transpose(1, 2)

    with torch.no_grad():
        return best_seconds({"products": work}, rounds=1)["products"]
