"""No reader decodes a Zarr store that names pickle as a codec, and all readers open stores in one place.

Recent libraries refuse by themselves: numcodecs 0.16.6 does not unpickle unless it is told to, and zarr 3.1 refuses
the codec on numbers. Older ones do neither, so the fixture takes both checks away: a reader that opens a store past
`system.zarr_files` then runs the payload.
"""

import ast
import contextlib
import io
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numcodecs.pickles
import numpy as np
import pytest
import zarr
import zarr.core.metadata.v2
from malice import Malice, harmless
from small_models import wave_model, waves

import cstformer
from cstformer import CSTError, LazyFrames, Samples, load_movie
from cstformer.cli import main
from cstformer.data import lazy
from cstformer.data.queries import load_queries
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.navier_stokes import Law, make_navier_stokes
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.experiments.calcium.task import load_animal
from cstformer.explorer.exhibits import read_stimulus
from cstformer.explorer.files import read_samples
from cstformer.system.zarr_files import open_zarr

PICKLED = {
    "filter": {"filters": [{"id": "pickle"}]},
    "compressor": {"compressor": {"id": "pickle"}},
    "text": {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}, {"id": "pickle"}]},
}
DIMS = {3: ["time", "row", "col"], 2: ["row", "col"], 1: ["time"]}
ARRAYS = {"frames": (4, 3, 4), "mask": (3, 4), "sd": (3, 4), "time": (4,), "contrast": (4,), "label": (4,)}


@pytest.fixture(autouse=True)
def libraries_unpickle(monkeypatch):
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    if known := getattr(zarr.core.metadata.v2, "OBJECT_CODEC_IDS", None):
        monkeypatch.setattr(zarr.core.metadata.v2, "OBJECT_CODEC_IDS", set(known) - {"pickle"})


def poison(array: Path, change: dict) -> None:
    """Name pickle as the codec of an array of format 2 and replace its only chunk by the payload."""
    about = json.loads((array / ".zarray").read_text())
    (array / ".zarray").write_text(json.dumps(about | {"filters": None, "compressor": None} | change))
    (array / ".".join("0" for _ in about["shape"])).write_bytes(pickle.dumps(Malice()))


def poisoned_recording(path: Path, change: dict = PICKLED["compressor"], names: Iterable[str] = ARRAYS) -> Path:
    """A group that every reader of movies and recordings accepts by its names and shapes, with pickled arrays."""
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for name, shape in ARRAYS.items():
        array = group.create_array(name, data=np.zeros(shape), chunks=shape, compressors=None)
        array.attrs["_ARRAY_DIMENSIONS"] = DIMS[len(shape)]
        if name in names:
            poison(path / name, change)
    return path


