"""Speed and accuracy of bfloat16 against float32: matrix products of the model's shapes, training and prediction.

Also the effect of threads: a training step of the default and of the paper's size with one thread and with all cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from cstformer.benchmarks.step import taylor_step
from cstformer.benchmarks.stopwatch import best_seconds
from cstformer.data.samples import Samples
from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.models.cst import CST
from cstformer.system.memory import keep_freed_memory
from cstformer.system.threads import cores
from cstformer.training.settings import Settings, preset

SHAPES = {"default, feed-forward": (8192, 64, 128), "paper, feed-forward": (8192, 32, 3072), "wide": (2048, 768, 3072)}


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds, and errors relative to float32."""
    keep_freed_memory()
    return _products() + _answers(quick) + _threads(quick)


def _products() -> list[dict[str, Any]]:
    rows = []
    for name, (m, k, n) in SHAPES.items():
        a, b = torch.randn(m, k), torch.randn(k, n)
        works = {"float32": partial(torch.matmul, a, b), "bfloat16": partial(torch.matmul, a.bfloat16(), b.bfloat16())}
        seconds = best_seconds(works, 5)
        ratio = seconds["float32"] / seconds["bfloat16"]
        rows.append({"case": f"product, {name}", "seconds": seconds["bfloat16"], "times faster in bfloat16": ratio})
    return rows


def _answers(quick: bool) -> list[dict[str, Any]]:
    """Train and query the same model in both formats; the error is that at unseen points of other curves."""
    spirals, index = make_spirals(150), regular_indices()
    samples = Samples(spirals.times[index], spirals.values[:, index])
    rows: list[dict[str, Any]] = []
    reference: dict[str, float] = {}
    for precision in ("float32", "bfloat16"):
        model = CST(precision=precision, steps=10 if quick else 400).fit(samples[:100])

        def ask(model: CST = model) -> np.ndarray:
            return model.predict(samples[100:], spirals.times)

        seconds = {"training": model.report_.seconds, "answers": best_seconds({"ask": ask}, 3)["ask"]}
        error = float(np.abs(ask() - spirals.clean[100:]).mean())
        reference = reference or {**seconds, "error": error}
        for part, spent in seconds.items():
            rows.append(
                {
                    "case": f"{part} in {precision}",
                    "seconds": spent,
                    "times faster in bfloat16": reference[part] / spent,
                    "error over that of float32": error / reference["error"],
                }
            )
    return rows


def _threads(quick: bool) -> list[dict[str, Any]]:
    sizes = {"default": Settings(noise=0.0), "paper": Settings(**preset("paper") | {"noise": 0.0, "dummies": 50})}
    if quick:
        del sizes["paper"]
    rows, before = [], torch.get_num_threads()
    for name, settings in sizes.items():
        step = taylor_step(settings)

        def with_threads(count: int, step: Callable = step) -> Callable[[], Any]:
            def work() -> None:
                torch.set_num_threads(count)
                step()

            return work

        seconds = best_seconds({f"{k} threads": with_threads(k) for k in sorted({1, cores()})}, 3)
        for label, spent in seconds.items():
            case = f"step of {name} size, {label}"
            rows.append({"case": case, "seconds": spent, "times faster than one": seconds["1 threads"] / spent})
    torch.set_num_threads(before)
    return rows
