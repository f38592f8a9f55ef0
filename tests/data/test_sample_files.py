import errno
import io
import itertools
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.system.atomic import atomic_path, scratch_folder
from cstformer.system.files import read_npz

NAN = np.nan
SUFFIXES = (".npz", ".csv", ".tsv", ".parquet", ".nc", ".zarr")


def ragged(ids=("mouse 1", "mouse 2")) -> Samples:
    """Ragged samples with a missing channel, names, units and numbers that need all their digits."""
    return Samples.from_list(
        [
            ([[0.1, 1 / 3], [0.7, 2e-17]], [[np.pi, NAN], [-1e300, 2.0]]),
            ([[0.2, 5.0], [0.1, 6.0], [3.0, 7.0]], [[1.0, 2.0], [NAN, 4.0], [5.0, 6.0]]),
        ],
        coord_names=["t", "x"],
        value_names=["u[0]", "speed"],
        sample_ids=ids,
        units={"t": "hours since 2020-01-01", "speed": "m s-1", "u[0]": "seconds"},
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("ids", [("mouse 1", "mouse 2"), (12, 7), ("007", "NA1")])
def test_round_trip(tmp_path, suffix, ids):
    s = ragged(ids)
    s.save(tmp_path / f"x{suffix}")
    s.save(tmp_path / f"x{suffix}")  # replaces the first
    assert [f.name for f in tmp_path.iterdir()] == [f"x{suffix}"]
    back = Samples.load(str(tmp_path / f"x{suffix}"))
    assert back.equals(s)
    assert back.units == s.units and back.value_names == s.value_names and back.sample_ids == ids


@pytest.mark.parametrize("suffix", [".npz", ".nc", ".zarr"])
def test_origin_and_layout_survive(tmp_path, suffix):
    movie = np.arange(6 * 3 * 4, dtype=float).reshape(6, 3, 4)
    s = frames_to_samples(movie, (2, 2), window=3, times=np.arange(6) / 7)
    s.save(tmp_path / f"x{suffix}")
    back = Samples.load(tmp_path / f"x{suffix}")
    assert back.equals(s) and back.layout == s.layout and np.array_equal(back.origin, s.origin)


def test_tables_say_what_they_lose(tmp_path):
    with pytest.warns(CSTWarning, match="keeps neither the origin"):
        Samples([0, 1, 2], [[1, 2, 3]], origin=[[5]]).save(tmp_path / "x.csv")


def test_in_memory_round_trips():
    s = ragged()
    assert Samples.from_frame(s.to_frame()).equals(s)
    assert Samples.from_xarray(s.to_xarray()).equals(s)
    table = s.to_frame()
    assert list(table.columns) == [
        "sample",
        "t [hours since 2020-01-01]",
        "x",
        "u[0] [seconds]",
        "speed [m s-1]",
    ]
    assert len(table) == 5 and np.isnan(table["speed [m s-1]"][0])


def test_text_keeps_every_digit(tmp_path):
    values = np.random.default_rng(0).normal(size=(1, 2000)) * 10.0 ** np.arange(-100, 100, 0.1)
    s = Samples(np.arange(2000), values)
    s.save(tmp_path / "x.csv")
    assert np.array_equal(Samples.load(tmp_path / "x.csv").values, s.values)


def test_plain_npz(tmp_path):
    np.savez(tmp_path / "x.npz", coords=np.arange(3.0)[:, None], values=np.ones((2, 3, 1), dtype="f4"))
    s = Samples.load(tmp_path / "x.npz")
    assert s.coords[1, :, 0].tolist() == [0, 1, 2] and s.coord_names == ("t",)


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


TABLES = {
    "no coordinates": ("a,b\n1,2\n", {}, "no coordinate column among .*pass coords="),
    "no values": ("lat,lon\n1,2\n", {}, "no value column among .*pass coords="),
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
    "nothing": ("", {}, "cannot read"),
    "blind sample": ("sample,t,u\na,0,1\nb,0,\n", {}, "no value is observed in sample 1"),
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
    dates = pd.DataFrame({"t": pd.to_datetime(["2020-01-01"]), "u": [1.0]})
    with pytest.raises(CSTError, match="column 't' has Timestamp"):
        Samples.from_frame(dates)


def test_gridded_dataset(tmp_path):
    values = np.arange(2 * 2 * 3, dtype=float).reshape(2, 2, 3)
    values[1, 0, 2] = NAN
    dates = np.array(["2020-01-01T00:00", "2020-01-01T06:00"], dtype="datetime64[ns]")
    data = xr.Dataset(
        {
            "temp": (("sample", "time", "lat"), values, {"units": "K"}),
            "wind": (("time", "lat", "sample"), 100 + values.transpose(1, 2, 0)),
        },
        coords={
            "sample": ["run a", "run b"],
            "time": dates,
            "lat": ("lat", [10.0, 20, 30], {"units": "degrees"}),
        },
    )
    path = tmp_path / "grid.nc"
    data.to_netcdf(path)
    for s in (Samples.from_xarray(data), Samples.load(path)):
        assert s.coord_names == ("time", "lat") and s.value_names == ("temp", "wind")
        assert s.sample_ids == ("run a", "run b")
        assert s.units == {"time": "hours since 2020-01-01T00:00:00", "lat": "degrees", "temp": "K"}
        assert s.coords[0].tolist() == [[0, 10], [0, 20], [0, 30], [6, 10], [6, 20], [6, 30]]
        assert s.values[0, :, 1].tolist() == [100, 101, 102, 103, 104, 105]
        assert s.point_observed[1].tolist() == [True, True, False, True, True, True]
    turned = Samples.load(path, coords=["lat", "time"], values=["temp"])
    assert turned.coords[0, 1].tolist() == [10, 6] and turned.values[0, :, 0].tolist() == [0, 3, 1, 4, 2, 5]


def test_gridded_array_without_sample_or_coordinates():
    s = Samples.from_xarray(xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("row", "col")))
    assert len(s) == 1 and s.coords[0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]] and s.value_names == ("value",)
    lags = np.array([0, 90], dtype="timedelta64[m]").astype("timedelta64[ns]")
    s = Samples.from_xarray(xr.DataArray([1.0, 2.0], dims="lag", coords={"lag": lags}, name="u"))
    assert s.coords[0, :, 0].tolist() == [0, 1.5] and s.units == {"lag": "hours"}


