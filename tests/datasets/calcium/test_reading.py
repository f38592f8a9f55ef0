"""The same little recording from every format, unread until asked for."""

import importlib.util
import os
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import pytest
import tifffile
import zarr
from recordings import write_nwb, write_svd

from cstformer.datasets.calcium import reading
from cstformer.datasets.calcium.reading import open_recording, read_stimuli
from cstformer.errors import CSTError

FRAMES = np.random.default_rng(0).integers(0, 60000, (11, 6, 4)).astype(np.uint16)
TIMES = np.arange(11) / 20


def check(recording):
    """Both channels hold the frames that belong to them."""
    assert sorted(recording.channels) == [395, 575]
    for nm, first in ((575, 0), (395, 1)):
        channel = recording.channel(nm)
        assert isinstance(channel.frames, da.Array)
        np.testing.assert_array_equal(channel.frames.compute(), FRAMES[first::2])
        np.testing.assert_allclose(channel.times, TIMES[first::2])


def arrays():
    table = {"stimulus_start": [0.1], "stimulus_stop": [0.3], "stimulus_contrast": [50.0]}
    named = {"movie": FRAMES, "times": TIMES, "wavelengths": np.resize([575, 395], 11), "mask": FRAMES[0] > 0}
    return named | {"pixel_mm": np.array(0.02), "dark": np.array(100.0)} | {k: np.array(v) for k, v in table.items()}


def write_hdf5(path, **named):
    with h5py.File(path, "w") as file:
        for name, array in named.items():
            file[name] = array


def write_zarr(path, **named):
    group = zarr.open_group(path, mode="w")
    for name, array in named.items():
        group.create_array(name, data=np.atleast_1d(array))


@pytest.mark.parametrize(("name", "write"), [("a.npz", np.savez), ("a.h5", write_hdf5), ("a.zarr", write_zarr)])
def test_named_arrays(tmp_path, name, write):
    write(tmp_path / name, **arrays())
    recording = open_recording(tmp_path / name)
    check(recording)
    assert recording.pixel_mm == pytest.approx(0.02)
    assert recording.stimuli.contrast.tolist() == [50.0]
    assert recording.mask.shape == (6, 4)
    assert recording.dark.tolist() == [[100.0]]


def test_mat_v73_has_its_axes_reversed(tmp_path):
    """What MATLAB calls (H, W, T) is (T, W, H) in the HDF5 file underneath."""
    write_hdf5(tmp_path / "a.mat", movie=FRAMES.transpose(0, 2, 1), times=TIMES[:, None], wavelengths=[[575, 395]])
    check(open_recording(tmp_path / "a.mat"))


