"""Several processes: together they learn what one learns, resume each other's states, and end when one of them dies."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from small_models import blob, fit_quickly, waves

from cstformer import CST, CSTError, Samples
from cstformer.baselines import BASELINES
from cstformer.cli import main
from cstformer.data.lazy import LazyFrames
from cstformer.experiments.base import run_experiment
from cstformer.experiments.spirals import experiment as spirals
from cstformer.system import processes
from cstformer.system.processes import run_processes
from cstformer.system.tensor_files import read_tensors
from cstformer.training import sampling
from cstformer.training import sharing as shared
from cstformer.training.objective import SobolevObjective
from cstformer.training.sharing import Share, draw, sharing

COMMON = {"steps": 8, "batch": 7, "precision": "float64", "device": "cpu", "validation": 0.2, "sobolev_every": 2}
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
    tests = str(Path(__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {tests!r}); from test_distributed import {function}; {function}(sys.argv[1])"
    )
    run_processes(count, code, folder, False, "nothing saved")


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


@pytest.mark.long
def test_fit_starts_processes_and_gives_the_same_model():
    data = waves(count=20, points=6)
    same(model(order=1).fit(data), model(order=1, devices=2).fit(data))


@pytest.mark.long
def test_a_movie_on_disk_is_shared_too(tmp_path):
    movie = blob(24, 8, 7) + np.random.default_rng(0).normal(size=(24, 8, 7))
    movie[:, :4, :4] = np.nan  # a patch that no frame has
    movie[5:9, 6, 5] = np.nan
    zarr.create_array(tmp_path / "movie.zarr", data=movie, chunks=(5, 8, 7))
    frames = LazyFrames(tmp_path / "movie.zarr", (4, 4), 4, 1)
    same(model(order=1).fit(frames), model(order=1, devices=2).fit(frames))


# Shares


@pytest.mark.parametrize("law", ["uniform", "stratified"])
def test_shares_of_the_random_numbers_make_up_those_of_one_process(law):
    low, high = torch.zeros(8, 2), torch.ones(8, 2)
    tokens = torch.rand(8, 5, generator=torch.Generator().manual_seed(3)) < 0.8
    tokens[:, :3] = True

    def drawn(rows):
        g = torch.Generator().manual_seed(7)
        hidden = sampling.hide_points(tokens[rows], 0.9, g)
        dummies = sampling.dummy_coords(law, low[rows], high[rows], 6, g)
        noise = draw(torch.randn, (len(low[rows]), 4), g)
        return hidden, dummies, noise, torch.rand(3, generator=g)

    whole, parts = drawn(slice(0, 8)), []
    for rank in range(3):
        share = Share.of(rank, 3, 8)
        with sharing(share):
            parts.append(drawn(share.rows))
    for k in range(3):
        assert torch.equal(torch.cat([part[k] for part in parts]), whole[k])
    assert all(torch.equal(part[3], whole[3]) for part in parts)  # the generators are where that of one process is


def test_a_loss_of_nothing_is_zero_and_has_a_gradient():
    x = torch.ones(3, requires_grad=True)
    for reduce in (shared.mean, shared.maximum):
        nothing = reduce(x[:0])
        nothing.backward()
        assert float(nothing.detach()) == 0 and x.grad.tolist() == [0, 0, 0]


def test_shares_cover_a_batch_and_differ_by_one_at_most():
    for count in range(1, 9):
        for total in range(count, 20):
            shares = [Share.of(rank, count, total) for rank in range(count)]
            assert [i for s in shares for i in range(total)[s.rows]] == list(range(total))
            sizes = [s.last - s.first for s in shares]
            assert max(sizes) - min(sizes) <= 1


# Ends


def test_a_killed_process_ends_the_others_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.5)
    code = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"
    before = time.monotonic()
    with pytest.raises(CSTError, match=r"process 2 of 2 was killed by SIGKILL \(memory\?\); saved in x"):
        run_processes(2, code, tmp_path, False, "saved in x")
    assert time.monotonic() - before < 10


def test_the_reason_of_a_failure_is_passed_on(tmp_path):
    with pytest.raises(CSTError, match="process 1 of 1 failed: ZeroDivisionError: division by zero; saved in x"):
        run_processes(1, "1 / 0", tmp_path, False, "saved in x")
    (tmp_path / "0.error").write_text("the settings are wrong")
    with pytest.raises(CSTError, match="the settings are wrong; saved in x"):
        run_processes(1, "1 / 0", tmp_path, False, "saved in x")


def test_a_stop_is_handed_on_to_the_processes(tmp_path):
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        "os.environ['RANK'] == '0' and os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    )
    handler = signal.getsignal(signal.SIGTERM)
    run_processes(1, code, tmp_path, False, "")
    assert signal.getsignal(signal.SIGTERM) is handler


def test_what_cannot_be_shared_is_refused(monkeypatch):
    with pytest.raises(CSTError, match="batch=2 cannot be shared by 3 processes"):
        model(devices=3, batch=2).fit(waves())
    with pytest.raises(CSTError, match="nodes=2: start the command by torchrun or srun"):
        model(nodes=2).fit(waves())
    with pytest.raises(CSTError, match="devices and nodes are for CST alone"):
        BASELINES["transformer"](devices=2).fit(waves())
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(CSTError, match="4 processes were started, but devices=2 × nodes=1; make them agree"):
        model(devices=2).fit(waves())


def test_experiments_hand_the_number_of_processes_to_their_models(tmp_path, monkeypatch, capsys):
    def fit(self, *_, **__):
        raise CSTError(f"would fit on {self.devices} processes")

    monkeypatch.setattr(CST, "fit", fit)
    with pytest.raises(CSTError, match="would fit on 2 processes"):
        run_experiment(spirals.EXPERIMENT, "smoke", tmp_path / "a", 0, ["CST"], quiet=True, jobs=1, cst={"devices": 2})
    assert main(["run", "cost", "--preset", "smoke", "--out", str(tmp_path / "b"), "--devices", "2"]) == 2
    assert "cost trains no model; leave --devices out" in capsys.readouterr().err


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to find the processes")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_training_ends_within_seconds_and_goes_on_in_one_process(victim, tmp_path):
    samples().save(tmp_path / "curves.npz")
    state = tmp_path / "model.training"
    command = [sys.executable, "-m", "cstformer.cli", "fit", str(tmp_path / "curves.npz"), "--quiet", "--order=1"]
    command += ["--out", str(tmp_path / "model"), "--preset=smoke", "--steps=100000", "--batch=4", "--device=cpu"]
    with subprocess.Popen([*command, "--devices=2"], stderr=subprocess.PIPE, text=True) as running:
        try:
            while not state.exists():
                assert running.poll() is None, running.stderr.read()
                time.sleep(0.1)
            saved = read_tensors(state)[1]["report"]["steps"]
            time.sleep(2)
            os.kill(children(running.pid)[victim], signal.SIGKILL)
            killed = time.monotonic()
            assert running.wait(60) == 2
            seconds = time.monotonic() - killed
            message = running.stderr.read()
        finally:
            running.kill()
    print(f"{seconds:.1f} s until: {message}")
    assert seconds < 20
    assert f"process {victim + 1} of 2 was killed by SIGKILL" in message and "fit again to go on" in message
    steps = read_tensors(state)[1]["report"]["steps"]
    # The first process saves what it has when it loses the other one.
    assert steps > saved if victim == 1 else steps == saved
    done = subprocess.run([*command, "--max-minutes=0.1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert CST.load(tmp_path / "model").report_.steps > steps
