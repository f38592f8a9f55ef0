"""Several processes: they end together, say why, and forward a request to stop."""

import signal
import time

import pytest

from cstformer import CSTError
from cstformer.system import processes
from cstformer.system.processes import is_first, is_started, run_processes, started_processes

STARTERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_PROCID")


@pytest.mark.parametrize(
    ("variables", "count", "first"),
    [
        ({}, None, True),
        ({"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}, 4, False),
        ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "4"}, 4, True),
        ({"SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_PROCID": "1"}, 2, False),
        ({"SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}, None, True),  # an ordinary batch job
    ],
    ids=["nobody", "torchrun", "the first of torchrun", "SLURM", "a job of one task"],
)
def test_who_started_this_process(monkeypatch, variables, count, first):
    for name in STARTERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (is_started(), started_processes(), is_first()) == (count is not None, count, first)


def test_processes_know_their_rank_and_not_the_job_they_are_in(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "7")
    code = (
        "import os, sys, pathlib; from cstformer.system.processes import is_first, started_processes;"
        "text = f\"{is_first()} {started_processes()} {'SLURM_NTASKS' in os.environ}\";"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(text)"
    )
    run_processes(2, code, tmp_path, False, lambda: "")
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["True 2 False", "False 2 False"]


def test_a_killed_process_ends_the_others_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.5)
    code = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"
    before = time.monotonic()
    with pytest.raises(CSTError, match=r"process 2 of 2 was killed by SIGKILL \(.*memory\?\); saved in x"):
        run_processes(2, code, tmp_path, False, lambda: "saved in x")
    assert time.monotonic() - before < 10


def test_the_reason_of_a_failure_is_passed_on(tmp_path):
    with pytest.raises(CSTError, match="process 1 of 1 failed: ZeroDivisionError: division by zero; saved in x"):
        run_processes(1, "1 / 0", tmp_path, False, lambda: "saved in x")
    (tmp_path / "0.error").write_text("the settings are wrong")
    with pytest.raises(CSTError, match="the settings are wrong; saved in x"):
        run_processes(1, "1 / 0", tmp_path, False, lambda: "saved in x")


def test_a_stop_is_forwarded_to_the_processes(tmp_path):
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        "os.environ['RANK'] == '0' and os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    )
    handler = signal.getsignal(signal.SIGTERM)
    run_processes(1, code, tmp_path, False, lambda: "")
    assert signal.getsignal(signal.SIGTERM) is handler