def test_npy_is_mapped(tmp_path):
    np.save(tmp_path / "a.npy", FRAMES)
    check(open_recording(tmp_path / "a.npy", wavelengths=(575, 395), rate=20.0))


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tiff_stack(tmp_path, compression, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_BYTES", 3 * FRAMES[0].nbytes)  # several reads a file
    tifffile.imwrite(tmp_path / "a.tif", FRAMES, compression=compression, photometric="minisblack")
    recording = open_recording(tmp_path / "a.tif", wavelengths=(575, 395), rate=20.0)
    assert recording.channel(575).frames.npartitions > 1
    check(recording)


def test_tiff_folder_in_natural_order_with_pixel_size(tmp_path):
    for i, frame in enumerate(FRAMES):
        tifffile.imwrite(tmp_path / f"frame{i}.tif", frame, imagej=True, resolution=(50, 50), metadata={"unit": "mm"})
    recording = open_recording(tmp_path, wavelengths=(575, 395), rate=20.0)
    check(recording)
    assert recording.pixel_mm == pytest.approx(0.02)


def test_channels_in_arrays_of_their_own(tmp_path):
    apart = {"f_575": FRAMES[::2], "times_575": TIMES[::2], "f_395": FRAMES[1::2], "times_395": TIMES[1::2]}
    np.savez(tmp_path / "a.npz", **apart)
    check(open_recording(tmp_path / "a.npz"))


def test_nwb_with_a_series_for_each_wavelength(tmp_path):
    signal = ("signal", 575.0, FRAMES[::2], {"rate": 10.0, "starting_time": 0.0})
    control = ("control", 395.0, FRAMES[1::2], {"timestamps": TIMES[1::2]})
    write_nwb(tmp_path / "a.nwb", signal, control)
    recording = open_recording(tmp_path / "a.nwb")
    check(recording)
    assert recording.pixel_mm == pytest.approx(0.02)
    assert recording.stimuli.contrast.tolist() == [20.0]


def test_nwb_with_one_interleaved_series(tmp_path):
    write_nwb(tmp_path / "a.nwb", ("camera", 575.0, FRAMES, {"timestamps": TIMES}))
    check(open_recording(tmp_path / "a.nwb", wavelengths=(575, 395)))


def test_nwb_with_one_colour_knows_its_wavelength(tmp_path):
    write_nwb(tmp_path / "a.nwb", ("camera", 470.0, FRAMES, {"timestamps": TIMES}))
    channel = open_recording(tmp_path / "a.nwb").channel(470)
    np.testing.assert_array_equal(channel.frames.compute(), FRAMES)


def test_image_series_get_their_wavelengths_by_name(tmp_path):
    lamps = ("blue", None, FRAMES[::2], {"rate": 10.0}), ("violet", None, FRAMES[1::2], {"timestamps": TIMES[1::2]})
    write_nwb(tmp_path / "a.nwb", *lamps)
    check(open_recording(tmp_path / "a.nwb", key="blue,violet", wavelengths=(575, 395)))
    with pytest.raises(CSTError, match="found 2 in"):
        open_recording(tmp_path / "a.nwb")


def test_colours_of_an_axis_of_their_own(tmp_path):
    """Raw frames of wfield and hyperstacks of ImageJ: (T, colours, H, W), the colours in turn."""
    pairs = FRAMES[:10].reshape(5, 2, 6, 4)
    pairs.tofile(tmp_path / "a_2_6_4_uint16.dat")
    tifffile.imwrite(tmp_path / "a.tif", pairs, imagej=True, metadata={"axes": "TCYX"})
    for name in ("a_2_6_4_uint16.dat", "a.tif"):
        recording = open_recording(tmp_path / name, wavelengths=(575, 395), rate=20.0)
        for nm, first in ((575, 0), (395, 1)):
            channel = recording.channel(nm)
            np.testing.assert_array_equal(channel.frames.compute(), FRAMES[first:10:2])
            np.testing.assert_allclose(channel.times, TIMES[first:10:2])
        with pytest.raises(CSTError, match=r"frames have 2 colours; wavelengths must name as many, got \[470\]"):
            open_recording(tmp_path / name, wavelengths=(470,), rate=20.0)


def test_given_times_replace_those_of_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", movie=FRAMES, times=TIMES, wavelengths=np.resize([575, 395], 11))
    jittered = TIMES + np.linspace(0, 0.01, 11)
    recording = open_recording(tmp_path / "a.npz", times=jittered)
    np.testing.assert_allclose(recording.channel(395).times, jittered[1::2])
    with pytest.raises(CSTError, match="10 times for 11 frames; give one time for each frame that was saved"):
        open_recording(tmp_path / "a.npz", times=TIMES[:10])


def test_a_dropped_frame_does_not_swap_the_colours_after_it(tmp_path):
    """By the camera's counter: frame 4, of the first lamp, was lost."""
    counter = np.delete(np.arange(12), 4)
    np.save(tmp_path / "a.npy", FRAMES)
    recording = open_recording(tmp_path / "a.npy", wavelengths=(575, 395), times=counter / 20)
    np.testing.assert_array_equal(recording.channel(575).frames.compute(), FRAMES[counter % 2 == 0])
    np.testing.assert_allclose(recording.channel(575).times, np.array([0, 2, 6, 8, 10]) / 20)


def test_components_are_relative_to_the_mean_frame(tmp_path):
    """ΔF/F of 1 + U @ SVT is that of the fluorescence, whatever the mean frame was."""
    U, SVT = write_svd(tmp_path, colours=2)
    (tmp_path / "info.json").write_text('{"n_channels": 2, "frame_rate": 10.0}')
    recording = open_recording(tmp_path, wavelengths=(470, 405))
    np.testing.assert_allclose(recording.channel(405).frames.compute(), 1 + np.einsum("hwk,kt->thw", U, SVT[:, 1::2]))
    np.testing.assert_allclose(recording.channel(405).times, 0.05 + np.arange(6) / 10)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    write_hdf5(tmp_path / "a.h5", **arrays())
    recording = open_recording(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "r+") as file:  # nor is the file held open
        file["movie"][...] = 0
    assert recording.channel(575).frames.max().compute() == 0


def test_stimulus_table(tmp_path):
    (tmp_path / "s.csv").write_text("Start [s],Stop [s],Contrast\n5,7,100\n12,14,2\n")
    assert read_stimuli(tmp_path / "s.csv").contrast_at([6, 13, 20]).tolist() == [100, 2, 0]
    (tmp_path / "t.csv").write_text("start,stop\n1,2\n")
    with pytest.raises(CSTError, match="no column 'contrast'"):
        read_stimuli(tmp_path / "t.csv")


def test_refusals(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", movie=FRAMES)
    for options, message in [
        ({}, "which wavelength"),
        ({"wavelengths": (575, 395)}, "rate=, --rate"),
        ({"rate": -1.0}, "rate must be"),
        ({"key": "movies"}, "did you mean 'movie'"),
    ]:
        with pytest.raises(CSTError, match=message):
            open_recording(tmp_path / "a.npz", **options)
    np.savez(tmp_path / "b.npz", one=FRAMES, two=FRAMES)
    with pytest.raises(CSTError, match="found 2 in"):
        open_recording(tmp_path / "b.npz", rate=20.0)
    with pytest.raises(CSTError, match="no such file"):
        open_recording(tmp_path / "c.h5")
    with pytest.raises(CSTError, match=r"unknown kind of recording '\.avi'"):
        open_recording(tmp_path / "c.avi")
    with pytest.raises(CSTError, match=r"no \.tif file"):
        open_recording(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CSTError, match=r"need dask; pip install \"cstformer\[neuro\]\""):
        open_recording(tmp_path / "a.npz")


@pytest.mark.skipif("CST_DATA" not in os.environ, reason="CST_DATA names no folder with shared recordings")
def test_a_real_raw_recording():
    path = Path(os.environ.get("CST_DATA", "."), "widefield_jrgeco", "jrgeco1a_561_raw_bin2_256x256_u16.npz")
    if not path.exists():
        pytest.skip("CST_DATA has no widefield_jrgeco recording")
    channel = open_recording(path, wavelengths=(561,)).channel(561)
    assert channel.frames.shape == (200, 256, 256)
    assert 1 / channel.step == pytest.approx(1.0, abs=0.01)
