"""What is compared is the same computation; the stopwatch measures what it says."""

import time

import numpy as np
import pytest
import torch

from cstformer.benchmarks import run_benchmarks, step, stopwatch
from cstformer.errors import CSTError
from cstformer.settings import Settings

TINY = {"width": 8, "layers": 2, "heads": 2, "feedforward": 16, "dummies": 4, "batch": 3, "noise": 0.0, "mu": step.MU}
TINY |= {"sobolev_every": 1}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("pattern, norm, hide", [("context", "pre", 0.5), ("joint", "post", 0.0)])
def test_nested_autograd_computes_the_same_loss(pattern, norm, hide, order, monkeypatch):
    monkeypatch.setattr(step, "MU", 1e-2)  # so that the derivatives matter
    settings = Settings(**TINY, pattern=pattern, norm=norm, hide=hide, order=order, readout="plain")
    assert step._taylor_step(settings)() == pytest.approx(float(step._nested_step(settings)()), rel=1e-4)
    other = Settings(**TINY, pattern=pattern, norm=norm, hide=hide, order=order - 1, readout="plain")
    assert step._taylor_step(other)() != pytest.approx(float(step._nested_step(settings)()), rel=1e-4)


def test_the_stopwatch_tells_slow_from_fast():
    seconds = stopwatch.best_seconds({"slow": lambda: time.sleep(0.02), "fast": lambda: None}, rounds=2)
    assert seconds["slow"] >= 0.02 > seconds["fast"]


def test_peak_memory_counts_what_was_taken():
    assert stopwatch.peak_megabytes(lambda: np.ones(40 * 2**17)) == pytest.approx(40, abs=12)
    assert stopwatch.peak_megabytes(lambda: torch.zeros(1)) < 12


def test_unknown_benchmark():
    with pytest.raises(CSTError, match="did you mean 'queries'"):
        run_benchmarks(["querys"])
