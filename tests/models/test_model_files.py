"""Model directories: whole or absent, versioned, and nothing in them can run."""

import ast
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from small_models import blob, fit_quickly, shaken, wave_model, waves

import cstformer
from cstformer import CST, CSTError, CSTWarning, Samples, frames_to_samples
from cstformer.models.model_files import DESCRIPTION, FORMAT, WEIGHTS, from_format_1, load_model, save_model
from cstformer.system import tensor_files
from cstformer.system.tensor_files import read_tensors, write_tensors

AT = np.linspace(2.1, 4.6, 5)
RELEASED = Path(__file__).parents[1] / "released" / "0.1.0"


@pytest.fixture
def saved(tmp_path):
    model = wave_model()
    model.save(tmp_path / "model")
    return tmp_path / "model"


def refused(folder, *words: str) -> str:
    """Loading fails with one line that has these words in it."""
    with pytest.raises(CSTError) as caught:
        CST.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(folder), *words):
        assert word in message
    return message


def describe(folder: Path, **changes) -> None:
    path = folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# Round trips


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "float32"},
        {"pattern": "joint", "norm": "post", "encoding": "linear", "readout": "plain", "start": "linear"},
        {"p": math.inf, "max_minutes": 5.0, "start": "cubic", "attention_kind": "nystrom", "landmarks": 3},
    ],
    ids=["default", "float32", "paper", "odd"],
)
def test_a_model_comes_back_bit_for_bit(tmp_path, settings):
    model = wave_model(**settings)
    model.save(tmp_path / "m")
    back = CST.load(tmp_path / "m")
    assert back.get_params() == model.get_params()
    assert back.report_ == model.report_
    assert back.names_ == model.names_
    assert (back.noise_, back.mu_, back.kernel_, back.n_parameters_) == (
        model.noise_,
        model.mu_,
        model.kernel_,
        model.n_parameters_,
    )
    for k, v in model.network_.state_dict().items():
        assert torch.equal(v, back.network_.state_dict()[k])
    assert np.array_equal(back.predict(waves(), AT), model.predict(waves(), AT))
    assert np.array_equal(back.derivative(waves(), AT, (2,)), model.derivative(waves(), AT, (2,)))
    assert not back.network_.training


def test_a_movie_model_comes_back(tmp_path):
    samples = frames_to_samples(blob(5, 6, 5), (4, 4))
    model = shaken(fit_quickly(CST.preset("smoke", steps=1), samples))
    model.save(tmp_path / "m")
    back = CST.load(tmp_path / "m")
    assert back.layout_ == model.layout_
    at = [[1.5, 1.5, 2.0]]
    assert np.array_equal(back.predict(samples, at), model.predict(samples, at))


def test_only_two_files_and_readable_text(saved):
    assert sorted(f.name for f in saved.iterdir()) == [DESCRIPTION, WEIGHTS]
    about = json.loads((saved / DESCRIPTION).read_text())
    assert (about["kind"], about["format"]) == ("CST", FORMAT)
    assert about["versions"]["torch"] == torch.__version__


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    model = fit_quickly(CST.preset("smoke", steps=np.int64(1), learning_rate=np.float32(0.5)), waves())
    model.save(tmp_path / "m")
    assert CST.load(tmp_path / "m").learning_rate == 0.5


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        CST().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_of_another_machine_is_loaded_on_the_cpu(saved):
    settings = json.loads((saved / DESCRIPTION).read_text())["settings"]
    describe(saved, settings=settings | {"device": "cuda:7"})
    with pytest.warns(CSTWarning, match=r"device='cuda:7' cannot be used here .* loaded on the CPU"):
        model = CST.load(saved)
    assert np.array_equal(model.predict(waves(), AT), wave_model().predict(waves(), AT))


# Older formats; `tests/released` compares the answers of every released model


