"""Freed memory is kept while training and predicting, unless somebody says no."""

import os
import subprocess
import sys

import pytest

PAGE_FAULTS = """
import resource, torch
from cstformer.system.memory import keep_freed_memory
kept = keep_freed_memory()
for _ in range(30):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**environment: str) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of taking and freeing 64 MB ten times."""
    result = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = result.stdout.split()
    return kept == "True", int(faults)


def test_kept_memory_is_not_faulted_in_again():
    kept, faults = page_faults(CST_KEEP_MEMORY="1")
    if not kept:
        pytest.skip("this C library has no mallopt")
    off, many = page_faults(CST_KEEP_MEMORY="0")
    assert not off
    assert faults < 100 and faults < many / 5


def test_training_and_answers_ask_for_it(monkeypatch):
    import numpy as np

    from cstformer import CST, Samples
    from cstformer.models import reader as estimator
    from cstformer.training import loop as training

    calls = []
    for module in (training, estimator):
        monkeypatch.setattr(module, "keep_freed_memory", lambda module=module: calls.append(module))
    samples = Samples(np.linspace(0, 1, 6), np.arange(24.0).reshape(4, 6))
    CST.preset("smoke", steps=1).fit(samples).predict(samples, [0.5])
    assert calls == [training, estimator]
