"""Grids: NetCDF and xarray."""

import numpy as np
import pytest
import xarray as xr

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning

NAN = np.nan


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