def test_durations_in_files_stay_numbers(tmp_path):
    data = xr.Dataset({"u": (("time",), [1.0, 2.0], {"units": "seconds"})}, coords={"time": [0.0, 3.0]})
    data["time"].attrs["units"] = "hours"
    data.to_netcdf(tmp_path / "x.nc")
    s = Samples.load(tmp_path / "x.nc")
    assert s.units == {"time": "hours", "u": "seconds"} and s.values[0, :, 0].tolist() == [1, 2]


def test_gridded_refused():
    flat = xr.Dataset({"u": ("time", [1.0, 2.0]), "crs": ((), 3)})
    with pytest.warns(CSTWarning, match=r"left out \['crs'\]"):
        assert Samples.from_xarray(flat).value_names == ("u",)
    cases = [
        (flat, {"values": ["u", "crs"]}, "do not have all the dims"),
        (flat, {"values": ["w"]}, "unknown variable in values= 'w'"),
        (flat[["u"]], {"coords": ["lat"]}, "coords must name the dims"),
        (xr.Dataset(), {}, "no variables"),
        (xr.Dataset({"u": ("sample", [1.0])}), {}, "no coordinate dim"),
        (xr.Dataset({"u": ("time", ["a"])}), {}, "are not numbers"),
        (xr.Dataset({"u": ("time", [1.0])}, coords={"time": ["a"]}), {}, "not numbers or dates"),
        (xr.Dataset(attrs={"cstformer": "{}"}), {}, "incomplete"),
    ]
    for data, options, message in cases:
        with pytest.raises(CSTError, match=message):
            Samples.from_xarray(data, **options)
    with pytest.raises(CSTError, match="may not use 'origin_t'"):
        Samples([0], [[1]], value_names=["origin_t"]).to_xarray()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with pytest.raises(CSTError, match="there is no such file"):
        Samples.load(path)
    if suffix == ".zarr":
        path.mkdir()
        with pytest.raises(CSTError, match="cannot read"):
            Samples.load(path)
        return
    path.write_bytes(b"\x00\xff just some text")
    with pytest.raises(CSTError, match=f"{path.name}"):
        Samples.load(path)
    if suffix not in (".csv", ".tsv"):  # a table cut at the end is still a table
        ragged().save(path)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(CSTError, match="cannot read"):
            Samples.load(path)


def test_wrong_suffix():
    with pytest.raises(CSTError, match=r"unknown kind of file .* '.npx'; did you mean '.npz'\? Valid: .csv"):
        Samples.load("x.npx")
    with pytest.raises(CSTError, match="unknown kind of file"):
        ragged().save("x")


