"""No command destroys what it reads, or a folder that it did not write."""

import os

import numpy as np
import pytest
import zarr

from cstformer import CSTError, Samples
from cstformer.data.modes import Modes
from cstformer.datasets.calcium.simulator import CalciumSimulation

SPIRALS = ["data", "make", "spirals", "--curves", "3", "--points", "5"]
CALCIUM = ["data", "make", "calcium", "--minutes", "0.05", "--size", "16", "--quiet"]


def contents(folder):
    """Every file of a folder and its bytes."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture
def thesis(tmp_path):
    """A folder of somebody's work that happens to have the name of the output."""
    folder = tmp_path / "out.zarr"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    return folder


@pytest.fixture
def raw(tmp_path):
    CalciumSimulation(minutes=0.2, size=32).save(tmp_path / "raw.zarr")
    return tmp_path / "raw.zarr"


def writers(out, model, curves, raw):
    predict = ["predict", model, curves, "--at", "3"]
    preprocess = ["data", "preprocess-calcium", raw, "--bin", "1", "--quiet"]
    return [[*command, "--out", out] for command in (SPIRALS, CALCIUM, predict, preprocess)]


def test_a_foreign_folder_stays_whatever_is_asked(refused, thesis, model, curves, raw):
    before = contents(thesis.parent)
    for command in writers(thesis, model, curves, raw):
        for more in ([], ["--overwrite"]):
            refused([*command, *more], str(thesis), "folder with other data (thesis.tex)", "left as it is")
    refused(["data", "make", "navier-stokes", "--samples", "1", "--out", thesis], "no Navier–Stokes set")
    refused(["fit", curves, "--out", thesis], "directory with other files (thesis.tex)")
    assert contents(thesis.parent) == before


@pytest.mark.parametrize("which", range(4), ids=["spirals", "calcium", "predict", "preprocess"])
def test_a_folder_of_its_own_is_replaced_only_if_asked(cst, refused, tmp_path, model, curves, raw, which):
    out = tmp_path / "out.zarr"
    command = writers(out, model, curves, raw)[which]
    assert cst(*command)[0] == 0
    before = contents(out)
    refused(command, f"--out {out} exists already", "--overwrite")
    assert contents(out) == before
    (out / "notes.md").write_text("precious")
    refused([*command, "--overwrite"], "folder with other data (notes.md)")
    (out / "notes.md").unlink()
    assert cst(*command, "--overwrite")[0] == 0
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


def test_a_group_that_another_program_wrote_stays(refused, tmp_path, raw, model, curves):
    """It is a Zarr group and nothing else, but not of this command: even a raw recording of `data make calcium`."""
    zarr.save_group(tmp_path / "other.zarr", x=np.arange(3))
    for out in (tmp_path / "other.zarr", raw):
        before = contents(out)
        refused([*SPIRALS, "--overwrite", "--out", out], "folder with other data")
        refused(["predict", model, curves, "--at", "3", "--overwrite", "--out", out], "folder with other data")
        assert contents(out) == before


@pytest.mark.parametrize("inside", ["", "clean.zarr"], ids=["same", "inside"])
def test_a_recording_is_not_replaced_by_its_preprocessing(refused, raw, inside):
    before = contents(raw)
    command = ["data", "preprocess-calcium", raw, "--overwrite", "--out", raw / inside]
    refused(command, "would change the input", str(raw))
    assert contents(raw) == before


def test_predict_does_not_write_over_what_it_reads(refused, model, curves, tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text("t\n3\n")
    link, twin = tmp_path / "link.csv", tmp_path / "twin.csv"
    link.symlink_to(curves)
    os.link(curves, twin)
    before = contents(tmp_path)
    for out in (curves, link, twin, queries, model / "answers.csv"):
        refused(["predict", model, curves, "--at", queries, "--out", out], "would change the input")
    assert contents(tmp_path) == before


def test_fit_does_not_write_over_what_it_reads(refused, curves, tmp_path):
    refused(["fit", curves, "--out", curves], "is a file")
    Samples(np.arange(4.0), np.ones((2, 4))).save(tmp_path / "s.zarr")
    refused(["fit", tmp_path / "s.zarr", "--out", tmp_path / "s.zarr" / "model"], "would change the input")


def test_inline_times_that_are_too_long_for_a_name_are_no_path(cst, model, curves, tmp_path):
    times = ",".join(f"{t:.6f}" for t in np.linspace(2.1, 4.6, 200))
    for _ in range(2):  # the second call replaces a file that exists
        assert cst("predict", model, curves, "--at", times, "--out", tmp_path / "o.csv")[0] == 0


def test_the_python_interface_keeps_foreign_folders_too(thesis, raw):
    before = contents(thesis.parent)
    samples = Samples(np.arange(4.0), np.ones((2, 4)))
    for write in (samples.save, CalciumSimulation(minutes=0.1, size=16).save):
        with pytest.raises(CSTError, match="folder with other data"):
            write(thesis)
    modes = Modes(1).fit(np.random.default_rng(0).normal(size=(9, 4, 4)))
    with pytest.raises(CSTError, match="folder with other data"):
        modes.save(thesis)
    assert contents(thesis.parent) == before
    (thesis.parent / "file.zarr").write_text("a file")
    with pytest.raises(CSTError, match="is a file, not a folder"):
        samples.save(thesis.parent / "file.zarr")
