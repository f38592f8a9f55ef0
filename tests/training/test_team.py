"""Several processes: together they learn what one learns, and resume each other's states."""

import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import fit_quickly, waves

from cstformer import CST, Samples
from cstformer.system.processes import run_processes
from cstformer.training.objective import SobolevObjective

COMMON = {
    "steps": 8,
    "patience": 1.0,
    "batch": 7,
    "precision": "float64",
    "device": "cpu",
    "validation": 0.2,
    "sobolev_every": 2,
}
CASES = {
    "ddp": {"devices": 2, "order": 2},
    "fsdp": {"devices": 2, "order": 1, "strategy": "fsdp"},
    "joint-root": {"devices": 2, "order": 1, "p": 3.0, "root": True, "pattern": "joint", "mu": 0.01, "hide": 0.3},
    "maximum": {"devices": 2, "order": 1, "p": float("inf"), "mu": 0.01, "start": "cubic"},
}
STOP = 4  # step after which an interrupted training ends


def samples() -> Samples:
    """Curves with missing points, so that no two processes have equally many."""
    data = waves(count=20, points=9)
    holes = np.random.default_rng(1).random(data.observed.shape) < np.linspace(0, 0.6, len(data))[:, None, None]
    holes[:, :3] = False
    return data.replace(observed=data.observed & ~holes)


def model(**settings) -> CST:
    return CST.preset("smoke", **COMMON | settings)


def interrupted(state: Path, me: bool, **settings) -> CST:
    """Training that is asked to stop in step `STOP`, if it is ``me`` who is asked."""
    whole, calls = SobolevObjective.loss, []

    def loss(self, batch, generator):
        calls.append(batch)
        if me and len(calls) == STOP:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(self, batch, generator)

    SobolevObjective.loss = loss
    try:
        return fit_quickly(model(**settings), samples(), state=state)
    finally:
        SobolevObjective.loss = whole


def be_one_of_two(folder: str) -> None:
    """What each of two processes does: all that the tests below look at."""
    rank, out = int(os.environ["RANK"]), Path(folder)
    torch.set_num_threads(1)
    for name, settings in CASES.items():
        fitted = fit_quickly(model(**settings), samples())
        if rank == 0:
            fitted.save(out / name)
    stopped = interrupted(out / "two.state", rank == 1, **CASES["ddp"])
    # The other process hears of it before the next step, after which both stop.
    assert (stopped.report_.steps, stopped.report_.ended) == (STOP + 1, "interrupted")
    for name in ("ddp", "fsdp"):
        went_on = fit_quickly(
            model(**CASES["ddp"] | CASES[name] | {"order": 2}), samples(), state=out / f"{name}.state"
        )
        if rank == 0:
            went_on.save(out / f"{name}-went-on")


def started(count: int, function: str, folder: Path) -> None:
    here = Path(__file__).parent
    paths = [str(here), str(here.parent)]  # of this file, and of small_models
    code = f"import sys; sys.path[:0] = {paths!r}; from test_team import {function}; {function}(sys.argv[1])"
    run_processes(count, code, folder, False, lambda: "nothing saved")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory) -> Path:
    """Folder with the models of two processes."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("ddp", "fsdp"):
        interrupted(folder / f"{name}.state", True, **CASES["ddp"] | {"devices": 1})
    started(2, "be_one_of_two", folder)
    return folder


@functools.cache
def alone(case: str) -> CST:
    """The same training in this process."""
    return fit_quickly(model(**CASES[case] | {"devices": 1}), samples())


def same(a: CST, b: CST) -> None:
    """Loss curves and weights agree to rounding: sums are taken in another order."""
    np.testing.assert_allclose(a.report_.history, b.report_.history, rtol=1e-10)
    one, two = a.network_.state_dict(), b.network_.state_dict()
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns(case, of_two):
    assert alone(case).report_.history[-1][1] != alone(case).report_.history[0][1]
    same(alone(case), CST.load(of_two / case))


def test_a_state_of_two_processes_goes_on_in_one(of_two):
    went_on = fit_quickly(model(**CASES["ddp"] | {"devices": 1}), samples(), state=of_two / "two.state")
    assert went_on.report_.steps == COMMON["steps"]
    same(alone("ddp"), went_on)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_state_of_one_process_goes_on_in_two(strategy, of_two):
    same(alone("ddp"), CST.load(of_two / f"{strategy}-went-on"))