def test_a_model_of_version_0_1_0_loads_and_is_saved_in_the_format_of_today(tmp_path):
    folder = RELEASED / "ragged" / "model"
    assert json.loads((folder / DESCRIPTION).read_text())["format"] == 1
    model, context = CST.load(folder), Samples.load(RELEASED / "ragged" / "context.npz")
    model.save(tmp_path / "m")
    again = CST.load(tmp_path / "m")
    assert json.loads((tmp_path / "m" / DESCRIPTION).read_text())["format"] == FORMAT
    assert set(read_tensors(tmp_path / "m" / WEIGHTS)[0]) == set(model.network_.state_dict())
    at = context.coords[:, :1]
    assert np.array_equal(again.predict(context, at), model.predict(context, at))


def test_format_1_gave_parts_of_the_transformer_other_names():
    tensors = {name: torch.zeros(1) for name in ("rest.weight", "decode.bias", "skip.weight", "gate.weight", "embed.x")}
    settings = {"width": 8, "devices": 1, "nearness": "auto"}
    new, about = from_format_1(tensors, {"kind": "CST", "settings": settings})
    assert set(new) == {
        "residual.weight",
        "readout.decode.bias",
        "readout.skip.weight",
        "readout.gate.weight",
        "embed.x",
    }
    assert about["settings"] == settings
    # The Transformers of the paper had settings that nothing read; other models are as they were.
    assert from_format_1(tensors, {"kind": "BertTransformer", "settings": settings})[1]["settings"] == {"width": 8}
    assert set(from_format_1(tensors, {"kind": "LSTM", "settings": settings})[0]) == set(tensors)


# Refusals


def test_missing_directory(tmp_path):
    refused(tmp_path / "nowhere", "does not exist", "written by `cst fit`")


def test_foreign_directory_and_file(tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    refused(tmp_path, "has no model.json, so it is not a cstformer model")
    refused(tmp_path / "note.txt", "not a cstformer model")


def test_newer_version(saved):
    describe(saved, format=FORMAT + 1)
    refused(saved, f"newer cstformer (format {FORMAT + 1}, this one reads {FORMAT}); upgrade")


@pytest.mark.parametrize("format_", ["2", None, 1.5, -1, True])
def test_a_version_that_is_none(saved, format_):
    describe(saved, format=format_)
    refused(saved, "is damaged")


def test_other_kind(saved):
    describe(saved, kind="Transformer")
    refused(saved, "holds a 'Transformer' model, not 'CST'")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"kind": "CST"}', "\x00"])
def test_description_that_is_no_description(saved, text):
    (saved / DESCRIPTION).write_text(text)
    refused(saved, "is damaged; save the model again")


def test_description_that_is_no_text(saved):
    (saved / DESCRIPTION).write_bytes(b"\xff\xfe\x00\x80")
    refused(saved, "is damaged")


@pytest.mark.parametrize(
    "key", ["settings", "d", "c", "scaling", "kernel", "noise", "mu", "names", "layout", "training"]
)
def test_description_with_a_missing_key(saved, key):
    about = json.loads((saved / DESCRIPTION).read_text())
    del about[key]
    (saved / DESCRIPTION).write_text(json.dumps(about))
    assert f"{key} is missing" in refused(saved).replace("'", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": 3},
        {"settings": {"widht": 3}},
        {"settings": {"width": "wide"}},
        {"d": 3},
        {"c": "two"},
        {"scaling": {"low": "x", "span": [1], "mean": [0], "sd": [1]}},
        {"scaling": [1, 2]},
        {"scaling": {"low": [0, 0], "span": [1, 1], "mean": [0], "sd": [1]}},
        {"kernel": {"lengthscales": 3}},
        {"kernel": {}},
        {"layout": {"frame": 3}},
        {"training": {"stepz": 3}},
    ],
    ids=str,
)
def test_description_with_a_wrong_entry(saved, changes):
    describe(saved, **changes)
    refused(saved, "cannot be read")


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_truncated_weights(saved, keep):
    path = saved / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    refused(saved, "is damaged or not a safetensors file")


def test_missing_and_foreign_weights(saved, tmp_path):
    (saved / WEIGHTS).unlink()
    refused(saved, "model.safetensors does not exist")
    (saved / WEIGHTS).write_bytes(b"\x80\x04\x95 not weights, rather a pickle")
    refused(saved, "is damaged or not a safetensors file")


