"""The command line: what it teaches, what it refuses in one line, and whole journeys from file to file."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from small_models import blob, known_kernel, wave_model, waves

import cstformer.models.cst
from cstformer import CST, CSTError, Samples, cli
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import setting_fields

COMMANDS = [
    [],
    ["fit"],
    ["predict"],
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
SMOKE = ["--preset", "smoke", "--steps", "3", "--quiet"]


@pytest.fixture
def cst(capsys, monkeypatch):
    """Run the command in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(cstformer.models.cst, "fit_kernel", known_kernel)

    def run(*arguments) -> tuple[int, str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                code = cli.main([str(a) for a in arguments])
            except SystemExit as end:
                code = end.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(cst):
    """Run a command that must fail: exit code 2, nothing on stdout, one line with these words on stderr."""

    def run(arguments, *words: str) -> str:
        code, out, err = cst(*arguments)
        assert code == 2, (code, out, err)
        assert out == ""
        assert err.startswith("cst: error: ")
        assert len(err.splitlines()) == 1, err
        for word in words:
            assert word in err, err
        return err

    return run


@pytest.fixture
def curves(tmp_path):
    """A table of ragged series with an empty cell and units."""
    s = waves(6)
    table = s.to_frame()
    table["sample"] = [f"cell {i}" for i in table["sample"]]
    table.loc[3, "y1"] = np.nan
    table = table.drop(index=[5, 12, 13])
    path = tmp_path / "curves.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def model(tmp_path):
    wave_model().save(tmp_path / "model")
    return tmp_path / "model"


# Help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(["cst", *c]))
def test_help_works_and_teaches(cst, command):
    code, out, err = cst(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: {' '.join(['cst', *command])} ")
    assert len(out.splitlines()) > 4


def test_help_of_fit_explains_every_setting_and_shows_examples(cst):
    out = cst("fit", "--help")[1]
    flat = " ".join(out.split())
    for name, field in setting_fields().items():
        assert f"--{name.replace('_', '-')} X" in flat
        assert field.metadata["help"].split(";")[0] in flat, name
    assert "cst fit curves.csv --out model --max-minutes 5" in out


def test_no_arguments_and_version(refused, cst):
    refused([], "the following arguments are required: COMMAND", "cst --help")
    assert cst("--version")[1].startswith("cstformer ")


# Refusals


def test_unknown_command_and_option(refused, curves, tmp_path):
    refused(["fti"], "invalid choice: 'fti'")
    out = tmp_path / "m"
    refused(
        ["fit", curves, "--out", out, "--learning-rat", "1"],
        "unknown option --learning-rat; did you mean --learning-rate?",
    )
    refused(["fit", curves, "--out", out, "--learning-rat=1"], "did you mean --learning-rate?")
    refused(["fit", curves], "the following arguments are required: --out")
    refused(["predict", "m", "c.csv", "--at", "-1,0", "--out", "o.csv"], "begins with a minus")
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--width", "wide"], ["--width wide: expected int"]),
        (["--width", "30"], ["width=30 is not a multiple of heads=4"]),
        (["--p", "0.5"], ["p=0.5: must be at least 1"]),
        (["--mu", "-1"], ["mu=-1.0: must be at least 0"]),
        (["--mu", "atuo"], ["unknown value of mu 'atuo'; did you mean 'auto'?"]),
        (["--root", "maybe"], ["--root maybe: say true or false"]),
        (["--preset", "papr"], ["unknown preset 'papr'; did you mean 'paper'?"]),
        (["--config", "nowhere.yaml"], ["cannot read --config nowhere.yaml"]),
        (["--stride", "2"], ["--stride needs --window"]),
        (["--window", "0"], ["length must be a positive number"]),
        (["--window", "1", "--stride", "0"], ["stride must be a positive number"]),
        (["--window", "two"], ["argument --window: invalid float value: 'two'"]),
        (["--patch", "4,4"], ["unknown kind of movie file '.csv'"]),
        (["--coords", "tt"], ["unknown column in coords= 'tt'"]),
        (["--values", "y7"], ["unknown column in values= 'y7'"]),
        (["--device", "abacus"], ["device='abacus' cannot be used here"]),
    ],
    ids=" ".join,
)
def test_fit_refuses_bad_flags(refused, curves, tmp_path, flags, words):
    refused(["fit", curves, "--out", tmp_path / "m", "--quiet", *flags], *words)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rat: 1", ["unknown setting 'learning_rat'; did you mean 'learning_rate'?"]),
        ("width: wide", ["--width wide: expected int"]),
        ("width: [3]", ["width=[3]: expected int"]),
        ("- 1\n- 2", ["must hold 'setting: value' lines"]),
        ("width: {", ["cannot read --config"]),
        ("!!python/object/apply:os.system ['true']", ["cannot read --config"]),
    ],
    ids=str,
)
def test_fit_refuses_bad_configs(refused, curves, tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    refused(["fit", curves, "--out", tmp_path / "m", "--config", tmp_path / "c.yaml"], *words)


def bad_files(folder):
    """Names and contents of files that are no samples, and words of the error."""
    nan, rng = np.nan, np.random.default_rng(0)
    t, y = np.tile(np.arange(4.0), (3, 1)), rng.normal(size=(3, 4, 1))
    one = y.copy()
    one[1, 1:] = nan
    none = y.copy()
    none[2] = nan
    inf = t.copy()
    inf[0, 2] = np.inf
    arrays = {
        "rank.npz": (dict(coords=np.zeros((1, 2, 3, 4)), values=y), ["coords"]),
        "count.npz": (dict(coords=t[:2, :, None], values=y), ["differ in the number of samples"]),
        "empty.npz": (dict(coords=np.zeros((0, 4, 1)), values=np.zeros((0, 4, 1))), ["must not be empty"]),
        "one.npz": (dict(coords=t, values=one), ["samples [1] have fewer than two observed points"]),
        "missing.npz": (dict(coords=t, values=none), ["no value is observed in sample 2"]),
        "inf.npz": (dict(coords=inf, values=y), ["coords are not finite", "sample 0, point 2"]),
        "keys.npz": (dict(coords=t, value=y), ["must have the keys coords and values"]),
    }
    for name, (content, words) in arrays.items():
        np.savez(folder / name, **content)
        yield name, words
    texts = {
        "header.csv": ("a,b\n1,2\n", ["no coordinate column among ['a', 'b']"]),
        "words.csv": ("t,u\n0,1\n1,many\n", ["column 'u' has 'many' in row 2"]),
        "nothing.csv": ("", ["cannot read"]),
        "text.npz": ("hello", ["cannot read"]),
        "text.nc": ("hello", ["cannot read"]),
        "text.parquet": ("hello", ["cannot read"]),
        "text.tif": ("hello", ["cannot read"]),
        "kind.docx": ("hello", ["unknown kind of file", "'.docx'"]),
    }
    for name, (text, words) in texts.items():
        (folder / name).write_text(text)
        yield name, words
    yield "nowhere.csv", ["there is no such file"]
    yield "nowhere.npz", ["there is no such file"]


def test_fit_and_show_refuse_bad_files(refused, tmp_path):
    for name, words in bad_files(tmp_path):
        refused(["fit", tmp_path / name, "--out", tmp_path / "m", *SMOKE], *words)
        if name != "one.npz":
            refused(["data", "show", tmp_path / name], *words)
    assert not (tmp_path / "m").exists()


def test_fit_leaves_foreign_directories_alone(refused, curves, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    refused(["fit", curves, "--out", tmp_path / "mine", *SMOKE], "thesis.tex", "it is left as it is")
    refused(["fit", curves, "--out", curves, *SMOKE], "is a file")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["curves.csv", "mine"]


def test_predict_refuses(refused, curves, model, tmp_path):
    def predict(*changes, base=None):
        options = {"model": model, "context": curves, "--at": "3,4", "--out": tmp_path / "o.csv"} | dict(changes)
        flags = [x for k, v in options.items() if k.startswith("--") for x in (k, v)]
        return ["predict", options["model"], options["context"], *flags]

    refused(predict(("model", tmp_path / "none")), "does not exist", "written by `cst fit`")
    refused(predict(("model", tmp_path)), "has no model.json")
    refused(predict(("context", tmp_path / "none.csv")), "there is no such file")
    refused(predict(("--at", "soon")), "cannot read soon: there is no such file")
    refused(predict(("--at", tmp_path / "none.npz")), "there is no such file")
    refused(predict(("--at", "3,nan")), "at contains NaN or infinite")
    refused(predict(("--derivative", "1,0")), "derivative (1, 0) does not fit 1 coordinate axes")
    refused(predict(("--derivative", "x")), "--derivative x: give some whole numbers")
    refused(predict(("--derivative", "-1")), "derivative (-1,)")
    refused(predict(("--out", tmp_path / "o.docx")), "unknown kind of file")
    refused(predict(("--out", tmp_path / "no" / "o.csv")), "does not exist; make it first")
    assert not (tmp_path / "o.csv").exists()


def test_damaged_and_newer_models_are_refused(refused, curves, model, tmp_path):
    ask = ["predict", model, curves, "--at", "3", "--out", tmp_path / "o.csv"]
    text = (model / "model.json").read_text()
    (model / "model.json").write_text(text.replace('"format": 1', '"format": 99'))
    refused(ask, "newer cstformer (format 99, this one reads 1); upgrade")
    (model / "model.json").write_text(text)
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(ask, "is damaged or not a safetensors file")


def test_bad_input_through_a_real_process(tmp_path):
    """Exit code and the one line as a shell sees them."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cstformer.cli",
            "fit",
            "nowhere.csv",
            "--out",
            tmp_path / "m",
            "--width",
            "wide",
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cst: error: --width wide: expected int\n"


def test_reading_and_writing_troubles_are_one_line(refused, curves, model, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    refused(["predict", model, curves, "--at", "3", "--out", tmp_path / "o.csv"], "No space left on device")


def test_a_folder_that_cannot_be_made_is_one_line(refused, curves, monkeypatch, tmp_path):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(cli.Path, "mkdir", denied)
    refused(["fit", curves, "--out", tmp_path / "a" / "m", *SMOKE], "Permission denied", str(tmp_path / "a"))


# Settings from flags and files


def test_settings_as_text():
    assert cli.parse_setting("max_minutes", "none") is None
    assert cli.parse_setting("max_minutes", "2") == 2.0
    assert cli.parse_setting("noise", "auto") == "auto"
    assert cli.parse_setting("root", "False") is False
    assert cli.parse_setting("p", "inf") == np.inf
    with pytest.raises(CSTError, match=r"--steps 1\.5: expected int"):
        cli.parse_setting("steps", "1.5")


def test_flags_win_over_the_config_which_wins_over_the_preset(cst, curves, tmp_path):
    config = "layers: 1\nsteps: 2\nlearning-rate: 1e-4\np: inf\nmax_minutes: none\nwidth: 8\n"
    (tmp_path / "c.yaml").write_text(config)
    code, _, err = cst(
        "fit", curves, "--out", tmp_path / "m", "--preset", "smoke", "--config", tmp_path / "c.yaml",
        "--steps", "1", "--order", "1", "--quiet",
    )  # fmt: skip
    assert (code, err) == (0, "")
    m = CST.load(tmp_path / "m")
    assert (m.steps, m.order) == (1, 1)  # flags
    assert (m.layers, m.learning_rate, m.p, m.max_minutes, m.width) == (1, 1e-4, np.inf, None, 8)  # config
    assert (m.heads, m.batch) == (2, 8)  # preset


def test_an_empty_config_is_fine(cst, curves, tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert cst("fit", curves, "--out", tmp_path / "m", "--config", tmp_path / "c.yaml", *SMOKE)[0] == 0


# Curves, from file to file


def test_fit_and_predict_ragged_series_with_units(cst, curves, tmp_path):
    code, out, err = cst("fit", curves, "--out", tmp_path / "m", "--preset", "smoke", "--steps", "3")
    assert code == 0
    assert "fitting Samples(6 samples of 5-7 points, coordinates t, values y0, y1)" in out
    assert "3 of 3 steps" in out or "no improvement" in out
    assert f"saved to {tmp_path / 'm'}" in out
    assert not list(tmp_path.glob("*.training"))
    assert CST.load(tmp_path / "m").names_["units"] == {"t": "s", "y0": "mV"}

    queries = pd.DataFrame({"sample": ["cell 4", "cell 1", "cell 4"], "t": [3.0, 3.5, 4.0]})
    queries.to_csv(tmp_path / "q.csv", index=False)
    code, out, err = cst("predict", tmp_path / "m", curves, "--at", tmp_path / "q.csv", "--out", tmp_path / "a.csv")
    assert (code, err) == (0, "")
    assert out == f"wrote {tmp_path / 'a.csv'}: 2 × 2 × 2 values\n"
    answer = pd.read_csv(tmp_path / "a.csv")
    assert list(answer.columns) == ["sample", "t [s]", "y0 [mV]", "y1"]
    assert sorted(zip(answer["sample"], answer["t [s]"], strict=True)) == [
        ("cell 1", 3.5),
        ("cell 4", 3.0),
        ("cell 4", 4.0),
    ]
    expected = CST.load(tmp_path / "m").predict(Samples.load(curves), [3.0, 3.5, 4.0])
    row = answer[(answer["sample"] == "cell 4") & (answer["t [s]"] == 4.0)]
    assert row[["y0 [mV]", "y1"]].to_numpy()[0] == pytest.approx(expected[4, 2], rel=1e-6)
    assert np.abs(answer["y0 [mV]"] - 40).max() < 20  # values of the right size


@pytest.mark.parametrize("suffix", ["npz", "csv", "tsv", "parquet", "nc", "zarr"])
def test_predict_writes_every_kind(cst, curves, model, tmp_path, suffix):
    out = tmp_path / f"o.{suffix}"
    assert cst("predict", model, curves, "--at", "2.75,3,4.25", "--out", out, "--quiet") == (0, "", "")
    answer = Samples.load(out)
    assert answer.values.shape == (6, 3, 2)
    assert answer.coords[0, :, 0].tolist() == [2.75, 3.0, 4.25]
    assert np.allclose(answer.values, wave_model().predict(Samples.load(curves), [2.75, 3, 4.25]), atol=1e-9)


@pytest.mark.parametrize("at", ["3", "3.5", "2.5,3", "-1e-3,2.5"])
def test_inline_times_are_not_taken_for_files(cst, curves, model, tmp_path, at):
    code, _, err = cst("predict", model, curves, f"--at={at}", "--out", tmp_path / "o.npz", "--quiet")
    assert code == 0
    assert ("outside the training domain" in err) == at.startswith("-")
    assert Samples.load(tmp_path / "o.npz").n == len(at.split(","))


def test_predict_derivatives(cst, curves, model, tmp_path):
    np.savez(tmp_path / "q.npz", coords=np.array([3.0, 4.0]))
    ask = [
        "predict",
        model,
        curves,
        "--at",
        tmp_path / "q.npz",
        "--derivative",
        "2",
        "--out",
        tmp_path / "o.npz",
    ]
    assert cst(*ask)[0] == 0
    answer = Samples.load(tmp_path / "o.npz")
    assert np.allclose(answer.values, wave_model().derivative(Samples.load(curves), [3.0, 4.0], (2,)), atol=1e-6)
    with np.load(tmp_path / "o.npz") as arrays:
        assert {"coords", "values"} <= set(arrays)


def test_predict_warns_of_extrapolation_in_one_line(cst, curves, model, tmp_path):
    code, _, err = cst("predict", model, curves, "--at", "9", "--out", tmp_path / "o.npz", "--quiet")
    assert code == 0
    assert len(err.splitlines()) == 1
    assert err.startswith("cst: warning: coordinates lie outside the training domain by up to 1")


def test_duplicates_are_reported_in_one_line(cst, tmp_path):
    (tmp_path / "d.csv").write_text(
        "sample,t,u\n" + "".join(f"{i},{t},{t + i}\n" for i in range(3) for t in (0, 1, 1, 2))
    )
    code, out, err = cst("fit", tmp_path / "d.csv", "--out", tmp_path / "m", *SMOKE)
    assert (code, out) == (0, "")
    assert err == (
        "cst: warning: 3 points in 3 samples repeat the coordinates of another point of their sample; "
        "their values were averaged\n"
    )


def test_quiet_prints_nothing(cst, curves, tmp_path):
    assert cst("fit", curves, "--out", tmp_path / "m", *SMOKE) == (0, "", "")


def test_one_long_recording_in_windows(cst, tmp_path):
    t = np.arange(0, 12, 0.25)
    pd.DataFrame({"time": t, "u": np.sin(t)}).to_csv(tmp_path / "long.csv", index=False)
    code, out, _ = cst(
        "fit",
        tmp_path / "long.csv",
        "--out",
        tmp_path / "m",
        "--window",
        "3",
        "--preset",
        "smoke",
        "--steps",
        "1",
    )
    assert code == 0
    assert "fitting Samples(7 samples of 12 points, coordinates time, values u)" in out
    assert CST.load(tmp_path / "m").scaling_.span.tolist() == [2.75]


def test_chosen_columns(cst, tmp_path):
    s = waves(5)
    table = s.to_frame().rename(columns={"t [s]": "when", "y0 [mV]": "voltage"})
    table["comment"] = "none"
    table.to_csv(tmp_path / "x.csv", index=False)
    pick = ["--coords", "when", "--values", "voltage"]
    assert cst("fit", tmp_path / "x.csv", "--out", tmp_path / "m", *pick, *SMOKE)[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "x.csv", "--at", "3", "--out", tmp_path / "o.csv", *pick]
    assert cst(*ask)[0] == 0
    assert list(pd.read_csv(tmp_path / "o.csv").columns) == ["sample", "when", "voltage"]


def test_a_capped_fit_says_so_and_goes_on_with_more_time(cst, curves, tmp_path, monkeypatch):
    fit = ["fit", curves, "--out", tmp_path / "m", "--preset", "smoke", "--steps", "6", "--patience", "1"]
    loss = SobolevObjective.loss
    with monkeypatch.context() as patch:
        patch.setattr(SobolevObjective, "loss", lambda *a: (time.sleep(0.3), loss(*a))[1])
        code, out, _ = cst(*fit, "--max-minutes", "0.01")
    assert code == 0
    assert "max_minutes=0.01 reached, best weights kept; allow more time for the full schedule" in out
    first = CST.load(tmp_path / "m").report_
    assert first.ended == "cap"
    assert first.steps < 6
    code, out, _ = cst(*fit, "--max-minutes", "5")
    assert "6 of 6 steps" in out
    assert CST.load(tmp_path / "m").report_.history[: len(first.history)] == first.history
    assert not (tmp_path / "m.training").exists()


def test_another_file_does_not_resume_into_a_capped_fit(refused, cst, curves, tmp_path):
    fit = ["--out", tmp_path / "m", "--preset", "smoke", "--steps", "400", "--quiet"]
    assert cst("fit", curves, *fit, "--max-minutes", "0")[0] == 0
    assert (tmp_path / "m.training").exists()
    table = pd.read_csv(curves)
    table["y1"] *= 2 + np.arange(len(table))
    table.to_csv(tmp_path / "other.csv", index=False)
    refused(
        ["fit", tmp_path / "other.csv", *fit],
        "m.training belongs to a run with other settings or data; remove it",
    )
    refused(["fit", curves, *fit, "--width", "32"], "belongs to a run with other settings or data")


def test_ctrl_c_saves_and_the_same_command_goes_on(curves, tmp_path):
    """SIGINT to a real process: exit code 130, a model, and at last the weights of an uninterrupted run."""
    slow = textwrap.dedent(
        """
        import sys, time
        from cstformer import cli
        from cstformer.training import objective
        from cstformer.training import loop as training
        training.SAVE_SECONDS = 0.0
        loss = objective.SobolevObjective.loss
        objective.SobolevObjective.loss = lambda *a: (time.sleep(0.5), loss(*a))[1]
        sys.exit(cli.main(sys.argv[1:]))
        """
    )
    fit = ["fit", curves, "--preset", "smoke", "--steps", "8", "--patience", "1", "--quiet", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    process = subprocess.Popen(
        [sys.executable, "-c", slow, *map(str, fit), tmp_path / "m"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert cli.main([*map(str, fit), str(tmp_path / "whole")]) == 0  # meanwhile
    for _ in range(1200):
        if (tmp_path / "m.training").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == "cst: interrupted; best weights so far saved, run the same command to go on\n"
    interrupted = CST.load(tmp_path / "m").report_
    assert interrupted.ended == "interrupted"
    assert 1 <= interrupted.steps < 8
    assert (tmp_path / "m.training").exists()
    assert cli.main([*map(str, fit), str(tmp_path / "m")]) == 0
    assert not (tmp_path / "m.training").exists()
    assert CST.load(tmp_path / "m").report_.ended == "finished"
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "whole"))
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[k], b[k]) for k in a)


# Movies, from file to file


def write_movie(path, movie):
    if path.suffix == ".npz":
        np.savez(path, movie=movie)
    elif path.suffix == ".npy":
        np.save(path, movie)
    else:
        import tifffile

        colours = {"photometric": "rgb"} if movie.ndim == 4 else {"photometric": "minisblack"}
        tifffile.imwrite(path, movie.astype(np.uint16), **colours)


@pytest.mark.parametrize("suffix", ["npz", "npy", "tif"])
@pytest.mark.parametrize("channels", [None, 3])
def test_a_movie_from_file_to_file(cst, tmp_path, suffix, channels):
    movie = blob(10, 10, 9, channels)
    path = tmp_path / f"movie.{suffix}"
    write_movie(path, movie)
    fit = [
        "fit",
        path,
        "--patch",
        "4,4",
        "--window",
        "6",
        "--stride",
        "3",
        "--preset",
        "smoke",
        "--steps",
        "5",
    ]
    code, out, err = cst(*fit, "--out", tmp_path / "m", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, _, err = cst("predict", tmp_path / "m", path, "--at", "0,0.5,7.25,9", "--out", tmp_path / "o.npz", "--quiet")
    assert (code, err) == (0, "")
    with np.load(tmp_path / "o.npz") as answer:
        frames, times = answer["values"], answer["times"]
    assert times.tolist() == [0.0, 0.5, 7.25, 9.0]
    assert frames.shape == (4, *movie.shape[1:])
    truth = np.stack([movie[0], (movie[0] + movie[1]) / 2, 0.75 * movie[7] + 0.25 * movie[8], movie[9]])
    scale = movie.std((0, 1, 2))
    assert (np.sqrt(((frames - truth) ** 2).mean((0, 1, 2))) < 0.3 * scale).all()


def test_a_movie_is_described(cst, tmp_path):
    movie = blob(10, 10, 9)
    movie[0, 0, 0] = np.nan
    np.savez(tmp_path / "movie.npz", movie=movie, times=np.arange(10) * 0.1)
    code, out, _ = cst("data", "show", tmp_path / "movie.npz")
    assert code == 0
    assert "movie of 10 frames of 10 × 9 (float64), times 0 to 0.9" in out
    assert "values 100 to 150" in out
    assert "--patch 8,8 --window 10 --stride 5" in out


def test_movie_refusals(refused, cst, model, tmp_path):
    np.savez(tmp_path / "movie.npz", movie=blob(6, 8, 8))
    fit = [
        "fit",
        tmp_path / "movie.npz",
        "--out",
        tmp_path / "m",
        "--preset",
        "smoke",
        "--steps",
        "1",
        "--quiet",
    ]
    refused([*fit, "--patch", "4"], "--patch 4: give 2 whole numbers")
    refused([*fit, "--patch", "0,4"], "patch must be two positive integers")
    refused([*fit, "--patch", "4,4", "--window", "2.5"], "--window 2.5: give a whole number of frames")
    refused([*fit, "--patch", "4,4", "--window", "0"], "--window 0: give a whole number of frames")
    refused([*fit, "--patch", "4,4", "--stride", "nan"], "--stride nan: give a whole number of frames")
    assert cst(*fit, "--patch", "4,4")[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "movie.npz"]
    refused([*ask, "--at", "0", "--out", tmp_path / "o.csv"], "a predicted movie is written as .npz")
    refused([*ask, "--at", "soon", "--out", tmp_path / "o.npz"], "neither a file (npz, csv, …) nor numbers")
    (tmp_path / "q.csv").write_text("t\nsoon\n")
    refused([*ask, "--at", tmp_path / "q.csv", "--out", tmp_path / "o.npz"], "column 't'", "must be real numbers")
    refused(
        [*ask, "--at", "0", "--derivative", "1", "--out", tmp_path / "o.npz"],
        "does not fit 3 coordinate axes",
    )
    np.savez(tmp_path / "small.npz", movie=blob(6, 4, 4))
    refused(
        ["predict", tmp_path / "m", tmp_path / "small.npz", "--at", "0", "--out", tmp_path / "o.npz"],
        "frames of (8, 8)",
    )
    refused(
        ["predict", model, tmp_path / "movie.npz", "--at", "0", "--out", tmp_path / "o.npz"],
        "must have the keys coords",
    )


def test_times_of_a_movie_from_files(tmp_path):
    np.savez(tmp_path / "a.npz", times=[3.0, 1.0])
    np.savez(tmp_path / "b.npz", coords=[[3.0, 0, 0], [1.0, 0, 0], [3.0, 4, 4]])
    (tmp_path / "c.csv").write_text("sample,time [s]\nx,3\nx,1\n")
    (tmp_path / "d.csv").write_text("frame\n3\n1\n")
    assert cli._times(str(tmp_path / "a.npz")).tolist() == [3.0, 1.0]
    assert cli._times(str(tmp_path / "b.npz")).tolist() == [1.0, 3.0]
    assert cli._times(str(tmp_path / "c.csv")).tolist() == [3.0, 1.0]
    assert cli._times(str(tmp_path / "d.csv")).tolist() == [3.0, 1.0]
    assert cli._times("0,0.5").tolist() == [0.0, 0.5]
    np.savez(tmp_path / "e.npz", when=[1.0])
    with pytest.raises(CSTError, match="has no key 'times' but when"):
        cli._times(str(tmp_path / "e.npz"))


# Data


def test_make_and_show_spirals(cst, tmp_path):
    path = tmp_path / "spirals.npz"
    make = ["data", "make", "spirals", "--curves", "5", "--points", "20", "--observed", "6", "--out", path]
    code, out, err = cst(*make)
    assert (code, err) == (0, "")
    assert out == f"wrote {path}: Samples(5 samples of 6 points, coordinates t, values y1, y2)\n"
    again = tmp_path / "again.npz"
    cst(*make[:-1], again)
    assert Samples.load(path).equals(Samples.load(again))
    code, out, _ = cst("data", "show", path)
    assert code == 0
    assert "5 samples, 1 coordinates, 2 values" in out
    assert "points per sample: min 6, median 6, max 6" in out
    assert "grid: the same for all samples" in out


def test_make_irregular_spirals_as_a_table(cst, tmp_path):
    path = tmp_path / "s.csv"
    make = [
        "data",
        "make",
        "spirals",
        "--curves",
        "3",
        "--points",
        "20",
        "--observed",
        "6",
        "--irregular",
        "--noise",
        "0.1",
    ]
    assert cst(*make, "--out", path)[0] == 0
    assert "grid: each sample has its own" in cst("data", "show", path)[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--observed", "99"], ["--observed 99: keep between 2 and --points 20"]),
        (["--observed", "1"], ["--observed 1"]),
        (["--curves", "0"], ["curves"]),
        (["--curves", "many"], ["argument --curves: invalid int value: 'many'"]),
        (["--noise", "-1"], ["noise"]),
    ],
    ids=" ".join,
)
def test_make_refuses(refused, tmp_path, flags, words):
    refused(
        ["data", "make", "spirals", "--points", "20", "--curves", "2", "--out", tmp_path / "s.npz", *flags],
        *words,
    )
    assert not (tmp_path / "s.npz").exists()


def test_unknown_experiment(refused):
    refused(["run", "spiral"], "unknown experiment 'spiral'; did you mean 'spirals'?")