def member(shape: str, descr: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def test_npz_refused(tmp_path):
    path = tmp_path / "x.npz"

    def write(**members: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name.replace("__", "."), content)

    cases = [
        (
            {"coords__npy": member("(99999999, 99999)")},
            "should take .* bytes but has 128; the file is damaged",
        ),
        ({"coords__npy": member("(3,)", "|O", b"x" * 24)}, "holds Python objects"),
        ({"readme__txt": b"hello"}, "is not a NumPy array"),
        ({"coords__npy": b"hello"}, "cannot read"),
    ]
    for members, message in cases:
        write(**members)
        with pytest.raises(CSTError, match=message):
            Samples.load(path)
    np.savez(path, coords=np.ones(3), other=np.ones(3))
    with pytest.raises(CSTError, match=r"must have the keys coords and values, .* but has: coords, other"):
        Samples.load(path)
    good = {"coords": np.ones(3), "values": np.ones((1, 3))}
    np.savez(path, **good)
    with pytest.raises(CSTError, match="48 bytes of arrays, more than max_bytes=47"):
        Samples.load(path, max_bytes=47)
    with pytest.raises(CSTError, match=r"an .npz has fixed keys"):
        Samples.load(path, coords=["t"])
    for meta in ("{", "[1]", '{"colour": 1}', '{"layout": {"frame": 1}}', '{"units": {"w": "m"}}'):
        np.savez(path, meta=np.array(meta), **good)
        with pytest.raises(CSTError, match=r"x.npz"):
            Samples.load(path)


def test_zip_bomb_is_refused_without_memory(tmp_path):
    """A small file that unpacks to 64 MB, declared honestly, is refused by its declared size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", member("(8000000,)", data=bytes(64_000_000)))
    path = tmp_path / "bomb.npz"
    path.write_bytes(buffer.getvalue())
    assert path.stat().st_size < 100_000
    with pytest.raises(CSTError, match="declares 64,000,000 bytes"):
        read_npz(path, max_bytes=10**6)


def test_large_netcdf_is_refused(tmp_path):
    ragged().save(tmp_path / "x.nc")
    with pytest.raises(CSTError, match="more than max_bytes=10"):
        Samples.load(tmp_path / "x.nc", max_bytes=10)


@pytest.mark.parametrize(("module", "suffix"), [("pyarrow", ".parquet"), ("netCDF4", ".nc"), ("zarr", ".zarr")])
def test_missing_library(tmp_path, module, suffix):
    """A fresh process, because xarray and pandas remember which engines they found."""
    path = tmp_path / f"x{suffix}"
    ragged().save(path)
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from cstformer.data.samples import Samples\nfrom cstformer.errors import CSTError\n"
        f"path = {str(path)!r}\n"
        "for act in (lambda: Samples.load(path), lambda: Samples([0], [[1]]).save(path)):\n"
        "    try:\n        act()\n    except CSTError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install cstformer[files]") == 2, done.stdout


def test_atomic_path_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with (
        pytest.raises(CSTError, match=r"cannot write .*x.txt: No space left on device"),
        atomic_path(path) as tmp,
    ):
        tmp.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as tmp:
        tmp.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with atomic_path(path) as tmp:
        assert tmp.suffix == ".txt"
        tmp.write_text("new")
    assert path.read_text() == "new"
    with (
        pytest.raises(CSTError, match=r"folder .* does not exist; make it first"),
        atomic_path(tmp_path / "no" / "x"),
    ):
        pass
    with pytest.raises(CSTError, match="cannot write"), atomic_path(path):
        pass  # nothing was written


def test_atomic_path_replaces_directories(tmp_path):
    path = tmp_path / "model"
    for text in ("old", "new"):
        with atomic_path(path) as tmp:
            tmp.mkdir()
            (tmp / text).write_text(text)
    assert [f.name for f in path.iterdir()] == ["new"] and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(CSTError, match="it is a folder, not a file"), atomic_path(path) as tmp:
        tmp.write_text("file")
    assert (path / "new").exists()


@pytest.mark.parametrize("guard", [scratch_folder, atomic_path])
def test_a_failure_is_told_and_cleared_while_threads_still_write(tmp_path, guard, monkeypatch):
    """A thread of a Zarr store makes its folder again when it is gone; here three times."""
    late, remove = iter(range(3)), shutil.rmtree

    def remove_and_lose(path, **options):
        remove(path, **options)
        for number in itertools.islice(late, 1):
            path.mkdir()
            (path / f"{number}").write_bytes(b"chunk")

    monkeypatch.setattr(shutil, "rmtree", remove_and_lose)
    with pytest.raises((CSTError, OSError), match="No space left on device"), guard(tmp_path / "a.zarr") as folder:
        folder.mkdir(exist_ok=True)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert next(late, None) is None
    assert not list(tmp_path.iterdir())


def test_save_reports_what_the_library_refuses(tmp_path):
    with pytest.raises(CSTError, match=r"cannot write .*x.nc"):
        Samples([0], [[1]], value_names=["a/b"]).save(tmp_path / "x.nc")
    assert not list(tmp_path.iterdir())


def test_meta_is_plain_json(tmp_path):
    ragged().save(tmp_path / "x.npz")
    meta = json.loads(str(read_npz(tmp_path / "x.npz")["meta"]))
    assert meta["coord_names"] == ["t", "x"] and meta["origin"] == [[0, 0], [0, 0]] and meta["layout"] is None


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
