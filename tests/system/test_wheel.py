"""The wheel works in a fresh environment that has none of the extras."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

import cstformer

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == cstformer.__version__
    assert f"version: {cstformer.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {cstformer.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def needed(requirements, found):
    """Distributions that these requirements install, with all that they need in turn."""
    requirement = pytest.importorskip("packaging.requirements").Requirement
    for wanted in map(requirement, requirements):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            name = wanted.name.lower().replace("_", "-")
            if name not in found:
                found[name] = importlib.metadata.distribution(name)
                needed(found[name].requires or [], found)
    return found


def lend(distribution, target):
    """Link the top-level files of an installed distribution into another environment: no network, no copies."""
    for file in distribution.files or []:
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not (target / top).exists():
            (target / top).symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Run commands in an environment with the wheel and its dependencies, in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "cstformer", source / "cstformer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (wheel,) = folder.glob("*.whl")

    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    for distribution in needed(PROJECT["dependencies"], {}).values():
        lend(distribution, site)
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    shutil.rmtree(source)
    work = folder / "work"
    work.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*words):
        done = subprocess.run(
            [str(python.parent / words[0]), *words[1:]], cwd=work, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    return run, work


@pytest.mark.long
def test_the_wheel_fits_and_predicts_without_extras(fresh):
    run, work = fresh
    assert run("cst", "--version") == (0, f"cstformer {cstformer.__version__}\n", "")
    where = run("python", "-c", "import cstformer; print(cstformer.__file__)")[1]
    assert "env" in Path(where.strip()).parts

    t = np.linspace(0, 1, 9)
    waves = [(i, x, np.sin(6 * x + i)) for i in range(12) for x in t]
    np.savetxt(work / "waves.csv", waves, delimiter=",", header="sample,t,y", comments="")
    for command in (
        "data show waves.csv",
        "fit waves.csv --out model --preset smoke --steps 5 --quiet",
        "predict model waves.csv --at 0:1:0.25 --out answers.csv",
        "plot waves.csv --model model --out waves.png",
        "models",
    ):
        code, _, errors = run("cst", *command.split())
        assert code == 0, f"cst {command}\n{errors}"
    answers = np.genfromtxt(work / "answers.csv", delimiter=",", names=True)
    assert len(answers) == 12 * 5 and np.isfinite(answers["y"]).all()
    assert (work / "waves.png").stat().st_size > 1000


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "extra"),
    [("explore model --data waves.csv", "explorer"), ("data show waves.parquet", "files")],
)
def test_what_an_extra_brings_is_named(fresh, command, extra):
    run, work = fresh
    (work / "waves.parquet").write_bytes(b"PAR1")
    code, _, errors = run("cst", *command.split())
    assert code and f'pip install "cstformer[{extra}]"' in errors, errors
