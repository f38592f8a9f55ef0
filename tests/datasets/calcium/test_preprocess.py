"""Each step by hand-worked numbers; the chain against the simulated truth, on disk and in little memory."""

import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

from cstformer import cli
from cstformer.data.movie_files import load_movie
from cstformer.datasets.calcium import preprocess as chain
from cstformer.datasets.calcium.baseline import delta_f
from cstformer.datasets.calcium.preprocess import Preprocessing, preprocess
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.calcium.recording import Channel, Recording, contrast_label
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.calcium.steps import (
    bin_pixels,
    brightness_mask,
    crop,
    principal_components,
    regular_clock,
    resample,
    z_score,
)
from cstformer.errors import CSTError

WATCHED = {"capture_output": True, "text": True, "check": True}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Default noise of 512² at a 256th of the pixels."""
    path = tmp_path_factory.mktemp("calcium") / "raw.zarr"
    made = CalciumSimulation(minutes=2, size=32, dropped=0.01)
    made.save(path)
    return made, path


def correlation(out, made):
    """Mean over cortex of the correlation of the cleaned with the true neural signal."""
    group = zarr.open_group(out, mode="r")
    frames, mask = group["frames"][:], group["mask"][:]
    truth = z_score(made.neural(group["time"][:], frames.shape[1]))[0]
    return float((frames * truth).mean(axis=0)[mask].mean())


def test_binning_and_cropping():
    frames = np.arange(2 * 4 * 6, dtype=np.uint16).reshape(2, 4, 6)
    small = bin_pixels(frames, 2)
    assert small.shape == (2, 2, 3)
    assert small[0, 0, 0] == (0 + 1 + 6 + 7) / 4
    assert crop(small, (1, 0, 0, 2)).tolist() == [[[15.5]], [[39.5]]]
    assert crop(np.zeros((256, 256)), Preprocessing().margins(256, 256)).shape == (184, 208)
    assert Preprocessing().margins(128, 128) == (0, 0, 0, 0)
    with pytest.raises(CSTError, match="binning=3 does not divide"):
        bin_pixels(frames, 3)
    with pytest.raises(CSTError, match="leaves nothing"):
        Preprocessing(crop=(2, 2, 0, 0)).margins(4, 4)


def test_resampling_is_exact_for_lines_and_fills_gaps():
    times = np.array([0.05, 0.15, 0.35, 0.45])  # 0.25 is lost
    clock = np.array([0.05, 0.1, 0.25, 0.4, 0.5])
    frames = np.stack([3 * times, -times], axis=1)
    np.testing.assert_allclose(resample(frames, times, clock)[:-1], np.stack([3 * clock, -clock], axis=1)[:-1])
    np.testing.assert_allclose(resample(frames, times, clock)[-1], frames[-1])
    np.testing.assert_allclose(regular_clock(Channel(da.zeros((4, 1, 1)), times)), [0.05, 0.15, 0.25, 0.35, 0.45])
    even = np.arange(4) * 0.1 + [0, 5e-4, 0, 0]
    np.testing.assert_array_equal(regular_clock(Channel(da.zeros((4, 1, 1)), even)), even)


def test_the_mask_is_the_bright_part_without_islands_and_holes():
    image = np.full((20, 20), 10.0)
    image[4:15, 3:16] = 1000.0
    image[8, 8] = 5.0
    image[18, 18] = 1000.0
    expected = np.zeros((20, 20), bool)
    expected[4:15, 3:16] = True
    np.testing.assert_array_equal(brightness_mask(image), expected)
    with pytest.raises(CSTError, match="no bright and dark part"):
        brightness_mask(np.ones((4, 4)))


def test_principal_components_are_those_of_the_full_decomposition():
    rng = np.random.default_rng(0)
    frames = np.einsum("tk,khw->thw", rng.normal(size=(60, 4)) * [8, 4, 2, 1], rng.normal(size=(4, 6, 5)))
    frames += 0.01 * rng.normal(size=frames.shape)
    scores, parts, share = principal_components(da.from_array(frames, chunks=(20, 3, 5)), 3)
    u, s, v = np.linalg.svd(frames.reshape(60, -1), full_matrices=False)
    np.testing.assert_allclose(share, s[:3] ** 2 / (s**2).sum(), rtol=1e-4)
    expected = (u[:, :3] * s[:3] @ v[:3]).reshape(frames.shape)
    np.testing.assert_allclose(np.einsum("tk,khw->thw", scores, parts), expected, atol=1e-3)


def test_the_correction_finds_the_neurons(raw, tmp_path):
    """At the default noise: at least 0.1 better than no correction, and better than regression."""
    made, path = raw
    score = {}
    for correction in ("none", "regression", "estimator"):
        preprocess(open_recording(path), tmp_path / "out.zarr", Preprocessing(correction=correction))
        score[correction] = correlation(tmp_path / "out.zarr", made)
    assert score["estimator"] > score["none"] + 0.25
    assert score["estimator"] > score["regression"] + 0.1
    assert score["regression"] > score["none"]


@pytest.mark.parametrize(("noise", "gain"), [(0.3, 0.25), (3.0, 0.05)])
def test_the_correction_helps_at_every_noise(noise, gain):
    made = CalciumSimulation(minutes=2, size=24, noise=noise, electrons=24_000.0)
    score = {}
    recording, t = made.recording(), made.recording().channel(575).times
    signal, control = (
        delta_f(resample(c.frames.compute() - np.float32(100), c.times, t), 10.0) for c in recording.channels.values()
    )
    truth = z_score(made.neural(t))[0]
    for name, estimate in (("no", signal), ("yes", chain.remove_hemodynamics(signal, control, made.mask))):
        score[name] = (z_score(estimate)[0] * truth).mean(axis=0)[made.mask].mean()
    assert score["yes"] > score["no"] + gain


def test_what_is_written(raw, tmp_path):
    made, path = raw
    recording = open_recording(path)
    done = preprocess(recording, tmp_path / "out.zarr", Preprocessing(components=5))
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    frames, mask, time = group["frames"][:], group["mask"][:], group["time"][:]
    np.testing.assert_array_equal(time, made.camera_times[made.camera_wavelengths == 575])  # gaps stay gaps
    assert frames.shape == (len(time), 16, 16)
    assert np.diff(time).max() > 0.15
    assert np.isnan(frames[:, ~mask]).all()
    np.testing.assert_allclose(frames[:, mask].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(frames[:, mask].std(axis=0), 1, rtol=1e-3)
    assert done["dropped"] == 1200 - len(time) == recording.channel(575).dropped > 0
    np.testing.assert_array_equal(group["label"][:], contrast_label(made.contrast(time)))
    assert group.attrs["pixel_mm"] == pytest.approx(2 * 10 / 32)
    rebuilt = group["pca_scores"][:] @ group["pca_components"][:]
    error = (np.nan_to_num(frames).reshape(len(time), -1) - rebuilt).var() / np.nan_to_num(frames).var()
    assert error == pytest.approx(1 - group["pca_explained"][:].sum(), abs=0.01)
    movie, times = load_movie(tmp_path / "out.zarr")  # what `cst fit` sees
    np.testing.assert_array_equal(movie, frames)
    np.testing.assert_array_equal(times, time)


def test_every_colour_keeps_its_clock(tmp_path):
    """A signal without noise, jittered and with frames missing, and a line as control: F = 1 + x + z, control 1 + z."""
    rng, step = np.random.default_rng(0), 0.1
    kept = np.sort(rng.choice(600, 560, replace=False))
    signal = kept * step + rng.uniform(0, 0.03, 560)
    control = np.arange(600) * step + 0.05
    neural, blood = 0.05 * np.sin(3 * signal), lambda t: 0.2 * np.abs(t / 30 - 1)
    frames = {575: 1 + neural + blood(signal), 395: 1 + blood(control)}
    shaped = {nm: da.from_array(1000 * f[:, None, None] * np.ones((1, 4, 4))) for nm, f in frames.items()}
    recording = Recording({575: Channel(shaped[575], signal), 395: Channel(shaped[395], control)})
    preprocess(recording, tmp_path / "out.zarr", Preprocessing(binning=1, correction="regression"))
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(group["time"][:], signal)
    cleaned = group["frames"][:, 0, 0]
    assert np.corrcoef(cleaned, neural)[0, 1] > 0.99
    pretended = np.interp(np.arange(560) * step, signal, neural)  # frames on a clock that they do not have
    assert np.corrcoef(cleaned, pretended)[0, 1] < 0.5


def test_a_gap_without_end_is_refused(tmp_path):
    times = np.array([0.0, 0.1, 0.2, 1e14])
    with pytest.raises(CSTError, match="the clock of the recording declares"):
        regular_clock(Channel(da.zeros((4, 1, 1)), times))


def test_strips_do_not_show(raw, tmp_path, monkeypatch):
    preprocess(open_recording(raw[1]), tmp_path / "whole.zarr")
    monkeypatch.setattr(chain, "STRIP_BYTES", 4 * 1200 * 8 * 8)
    preprocess(open_recording(raw[1]), tmp_path / "strips.zarr")
    whole, strips = (zarr.open_group(tmp_path / f"{n}.zarr", mode="r")["frames"] for n in ("whole", "strips"))
    assert strips.chunks[1:] == (8, 8)
    np.testing.assert_allclose(strips[:], whole[:], atol=2e-3)


MEMORY = """
import resource, sys
import dask.array as da, numpy as np
from cstformer.datasets.calcium import preprocess as chain
from cstformer.datasets.calcium.recording import Channel, Recording

