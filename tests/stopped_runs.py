"""Experiments that are stopped in the middle, for the tests of all of them."""

from typing import Any

import pytest

from cstformer.experiments.base import Cell, Experiment, run_experiment


class Stopped(Experiment):
    """Mixed into an experiment, it keeps the cells that it computes, and stops before one too many."""

    def __init__(self, most: int):
        self.most = most
        self.computed: list[Cell] = []

    def compute(self, cell, *rest):
        if len(self.computed) == self.most:
            raise KeyboardInterrupt
        self.computed.append(cell)
        return super().compute(cell, *rest)  # type: ignore[safe-super]


def stop_and_go_on(kind: type[Stopped], out, rows: list[str]) -> tuple[dict[str, Any], Any, list[Cell], list[Cell]]:
    """A smoke run of some rows that was stopped after three and given again: result, folder, cells of either part."""
    first, second = kind(3), kind(99)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(first, "smoke", out, models=rows, quiet=True, jobs=1)
    result = run_experiment(second, "smoke", out, models=rows, quiet=True, jobs=1)
    return result, out, first.computed, second.computed
