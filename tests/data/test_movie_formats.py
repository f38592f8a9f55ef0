"""Files of the field: raw frames, components, NWB and TIFF, with their colours and clocks."""

import json

import numpy as np
import pytest
import tifffile
from recordings import FRAMES, TIMES, write_dat, write_nwb, write_svd
from small_models import refused

from cstformer import LazyFrames, load_movie
from cstformer.data.movie_files import is_movie, movie_names, open_movie
from cstformer.data.patches import frames_to_samples
from cstformer.data.unread import Joined, LowRankFrames, Reordered, TiffArray
from cstformer.system import files as files_module

BLUE, VIOLET = FRAMES[:, 0], FRAMES[:, 1]
LAST = np.moveaxis(FRAMES, 1, -1)  # (T, H, W, colours)
GREY = {"photometric": "minisblack"}


# Raw frames of wfield


@pytest.mark.parametrize("dtype", ["uint16", "float32", "uint8"])
def test_raw_frames_of_one_and_two_colours(tmp_path, dtype):
    two, one = write_dat(tmp_path, FRAMES.astype(dtype)), write_dat(tmp_path, FRAMES[:, :1].astype(dtype))
    assert is_movie(two)
    movie, times = load_movie(two)
    assert times is None and movie.dtype == dtype
    np.testing.assert_array_equal(movie, LAST.astype(dtype))
    np.testing.assert_array_equal(load_movie(two, channel=1)[0], VIOLET.astype(dtype))
    np.testing.assert_array_equal(load_movie(one)[0], BLUE.astype(dtype))


def test_raw_frames_stay_on_disk_until_they_are_indexed(tmp_path):
    path = write_dat(tmp_path)
    movie, _ = open_movie(path)
    changed = FRAMES.copy()
    changed[4] = 7
    changed.tofile(path)
    np.testing.assert_array_equal(movie[4], np.full((5, 4, 2), 7))
    np.testing.assert_array_equal(movie[-1], LAST[-1])
    np.testing.assert_array_equal(movie[1:4:2, 2, 1:], LAST[1:4:2, 2, 1:])
    np.testing.assert_array_equal(movie[np.array([0, 5])], LAST[[0, 5]])


