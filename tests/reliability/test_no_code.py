"""Nothing that is loaded can run: no pickle on any load path, by reading the package and by malicious files."""

import ast
import io
import pickle
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from malice import Malice, harmless
from small_models import wave_model, waves

import cstformer
from cstformer import CST, Samples, load_movie
from cstformer.baselines import BASELINES
from cstformer.data.queries import load_queries
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.datasets.video_files import find_recordings
from cstformer.models.model_files import DESCRIPTION, WEIGHTS

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "hickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.fromfile", "pd.read_pickle",
           "pandas.read_pickle", "os.system", "os.popen", "torch.jit.load", "torch.hub.load"}  # fmt: skip


def dangers(source: str) -> list[str]:
    """What in a module could run code from a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [str(node.module)] if str(node.module).split(".")[0] in MODULES else []
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name in CALLS or name in METHODS or name.endswith("load_from_checkpoint"):
                found.append(name)
            if options.get("allow_pickle", "False") != "False" or options.get("shell", "False") != "False":
                found.append(f"{name} with {options}")
            if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
                found.append(f"{name} without allow_pickle=False")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "yaml.load(text)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_scan_sees_what_it_should(text):
    assert dangers(text)


def test_no_module_of_the_package_can_unpickle():
    files = sorted(Path(cstformer.__file__).parent.rglob("*.py"))
    assert len(files) > 50
    assert {f.name: found for f in files if (found := dangers(f.read_text()))} == {}


def objects() -> np.ndarray:
    array = np.empty((2, 3, 4), dtype=object)
    array[...] = Malice()
    return array


def test_arrays_of_objects(here):
    np.savez(here / "a.npz", coords=objects(), values=objects())
    np.save(here / "a.npy", objects(), allow_pickle=True)
    for read in (Samples.load, load_movie, find_recordings, lambda p: open_recording(p, rate=1.0)):
        harmless(here, "a.npz", "Python objects", read=lambda read=read: read(here / "a.npz"))
    harmless(here, "a.npz", "Python objects", read=lambda: load_queries(here / "a.npz", waves()))
    for read in (load_movie, lambda p: open_recording(p, rate=1.0)):
        harmless(here, "a.npy", read=lambda read=read: read(here / "a.npy"))


def test_a_bare_pickle_under_any_name(here):
    for suffix in ("npz", "npy", "csv", "parquet", "nc", "tif", "mat", "h5", "nwb", "mp4"):
        (here / f"a.{suffix}").write_bytes(pickle.dumps(Malice()))
    for suffix in ("npz", "csv", "parquet", "nc"):
        harmless(here, read=lambda s=suffix: Samples.load(here / f"a.{s}"))
    for suffix in ("npz", "npy", "tif", "nc"):
        harmless(here, read=lambda s=suffix: load_movie(here / f"a.{s}"))
    for suffix in ("npz", "npy", "tif", "h5", "mat", "nwb"):
        harmless(here, read=lambda s=suffix: open_recording(here / f"a.{s}", rate=1.0))
    harmless(here, read=lambda: Solutions(here / "a.mat"))
    for suffix in ("npz", "mp4"):
        harmless(here, read=lambda s=suffix: find_recordings(here / f"a.{s}"))


def test_a_pickle_as_the_header_of_an_array(here):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    with zipfile.ZipFile(here / "a.npz", "w") as archive:
        for key in ("coords", "values"):
            archive.writestr(f"{key}.npy", head.getvalue() + pickle.dumps(Malice()))
    harmless(here, "a.npz", read=lambda: Samples.load(here / "a.npz"))


def test_hickle_files_with_pickled_parts(here):
    frames = np.zeros((2, 4, 5, 3), np.uint8)
    with h5py.File(here / "X_a.hkl", "w") as file:
        file["data_0"] = frames
        file["data_1"] = np.void(pickle.dumps(Malice()))
    with h5py.File(here / "sources_a.hkl", "w") as file:
        file["data_0"] = np.void(pickle.dumps(Malice()))
        file["data_0"].attrs["type"] = np.void(pickle.dumps(Malice()))
    harmless(here, "sources_a.hkl", read=lambda: find_recordings(here / "X_a.hkl"))


def test_models_and_states(here):
    wave_model().save(here / "model")
    for save in (lambda p: torch.save({"w": Malice()}, p), lambda p: p.write_bytes(pickle.dumps(Malice()))):
        save(here / "model" / WEIGHTS)
        harmless(here, WEIGHTS, read=lambda: CST.load(here / "model"))
        for rival in BASELINES.values():
            harmless(here, read=lambda rival=rival: rival.load(here / "model"))
        save(here / "state")
        harmless(here, "state", read=lambda: CST.preset("smoke", steps=1).fit(waves(), state=here / "state"))
    (here / "model" / DESCRIPTION).write_bytes(pickle.dumps(Malice()))
    harmless(here, DESCRIPTION, read=lambda: CST.load(here / "model"))


def test_settings_in_yaml(here, capsys):
    from cstformer.cli import main

    waves().save(here / "curves.npz")
    (here / "evil.yaml").write_text("steps: !!python/object/apply:os.mkdir [harm]\n")
    assert main(["fit", str(here / "curves.npz"), "--out", str(here / "m"), "--config", str(here / "evil.yaml")]) == 2
    assert "cannot read --config" in capsys.readouterr().err
    assert not (here / "harm").exists()
