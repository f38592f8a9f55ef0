"""DataFrames and xarray Datasets into fit and predict, and answers of the same kind."""

import numpy as np
import pandas as pd
import pytest
from small_models import fit_quickly, refused, waves

from cstformer import CST, Samples
from cstformer.baselines import BASELINES

TINY = {"steps": 2, "precision": "float64"}


def table(count: int = 6) -> pd.DataFrame:
    frame = waves(count).to_frame()
    frame["subject"] = [f"s{i}" for i in frame.pop("sample")]
    return frame.assign(note="ok")


COLUMNS = {"group": "subject", "values": ["y0"]}


@pytest.fixture(scope="module")
def model():
    return fit_quickly(CST.preset("smoke", **TINY), table(), columns=COLUMNS)


def test_a_frame_in_a_frame_out(model):
    samples = Samples.from_frame(table(), **COLUMNS)
    answer = model.predict(table(), [3.0, 4.0])
    assert list(answer.columns) == ["subject", "t [s]", "y0 [mV]"]
    assert answer["subject"].tolist() == [f"s{i}" for i in range(6) for _ in range(2)]
    assert answer["y0 [mV]"].to_numpy() == pytest.approx(model.predict(samples, [3.0, 4.0]).ravel(), rel=1e-12)
    slope = model.derivative(table(), [3.0], (1,))
    assert list(slope.columns) == ["subject", "t [s]", "y0"]
    assert slope["y0"].to_numpy() == pytest.approx(model.derivative(samples, [3.0], (1,)).ravel(), rel=1e-12)


def test_queries_of_a_frame_pick_their_samples(model):
    at = pd.DataFrame({"subject": ["s4", "s1", "s4"], "t": [3.0, 3.5, 4.0]})
    answer = model.predict(table(), at)
    assert sorted(zip(answer["subject"], answer["t [s]"], strict=True)) == [("s1", 3.5), ("s4", 3.0), ("s4", 4.0)]
    expected = model.predict(Samples.from_frame(table(), **COLUMNS), [3.5])[1, 0, 0]
    assert answer.set_index("subject")["y0 [mV]"]["s1"] == pytest.approx(expected, rel=1e-12)


def test_dates_in_dates_out():
    frame = waves().to_frame().rename(columns={"t [s]": "time"})
    frame["time"] = pd.Timestamp("2024-05-01") + pd.to_timedelta(frame["time"], unit="h")
    model = fit_quickly(CST.preset("smoke", **TINY), frame)
    at = pd.DataFrame({"sample": [2], "time": [pd.Timestamp("2024-05-01T03:30")]})
    answer = model.predict(frame, at)
    assert answer["time"].tolist() == [pd.Timestamp("2024-05-01T03:30")]
    both = model.predict(frame, np.array(["2024-05-01T03:30"], dtype="datetime64"))
    assert both["y0 [mV]"].tolist()[2] == pytest.approx(answer["y0 [mV]"][0], rel=1e-12)


def test_a_dataset_in_a_dataset_out():
    xr = pytest.importorskip("xarray")
    t = np.linspace(0, 3, 8)
    values = np.sin(t + np.arange(5)[:, None])
    grid = xr.Dataset(
        {"u": (("sample", "t"), values), "other": (("sample", "t"), values)}, {"t": t, "sample": [*"abcde"]}
    )
    model = fit_quickly(CST.preset("smoke", **TINY), grid, columns={"values": ["u"]})
    answer = model.predict(grid, [1.0, 2.5])
    assert isinstance(answer, xr.Dataset) and answer["sample"].values.tolist() == [*"abcde"]
    expected = model.predict(Samples.from_xarray(grid, values=["u"]), [1.0, 2.5])
    assert np.allclose(answer["u"].values, expected[..., 0]) and answer["t"].values.tolist() == [1.0, 2.5]
    assert answer["u"].dims == ("sample", "t")
    array = model.predict(grid["u"], xr.Dataset(coords={"t": [1.0, 2.5]}))
    assert isinstance(array, xr.DataArray) and array.name == "u" and np.array_equal(array, answer["u"])
    refused(lambda: model.predict(grid, xr.Dataset(coords={"x": [1.0]})), "at has no coordinate 't'")