def command(*arguments: str) -> None:
    """Run `cst`; raise its error."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(list(arguments))
    assert code == 2, said.getvalue()
    raise CSTError(said.getvalue().strip())


READERS = {
    "Samples.load": Samples.load,
    "load_movie": load_movie,
    "LazyFrames": lambda path: LazyFrames(path, (3, 2), 2, 1)[0],
    "lazy_movie": lambda path: lazy.lazy_movie(path, (3, 2), 2, 1)[0],
    "load_queries": lambda path: load_queries(path, waves()),
    "open_recording": lambda path: open_recording(path, wavelengths=(575,)).channel(575).frames.compute(),
    "CalciumSimulation.load": CalciumSimulation.load,
    "load_animal": lambda path: load_animal.__wrapped__(SimpleNamespace(path=lambda number: path), 0),
    "explorer samples": lambda path: read_samples(path, wave_model()),
    "explorer stimulus": read_stimulus,
    "cst data show": lambda path: command("data", "show", str(path)),
    "cst fit": lambda path: command("fit", str(path), "--patch", "3,2", "--out", "model"),
    "cst fit, lazily": lambda path: command("fit", str(path), "--patch", "3,2", "--window", "2", "--out", "model"),
    "cst data preprocess-calcium": lambda path: command(
        *("data", "preprocess-calcium", str(path), "--wavelengths", "575", "--correction", "none"),
        *("--bin", "1", "--out", "clean.zarr"),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_a_pickled_group(here, monkeypatch, name):
    monkeypatch.setattr(lazy, "LAZY_FROM", 0 if "lazy" in name or "lazily" in name else lazy.LAZY_FROM)
    path = poisoned_recording(here / "a.zarr")
    harmless(here, "a.zarr", "stored by pickle", read=lambda: READERS[name](path))


def test_cst_predict_refuses_a_pickled_context(here):
    wave_model().save(here / "model")
    path = poisoned_recording(here / "a.zarr")
    arguments = ("predict", str(here / "model"), str(path), "--at", "3.0", "--out", str(here / "out.npz"))
    harmless(here, "a.zarr", "stored by pickle", read=lambda: command(*arguments))


@pytest.mark.parametrize("change", PICKLED.values(), ids=PICKLED.keys())
@pytest.mark.parametrize("consolidated", [False, True])
def test_the_codec_is_found_wherever_it_is_named(here, change, consolidated):
    """Also where consolidated metadata, a copy that readers may ignore, names no codec at all."""
    path = poisoned_recording(here / "a.zarr", change, ["frames"])
    if consolidated:
        plain = zarr.open_group(here / "plain.zarr", mode="w", zarr_format=2)
        for name, shape in ARRAYS.items():
            plain.create_array(name, data=np.zeros(shape), chunks=shape, compressors=None)
        zarr.consolidate_metadata(plain.store)
        (path / ".zmetadata").write_text((here / "plain.zarr/.zmetadata").read_text())
    for read in (Samples.load, load_movie, lambda p: LazyFrames(p, (3, 2), 2, 1), open_zarr):
        harmless(here, "a.zarr", "stored by pickle", read=lambda read=read: read(path))


def test_a_pickled_array_inside_a_group_or_alone(here):
    group = zarr.open_group(here / "a.zarr", mode="w", zarr_format=2)
    group.create_group("deep").create_array("x", data=np.zeros(3), chunks=(3,), compressors=None)
    poison(here / "a.zarr/deep/x", PICKLED["compressor"])
    for path in (here / "a.zarr", here / "a.zarr/deep/x"):
        for writable in (False, True):
            harmless(here, "stored by pickle", read=lambda p=path, w=writable: open_zarr(p, writable=w))


def test_solutions_with_a_codec_pickle(here):
    """Format 3 has no codec pickle today: zarr refuses the name, and so do we if a later version knows it."""
    law = Law(2, 1.0, 1.0, 8, step=0.5)
    make_navier_stokes(here / "a.zarr", law, jobs=1, progress=False)
    meta = here / "a.zarr/vorticity/zarr.json"
    pickled = {"codecs": [{"name": "numcodecs.pickle", "configuration": {}}]}
    meta.write_text(json.dumps(json.loads(meta.read_text()) | pickled))
    harmless(here, "a.zarr", read=lambda: Solutions(here / "a.zarr"))
    harmless(here, "a.zarr", read=lambda: make_navier_stokes(here / "a.zarr", law, jobs=1, progress=False))


# --- nothing else in the package opens a store ---

HOME = "system/zarr_files.py"
HARMLESS = {"zarr.Array", "zarr.Group", "zarr.create_array", "zarr.create_group"}
OPENERS = (".open_zarr", ".open_datatree", ".open_groups", ".open_mfdataset", ".from_zarr")


def opens_zarr(source: str) -> list[str]:
    """Code that opens an existing Zarr store, or could."""
    found, tree = [], ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    options = {id(call.func): {k.arg: ast.unparse(k.value) for k in call.keywords} for call in calls}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in ("zarr", "xarray"):
            found.append(ast.unparse(node))  # names of which the checks below know nothing
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] == "zarr" and (a.asname or "." in a.name)]
        elif isinstance(node, ast.Attribute):
            name, given = ast.unparse(node), options.get(id(node), {})
            new = name == "zarr.open_group" and given.get("mode") == "'w'"
            if name.startswith("zarr.") and name not in HARMLESS and not new:
                found.append(name)
            if name.endswith(OPENERS) or (name.endswith(".open_dataset") and given.get("engine") != "'netcdf4'"):
                found.append(name)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "zarr.open(path, mode='r')",
        "zarr.open_group(path)",
        "zarr.open_group(path, mode='r+')",
        "zarr.open_array(path)",
        "zarr.open_consolidated(path)",
        "zarr.load(path)",
        "zarr.Group.open(path)",
        "opener = zarr.open",
        "from zarr import open as opener",
        "import zarr as z",
        "xr.open_zarr(path)",
        "xr.open_dataset(path)",
        "xr.open_dataset(path, engine='zarr')",
        "xr.open_dataset(path, **options)",
        "from xarray import open_zarr",
        "da.from_zarr(path)",
    ],
)
def test_the_scan_sees_what_it_should(text):
    assert opens_zarr(text)


def test_only_one_module_opens_zarr():
    package = Path(cstformer.__file__).parent
    files = {f.relative_to(package).as_posix(): f.read_text() for f in package.rglob("*.py")}
    assert opens_zarr(files.pop(HOME))
    assert {name: found for name, text in files.items() if (found := opens_zarr(text))} == {}
