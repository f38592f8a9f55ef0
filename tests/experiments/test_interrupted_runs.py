"""Ctrl-C in a real run: no cell at work counts as done, no process stays behind, and the next run finishes the work."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stopped_runs

from cstformer.errors import CSTError
from cstformer.experiments.base import Cell, run_experiment
from cstformer.experiments.training import STATE, train_cell
from cstformer.experiments.workers import compute_in_parallel
from cstformer.system.tensor_files import read_tensors

PATIENCE = 120.0  # seconds
RUN = """
import sys, pathlib, stopped_runs
from cstformer.experiments.base import run_experiment
kind, out, jobs = sys.argv[1:]
experiment = getattr(stopped_runs, kind)()
experiment.pause = 0.1
run_experiment(experiment, "smoke", pathlib.Path(out), models=["CST"], quiet=True, jobs=int(jobs))
"""


def start(kind: str, out: Path, jobs: int) -> subprocess.Popen:
    paths = os.pathsep.join([str(Path(stopped_runs.__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", RUN, kind, str(out), str(jobs)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, as in a terminal
    )


def wait_until(condition, running: subprocess.Popen, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < end, "training did not begin"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to find the processes")
@pytest.mark.parametrize(
    ("kind", "jobs", "send"),
    [
        ("SlowSpirals", 1, os.kill),
        ("SlowAttention", 2, os.killpg),  # a terminal signals the whole process group
        pytest.param("SlowSpirals", 2, os.kill, marks=pytest.mark.long),
        pytest.param("SlowAttention", 1, os.killpg, marks=pytest.mark.long),
    ],
)
def test_an_interrupted_training_is_not_done_and_goes_on(kind, jobs, send, tmp_path):
    experiment, out = getattr(stopped_runs, kind)(), tmp_path / "run"
    cells = [cell for cell in experiment.cells(experiment.presets["smoke"]) if cell.model == "CST"]
    folders = [out / "cells" / cell.slug for cell in cells]
    with start(kind, out, jobs) as running:
        try:
            wait_until(lambda: all((folder / STATE).exists() for folder in folders[:jobs]), running)
            workers = children(running.pid)
            send(running.pid, signal.SIGINT)
            begin = time.monotonic()
            # The step at work, its validation, and the end of the interpreters, on a machine that may be busy. A run
            # that ignored the signal would still train: STEPS pauses of 0.1 s for each cell, and its table.
            assert running.wait(PATIENCE) != 0
        finally:
            running.kill()
    assert jobs == 1 or len(workers) >= jobs
    while any(map(is_running, workers)):  # Python's resource tracker ends just after its parent
        time.sleep(0.01)
        assert time.monotonic() - begin < PATIENCE
    assert not (out / "result.json").exists() and not list(out.glob("cells/*/done.json"))
    began = [folder for folder in folders if (folder / STATE).exists()]
    assert began == folders[:jobs]  # cells in the queue of a worker have not begun

    steps = [read_tensors(folder / STATE)[1]["report"]["steps"] for folder in began]
    assert all(0 < n < stopped_runs.STEPS for n in steps)
    run_experiment(experiment, "smoke", out, models=["CST"], quiet=True, jobs=1)
    for folder in folders:
        facts = json.loads((folder / "done.json").read_text())["facts"]
        assert (facts["ended"], facts["steps"]) == ("finished", stopped_runs.STEPS)


class Report:
    steps, seconds, history = 3, 1.5, ((0, 1.0), (3, 0.5))

    def __init__(self, ended):
        self.ended = ended


class Model:
    """Remembers what it was asked to do; a training that ends as told."""

    batch, validation = 4, 0.5

    def __init__(self, ended):
        self.ended, self.saved = ended, None

    def fit(self, samples, *, state, progress, **options):
        self.report_, self.options, self.state = Report(self.ended), options, state

    def save(self, folder):
        self.saved = folder


def test_only_a_training_that_ended_by_itself_is_saved(tmp_path):
    capped, stopped = Model("cap"), Model("interrupted")
    facts = train_cell(capped, range(12), tmp_path, False, given="corruption")
    assert (facts["steps"], facts["ended"], facts["history"]) == (3, "cap", Report.history)
    assert (facts["epochs"], facts["converged"]) == (2, False)  # 3 steps of 4 of 6 samples; the loss still fell
    assert capped.options == {"given": "corruption"} and capped.saved == tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        train_cell(stopped, range(12), tmp_path, False)
    assert stopped.saved is None


def test_a_killed_worker_is_an_error_that_says_what_to_do():
    with pytest.raises(CSTError, match=r"a worker process was killed.*run the same command to go on"):
        compute_in_parallel(stopped_runs.die, [Cell("CST", "here"), Cell("CST", "there")], 2, "test", quiet=True)
