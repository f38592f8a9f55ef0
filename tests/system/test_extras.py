"""Missing packages: one message with the command that installs them, before work starts."""

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

import cstformer
from cstformer import CSTError, Samples, cli
from cstformer.baselines import BASELINES
from cstformer.experiments.base import run_experiment
from cstformer.experiments.registry import load_experiment
from cstformer.system.extras import EXTRAS, missing, need

ROOT = Path(cstformer.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages(lines):
    return {re.match(r"[\w-]+", line)[0].casefold() for line in lines}


@pytest.fixture
def without(monkeypatch):
    """Make a module unimportable, as it is where its package is not installed."""

    def hide(name):
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda m, *a: None if m == name else found(m, *a))
        for module in [m for m in sys.modules if m.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)

    return hide


def test_every_import_is_a_dependency_or_of_a_known_extra():
    imported = set()
    for path in Path(cstformer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {name.split(".")[0] for name in names}
    modules = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
    core = packages(PROJECT["dependencies"]) | {
        "cycler",
        "markupsafe",
        "threadpoolctl",
    }  # of matplotlib, jinja2, scikit-learn
    foreign = {m for m in imported if m not in sys.stdlib_module_names and modules.get(m, m) not in core}
    assert foreign - {"cstformer"} == {*EXTRAS} & foreign and len(foreign) > 12


@pytest.mark.parametrize("module", EXTRAS)
def test_the_extra_brings_the_package(module):
    package, extra = EXTRAS[module]
    brought = packages(PROJECT["optional-dependencies"][extra])
    assert package.casefold() in brought or module == "tornado"  # which bokeh brings


def test_the_message():
    with pytest.raises(CSTError, match=r'^the row needs torchdiffeq; pip install "cstformer\[rivals\]"$'):
        raise missing(ImportError("No module named 'torchdiffeq'", name="torchdiffeq"), "the row")
    # pandas and xarray name no module, but their text does
    nameless = ImportError("Unable to find a usable engine; tried using: 'pyarrow'.")
    assert "needs pyarrow; pip install" in str(missing(nameless, "x"))
    assert missing(ImportError("No module named 'mine'", name="mine"), "x") is None


def test_a_command_says_what_to_install(without, tmp_path, capsys):
    path = tmp_path / "curves.csv"
    Samples([0.0, 1.0], [[1.0, 2.0]]).save(path)
    without("netCDF4")
    with pytest.raises(CSTError, match=r'needs netCDF4; pip install "cstformer\[files\]"'):
        need("numpy", "netCDF4", for_what="x.nc: writing .nc")
    code = cli.main(["data", "make", "spirals", "--curves", "2", "--out", str(tmp_path / "x.nc")])
    assert code == 2 and 'pip install "cstformer[files]"' in capsys.readouterr().err


def test_a_command_on_a_cluster_is_refused_before_it_makes_its_output(without, tmp_path, capsys):
    without("distributed")
    out = tmp_path / "flows.zarr"
    command = ["data", "make", "navier-stokes", "--samples", "2", "--out", str(out), "--scheduler", "tcp://a:1"]
    assert cli.main(command) == 2
    assert '--scheduler needs Dask; pip install "cstformer[cluster]"' in capsys.readouterr().err
    assert not out.exists()


def test_imports_that_fail_inside_a_command_end_in_one_line(monkeypatch, capsys):
    def broken(args):
        raise ModuleNotFoundError("No module named 'tifffile'", name="tifffile")

    monkeypatch.setattr(cli.models, "run", broken)
    assert cli.main(["models"]) == 2
    assert capsys.readouterr().err == 'cst: error: this command needs tifffile; pip install "cstformer[files]"\n'


def test_a_run_is_refused_before_its_first_cell(without, tmp_path):
    without("torchdiffeq")
    with pytest.raises(CSTError, match=r'the row LatentODE needs torchdiffeq; pip install "cstformer\[rivals\]"'):
        run_experiment(load_experiment("calcium"), "smoke", tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
    without("zarr")
    with pytest.raises(CSTError, match="cst run navier-stokes needs zarr"):
        run_experiment(load_experiment("navier-stokes"), "smoke", tmp_path / "run", quiet=True)


def test_a_rival_is_refused_before_it_fits(without):
    without("torchdiffeq")
    with pytest.raises(CSTError, match="LatentODE needs torchdiffeq"):
        BASELINES["latent-ode"]().fit(Samples([0.0, 1.0], [[1.0, 2.0]]))
