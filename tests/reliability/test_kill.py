"""SIGKILL at random moments: the same command goes on, nothing half-written is ever read, and nothing is different."""

import itertools
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from processes import FORKS, Killer, kill_after, run_cst, start_cst, wait_for
from safetensors.numpy import load_file
from small_models import waves

from cstformer import CST, CSTError, Samples
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.system.tensor_files import read_tensors

FIT = ("--preset", "smoke", "--steps", "12", "--patience", "1", "--quiet")


def weights(model: Path) -> dict[str, bytes]:
    return {k: v.tobytes() for k, v in load_file(model / "model.safetensors").items()}


def zarr_arrays(path: Path) -> dict[str, bytes]:
    return {name: np.asarray(array[...]).tobytes() for name, array in zarr.open_group(path, mode="r").arrays()}


@pytest.fixture(scope="module", autouse=True)
def server():
    """The server of processes is up before anything is timed."""
    process = FORKS.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()


@pytest.fixture
def curves(tmp_path):
    waves().save(tmp_path / "curves.npz")
    return tmp_path / "curves.npz"


# Training


def check_killed_fit(folder: Path, curves: Path, whole: dict[str, bytes]) -> None:
    """What a killed fit left is whole or absent, and the same command ends with the weights of an undisturbed one."""
    model, state = folder / "model", folder / "model.training"
    if state.exists():
        read_tensors(state)
    if model.exists():
        CST.load(model)
    run_cst("fit", curves, "--out", model, *FIT, output=folder / "log")
    assert weights(model) == whole
    assert not state.exists()


def test_a_killed_fit_goes_on_to_the_same_weights(curves, tmp_path):
    (tmp_path / "a").mkdir()
    run_cst("fit", curves, "--out", tmp_path / "whole", *FIT, output=tmp_path / "log")
    process = start_cst("fit", curves, "--out", tmp_path / "a/model", *FIT, output=tmp_path / "log", pause=0.1)
    wait_for((tmp_path / "a/model.training").exists, process)
    assert kill_after(process, float(np.random.default_rng(0).uniform(0, 0.5)))
    check_killed_fit(tmp_path / "a", curves, weights(tmp_path / "whole"))


@pytest.mark.long
def test_twenty_killed_fits(curves, tmp_path):
    kill = Killer(run_cst("fit", curves, "--out", tmp_path / "whole", *FIT, output=tmp_path / "log"), seed=1)
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        if kill(start_cst("fit", curves, "--out", folder / "model", *FIT, output=folder / "log")):
            check_killed_fit(folder, curves, weights(tmp_path / "whole"))
        if kill.kills == 20:
            break
    print(f"{kill.kills} fits killed, all ended with the weights of an undisturbed one")


# Experiments, which use several processes


def rows(folder: Path) -> dict[str, bytes]:
    """Arrays of all rows of a run."""
    out = {}
    for file in sorted(folder.glob("cells/*/arrays.npz")):
        with np.load(file, allow_pickle=False) as arrays:
            out |= {f"{file.parent.name} {key}": arrays[key].tobytes() for key in arrays}
    return out


@pytest.mark.long
def test_four_killed_experiments(tmp_path):
    run = ("run", "spirals", "--preset", "smoke", "--models", "CST,linear", "--quiet", "--out")
    kill = Killer(run_cst(*run, tmp_path / "whole", output=tmp_path / "log"), seed=2)
    assert len(rows(tmp_path / "whole")) >= 4
    for number in itertools.count():
        folder = tmp_path / f"run{number}"
        kill(start_cst(*run, folder, output=tmp_path / "log"))
        run_cst(*run, folder, output=tmp_path / "log")
        assert rows(folder) == rows(tmp_path / "whole")
        assert (folder / "result.json").exists()
        if kill.kills == 4:
            break
    print(f"{kill.kills} experiments killed, all ended with the same rows")


# Generation and preprocessing


