"""Frames that were written are read back, with their times; nothing else is replaced."""

import datetime

import numpy as np
import pynwb
import pytest
import tifffile
from recordings import write_nwb, write_svd
from small_models import refused

from cstformer import load_movie
from cstformer.data import movie_stores
from cstformer.data.movie_writers import write_movie

FRAMES = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
COLOURS = np.stack([FRAMES, -FRAMES], axis=-1)
TIMES = np.array([0.0, 0.1, 0.35, 0.4])


@pytest.mark.parametrize("frames", [FRAMES, COLOURS], ids=["one", "two"])
@pytest.mark.parametrize("suffix", ["npz", "tif", "zarr"])
def test_round_trip(tmp_path, suffix, frames):
    write_movie(tmp_path / f"a.{suffix}", frames, TIMES)
    movie, times = load_movie(tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(movie, frames)
    assert times.tolist() == TIMES.tolist()
    assert [f.name for f in tmp_path.iterdir()] == [f"a.{suffix}"]


def test_a_film_to_look_at(tmp_path):
    av = pytest.importorskip("av")
    ramp = np.linspace(-3, 5, 7)[:, None, None] * np.ones((7, 9, 130))  # from black to white
    ramp[:, 0, 0] = np.nan
    write_movie(tmp_path / "a.mp4", np.stack([ramp, ramp], axis=-1), np.arange(7) * 0.1)
    with av.open(str(tmp_path / "a.mp4")) as film:
        stream = film.streams.video[0]
        grey = [frame.to_ndarray(format="gray").astype(float) for frame in film.decode(video=0)]
        assert float(stream.average_rate) == pytest.approx(10) and len(grey) == 7
    factor = 29  # 9 rows become at least 256
    assert grey[0].shape == (9 * factor + 1, 2 * 130 * factor)
    means = [frame[factor : 9 * factor, factor:].mean() for frame in grey]
    assert means == pytest.approx(np.linspace(0, 255, 7).tolist(), abs=6)


def test_a_zarr_of_others_stays(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "notes.txt").write_text("mine")
    refused(lambda: write_movie(tmp_path / "a.zarr", FRAMES, TIMES), "is a folder with other data (notes.txt)")


def test_what_imagej_sees(tmp_path):
    write_movie(tmp_path / "a.tif", COLOURS, np.arange(4) * 0.05)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.is_imagej and file.series[0].axes == "TCYX"
        assert file.imagej_metadata["finterval"] == pytest.approx(0.05)
        assert file.imagej_metadata["Labels"][2] == "t=0.05 s"


@pytest.mark.parametrize("frames", [FRAMES, COLOURS], ids=["one", "two"])
def test_large_movies_are_bigtiff(tmp_path, monkeypatch, frames):
    monkeypatch.setattr(movie_stores, "CLASSIC_TIFF_BYTES", 100)
    write_movie(tmp_path / "a.tif", frames, TIMES)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.is_bigtiff
    movie, times = load_movie(tmp_path / "a.tif")
    np.testing.assert_array_equal(movie, frames)
    assert times.tolist() == TIMES.tolist()


def test_nwb_of_the_same_session(tmp_path):
    start = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
    write_nwb(tmp_path / "raw.nwb", ("blue", 470.0, FRAMES, {"timestamps": TIMES}))
    write_movie(tmp_path / "answer.nwb", FRAMES, TIMES, tmp_path / "raw.nwb", "Some frames.")
    with pynwb.NWBHDF5IO(str(tmp_path / "answer.nwb"), "r") as io:
        nwb = io.read()
        assert nwb.session_start_time == start and nwb.session_description == "gratings" and nwb.identifier != "one"
        series = nwb.processing["ophys"]["cst"]
        assert series.description == "Some frames. Predicted from raw.nwb, identifier one."
        assert series.data.shape == (4, 6, 5)  # [frame][x][y]
    movie, times = load_movie(tmp_path / "answer.nwb")
    np.testing.assert_array_equal(movie, FRAMES)
    assert times.tolist() == TIMES.tolist()


def test_nwb_without_a_session_and_with_two_colours(tmp_path):
    write_movie(tmp_path / "answer.nwb", COLOURS, TIMES)
    np.testing.assert_array_equal(load_movie(tmp_path / "answer.nwb", key="cst_1")[0], -FRAMES)
    with pynwb.NWBHDF5IO(str(tmp_path / "answer.nwb"), "r") as io:
        assert "start of the session is unknown" in io.read().processing["ophys"]["cst_0"].description


def test_components_are_projected_by_least_squares(tmp_path):
    (tmp_path / "in").mkdir()
    U, _ = write_svd(tmp_path / "in", rank=2)
    U[0, 0] = np.nan  # a masked pixel
    np.save(tmp_path / "in" / "U.npy", U)
    SVT = np.arange(8.0).reshape(2, 4)
    frames = np.einsum("hwk,kt->thw", U, SVT)
    write_movie(tmp_path / "out", frames, TIMES, tmp_path / "in" / "SVT.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "SVT.npy"), SVT, atol=1e-5)
    movie, times = load_movie(tmp_path / "out")
    np.testing.assert_allclose(movie, frames, rtol=1e-5)
    assert times.tolist() == TIMES.tolist()
    # What is orthogonal to both components is lost.
    flat = np.nan_to_num(U).reshape(-1, 2)
    other = np.random.default_rng(2).normal(size=20)
    other -= flat @ np.linalg.lstsq(flat, other, rcond=None)[0]
    write_movie(tmp_path / "again", frames + other.reshape(5, 4), TIMES, tmp_path / "in")
    np.testing.assert_allclose(np.load(tmp_path / "again" / "SVT.npy"), SVT, atol=1e-5)


def test_refusals_replace_nothing(tmp_path):
    np.savez(tmp_path / "a.npz", movie=FRAMES)
    before = (tmp_path / "a.npz").read_bytes()
    refused(lambda: write_movie(tmp_path / "a.npz", FRAMES, TIMES, tmp_path / "a.npz"), "the frames come from")
    assert (tmp_path / "a.npz").read_bytes() == before
    refused(
        lambda: write_movie(tmp_path / "a.csv", FRAMES, TIMES), "frames are written as .npz, .tif, .tiff, .zarr, .nwb"
    )
    refused(lambda: write_movie(tmp_path / "b.npz", FRAMES, TIMES[:2]), "(4, 5, 6) and (2,)")
    refused(lambda: write_movie(tmp_path / "b", FRAMES, TIMES, tmp_path / "a.npz"), "come from such a folder")
    (tmp_path / "in").mkdir()
    write_svd(tmp_path / "in")
    refused(lambda: write_movie(tmp_path / "in", FRAMES, TIMES, tmp_path / "in" / "U.npy"), "exists already")
    refused(lambda: write_movie(tmp_path / "c", FRAMES, TIMES, tmp_path / "in"), "frames of (5, 4)", "(5, 6)")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.npz", "in"]
