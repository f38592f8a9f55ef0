"""No room, no permission: one line, exit code 2, the old file untouched, nothing left behind; and later it goes on."""

import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr
from processes import FORKS, run_cst, starved
from small_models import waves

from cstformer import CST, Samples
from cstformer.data.sample_files import WRITTEN

FIT = ("--preset", "smoke", "--steps", "3", "--quiet")


def mount(folder: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user may not mount a small disk: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount(folder, "size=600k")
    except FileNotFoundError:
        pytest.skip("there is no command to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def sealed_disk(small_disk):
    """The same with an old file on it, read only."""
    waves().save(small_disk / "old.npz")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    return small_disk


def large() -> Samples:
    return Samples(np.linspace(0, 1, 10_000), np.random.default_rng(0).normal(size=(10, 10_000)))


def save_large(path: Path) -> None:
    large().save(path)


def refused(log: Path, *words: str) -> None:
    lines = log.read_text().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("cst: error: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_full_disk_keeps_the_old_file(small_disk, suffix):
    path = small_disk / f"a{suffix}"
    waves(2, 3).save(path)
    outcome, why, _ = starved(2**34, save_large, path)
    assert outcome == "CSTError", why
    assert f"cannot write {path}" in why
    assert "\n" not in why
    assert [f.name for f in small_disk.iterdir()] == [path.name]
    assert len(Samples.load(path)) == 2


def _small_files_only(path: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    save_large(path)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".zarr"])
def test_a_limit_on_file_sizes_is_reported_like_a_full_disk(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    waves(2, 3).save(path)
    outcome, why, _ = starved(2**34, _small_files_only, path, 20_000)
    assert outcome == "CSTError", why
    assert f"cannot write {path}: File too large" in why
    assert [f.name for f in tmp_path.iterdir()] == [path.name]
    assert len(Samples.load(path)) == 2


def test_a_fit_that_fills_the_disk_goes_on_when_there_is_room(small_disk, tmp_path):
    waves().save(tmp_path / "curves.npz")
    fit = ("fit", tmp_path / "curves.npz", "--out", small_disk / "model", *FIT)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(590_000))
    run_cst(*fit, output=tmp_path / "log", code=2)
    refused(tmp_path / "log", "cannot write", "No space left on device")
    assert [f.name for f in small_disk.iterdir()] == ["ballast"]
    ballast.unlink()
    run_cst(*fit, output=tmp_path / "log")
    CST.load(small_disk / "model")


def test_a_generation_that_fills_the_disk_goes_on_when_there_is_room(small_disk, tmp_path):
    flow = ("data", "make", "navier-stokes", "--samples", "20", "--until", "3", "--size", "16")
    flow = (*flow, "--workers", "1", "--quiet", "--out", small_disk / "flow.zarr")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(530_000))
    run_cst(*flow, output=tmp_path / "log", code=2)
    refused(tmp_path / "log", "No space left on device", "flow.zarr")
    ballast.unlink()
    run_cst(*flow, output=tmp_path / "log")
    assert np.isfinite(zarr.open_group(small_disk / "flow.zarr", mode="r")["vorticity"][:]).all()


def test_preprocessing_that_fills_the_disk_leaves_nothing(small_disk, tmp_path):
    raw = tmp_path / "raw.zarr"
    run_cst(
        "data", "make", "calcium", "--out", raw, "--minutes", "0.2", "--size", "32", "--quiet", output=tmp_path / "log"
    )
    (small_disk / "ballast").write_bytes(bytes(550_000))
    run_cst("data", "preprocess-calcium", raw, "--out", small_disk / "a.zarr", output=tmp_path / "log", code=2)
    assert "No space left on device" in (tmp_path / "log").read_text().splitlines()[-1]
    assert [f.name for f in small_disk.iterdir()] == ["ballast"]


def test_read_only_output(sealed_disk, tmp_path):
    curves = sealed_disk / "old.npz"
    for suffix in WRITTEN:
        outcome, why, _ = starved(2**34, save_large, sealed_disk / f"a{suffix}")
        assert outcome == "CSTError", why
        assert f"cannot write {sealed_disk / f'a{suffix}'}: " in why
    for number, (command, out) in enumerate(
        {
            ("fit", curves, *FIT): "model",
            ("run", "cost", "--preset", "smoke", "--quiet"): "run",
            ("data", "make", "spirals", "--curves", "3"): "spirals.npz",
            ("data", "make", "navier-stokes", "--samples", "1", "--until", "1", "--quiet"): "flow.zarr",
            ("data", "make", "calcium", "--minutes", "0.1", "--size", "16", "--quiet"): "raw.zarr",
        }.items()
    ):
        log = tmp_path / f"log{number}"
        run_cst(*command, "--out", sealed_disk / out, output=log, code=2)
        refused(log, "ead-only file system", out)
    assert [f.name for f in sealed_disk.iterdir()] == ["old.npz"]
    assert FORKS.active_children() == []
