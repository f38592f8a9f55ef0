"""``cst data show``: movies, grids, queries and the next command; samples: test_make_data.py, bad files: test_fit."""

import numpy as np
import pytest
from small_models import blob, waves


def test_a_movie_is_described(cst, tmp_path):
    movie = blob(10, 10, 9)
    movie[0, 0, 0] = np.nan
    np.savez(tmp_path / "movie.npz", movie=movie, times=np.arange(10) * 0.1)
    code, out, _ = cst("data", "show", tmp_path / "movie.npz")
    assert code == 0
    assert "movie of 10 frames of 10 × 9 (float64), times 0 to 0.9" in out
    assert "values 100 to 150" in out
    assert "--patch 8,8 --window 10 --stride 5" in out


def next_command(out: str) -> str:
    return next(line for line in out.splitlines() if line.startswith("next: ")).removeprefix("next: ")


def test_a_grid_of_frames_is_a_movie(cst, tmp_path):
    xr = pytest.importorskip("xarray")
    frames = xr.DataArray(
        blob(12, 8, 8), dims=("time", "row", "col"), coords={"time": np.arange(12) * 0.5}, name="film"
    )
    frames.to_netcdf(tmp_path / "film.nc")
    frames.to_dataset().to_zarr(tmp_path / "film.zarr", zarr_format=2, consolidated=False)
    for name in ("film.nc", "film.zarr"):
        code, out, err = cst("data", "show", tmp_path / name)
        assert (code, err) == (0, "") and "movie of 12 frames of 8 × 8 (float64), times 0 to 5.5, step 0.5" in out
        assert "--patch 8,8" in next_command(out)


def test_a_zarr_group_without_names_of_dimensions(cst, tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "cortex.zarr", mode="w")
    group.create_array("activity", data=blob(12, 8, 8))
    group.create_array("time", data=np.arange(12) * 0.1)
    code, out, err = cst("data", "show", tmp_path / "cortex.zarr")
    assert (code, err) == (0, "") and "movie of 12 frames of 8 × 8" in out and "times 0 to 1.1" in out


def test_samples_in_a_grid_are_samples(cst, tmp_path):
    waves(3).save(tmp_path / "x.nc")
    code, out, _ = cst("data", "show", tmp_path / "x.nc")
    assert code == 0 and "3 samples, 1 coordinates, 2 values" in out
    assert next_command(out) == f"cst fit {tmp_path / 'x.nc'} --out model"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("subject,time_h\na,0.5\nb,2\n", [], "coordinate time_h: 0.5 to 2"),
        ("who,t\na,0.5\nb,2\n", ["--sample", "who"], "coordinate t: 0.5 to 2"),
        ("when\n2024-05-01T03:00\n2024-05-02\n", [], "coordinate when: 2024-05-01T03:00:00 to 2024-05-02T00:00:00"),
    ],
)
def test_tables_of_queries(cst, tmp_path, text, options, words):
    (tmp_path / "q.csv").write_text(text)
    code, out, err = cst("data", "show", tmp_path / "q.csv", *options)
    assert (code, err) == (0, "") and out.startswith("2 queries: coordinates without values") and words in out


def test_files_of_queries(cst, tmp_path):
    (tmp_path / "q.csv").write_text("sample,t [s]\na,0.5\nb,2\n")
    np.savez(tmp_path / "q.npz", coords=np.array([[0.5], [2.0]]))
    for name in ("q.csv", "q.npz"):
        code, out, err = cst("data", "show", tmp_path / name)
        assert (code, err) == (0, "") and out.startswith("2 queries: coordinates without values") and "0.5 to 2" in out
        assert next_command(out) == f"cst predict MODEL CONTEXT --at {tmp_path / name} --out answers.csv"


def test_the_next_command_has_the_same_options(cst, tmp_path):
    t = np.arange(300) * 0.5
    (tmp_path / "r.csv").write_text("when;u;v\n" + "".join(f"{x};{x};-999\n" for x in t))
    options = ["--coords", "when", "--values", "u", "--missing=-999"]
    code, out, _ = cst("data", "show", tmp_path / "r.csv", *options)
    assert code == 0
    expected = f"cst fit {tmp_path / 'r.csv'} --out model {' '.join(options)} --window 15"
    assert next_command(out) == expected


def test_an_unknown_kind_of_file_lists_what_is_read(refused, tmp_path):
    (tmp_path / "x.nwx").write_text("")
    refused(["data", "show", tmp_path / "x.nwx"], "unknown kind of file for samples", ".parquet, .xlsx, .nc, .zarr")