def test_the_dims_of_a_grid_come_back():
    xr = pytest.importorskip("xarray")
    hours, ids = np.arange(8.0), [*"abcde"]
    time = np.datetime64("2024-05-01", "ns") + (hours * 3600e9).astype("timedelta64[ns]")
    grid = xr.DataArray(
        np.sin(hours + np.arange(5)[:, None]), {"mouse": ids, "time": time}, ("mouse", "time"), name="u"
    )
    linear = BASELINES["linear"]
    refused(lambda: linear().fit(grid), "dim 'mouse' looks like the name of samples; say so by group='mouse'")
    model = linear().fit(grid, columns={"group": "mouse"})
    at = np.array(["2024-05-01T01:30"], "datetime64[ns]")
    answer = model.predict(grid, at)
    assert answer.dims == ("mouse", "time") and answer["mouse"].values.tolist() == ids
    assert answer["time"].values.tolist() == at.tolist()
    assert answer.values[:, 0] == pytest.approx(grid.values[:, 1:3].mean(1))
    alone = linear().fit(grid.isel(mouse=0, drop=True)).predict(grid.isel(mouse=0, drop=True), at)
    assert alone.dims == ("time",) and alone.values == pytest.approx(answer.values[0])


def test_a_field_on_the_grid_of_the_queries():
    xr = pytest.importorskip("xarray")
    x, y = np.arange(4.0), np.arange(5.0)
    field = xr.Dataset({"u": (("x", "y"), x[:, None] + 2 * y)}, {"x": x, "y": y})
    model = BASELINES["mean"]().fit(field)
    answer = model.predict(field, xr.Dataset(coords={"x": [0.5, 1.5], "y": [1.0, 2.0, 3.0]}))
    assert answer["u"].dims == ("x", "y") and answer["u"].shape == (2, 3)
    assert model.predict(field, [[0.5, 1.0]])["u"].dims == ("point",)


def test_scores_and_pictures_of_a_frame(model):
    samples = Samples.from_frame(table(), **COLUMNS)
    assert model.score(table()) == pytest.approx(model.score(samples), rel=1e-12)
    assert model.score(table(), table()) == pytest.approx(model.score(samples, samples), rel=1e-12)
    assert len(model.plot(table()).axes) == len(model.plot(samples).axes)


@pytest.mark.parametrize("form", [pd.to_datetime, list, lambda texts: [pd.Timestamp(t) for t in texts]])
def test_dates_of_queries_keep_their_time_zone(form):
    hours = np.arange(8.0)
    frame = pd.DataFrame({"when": pd.Timestamp("2024-05-01", tz="Europe/Berlin") + pd.to_timedelta(hours, unit="h")})
    frame = frame.assign(u=hours)  # the value is the hour of the day in Berlin, two hours before UTC
    model = BASELINES["linear"]().fit(frame)
    answer = model.predict(frame, form(["2024-05-01T01:30Z", "2024-05-01T02:30Z"]))
    assert answer["u"].tolist() == pytest.approx([3.5, 4.5])
    assert answer["when"].tolist() == [pd.Timestamp("2024-05-01T03:30+02:00"), pd.Timestamp("2024-05-01T04:30+02:00")]


def test_rivals_and_files(model, tmp_path):
    rival = BASELINES["linear"]().fit(table(), columns=COLUMNS)
    answer = rival.predict(table(), [3.0])
    first = table().query("subject == 's0'")
    assert answer["y0 [mV]"][0] == pytest.approx(np.interp(3.0, first["t [s]"], first["y0 [mV]"]))
    model.save(tmp_path / "m")
    again = CST.load(tmp_path / "m").predict(table(), [3.0])
    assert again.equals(model.predict(table(), [3.0]))
    refused(lambda: CST().fit(waves(), columns={"values": ["y0"]}), "columns= is for a DataFrame or a Dataset")