chain.STRIP_BYTES, count = 2**20, int(sys.argv[1])
movie = da.random.default_rng(0).integers(1000, 2000, (count, 128, 128), dtype=np.uint16, chunks=(50, 128, 128))
channels = {nm: Channel(movie, np.arange(count) / 10 + s) for nm, s in ((575, 0.0), (395, 0.05))}
chain.preprocess(Recording(channels), sys.argv[2], chain.Preprocessing(crop=(16, 16, 16, 16)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_memory_does_not_grow_with_the_recording(tmp_path):
    """1200 frames of two channels are 79 MB, 300 are 20; strips get narrower instead of the process larger."""
    few, many = (
        float(subprocess.run([sys.executable, "-c", MEMORY, count, tmp_path / "out.zarr"], **WATCHED).stdout)
        for count in ("300", "1200")
    )
    assert many < few + 40


def test_masks(raw, tmp_path):
    recording = open_recording(raw[1])
    small = recording.mask.reshape(16, 2, 16, 2).mean(axis=(1, 3)) > 0.5
    sizes = {}
    for name, mask in {"own": None, "raw": recording.mask, "binned": small, "auto": "auto", "none": "none"}.items():
        sizes[name] = preprocess(recording, tmp_path / "m.zarr", Preprocessing(correction="none"), mask=mask)["pixels"]
    assert sizes["own"] == sizes["raw"] == sizes["binned"] == small.sum()
    assert sizes["none"] == 16 * 16
    assert sizes["auto"] == pytest.approx(small.sum(), rel=0.2)
    with pytest.raises(CSTError, match="size of raw or binned"):
        preprocess(recording, tmp_path / "m.zarr", mask=np.ones((5, 5), bool))
    with pytest.raises(CSTError, match="did you mean 'auto'"):
        preprocess(recording, tmp_path / "m.zarr", mask="autos")


def test_refusals_leave_nothing_behind(raw, tmp_path):
    recording = open_recording(raw[1])
    only = Recording({575: recording.channel(575)})
    with pytest.raises(CSTError, match="no control at 395 nm"):
        preprocess(only, tmp_path / "out.zarr")
    with pytest.raises(CSTError, match=r"written as \.zarr"):
        preprocess(recording, tmp_path / "out.npz")
    with pytest.raises(CSTError, match="binning=5"):
        preprocess(recording, tmp_path / "out.zarr", Preprocessing(binning=5))
    assert list(tmp_path.iterdir()) == []
    for settings in ({"baseline": "literall"}, {"correction": "yes"}, {"binning": 0}, {"crop": (1, 2)}):
        with pytest.raises(CSTError):
            Preprocessing(**settings)


def test_the_commands(tmp_path, capsys):
    raw, clean = str(tmp_path / "raw.zarr"), str(tmp_path / "clean.zarr")
    assert cli.main(["data", "make", "calcium", "--minutes", "0.5", "--size", "16", "--out", raw]) == 0
    assert "575 nm: 300 × 16 × 16 frames at 10 Hz, 0 dropped" in capsys.readouterr().out
    np.save(tmp_path / "mask.npy", np.ones((8, 8), bool))
    table = tmp_path / "s.csv"
    table.write_text("start,stop,contrast\n1,3,100\n")
    options = ["--mask", str(tmp_path / "mask.npy"), "--stimuli", str(table), "--crop", "0,0,1,1", "--bin", "2"]
    assert cli.main(["data", "preprocess-calcium", raw, "--out", clean, *options]) == 0
    assert "300 frames of 8 × 6 at 10 Hz, 4" in capsys.readouterr().out
    assert zarr.open_group(clean, mode="r")["label"][:].max() == 1
    clean = str(tmp_path / "other.zarr")
    again = f"cst data preprocess-calcium {raw} --out {clean} --signal 575 --control 395"
    for wrong, words in [
        (["--crop", "1,2"], "give 4 whole numbers"),
        (["--wavelengths", "red"], "whole numbers"),
        (["--signal", "570"], f"has frames at 575 and 395 nm, none at 570 nm; if 575 nm is the signal, run: {again}"),
    ]:
        assert cli.main(["data", "preprocess-calcium", raw, "--out", clean, *wrong]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.skipif("CST_DATA" not in os.environ, reason="CST_DATA names no folder with shared recordings")
def test_real_dff_with_its_control(tmp_path):
    """What is left of a real recording has nothing in common with its control, and is there on the whole cortex."""
    path = Path(os.environ.get("CST_DATA", "."), "widefield_jrgeco", "dff_bin4_128x128_f16.npz")
    if not path.exists():
        pytest.skip("CST_DATA has no widefield_jrgeco recording")
    with np.load(path) as data:
        signal, control = (data[k].astype(np.float32) for k in ("jrgeco_dff", "ctrl405_greencam_dff"))
        mask = data["mask_greencam"]
    estimate = chain.remove_hemodynamics(signal, control, mask)
    assert np.isfinite(estimate[:, mask]).all()
    assert np.isnan(estimate[:, ~mask]).all()
    shared = np.abs((z_score(estimate)[0] * z_score(control)[0]).mean(axis=0)[mask])
    before = np.abs((z_score(signal)[0] * z_score(control)[0]).mean(axis=0)[mask])
    assert np.median(before) > 0.1
    assert shared.max() < 0.01
