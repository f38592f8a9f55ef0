"""Ctrl-C and SIGTERM to a real fit: it stops after its step, keeps its best model, and goes on to the same weights."""

import os
import signal

import pytest
from processes import FORKS, run_cst, start_cst, wait_for
from safetensors.numpy import load_file
from small_models import waves

from cstformer import CST

FIT = ("--preset", "smoke", "--steps", "6", "--patience", "1", "--quiet", "--out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed fit, and the curves that it was fitted to."""
    folder = tmp_path_factory.mktemp("whole")
    waves().save(folder / "curves.npz")
    run_cst("fit", folder / "curves.npz", *FIT, folder / "model", output=folder / "log")
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_a_fit_cleanly(whole, tmp_path, number):
    fit = ("fit", whole / "curves.npz", *FIT, tmp_path / "model")
    process = start_cst(*fit, output=tmp_path / "log", pause=0.3)
    wait_for((tmp_path / "model.training").exists, process)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 130
    assert (tmp_path / "log").read_text() == (
        "cst: interrupted; best weights saved, run the same command again to continue from "
        f"{tmp_path / 'model'}.training\n"
    )
    report = CST.load(tmp_path / "model").report_
    assert (report.ended, 1 <= report.steps < 6) == ("interrupted", True)
    assert report.best_score == min(score for _, score in report.history)
    run_cst(*fit, output=tmp_path / "log")
    a, b = (load_file(folder / "model/model.safetensors") for folder in (tmp_path, whole))
    assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["log", "model"]


def test_ctrl_c_before_training_leaves_nothing(whole, tmp_path):
    process = FORKS.Process(target=_interrupted_early, args=(whole / "curves.npz", tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 130
    assert (tmp_path / "log").read_text().startswith("cst: interrupted; ")
    assert [f.name for f in tmp_path.iterdir()] == ["log"]


def _interrupted_early(curves, folder) -> None:
    import processes
    from small_models import patched_kernel

    with patched_kernel(lambda *_: os.kill(os.getpid(), signal.SIGINT)):
        processes._command(["fit", str(curves), *FIT, str(folder / "model")], folder / "log", 0.0, 0.0)
