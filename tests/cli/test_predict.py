"""``cst predict``: queries from the command line and from files, answers to files, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from small_models import blob, wave_model

from cstformer import CST, CSTError, Samples
from cstformer.cli.predict import read_times


@pytest.mark.parametrize("suffix", ["csv", "nc", "zarr"])
def test_answers_in_files(cst, curves, model, tmp_path, suffix):
    out = tmp_path / f"o.{suffix}"
    assert cst("predict", model, curves, "--at", "2.75,3,4.25", "--out", out, "--quiet") == (0, "", "")
    answer = Samples.load(out)
    assert answer.coords[0, :, 0].tolist() == [2.75, 3.0, 4.25]
    assert np.allclose(answer.values, wave_model().predict(Samples.load(curves), [2.75, 3, 4.25]), atol=1e-9)


def test_queries_of_a_table_pick_their_samples(cst, curves, model, tmp_path):
    queries = pd.DataFrame({"sample": ["cell 4", "cell 1", "cell 4"], "t": [3.0, 3.5, 4.0]})
    queries.to_csv(tmp_path / "q.csv", index=False)
    code, out, err = cst("predict", model, curves, "--at", tmp_path / "q.csv", "--out", tmp_path / "a.csv")
    assert (code, err) == (0, "")
    assert out == f"wrote {tmp_path / 'a.csv'}: 2 × 2 × 2 values\n"
    answer = pd.read_csv(tmp_path / "a.csv").sort_values(["sample", "t [s]"])
    assert list(answer.columns) == ["sample", "t [s]", "y0 [mV]", "y1"]
    assert list(zip(answer["sample"], answer["t [s]"], strict=True)) == [
        ("cell 1", 3.5),
        ("cell 4", 3.0),
        ("cell 4", 4.0),
    ]
    expected = wave_model().predict(Samples.load(curves), [3.0, 3.5, 4.0])
    wanted = [expected[1, 1], expected[4, 0], expected[4, 2]]
    assert answer[["y0 [mV]", "y1"]].to_numpy() == pytest.approx(np.array(wanted), rel=1e-6)


@pytest.mark.parametrize("at", ["3.5", "-1e-3,2.5"])
def test_numbers_are_not_taken_for_files(cst, curves, model, tmp_path, at):
    options = ["--out", tmp_path / "o.npz", "--quiet", "--extrapolate"]
    code, _, err = cst("predict", model, curves, f"--at={at}", *options)
    assert code == 0
    assert ("outside the training domain" in err) == at.startswith("-")
    assert Samples.load(tmp_path / "o.npz").n == len(at.split(","))


def test_derivatives(cst, curves, model, tmp_path):
    np.savez(tmp_path / "q.npz", coords=np.array([3.0, 4.0]))
    ask = ["predict", model, curves, "--at", tmp_path / "q.npz", "--derivative", "2", "--out", tmp_path / "o.npz"]
    assert cst(*ask)[0] == 0
    answer = Samples.load(tmp_path / "o.npz")
    assert np.allclose(answer.values, wave_model().derivative(Samples.load(curves), [3.0, 4.0], (2,)), atol=1e-6)


@pytest.fixture
def bounded(tmp_path):
    """A model with enough held-out samples for intervals of 80 %, and its context."""
    rng, t = np.random.default_rng(0), np.linspace(0, 1, 7)
    phases = rng.uniform(size=(2, 30, 1))
    y = np.sin(2 * np.pi * (t + phases)) + 0.1 * rng.normal(size=(2, 30, 7))
    samples = Samples(t, np.moveaxis(y, 0, -1), value_names=["u", "v"], units={"u": "mV"})
    CST.preset("smoke", steps=5, validation=0.2).fit(samples).save(tmp_path / "bounded")
    samples[:2].save(tmp_path / "context.npz")
    return tmp_path / "bounded", tmp_path / "context.npz"


def test_intervals(cst, refused, bounded, tmp_path):
    ask = ["predict", *bounded, "--at", "0.2,0.7", "--interval", "0.8", "--quiet", "--out"]
    low, high = CST.load(bounded[0]).interval(Samples.load(bounded[1]), [0.2, 0.7], 0.8)
    assert cst(*ask, tmp_path / "o.csv") == (0, "", "")
    table = pd.read_csv(tmp_path / "o.csv")
    assert list(table.columns)[2:] == ["u [mV]", "u_low [mV]", "u_high [mV]", "v", "v_low", "v_high"]
    assert table[["u_low [mV]", "v_high"]].to_numpy() == pytest.approx(
        np.stack([low[..., 0], high[..., 1]], -1).reshape(4, 2)
    )
    assert cst(*ask, tmp_path / "o.npz") == (0, "", "")
    arrays = np.load(tmp_path / "o.npz")
    assert arrays["lower"] == pytest.approx(low) and arrays["upper"] == pytest.approx(high)
    assert Samples.load(tmp_path / "o.npz").value_names == ("u", "v")  # bounds are no values
    refused([*ask, tmp_path / "o.csv", "--derivative", "1"], "--interval is for values")
    refused([*ask[:-3], "0.9", "--out", tmp_path / "p.csv"], "needs 9 held-out samples", "calibrate")


def test_a_forecast_needs_extrapolate(cst, refused, curves, model, tmp_path):
    ask = ["predict", model, curves, "--at", "9", "--out", tmp_path / "o.npz", "--quiet"]
    refused(ask, "outside the training domain by up to 1", "; --extrapolate answers them", "the start holds the value")
    assert not (tmp_path / "o.npz").exists()
    code, _, err = cst(*ask, "--extrapolate")
    assert code == 0
    assert len(err.splitlines()) == 1
    assert err.startswith("cst: warning: coordinates lie outside the training domain by up to 1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "none"}, "does not exist"),
        ({"model": "."}, "has no model.json"),
        ({"context": "none.csv"}, "there is no such file"),
        ({"--at": "0:1:1e-300"}, "more than 10,000,000 coordinates; give a larger step"),
        ({"--at": "0:1e9:1e-9"}, "more than 10,000,000 coordinates; give a larger step"),
        ({"--at": "2024-05-01:2024-05-02:1ns"}, "more than 10,000,000 coordinates; give a larger step"),
        ({"--at": "soon"}, "--at soon: there is no such file"),
        ({"--at": "3,nan"}, "at contains NaN or infinite"),
        ({"--derivative": "1,0"}, "derivative (1, 0) does not fit 1 coordinate axes"),
        ({"--derivative": "x"}, "--derivative x: give whole numbers"),
        ({"--derivative": "-1"}, "derivative (-1,)"),
        ({"--derivative": "40"}, "derivative (40,) has order 40; orders up to 12 are computed"),
        ({"--out": "o.docx"}, "unknown kind of file"),
        ({"--out": "no/o.csv"}, "does not exist; make it first"),
    ],
    ids=str,
)
def test_refusals(refused, curves, model, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    options = {"model": model, "context": curves, "--at": "3,4", "--out": "o.csv"} | change
    flags = [f"{k}={v}" for k, v in options.items() if k.startswith("--")]
    refused(["predict", options["model"], options["context"], *flags], words)
    assert not (tmp_path / "o.csv").exists()


def test_damaged_and_newer_models(refused, curves, model, tmp_path):
    ask = ["predict", model, curves, "--at", "3", "--out", tmp_path / "o.csv"]
    text = (model / "model.json").read_text()
    (model / "model.json").write_text(text.replace('"format": 2', '"format": 99'))
    refused(ask, "newer cstformer (format 99, this one reads 2); upgrade")
    (model / "model.json").write_text(text)
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(ask, "is damaged or not a safetensors file")


# Movies


def test_refusals_of_a_movie(refused, cst, model, tmp_path):
    np.savez(tmp_path / "movie.npz", movie=blob(6, 8, 8))
    fit = ["fit", tmp_path / "movie.npz", "--out", tmp_path / "m", "--patch", "4,4", "--preset", "smoke", "--steps=1"]
    assert cst(*fit, "--quiet")[0] == 0
    ask, out = ["predict", tmp_path / "m", tmp_path / "movie.npz"], ["--out", tmp_path / "o.npz"]
    refused([*ask, "--at", "0", "--out", tmp_path / "o.csv"], "frames are written as .npz, .tif, .tiff, .zarr, .nwb")
    refused([*ask, "--at", "soon", *out], "--at soon: give numbers separated by commas, or a file")
    (tmp_path / "q.csv").write_text("t\nsoon\n")
    refused([*ask, "--at", tmp_path / "q.csv", *out], "column 't'", "must be real numbers")
    refused([*ask, "--at", "0", "--derivative", "1", *out], "does not fit 3 coordinate axes")
    np.savez(tmp_path / "small.npz", movie=blob(6, 4, 4))
    refused(["predict", tmp_path / "m", tmp_path / "small.npz", "--at", "0", *out], "frames of (8, 8)")
    refused(["predict", model, tmp_path / "movie.npz", "--at", "0", *out], "must have the keys coords")


def test_times_of_a_movie(tmp_path):
    np.savez(tmp_path / "a.npz", times=[3.0, 1.0])
    np.savez(tmp_path / "b.npz", coords=[[3.0, 0, 0], [1.0, 0, 0], [3.0, 4, 4]])
    (tmp_path / "c.csv").write_text("sample,time [s]\nx,3\nx,1\n")
    (tmp_path / "d.csv").write_text("frame\n3\n1\n")
    assert read_times("0,0.5").tolist() == [0.0, 0.5]
    assert read_times("1:2:0.25").tolist() == [1.0, 1.25, 1.5, 1.75, 2.0]
    assert len(read_times("0:600:0.05")) == 12001 and len(read_times("0:1:0.4")) == 3
    with pytest.raises(CSTError, match="START:STOP:STEP"):
        read_times("1:0:0.1")
    assert read_times(str(tmp_path / "a.npz")).tolist() == [3.0, 1.0]
    assert read_times(str(tmp_path / "b.npz")).tolist() == [1.0, 3.0]
    assert read_times(str(tmp_path / "c.csv")).tolist() == [3.0, 1.0]
    assert read_times(str(tmp_path / "d.csv")).tolist() == [3.0, 1.0]
    np.savez(tmp_path / "e.npz", when=[1.0])
    with pytest.raises(CSTError, match="has no key 'times' but when"):
        read_times(str(tmp_path / "e.npz"))
