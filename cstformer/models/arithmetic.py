"""How CST computes: compiled kernels where they pay, and the number format of matrix products."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cstformer.taylor import series
from cstformer.taylor.derivatives import DerivativePlan
from cstformer.training.settings import Settings

# Numbers through the Taylor GELU of a run from which compiling it pays; answers need fewer kernels than training.
COMPILE_FROM, COMPILE_ANSWERS_FROM = 4e9, 1e9
COMPILE_MINUTES = 3.0  # a cap below which training never compiles by itself: the warm-up would take most of the time


def compiles(settings: Settings, terms: DerivativePlan, tokens: int, threshold: float = COMPILE_FROM) -> bool:
    """Whether compiling pays: decided by sizes, not by the clock, so that every run decides alike."""
    if settings.compile != "auto":
        return settings.compile == "always"
    if terms.order == 0 or not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return False
    coefficients = 1 + terms.order * len(terms.directions)
    return tokens * coefficients * settings.feedforward * settings.layers > threshold


@contextmanager
def arithmetic(settings: Settings, compiled: bool = False) -> Iterator[None]:
    """Use compiled kernels, and the format of matrix products that the settings ask for."""
    low = torch.bfloat16 if settings.precision == "bfloat16" else None
    with series.compiled_kernels(compiled), series.matrix_products(low):
        yield