def test_raw_frames_that_are_refused(tmp_path):
    path = write_dat(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    refused(
        lambda: load_movie(path), "477 bytes, no multiple of the 80 bytes of a frame of 2 channel(s) of 5 × 4 uint16"
    )
    for name in ("cortex.dat", "cortex_5_4_uint16.dat", "cortex_2_5_4_object8.dat", "cortex_2_5_4_O.dat"):
        (tmp_path / name).write_bytes(b"")
        refused(lambda n=name: load_movie(tmp_path / n), name, "NAME_CHANNELS_H_W_DTYPE.dat", "rename it")
    for name in ("cortex_2_5_4_uint8.dat", "cortex_0_5_4_uint8.dat"):
        (tmp_path / name).write_bytes(b"")
        refused(lambda n=name: load_movie(tmp_path / n), "no multiple")
    refused(lambda: load_movie(tmp_path / "absent_2_5_4_uint16.dat"), "there is no such file")


def test_each_colour_has_its_own_times(tmp_path):
    path = write_dat(tmp_path)
    assert load_movie(path, channel=0, times=TIMES)[1].tolist() == TIMES[::2].tolist()
    assert load_movie(path, channel=1, times=TIMES)[1].tolist() == TIMES[1::2].tolist()
    assert load_movie(path, channel=1, times=TIMES[:6])[1].tolist() == TIMES[:6].tolist()
    np.testing.assert_allclose(load_movie(path, channel=1, rate=20.0)[1], 0.05 + np.arange(6) / 10)
    refused(lambda: load_movie(path, times=TIMES[:11]), "11 times for 6 frames of 2 colours each, 12 raw frames")
    refused(lambda: load_movie(path, channel=2), "channel 2 does not exist; the movie has 2")


# Components


def test_frames_of_components(tmp_path):
    U, SVT = write_svd(tmp_path)
    expected = np.einsum("hwk,kt->thw", U, SVT)
    for path in (tmp_path, tmp_path / "U.npy", tmp_path / "SVT.npy"):
        assert is_movie(path)
        movie, times = load_movie(path)
        np.testing.assert_allclose(movie, expected, rtol=1e-12)
        assert times is None
    np.save(tmp_path / "SVTcorr.npy", 2 * SVT)
    np.testing.assert_allclose(load_movie(tmp_path)[0], 2 * expected, rtol=1e-12)  # corrected ones are preferred
    np.testing.assert_allclose(load_movie(tmp_path, key="SVT")[0], expected, rtol=1e-12)
    np.testing.assert_allclose(load_movie(tmp_path / "SVT.npy")[0], expected, rtol=1e-12)
    refused(lambda: load_movie(tmp_path, key="SVTs"), "did you mean 'SVT'")


def test_components_of_two_colours_alternate(tmp_path):
    U, SVT = write_svd(tmp_path, colours=2)
    (tmp_path / "info.json").write_text(json.dumps({"n_channels": 2, "frame_rate": 10.0}))
    movie, times = load_movie(tmp_path)
    np.testing.assert_allclose(movie[..., 1], np.einsum("hwk,kt->thw", U, SVT[:, 1::2]), rtol=1e-12)
    np.testing.assert_allclose(times, np.arange(6) / 10)
    np.testing.assert_allclose(load_movie(tmp_path, channel=1)[1], 0.05 + np.arange(6) / 10)
    np.save(tmp_path / "SVTcorr.npy", SVT[:, ::2])
    movie, times = load_movie(tmp_path)
    assert movie.shape == (6, 5, 4)
    np.testing.assert_allclose(times, np.arange(6) / 10)


def test_flat_components_need_the_size_of_a_frame(tmp_path):
    U, SVT = write_svd(tmp_path)
    np.save(tmp_path / "U.npy", U.reshape(20, 3))
    refused(lambda: load_movie(tmp_path), "U.npy has shape (20, 3)", "(H, W, K)")
    np.save(tmp_path / "frames_average.npy", np.ones((1, 5, 4)))
    np.testing.assert_allclose(load_movie(tmp_path)[0], np.einsum("hwk,kt->thw", U, SVT), rtol=1e-12)


def test_components_that_are_refused(tmp_path):
    _, SVT = write_svd(tmp_path)
    np.save(tmp_path / "SVT.npy", SVT[:2])
    refused(lambda: load_movie(tmp_path), "U.npy has 3 components", "SVT.npy has 2", "different decompositions")
    np.save(tmp_path / "SVT.npy", SVT[0])
    refused(lambda: load_movie(tmp_path), "SVT.npy must hold numbers of shape (K, T)", "(6,)")
    np.save(tmp_path / "SVT.npy", np.array([[{}]], dtype=object))
    refused(lambda: load_movie(tmp_path), "SVT.npy", "Python objects")
    (tmp_path / "SVT.npy").write_bytes(b"no array")
    refused(lambda: load_movie(tmp_path), "cannot read", "SVT.npy")
    (tmp_path / "SVT.npy").unlink()
    refused(lambda: load_movie(tmp_path / "U.npy"), "needs U.npy and SVT.npy", "SVT.npy or SVTcorr.npy is not there")


def test_large_frames_of_small_components_are_refused_in_time(tmp_path, monkeypatch):
    np.save(tmp_path / "U.npy", np.ones((100, 100, 1), np.float32))
    np.save(tmp_path / "SVT.npy", np.ones((1, 1000), np.float32))
    monkeypatch.setattr(files_module, "memory_left", lambda: 2**21)
    refused(lambda: load_movie(tmp_path), "declares 40,000,000 bytes of arrays")
    assert open_movie(tmp_path)[0][999].shape == (100, 100)


# NWB


@pytest.mark.parametrize("nm", [470.0, None], ids=["OnePhotonSeries", "ImageSeries"])
def test_a_series_of_nwb_has_its_clock(tmp_path, nm):
    write_nwb(tmp_path / "a.nwb", ("blue", nm, BLUE, {"timestamps": TIMES[::2]}))
    movie, times = load_movie(tmp_path / "a.nwb")
    np.testing.assert_array_equal(movie, BLUE)
    assert times.tolist() == TIMES[::2].tolist()
    write_nwb(tmp_path / "b.nwb", ("blue", nm, BLUE, {"rate": 10.0, "starting_time": 3.0}))
    np.testing.assert_allclose(load_movie(tmp_path / "b.nwb")[1], 3 + np.arange(6) / 10)


def test_two_series_of_nwb_are_two_movies(tmp_path):
    path = tmp_path / "a.nwb"
    write_nwb(path, ("blue", 470.0, BLUE, {"rate": 10.0}), ("violet", None, VIOLET, {"timestamps": TIMES[1::2]}))
    refused(lambda: load_movie(path), "blue (6, 5, 4), violet (6, 5, 4)", "--key", "preprocess-calcium first")
    assert movie_names(path) == ["blue", "violet"]
    movie, times = load_movie(path, key="violet")
    np.testing.assert_array_equal(movie, VIOLET)
    assert times.tolist() == TIMES[1::2].tolist()


def test_nwb_without_frames_is_refused(tmp_path):
    write_nwb(tmp_path / "a.nwb")
    refused(lambda: load_movie(tmp_path / "a.nwb"), "no ImageSeries, OnePhotonSeries or TwoPhotonSeries")


# TIFF


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("kind", ["imagej", "ome"])
def test_axes_of_a_tiff_stack(tmp_path, kind, compression):
    if kind == "imagej" and compression:
        pytest.skip("ImageJ reads no compressed hyperstacks")
    tifffile.imwrite(
        tmp_path / "a.tif", FRAMES, **{kind: True}, metadata={"axes": "TCYX"}, **GREY, compression=compression
    )
    movie, _ = open_movie(tmp_path / "a.tif")
    assert movie.shape == LAST.shape
    np.testing.assert_array_equal(movie[:], LAST)
    np.testing.assert_array_equal(movie[3], LAST[3])
    np.testing.assert_array_equal(load_movie(tmp_path / "a.tif", channel=1)[0], VIOLET)
    single = {"axes": "TYX"}
    tifffile.imwrite(tmp_path / "b.tif", BLUE, **{kind: True}, metadata=single, **GREY, compression=compression)
    np.testing.assert_array_equal(load_movie(tmp_path / "b.tif")[0], BLUE)


def test_colours_before_time(tmp_path):
    tifffile.imwrite(
        tmp_path / "a.tif", FRAMES.swapaxes(0, 1), ome=True, **GREY, metadata={"axes": "CTYX"}, compression="zlib"
    )
    np.testing.assert_array_equal(load_movie(tmp_path / "a.tif")[0], LAST)


def test_a_tiff_with_depth_is_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2, 3, 5, 4), "u1"), ome=True, **GREY, metadata={"axes": "TZYX"})
    refused(lambda: load_movie(tmp_path / "a.tif"), "axes TZYX of sizes (2, 3, 5, 4)")