def killed_data(command: tuple, folder: Path, kill: Killer, partial) -> None:
    """Kill a command that makes ``folder/out.zarr`` twenty times; look at what is there, and let it finish."""
    whole = zarr_arrays(folder / "whole.zarr")
    for number in itertools.count():
        out, log = folder / f"{number}.zarr", folder / "log"
        if kill(start_cst(*command, "--out", out, output=log)):
            if out.exists():
                partial(out)
            run_cst(*command, "--out", out, output=log)
        assert zarr_arrays(out) == whole
        if kill.kills == 20:
            return


FLOW = ("data", "make", "navier-stokes", "--samples", "60", "--until", "3", "--size", "16", "--workers", "1", "--quiet")


def partial_flow(path: Path) -> None:
    """Solutions that are not all made are refused, and those that are marked as made have all their numbers."""
    try:
        Solutions(path).frames()
    except CSTError as error:
        assert "solutions are made; run the command that made it again" in str(error)
    group = zarr.open_group(path, mode="r")
    for block in np.flatnonzero(group["finished"][:]):
        assert np.isfinite(group["vorticity"][10 * block : 10 * block + 10]).all()


@pytest.mark.long
def test_twenty_killed_generations(tmp_path):
    kill = Killer(run_cst(*FLOW, "--out", tmp_path / "whole.zarr", output=tmp_path / "log"), seed=3)
    killed_data(FLOW, tmp_path, kill, partial_flow)
    print(f"{kill.kills} generations killed, all ended with the same numbers")


@pytest.mark.long
def test_twenty_killed_preprocessings(tmp_path):
    raw = ("data", "make", "calcium", "--minutes", "0.5", "--size", "64", "--quiet", "--out", tmp_path / "raw.zarr")
    run_cst(*raw, output=tmp_path / "log")
    clean = ("data", "preprocess-calcium", tmp_path / "raw.zarr", "--quiet")
    kill = Killer(run_cst(*clean, "--out", tmp_path / "whole.zarr", output=tmp_path / "log"), seed=4)
    whole = zarr_arrays(tmp_path / "whole.zarr")

    def complete(path: Path) -> None:
        assert zarr_arrays(path) == whole
        shutil.rmtree(path)

    killed_data(clean, tmp_path, kill, complete)
    print(f"{kill.kills} preprocessings killed, none left a part of a recording")


# Saving


def _save_for_ever(path: Path, count: int) -> None:
    """Version after version of one file; all values of a version are its number."""
    coords = np.linspace(0, 1, count)
    for number in itertools.count(1):
        Samples(coords, np.full((4, count), float(number))).save(path)


def killed_saves(path: Path, count: int, kills: int, rng: np.random.Generator) -> None:
    versions = []
    for _ in range(kills):
        process = FORKS.Process(target=_save_for_ever, args=(path, count))
        process.start()
        wait_for(path.exists, process)
        assert kill_after(process, rng.uniform(0, 0.3))
        found = np.unique(Samples.load(path).values)
        assert len(found) == 1, "a file with numbers of two versions"
        versions.append(found[0])
    assert max(versions) > 1


@pytest.mark.parametrize("suffix", ["npz", "zarr"])
def test_a_killed_save_leaves_the_old_or_the_new_file(tmp_path, suffix):
    killed_saves(tmp_path / f"a.{suffix}", 1000, 1 if suffix == "npz" else 2, np.random.default_rng(5))


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "nc", "zarr"])
def test_twenty_killed_saves(tmp_path, suffix):
    killed_saves(tmp_path / f"a.{suffix}", 20_000, 20, np.random.default_rng(6))


def _save_models_for_ever(source: Path, target: Path) -> None:
    model = CST.load(source)
    while True:
        model.save(target)


def test_a_killed_save_of_a_model_leaves_a_model(curves, tmp_path):
    from small_models import wave_model

    wave_model().save(tmp_path / "source")
    wave_model().save(tmp_path / "target")
    rng = np.random.default_rng(7)
    for _ in range(3):
        process = FORKS.Process(target=_save_models_for_ever, args=(tmp_path / "source", tmp_path / "target"))
        process.start()
        time.sleep(0.2)
        assert kill_after(process, rng.uniform(0, 0.3))
        CST.load(tmp_path / "target")
        assert weights(tmp_path / "target") == weights(tmp_path / "source")
