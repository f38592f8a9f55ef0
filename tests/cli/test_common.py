"""All commands: help that teaches, errors in one line, and argparse in this folder alone."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import cstformer
from cstformer import cli
from cstformer.cli.common import whole_numbers
from cstformer.errors import CSTError

PACKAGE = Path(cstformer.__file__).parent
COMMANDS = [
    [],
    ["fit"],
    ["predict"],
    ["evaluate"],
    ["plot"],
    ["data"],
    ["data", "show"],
    ["data", "make"],
    ["data", "make", "spirals"],
    ["data", "make", "navier-stokes"],
    ["data", "make", "calcium"],
    ["data", "preprocess-calcium"],
    ["models"],
    ["run"],
    ["report"],
    ["explore"],
    ["bench"],
]
GROUPS = [["data"], ["data", "make"]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(["cst", *c]))
def test_help_explains_and_shows_examples_that_parse(cst, command):
    code, out, err = cst(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {' '.join(['cst', *command])} ")
    examples = re.findall(r"^ +cst (.+)$", out, re.MULTILINE)
    assert examples or command in GROUPS
    for example in examples:
        _, extra = cli.build_parser().parse_known_args(shlex.split(example))
        assert not extra, example


def test_every_option_is_explained():
    parsers = [cli.build_parser()]
    for parser in parsers:
        for action in parser._actions:
            if isinstance(action.choices, dict):  # subcommands
                parsers += action.choices.values()
            else:
                assert action.help, f"{parser.prog} {action.dest}"
    assert len(parsers) == len(COMMANDS)


def test_no_arguments_and_version(refused, cst):
    refused([], "the following arguments are required: COMMAND", "cst --help")
    assert cst("--version")[1] == f"cstformer {cstformer.__version__}\n"


def test_unknown_command_and_option(refused, curves, tmp_path):
    refused(["fti"], "invalid choice: 'fti'")
    fit = ["fit", curves, "--out", tmp_path / "m"]
    refused([*fit, "--learning-rat", "1"], "unknown option --learning-rat; did you mean --learning-rate?")
    refused([*fit, "--learning-rat=1"], "did you mean --learning-rate?")
    refused(["fit", curves], "the following arguments are required: --out")
    refused(["predict", "m", "c.csv", "--at", "-1,0", "--out", "o.csv"], "begins with a minus sign as --option=-1")
    assert not (tmp_path / "m").exists()


def test_bad_input_through_a_real_process(tmp_path):
    """Exit code and the one line as a shell sees them."""
    command = [sys.executable, "-m", "cstformer.cli", "fit", "nowhere.csv", "--out", tmp_path / "m", "--width", "wide"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cst: error: --width wide: expected int or auto\n"


def test_a_full_disk_is_one_line(refused, curves, model, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    refused(["predict", model, curves, "--at", "3", "--out", tmp_path / "o.csv"], "No space left on device")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt, 130, "cst: interrupted; completed work is saved"),
        (BrokenPipeError, 2, "cst: error: "),  # of a worker process: nothing says that the work is done
    ],
)
def test_interruptions(cst, monkeypatch, raised, code, said):
    def stop(args):
        raise raised

    monkeypatch.setattr(cli.models, "run", stop)
    assert cst("models")[0] == code
    assert cst("models")[2].startswith(said)


def test_whole_numbers():
    assert whole_numbers("3,-1", "--x") == (3, -1)
    for text in ("", "a", "1.5", "1,,2"):
        with pytest.raises(CSTError, match=f"--x {text}: give whole numbers separated by commas"):
            whole_numbers(text, "--x")
    with pytest.raises(CSTError, match=r"--x 1: give 2 whole numbers separated by commas \(rows, columns\)"):
        whole_numbers("1", "--x", 2, "rows, columns")


def imports(path):
    """Top-level names of all modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).split(".")[0]


def test_only_the_command_line_imports_argparse():
    users = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") if "argparse" in imports(path)}
    assert users == {"cli"}
