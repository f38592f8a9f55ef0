"""Closed, full and narrow outputs: the work is done and its files are written, whatever becomes of the printing."""

import os
import subprocess
import sys

import pytest
from small_models import waves

from cstformer import CST

CST_COMMAND = f"{sys.executable} -m cstformer.cli"
FIT = f"{CST_COMMAND} fit curves.csv --out model --preset smoke --steps 2"


def shell(command: str, folder, **variables: str) -> subprocess.CompletedProcess:
    """Run a line of bash in a folder."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, env=os.environ | variables, capture_output=True
    )


@pytest.fixture
def folder(tmp_path):
    waves().to_frame().to_csv(tmp_path / "curves.csv", index=False)
    return tmp_path


@pytest.mark.parametrize(
    "output",
    ["| true", "2>&1 | true", "> /dev/full", "> /dev/full 2>&1", ">&-", ">&- 2>&-"],
)
def test_a_fit_saves_its_model_whatever_becomes_of_its_output(folder, output):
    done = shell(f"{FIT} {output}", folder, PYTHONUNBUFFERED="1")
    assert done.returncode == 0, done.stderr.decode()
    CST.load(folder / "model")
    assert sorted(f.name for f in folder.iterdir()) == ["curves.csv", "model"]
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp437"}], ids=str)
def test_a_terminal_without_unicode_gets_question_marks(folder, variables):
    done = shell(f"{CST_COMMAND} predict --help && {FIT}", folder, **variables)
    assert done.returncode == 0, done.stderr.decode()
    assert b"--derivative K,?" in done.stdout
    CST.load(folder / "model")


def test_a_command_whose_text_is_lost_says_so(folder):
    done = shell(f"{CST_COMMAND} data show curves.csv > /dev/full", folder)
    assert done.returncode == 0
    assert done.stderr.decode() == "cst: warning: standard output was lost (No space left on device)\n"
    assert shell(f"{CST_COMMAND} data show curves.csv | true", folder).stderr == b""


def test_a_pipe_that_does_not_block_is_waited_for(folder):
    """A terminal may be left non-blocking by another program; then a write fails where it should wait."""
    code = (
        "import os, sys; os.set_blocking(1, False)\n"
        "from cstformer.system.output import use_lossy_output\n"
        "use_lossy_output(); print('x' * 300_000)"
    )
    done = shell(f'{sys.executable} -c "{code}" | (sleep 0.3; wc -c)', folder)
    assert (done.returncode, done.stdout.strip()) == (0, b"300001")
