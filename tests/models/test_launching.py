"""CST on several processes: what cannot be shared is refused, and they learn, stop and die together."""

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
from sklearn.exceptions import NotFittedError
from small_models import blob, wave_model, waves

from cstformer import CST, CSTError
from cstformer.baselines import BASELINES
from cstformer.cli import main
from cstformer.data.lazy import LazyFrames
from cstformer.experiments.base import run_experiment
from cstformer.experiments.spirals import experiment as spirals
from cstformer.models import launching
from cstformer.system.tensor_files import read_tensors

SETTINGS = {"steps": 8, "batch": 7, "precision": "float64", "device": "cpu", "validation": 0.2, "order": 1}
needs_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to find the processes")


def model(**settings) -> CST:
    return CST.preset("smoke", **SETTINGS | settings)


# Refusals


def test_what_cannot_be_shared_is_refused(monkeypatch):
    with pytest.raises(CSTError, match="batch=2 cannot be shared by 3 processes"):
        model(devices=3, batch=2).fit(waves())
    with pytest.raises(CSTError, match="nodes=2: start the command by torchrun or srun"):
        model(nodes=2).fit(waves())
    with pytest.raises(CSTError, match=r"given= is a function, which 2 processes cannot share; use devices=1"):
        model(devices=2).fit(waves(), given=lambda values, generator: values)
    with pytest.raises(CSTError, match=r"unknown setting of .* 'devices'"):
        BASELINES["transformer"](devices=2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(CSTError, match="4 processes were started, but devices=2 × nodes=1; make them agree"):
        model(devices=2).fit(waves())


def test_muon_needs_whole_matrices(monkeypatch):
    monkeypatch.setattr(launching, "must_launch", lambda model: False)
    with pytest.raises(CSTError, match="optimiser='muon' cannot be used with strategy='fsdp'; choose 'adamw' or"):
        model(devices=2, strategy="fsdp", optimiser="muon").fit(waves())


def test_processes_that_fail_leave_a_model_that_is_not_fitted(monkeypatch):
    def fail(*_):
        raise CSTError("process 1 of 2 failed")

    fitted = wave_model().set_params(devices=2)
    monkeypatch.setattr(launching.processes, "run_processes", fail)
    with pytest.raises(CSTError, match="process 1 of 2 failed"):
        fitted.fit(waves())
    with pytest.raises(NotFittedError):
        fitted.predict(waves(), [3.0])


def test_a_process_that_dies_before_the_first_state_promises_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(launching, "_WORK", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(CSTError, match=r"was killed by SIGKILL.*; nothing was done yet, fit again$"):
        wave_model().set_params(devices=2).fit(waves(), state=tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_experiments_hand_the_number_of_processes_to_their_models(tmp_path, monkeypatch, capsys):
    def fit(self, *_, **__):
        raise CSTError(f"would fit on {self.devices} processes")

    monkeypatch.setattr(CST, "fit", fit)
    with pytest.raises(CSTError, match="would fit on 2 processes"):
        run_experiment(spirals.EXPERIMENT, "smoke", tmp_path / "a", 0, ["CST"], quiet=True, jobs=1, cst={"devices": 2})
    assert main(["run", "cost", "--preset", "smoke", "--out", str(tmp_path / "b"), "--devices", "2"]) == 2
    assert "cost trains no model; leave --devices out" in capsys.readouterr().err


# Fitting


def same(a: CST, b: CST) -> None:
    """Loss curves and weights agree to rounding: sums are taken in another order."""
    np.testing.assert_allclose(a.report_.history, b.report_.history, rtol=1e-10)
    one, two = a.network_.state_dict(), b.network_.state_dict()
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-8, atol=1e-10)


@pytest.mark.long
def test_fit_starts_processes_and_gives_the_same_model():
    data = waves(count=20, points=6)
    same(model().fit(data), model(devices=2).fit(data))


@pytest.mark.long
def test_a_movie_on_disk_is_shared_too(tmp_path):
    movie = blob(24, 8, 7) + np.random.default_rng(0).normal(size=(24, 8, 7))
    movie[:, :4, :4] = np.nan  # a patch that no frame has
    movie[5:9, 6, 5] = np.nan
    zarr.create_array(tmp_path / "movie.zarr", data=movie, chunks=(5, 8, 7))
    frames = LazyFrames(tmp_path / "movie.zarr", (4, 4), 4, 1)
    same(model().fit(frames), model(devices=2).fit(frames))


@pytest.mark.long
def test_mu_is_searched_for_by_all_processes():
    data = waves(count=20, points=6)
    same(model(mu="search", steps=40).fit(data), model(mu="search", steps=40, devices=2).fit(data))


# Ends


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def steps(state: Path) -> int:
    return read_tensors(state)[1]["report"]["steps"]


def fit_command(folder: Path) -> list[str]:
    waves(count=20, points=9).save(folder / "curves.npz")
    command = [sys.executable, "-m", "cstformer.cli", "fit", str(folder / "curves.npz"), "--quiet", "--order=1"]
    command += ["--out", str(folder / "model"), "--preset=smoke", "--steps=100000", "--batch=4", "--device=cpu"]
    return command


def goes_on(command: list[str], folder: Path, done: int) -> None:
    """One process goes on from the state that two have left."""
    run = subprocess.run([*command, "--max-minutes=0.1"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert CST.load(folder / "model").report_.steps > done


@needs_linux
@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_training_ends_within_seconds_and_goes_on_in_one_process(victim, tmp_path):
    command, state = fit_command(tmp_path), tmp_path / "model.training"
    with subprocess.Popen([*command, "--devices=2"], stderr=subprocess.PIPE, text=True) as running:
        try:
            while not state.exists():
                assert running.poll() is None, running.stderr.read()
                time.sleep(0.1)
            saved = steps(state)
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
    # The first process saves what it has when it loses the other one.
    assert steps(state) > saved if victim == 1 else steps(state) == saved
    goes_on(command, tmp_path, steps(state))


@needs_linux
@pytest.mark.long
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ctrl_c_stops_all_processes_after_their_step_with_everything_saved(strategy, tmp_path):
    command, state = fit_command(tmp_path), tmp_path / "model.training"
    workers: list[int] = []
    options = ["--devices=2", f"--strategy={strategy}"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as running:
        try:
            while not state.exists():  # written after half a minute of training
                assert running.poll() is None, running.stderr.read()
                time.sleep(0.1)
            saved, workers = steps(state), children(running.pid)
            time.sleep(2)
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 130
            message = running.stderr.read()
        finally:
            running.kill()
    assert "interrupted; best weights saved, run the same command again to continue" in message
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    report = CST.load(tmp_path / "model").report_
    assert report.ended == "interrupted"
    assert report.best_score == min(score for _, score in report.history)
    assert saved < report.steps == steps(state)
    goes_on(command, tmp_path, report.steps)
