"""``cst fit``: settings from options and files, what it refuses, curves and movies from file to model."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_models import blob, waves

from cstformer import CST, CSTError, Samples
from cstformer.cli.fit import parse_setting
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import setting_fields

SMOKE = ["--preset", "smoke", "--steps", "3", "--quiet"]


def test_help_explains_every_setting(cst):
    flat = " ".join(cst("fit", "--help")[1].split())
    for name, field in setting_fields().items():
        kind = str(field.type).replace("tuple[float, ...]", "float,…").split()[0].upper()
        assert f"--{name.replace('_', '-')} {kind}" in flat
        assert field.metadata["help"].split(";")[0] in flat, name


# Settings


def test_settings_as_text():
    assert parse_setting("max_minutes", "none") is None
    assert parse_setting("max_minutes", "2") == 2.0
    assert parse_setting("noise", "auto") == "auto"
    assert parse_setting("root", "False") is False
    assert parse_setting("p", "inf") == np.inf
    with pytest.raises(CSTError, match=r"--steps 1\.5: expected int"):
        parse_setting("steps", "1.5")
    assert parse_setting("channel_weights", "1,0.5,2") == [1.0, 0.5, 2.0]
    with pytest.raises(CSTError, match=r"--channel-weights 1,two: give numbers separated by commas, e\.g\. 1,2,1"):
        parse_setting("channel_weights", "1,two")


def test_options_win_over_the_config_which_wins_over_the_preset(cst, curves, tmp_path):
    config = "layers: 1\nsteps: 2\nlearning-rate: 1e-4\np: inf\nmax_minutes: none\nwidth: 8\n"
    (tmp_path / "c.yaml").write_text(config)
    options = ["--preset", "smoke", "--config", tmp_path / "c.yaml", "--steps", "1", "--order", "1", "--quiet"]
    code, _, err = cst("fit", curves, "--out", tmp_path / "m", *options)
    assert (code, err) == (0, "")
    m = CST.load(tmp_path / "m")
    assert (m.steps, m.order) == (1, 1)  # options
    assert (m.layers, m.learning_rate, m.p, m.max_minutes, m.width) == (1, 1e-4, np.inf, None, 8)  # config
    assert (m.heads, m.batch) == (2, 8)  # preset


def test_an_empty_config_is_fine(cst, curves, tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert cst("fit", curves, "--out", tmp_path / "m", "--config", tmp_path / "c.yaml", *SMOKE)[0] == 0


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--width", "wide"], "--width wide: expected int"),
        (["--width", "30"], "--width 30 is not a multiple of --heads 4"),
        (["--mu", "-1"], "--mu -1.0: must be at least 0"),
        (["--mu", "atuo"], "unknown value of mu 'atuo'; did you mean 'auto'?"),
        (["--root", "maybe"], "--root maybe: give true or false"),
        (["--preset", "papr"], "unknown preset 'papr'; did you mean 'paper'?"),
        (["--config", "nowhere.yaml"], "cannot read --config nowhere.yaml"),
        (["--stride", "2"], "--stride needs --window"),
        (["--window", "0"], "length must be a positive number"),
        (["--window", "two"], "argument --window: invalid float value: 'two'"),
        (["--window", "1e-300"], "cuts more than 100 windows for each of the 6 points"),
        (["--threads", "100000"], "--threads 100000: must be at most 512"),
        (["--dummies", "1000000"], "--dummies 1000000: must be at most 32768"),
        (["--order", "50"], "--order 50: must be at most 12"),
        (["--patch", "4,4"], "unknown kind of movie file '.csv'"),
        (["--coords", "tt"], "unknown column 'tt'"),
        (["--device", "abacus"], "--device abacus cannot be used here"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_options(refused, curves, tmp_path, options, words):
    refused(["fit", curves, "--out", tmp_path / "m", "--quiet", *options], words)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rat: 1", "unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        ("width: [3]", "--width '[3]': expected int"),
        ("- 1\n- 2", "write one 'setting: value' per line"),
        ("width: {", "cannot read --config"),
    ],
)
def test_bad_configs(refused, curves, tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    refused(["fit", curves, "--out", tmp_path / "m", "--config", tmp_path / "c.yaml"], words)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("one.npz", {"coords": [[0.0, 1.0]], "values": [[1.0, np.nan]]}, "all samples have fewer than two observed"),
        ("keys.npz", {"coords": [[0.0, 1.0]], "value": [[1.0, 2.0]]}, "must have the keys coords and values"),
        ("words.csv", "t,u\n0,1\n1,many\n", "column 'u' has 'many' in row 2"),
        ("nothing.csv", "", "nothing.csv is empty; give a table with a heading"),
        ("text.tif", "hello", "cannot read"),
        ("kind.docx", "hello", "unknown kind of file"),
        ("nowhere.csv", None, "there is no such file"),
    ],
    ids=lambda x: x if isinstance(x, str) and "." in x else "",
)
def test_bad_files(refused, tmp_path, name, content, words):
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    elif content is not None:
        (tmp_path / name).write_text(content)
    refused(["fit", tmp_path / name, "--out", tmp_path / "m", *SMOKE], words)
    if name != "one.npz":  # one point is worth a look, though not a fit
        refused(["data", "show", tmp_path / name], words)
    assert not (tmp_path / "m").exists()


def test_foreign_directories_are_left_alone(refused, curves, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    refused(["fit", curves, "--out", tmp_path / "mine", *SMOKE], "thesis.tex", "it is left as it is")
    refused(["fit", curves, "--out", curves, *SMOKE], "is a file")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["curves.csv", "mine"]


def test_a_directory_that_cannot_be_made(refused, curves, monkeypatch, tmp_path):
    def denied(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    refused(["fit", curves, "--out", tmp_path / "a" / "m", *SMOKE], "Permission denied", str(tmp_path / "a"))


# Curves


def test_the_summary(cst, curves, tmp_path):
    code, out, _ = cst("fit", curves, "--out", tmp_path / "m", "--preset", "smoke", "--steps", "3")
    assert code == 0
    assert "fitting Samples(6 samples of 5-7 points, coordinates t, values y0, y1)" in out
    assert "3 of 3 steps" in out or "no improvement" in out
    assert f"saved to {tmp_path / 'm'}" in out
    assert not list(tmp_path.glob("*.training"))
    assert CST.load(tmp_path / "m").names_["units"] == {"t": "s", "y0": "mV"}


def test_quiet_prints_nothing(cst, curves, tmp_path):
    assert cst("fit", curves, "--out", tmp_path / "m", *SMOKE) == (0, "", "")


def test_repeated_coordinates_are_reported_in_one_line(cst, tmp_path):
    rows = "".join(f"{i},{t},{t + i}\n" for i in range(3) for t in (0, 1, 1, 2))
    (tmp_path / "d.csv").write_text("sample,t,u\n" + rows)
    code, out, err = cst("fit", tmp_path / "d.csv", "--out", tmp_path / "m", *SMOKE)
    assert (code, out) == (0, "")
    assert err.startswith("cst: warning: 3 points in 3 samples repeat the coordinates") and err.count("\n") == 1


def test_one_long_recording_in_windows(cst, tmp_path):
    t = np.arange(0, 12, 0.25)
    pd.DataFrame({"time": t, "u": np.sin(t)}).to_csv(tmp_path / "long.csv", index=False)
    options = ["--window", "3", "--preset", "smoke", "--steps", "1"]
    code, out, _ = cst("fit", tmp_path / "long.csv", "--out", tmp_path / "m", *options)
    assert code == 0
    assert "fitting Samples(7 samples of 12 points, coordinates time, values u)" in out
    assert CST.load(tmp_path / "m").scaling_.span.tolist() == [2.75]


def test_samples_on_clocks_of_their_own(cst, refused, tmp_path):
    """Sines that begin 1000 apart: with --relative they train and answer as those that begin together."""
    together = waves(6)
    apart = together.replace(coords=together.coords + 1000.0 * np.arange(6)[:, None, None])
    fit = ("--preset", "smoke", "--steps", "2", "--quiet")
    for name, samples in (("together", together), ("apart", apart)):
        samples.to_frame().to_csv(tmp_path / f"{name}.csv", index=False)
        code, _, err = cst("fit", tmp_path / f"{name}.csv", "--out", tmp_path / name, *fit, "--relative")
        assert (code, err) == (0, "")
        ask = ["predict", tmp_path / name, tmp_path / f"{name}.csv", "--at", "0.5,1.5", "--out"]
        assert cst(*ask, tmp_path / f"{name} answer.csv")[0] == 0
    a, b = (Samples.load(tmp_path / f"{name} answer.csv") for name in ("together", "apart"))
    assert a.coords[0, :, 0].tolist() == b.coords[0, :, 0].tolist() == [0.5, 1.5]
    np.testing.assert_allclose(a.values, b.values, rtol=1e-4)
    assert "--relative" in cst("fit", tmp_path / "apart.csv", "--out", tmp_path / "m", *fit)[2]
    both = ["fit", tmp_path / "apart.csv", "--out", tmp_path / "n", "--relative", "--window", "2"]
    refused(both, "give one of them")


def test_chosen_columns(cst, tmp_path):
    table = waves(5).to_frame().rename(columns={"t [s]": "when", "y0 [mV]": "voltage"})
    table["comment"] = "none"
    table.to_csv(tmp_path / "x.csv", index=False)
    pick = ["--coords", "when", "--values", "voltage"]
    assert cst("fit", tmp_path / "x.csv", "--out", tmp_path / "m", *pick, *SMOKE)[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "x.csv", "--at", "3", "--out", tmp_path / "o.csv", *pick]
    assert cst(*ask)[0] == 0
    assert list(pd.read_csv(tmp_path / "o.csv").columns) == ["sample", "when", "voltage"]


# Going on


def test_a_capped_fit_says_so_and_continues_with_more_time(cst, curves, tmp_path, monkeypatch):
    fit = ["fit", curves, "--out", tmp_path / "m", "--preset", "smoke", "--steps", "6", "--patience", "1"]
    loss = SobolevObjective.loss
    with monkeypatch.context() as patch:
        patch.setattr(SobolevObjective, "loss", lambda *a: (time.sleep(0.3), loss(*a))[1])
        code, out, err = cst(*fit, "--max-minutes", "0.01")
    assert code == 0
    assert "--max-minutes 0.01 reached, best weights kept; allow more time for the full schedule" in out
    assert "reached" not in err  # told once
    assert f"{tmp_path / 'm'}.training keeps the state of the training" in out and "larger --max-minutes" in out
    first = CST.load(tmp_path / "m").report_
    assert first.ended == "cap"
    assert first.steps < 6
    code, out, _ = cst(*fit, "--max-minutes", "5")
    assert "6 of 6 steps" in out
    assert CST.load(tmp_path / "m").report_.history[: len(first.history)] == first.history
    assert not (tmp_path / "m.training").exists()


def test_other_data_or_settings_do_not_continue_a_capped_fit(refused, cst, curves, tmp_path):
    fit = ["--out", tmp_path / "m", "--preset", "smoke", "--steps", "400", "--quiet"]
    assert cst("fit", curves, *fit, "--max-minutes", "0")[0] == 0
    assert (tmp_path / "m.training").exists()
    table = pd.read_csv(curves)
    table["y1"] *= 2 + np.arange(len(table))
    table.to_csv(tmp_path / "other.csv", index=False)
    message = "m.training belongs to a run with other settings or data; remove it"
    refused(["fit", tmp_path / "other.csv", *fit], message)
    refused(["fit", curves, *fit, "--width", "32"], message)


# Movies


def write_movie(path, movie):
    if path.suffix == ".npz":
        np.savez(path, movie=movie)
    elif path.suffix == ".npy":
        np.save(path, movie)
    else:
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(path, movie.astype(np.uint16), photometric="rgb" if movie.ndim == 4 else "minisblack")


@pytest.mark.parametrize(("suffix", "channels"), [("npz", None), ("npy", 3), ("tif", None), ("tif", 3)])
def test_a_movie_from_file_to_file(cst, tmp_path, suffix, channels):
    movie = blob(10, 10, 9, channels)
    path = tmp_path / f"movie.{suffix}"
    write_movie(path, movie)
    options = ["--patch", "4,4", "--window", "6", "--stride", "3", "--preset", "smoke", "--steps", "5", "--quiet"]
    assert cst("fit", path, "--out", tmp_path / "m", *options) == (0, "", "")
    code, _, err = cst("predict", tmp_path / "m", path, "--at", "0,0.5,7.25,9", "--out", tmp_path / "o.npz", "--quiet")
    assert (code, err) == (0, "")
    with np.load(tmp_path / "o.npz") as answer:
        frames, times = answer["values"], answer["times"]
    assert times.tolist() == [0.0, 0.5, 7.25, 9.0]
    assert frames.shape == (4, *movie.shape[1:])
    truth = np.stack([movie[0], (movie[0] + movie[1]) / 2, 0.75 * movie[7] + 0.25 * movie[8], movie[9]])
    scale = movie.std((0, 1, 2))
    assert (np.sqrt(((frames - truth) ** 2).mean((0, 1, 2))) < 0.3 * scale).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--patch", "4"], "--patch 4: give 2 whole numbers"),
        (["--patch", "0,4"], "patch must be two positive integers"),
        (["--window", "2.5"], "--window 2.5: give a whole number of frames"),
        (["--window", "0"], "--window 0: give a whole number of frames"),
        (["--stride", "nan"], "--stride nan: give a whole number of frames"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_bad_windows_of_a_movie(refused, tmp_path, options, words):
    np.savez(tmp_path / "movie.npz", movie=blob(6, 8, 8))
    refused(["fit", tmp_path / "movie.npz", "--out", tmp_path / "m", *SMOKE, *options], words)
