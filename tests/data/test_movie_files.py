"""Movies in files."""

import numpy as np
import pytest
import tifffile
import xarray as xr
import zarr

from cstformer.data.lazy import LazyFrames
from cstformer.data.movie_files import is_movie, load_movie
from cstformer.errors import CSTError


def test_load_movie_from_every_kind(tmp_path):
    movie = np.arange(3 * 5 * 6, dtype=np.float32).reshape(3, 5, 6)
    times = np.array([0.0, 2.0, 5.0])
    tifffile.imwrite(tmp_path / "a.tif", movie, photometric="minisblack")
    np.save(tmp_path / "a.npy", movie)
    np.savez(tmp_path / "a.npz", film=movie, times=times)
    zarr.save_array(tmp_path / "array.zarr", movie)
    group = zarr.open_group(tmp_path / "group.zarr", mode="w")
    group.create_array("film", data=movie)
    group.create_array("t", data=times)
    data = xr.Dataset({"film": (("time", "y", "x"), movie)}, coords={"time": times})
    data.to_netcdf(tmp_path / "a.nc")
    data.to_zarr(tmp_path / "xarray.zarr", consolidated=False)
    for name, clock in {
        "a.tif": None,
        "a.npy": None,
        "a.npz": times,
        "array.zarr": None,
        "group.zarr": times,
        "a.nc": times,
        "xarray.zarr": times,
    }.items():
        loaded, found = load_movie(tmp_path / name)
        assert np.array_equal(loaded, movie), name
        assert (found is None) if clock is None else np.array_equal(found, clock), name
        assert is_movie(tmp_path / name) == (name in ("a.tif", "a.npy", "a.npz", "array.zarr")), name
        assert is_movie(tmp_path / name, gridded=True)
    assert np.array_equal(load_movie(tmp_path / "a.nc", key="film")[1], times)


def test_load_movie_dates_and_colours(tmp_path):
    dates = np.array(["2020-01-01T00", "2020-01-01T06"], dtype="datetime64[ns]")
    xr.Dataset({"f": (("time", "y", "x"), np.ones((2, 2, 2)))}, coords={"time": dates}).to_netcdf(tmp_path / "d.nc")
    assert load_movie(tmp_path / "d.nc")[1].tolist() == [0, 6]
    colour = np.arange(4 * 3 * 5 * 6, dtype=np.uint8).reshape(4, 3, 5, 6)
    tifffile.imwrite(tmp_path / "c.tif", colour, imagej=True, metadata={"axes": "TCYX"})
    assert np.array_equal(load_movie(tmp_path / "c.tif")[0], np.moveaxis(colour, 1, -1))
    tifffile.imwrite(tmp_path / "rgb.tif", np.zeros((5, 6, 3), np.uint8), photometric="rgb")
    with pytest.raises(CSTError, match="one picture with colours"):
        load_movie(tmp_path / "rgb.tif")


def test_load_movie_refuses(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.ones((2, 3, 4)), b=np.ones((2, 3, 4)), flat=np.ones(2))
    with pytest.raises(CSTError, match=r"found 2 in: a \(2, 3, 4\).* choose one by key="):
        load_movie(tmp_path / "two.npz")
    assert load_movie(tmp_path / "two.npz", key="b")[0].shape == (2, 3, 4)
    with pytest.raises(CSTError, match=r"unknown array in .*two.npz 'c'"):
        load_movie(tmp_path / "two.npz", key="c")
    with pytest.raises(CSTError, match="a movie is"):
        load_movie(tmp_path / "two.npz", key="flat")
    with pytest.raises(CSTError, match=r"unknown kind of movie file '.docx'"):
        load_movie("film.docx")
    film = tmp_path / "film.avi"
    film.touch()
    for read in (load_movie, LazyFrames):  # films are compressed: the remedy instead of a similar suffix
        with pytest.raises(CSTError, match=r"films \(.avi\) are not read; .* ffmpeg -i film.avi .* film/%05d.tif"):
            read(film)
    with pytest.raises(CSTError, match="no such file"):
        load_movie(tmp_path / "none.npz")
    with pytest.raises(CSTError, match="more than max_bytes=10"):
        load_movie(tmp_path / "two.npz", max_bytes=10)
    np.save(tmp_path / "short.npy", np.ones((9, 9, 9)))
    whole = (tmp_path / "short.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:500])
    for name in ("text.tif", "text.npy", "text.npz", "text.nc"):
        (tmp_path / name).write_text("not a movie")
    (tmp_path / "text.zarr").mkdir()
    for name in ("short.npy", "text.tif", "text.npy", "text.npz", "text.nc", "text.zarr"):
        with pytest.raises(CSTError, match=f"cannot read .*{name}"):
            load_movie(tmp_path / name)
    np.savez(tmp_path / "samples.npz", coords=np.ones(3), values=np.ones((2, 3, 1)))
    assert not is_movie(tmp_path / "samples.npz") and not is_movie("table.csv")