def test_weights_of_another_network(saved):
    tensors, _ = read_tensors(saved / WEIGHTS)
    first = sorted(tensors)[0]
    describe(saved, weights=write_tensors(saved / WEIGHTS, tensors | {first: torch.zeros(3)}, {}))
    refused(saved, "cannot be read")
    del tensors[first]
    describe(saved, weights=write_tensors(saved / WEIGHTS, tensors, {}))
    refused(saved, "cannot be read")


# Writing


def test_saving_over_an_older_model_replaces_it(saved):
    wave_model(seed=3).save(saved)
    assert CST.load(saved).seed == 3
    assert [f.name for f in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("where", ["weights", "description"])
def test_a_failure_midway_leaves_the_old_model(saved, monkeypatch, where):
    before = {f.name: f.read_bytes() for f in saved.iterdir()}

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    if where == "weights":
        monkeypatch.setattr(tensor_files, "save_file", full_disk)
    else:
        monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(CSTError, match="No space left on device") as caught:
        wave_model(seed=3).save(saved)
    assert "\n" not in str(caught.value)
    assert {f.name: f.read_bytes() for f in saved.iterdir()} == before
    assert [f.name for f in saved.parent.iterdir()] == ["model"]
    monkeypatch.undo()
    assert CST.load(saved).seed == 0


def test_an_unserialisable_description_leaves_the_old_model(saved):
    with pytest.raises(TypeError):
        save_model(saved, {}, {"kind": "CST", "odd": object()})
    assert CST.load(saved).seed == 0
    assert [f.name for f in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["note.txt", "model.json"])
def test_a_directory_with_other_things_is_left_as_it_is(tmp_path, name):
    target = tmp_path / "mine"
    target.mkdir()
    (target / name).write_text("precious")
    with pytest.raises(CSTError, match="it is left as it is"):
        wave_model().save(target)
    assert (target / name).read_text() == "precious"
    with pytest.raises(CSTError, match=r"is a file; choose another place"):
        wave_model().save(target / name)


def test_a_model_with_notes_beside_it_is_not_swept_away(saved):
    (saved / "notes.md").write_text("precious")
    with pytest.raises(CSTError, match=r"other files \(notes.md\)"):
        wave_model().save(saved)
    assert (saved / "notes.md").read_text() == "precious"


def test_parents_are_made_and_an_empty_directory_is_welcome(tmp_path, monkeypatch):
    wave_model().save(tmp_path / "a" / "b" / "model")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    wave_model().save(".")
    assert CST.load(tmp_path / "here").width == CST.load(tmp_path / "a" / "b" / "model").width


def test_a_moved_model_still_works(saved, tmp_path):
    shutil.move(saved, tmp_path / "elsewhere")
    assert np.array_equal(CST.load(tmp_path / "elsewhere").predict(waves(), AT), wave_model().predict(waves(), AT))


def test_load_model_gives_tensors_and_description(saved):
    tensors, about = load_model(saved, "CST")
    weights = {name for name in tensors if not name.startswith("calibration.")}
    assert weights == wave_model().network_.state_dict().keys()
    assert (about["d"], about["c"]) == (1, 2)


# Safety


def test_nothing_in_the_package_unpickles():
    """No pickle, torch.load, joblib, eval or exec; NumPy never with allow_pickle=True."""
    for path in Path(cstformer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {str(getattr(node, "module", ""))}
                assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"torch.load", "eval", "exec", "pd.read_pickle", "pandas.read_pickle"}, path
                assert called not in {"yaml.load", "yaml.unsafe_load", "yaml.full_load"}, path
                allowed = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert allowed.get("allow_pickle", "False") == "False", path
                if called in {"np.load", "numpy.load"}:
                    assert allowed.get("allow_pickle") == "False", path


def test_a_pickle_in_the_place_of_weights_is_not_run(saved, tmp_path):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    (saved / WEIGHTS).write_bytes(pickle.dumps(Bomb()))
    refused(saved, "is damaged or not a safetensors file")
    assert not (tmp_path / "exploded").exists()