def test_the_clock_and_labels_of_imagej(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", BLUE, imagej=True, metadata={"axes": "TYX", "finterval": 0.1})
    np.testing.assert_allclose(load_movie(tmp_path / "a.tif")[1], np.arange(6) / 10)
    tifffile.imwrite(tmp_path / "c.tif", FRAMES, imagej=True, metadata={"axes": "TCYX", "finterval": 0.1})
    np.testing.assert_allclose(load_movie(tmp_path / "c.tif", channel=1)[1], 0.05 + np.arange(6) / 10)
    labels = [f"t={t!r} s" for t in TIMES[::2].tolist()]
    tifffile.imwrite(tmp_path / "b.tif", BLUE, imagej=True, metadata={"axes": "TYX", "Labels": labels})
    assert load_movie(tmp_path / "b.tif")[1].tolist() == TIMES[::2].tolist()


def test_a_folder_of_tiff_files_is_one_movie(tmp_path):
    for i in range(12):
        tifffile.imwrite(tmp_path / f"frame{i}.tif", np.full((5, 4), i, np.uint8))
    movie, _ = open_movie(tmp_path)
    assert movie[:, 0, 0].tolist() == list(range(12))  # in natural order
    assert movie[np.array([1, 5, 11]), 0, 0].tolist() == [1, 5, 11]
    tifffile.imwrite(tmp_path / "frame12.tif", np.zeros((4, 4), np.uint8))
    refused(lambda: open_movie(tmp_path), "frames of different sizes")


# Unread arrays


def test_unread_arrays_index_like_numpy():
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    pairs = [
        (Reordered(array, (1, 2, 3, 0)), array.transpose(1, 2, 3, 0)),
        (Joined([array[:1], array[1:], array]), np.concatenate([array, array])),
        (LowRankFrames(array[0].astype(float), np.ones((5, 4, 2))), None),
    ]
    for unread, same in pairs:
        same = unread[...] if same is None else same
        assert unread.shape == same.shape and unread.ndim == same.ndim and len(unread) == len(same)
        for index in (0, -1, slice(1, None), (slice(None, None, 2), 1), (1, slice(1), -1), np.array([0, 1])):
            np.testing.assert_array_equal(unread[index], same[index])
    with pytest.raises(IndexError):
        Joined([array])[2]


def test_pages_of_a_compressed_file_are_read_one_by_one(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", FRAMES, ome=True, **GREY, metadata={"axes": "TCYX"}, compression="zlib")
    array = open_movie(tmp_path / "a.tif")[0].array
    assert isinstance(array, TiffArray) and array.pages == 2
    asked = []
    original = tifffile.TiffFile.asarray
    monkeypatch.setattr(tifffile.TiffFile, "asarray", lambda self, **o: asked.append(o["key"]) or original(self, **o))
    np.testing.assert_array_equal(array[2:4], FRAMES[2:4])
    assert asked == [[4, 5, 6, 7]]


# Windows of large files


@pytest.mark.parametrize("kind", ["dat", "svd", "nwb", "tif"])
def test_windows_are_read_from_every_file(tmp_path, kind):
    path = {"dat": tmp_path, "svd": tmp_path, "nwb": tmp_path / "a.nwb", "tif": tmp_path / "a.tif"}[kind]
    if kind == "dat":
        path = write_dat(tmp_path)
    elif kind == "svd":
        write_svd(tmp_path)
    elif kind == "nwb":
        write_nwb(path, ("blue", 470.0, BLUE, {"timestamps": TIMES[::2]}))
    else:
        tifffile.imwrite(path, BLUE, photometric="minisblack")
    options = {"channel": 1, "times": TIMES} if kind == "dat" else {}
    movie, times = load_movie(path, **options)
    lazily = LazyFrames(path, (2, 2), 3, 1, **options)
    eagerly = frames_to_samples(movie, (2, 2), 3, 1, times=times)
    assert lazily[[0, 3]].equals(eagerly[[0, 3]], tolerance=1e-6)
    again = LazyFrames(**json.loads(json.dumps(lazily.describe())))
    assert again[[2]].equals(lazily[[2]]) and again.fingerprint(0) == lazily.fingerprint(0)
