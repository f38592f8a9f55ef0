"""Long tables: CSV and pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cstformer.data.samples import Samples
from cstformer.errors import CSTError


def test_text_keeps_every_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=(1, 2000)) * 10.0 ** np.arange(-100, 100, 0.1)
    s = Samples(np.arange(2000), values)
    s.save(tmp_path / "x.csv")
    assert np.array_equal(Samples.load(tmp_path / "x.csv").values, s.values)


def write_csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.csv"
    path.write_text(text)
    return path


def test_csv_by_hand(tmp_path):
    path = write_csv(tmp_path, "Sample,Time [s],u,v [mV],\nb,0,1,\na,0,3,4,\nb,1.5,,6,\nb,2,,,\n")
    s = Samples.load(path)
    assert s.sample_ids == ("b", "a") and s.coord_names == ("Time",) and s.units == {"Time": "s", "v": "mV"}
    assert s.coords[0, :2, 0].tolist() == [0, 1.5]
    assert s.observed[0].tolist() == [[True, False], [False, True], [False, False]]
    assert s.point_observed[1].tolist() == [True, False, False]


def test_csv_choice_of_columns(tmp_path):
    path = write_csv(tmp_path, "t,x [m],y,note\n0,1,2,hello\n1,3,4,\n")
    s = Samples.load(path, coords=["t"], values=["x", "y"])
    assert s.coord_names == ("t",) and s.value_names == ("x", "y") and len(s) == 1 and s.units == {"x": "m"}
    assert Samples.load(path, coords=["x [m]", "t"], values="y").coords[0].tolist() == [[1, 0], [3, 1]]


def test_a_table_of_t_x_y_is_a_curve_in_time(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("sample,t,x,y\n0,0.0,1,2\n0,1.0,3,4\n")
    curve = Samples.load(path)
    assert (curve.coord_names, curve.value_names) == (("t",), ("x", "y"))
    assert curve.values[0].tolist() == [[1, 2], [3, 4]]


def test_values_that_are_named_are_no_coordinates(tmp_path):
    path = tmp_path / "track.csv"
    path.write_text("t,x,y,speed\n0,1,2,5\n1,3,4,6\n")
    track = Samples.load(path, values=["x", "y"])
    assert (track.coord_names, track.value_names) == (("t",), ("x", "y"))
    field = Samples.load(path)
    assert (field.coord_names, field.value_names) == (("t", "x", "y"), ("speed",))


TABLES = {
    "no coordinates": ("a,b\n1,2\n", {}, "no coordinate column among .*name it by coords="),
    "no values": ("lat,lon\n1,2\n", {}, "no value column among .*name it by values="),
    "two times": ("t,hours,u\n1,2,3\n", {}, "could all be the time"),
    "unknown column": ("t,u\n1,2\n", {"coords": ["time"]}, "unknown column in coords= 'time'"),
    "unknown value": ("t,u\n1,2\n", {"values": ["w"]}, "unknown column in values= 'w'"),
    "text": ("t,u\n1,2\n2,high\n", {}, "column 'u' has 'high' in row 2, which is no number"),
    "text in coords": ("t,u\nnow,2\n", {}, "column 't' has 'now' in row 1"),
    "index": (",t,u\n0,1,2\n", {}, "column without a name; write it with index=False"),
    "no rows": ("t,u\n", {}, "no rows"),
    "lost coordinate": ("t,u\n0,1\n,2\n", {}, "column 't' is empty in row 2"),
    "lost sample": ("sample,t,u\n,0,1\n", {}, "column 'sample' is empty in row 1"),
    "infinite": ("t,u\n0,inf\n", {}, "values are infinite"),
    "nothing": ("", {}, "is empty; give a table with a heading and a row for each point"),
    "nothing observed": ("sample,t,u\na,0,\nb,0,\n", {}, "no value is observed in samples 'a', 'b'"),
    "one name": ("t,u [m],u [s]\n0,1,2\n", {}, "value_names must differ"),
}


@pytest.mark.parametrize(("text", "options", "message"), TABLES.values(), ids=TABLES.keys())
def test_tables_refused(tmp_path, text, options, message):
    path = write_csv(tmp_path, text)
    with pytest.raises(CSTError, match=message) as caught:
        Samples.load(path, **options)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_frames_refused():
    with pytest.raises(CSTError, match="two columns of one name"):
        Samples.from_frame(pd.DataFrame([[1, 2, 3]], columns=["t", "u", "u"]))
    dates = pd.DataFrame({"t": [0.0], "u": pd.to_datetime(["2020-01-01"])})
    with pytest.raises(CSTError, match="column 'u' has Timestamp"):
        Samples.from_frame(dates)
