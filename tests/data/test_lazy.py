"""Movies that stay on disk: the same windows, the same training, shuffled by block, in little memory."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import zarr
from small_models import blob, fit_quickly

from cstformer import CST, CSTError, cli
from cstformer.data import lazy, samples
from cstformer.data.lazy import LazyFrames
from cstformer.data.patches import frames_to_samples

PATCH, WINDOW, STRIDE = (4, 4), 4, 2


def movie(frames=24, **options):
    noise = np.random.default_rng(0).normal(size=(frames, 8, 7)).astype(np.float32)
    return (blob(frames, 8, 7) + noise).astype(np.float32, **options)


@pytest.fixture
def path(tmp_path):
    zarr.create_array(tmp_path / "movie.zarr", data=movie(), chunks=(5, 8, 7))
    return tmp_path / "movie.zarr"


def small(**settings):
    return CST.preset("smoke", **{"steps": 6, "batch": 4, "device": "cpu", "patience": 9.0} | settings)


def weights(model):
    return torch.cat([p.flatten() for p in model.network_.state_dict().values()])


# Windows


def test_windows_are_those_of_the_movie_in_memory(path):
    lazily, eagerly = LazyFrames(path, PATCH, WINDOW, STRIDE), frames_to_samples(movie(), PATCH, WINDOW, STRIDE)
    assert len(lazily) == len(eagerly) == 11
    for index in ([0, 1, 2], [10, 3], np.arange(11)):
        assert lazily[index].equals(eagerly[index])
    for name in ("n", "d", "c", "layout", "coord_names", "value_names", "units"):
        assert getattr(lazily, name) == getattr(eagerly, name)


def test_times_channels_and_integers(tmp_path):
    times = np.cumsum(np.random.default_rng(1).uniform(0.5, 1.5, 12))
    frames = np.random.default_rng(2).integers(0, 255, (12, 8, 8, 2)).astype(np.uint8)
    group = zarr.create_group(tmp_path / "movie.zarr")
    group.create_array("frames", data=frames)
    group.create_array("times", data=times)
    lazily = LazyFrames(tmp_path / "movie.zarr", PATCH, 5, 3)
    eagerly = frames_to_samples(frames, PATCH, 5, 3, times=times)
    assert lazily[[0, 2]].equals(eagerly[[0, 2]], tolerance=1e-12)


def test_dates_written_by_xarray_are_hours(tmp_path):
    import xarray as xr

    dates = np.datetime64("2020-01-01") + np.arange(6) * np.timedelta64(30, "m")
    xr.Dataset({"w": (("time", "row", "col"), movie(6))}, {"time": dates.astype("M8[ns]")}).to_zarr(
        tmp_path / "m.zarr", consolidated=False
    )
    lazily = LazyFrames(tmp_path / "m.zarr", PATCH, 3, 3)
    np.testing.assert_allclose(lazily[[1]].origin[0], [1.5, 0, 0])
    np.testing.assert_allclose(np.unique(lazily[[1]].coords[..., 0]), [0, 0.5, 1.0])


def test_missing_pixels_are_missing_and_empty_windows_give_way(tmp_path):
    frames = movie()
    frames[6:12] = np.nan
    frames[:, 2, 3] = np.nan
    zarr.create_array(tmp_path / "movie.zarr", data=frames, chunks=(5, 8, 7))
    lazily = LazyFrames(tmp_path / "movie.zarr", PATCH, WINDOW, STRIDE)
    with_holes = frames_to_samples(frames, PATCH, WINDOW, STRIDE)
    assert np.array_equal(lazily[[0, 8]].observed, with_holes[[0, 6]].observed)
    assert lazily[[3]].sample_ids == lazily[[4]].sample_ids == ("0@10",)  # windows 3 and 4 are empty, 5 has a frame


@pytest.mark.parametrize(
    ("data", "message"),
    [(np.zeros((4, 3)), r"found 0 in: frames \(4, 3\)"), (np.full((9, 8, 8), np.nan), "no observed pixel")],
)
def test_what_is_no_movie_is_refused(tmp_path, data, message):
    zarr.create_array(tmp_path / "x.zarr", data=data)
    with pytest.raises(CSTError, match=message):
        LazyFrames(tmp_path / "x.zarr", PATCH, WINDOW, STRIDE)[[0]]


def test_other_refusals(tmp_path):
    with pytest.raises(CSTError, match="there is no such file"):
        LazyFrames(tmp_path / "absent.zarr")
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(CSTError, match="cannot be read in pieces"):
        LazyFrames(tmp_path / "x.npz")


# Shuffling


def blocks(monkeypatch, path, frames_a_block):
    monkeypatch.setattr(lazy, "BLOCK_BYTES", 4 * 8 * 7 * frames_a_block)
    return LazyFrames(path, PATCH, WINDOW, STRIDE)


def test_blocks_are_runs_of_whole_chunks(path, monkeypatch):
    assert blocks(monkeypatch, path, 5).block.tolist() == [s // 5 for s in range(0, 21, 2)]
    assert blocks(monkeypatch, path, 14).block.tolist() == [s // 10 for s in range(0, 21, 2)]
    assert set(blocks(monkeypatch, path, 1000).block) == {0}


def test_an_epoch_has_every_window_once_and_a_few_blocks_at_a_time(path, monkeypatch):
    monkeypatch.setattr(lazy, "POOL", 2)
    lazily = blocks(monkeypatch, path, 5)
    windows = torch.tensor([10, 0, 3, 4, 5, 7, 8, 1, 2])
    orders = [lazily.epoch(windows, torch.Generator().manual_seed(seed)) for seed in range(20)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(len(windows)))
        in_turn = lazily.block[windows[order]]
        first = [int(np.flatnonzero(in_turn == b)[0]) for b in np.unique(in_turn)]
        last = [int(np.flatnonzero(in_turn == b)[-1]) for b in np.unique(in_turn)]
        open_at_once = [sum(f <= i <= z for f, z in zip(first, last, strict=True)) for i in range(len(order))]
        assert max(open_at_once) <= 2
    assert len({tuple(order.tolist()) for order in orders}) == 20


def test_a_block_is_read_once_an_epoch(path, monkeypatch):
    lazily = blocks(monkeypatch, path, 5)
    read, reads = LazyFrames._read, []
    monkeypatch.setattr(LazyFrames, "_read", lambda self, *a: reads.append(a) or read(self, *a))
    order = lazily.epoch(torch.arange(11), torch.Generator().manual_seed(1))
    for i in range(0, 11, 2):
        lazily[order[i : i + 2].numpy()]
    assert len(reads) == len(set(reads)) == len(set(lazily.block))


# Training


@pytest.mark.parametrize("settings", [{}, {"order": 0, "pattern": "joint", "hide": 0.3}])
def test_lazy_training_is_bit_identical_to_training_in_memory(path, settings):
    lazily = fit_quickly(small(**settings), LazyFrames(path, PATCH, WINDOW, STRIDE))
    eagerly = fit_quickly(small(**settings), frames_to_samples(movie(), PATCH, WINDOW, STRIDE))
    assert lazily.report_.history == eagerly.report_.history
    assert torch.equal(weights(lazily), weights(eagerly))


def test_many_blocks_and_small_subsets_train_and_resume_to_the_same_bits(path, tmp_path, monkeypatch):
    monkeypatch.setattr(lazy, "POOL", 1)
    monkeypatch.setattr(lazy, "SUBSET_VALUES", 1)
    whole = fit_quickly(small(), blocks(monkeypatch, path, 5))
    assert whole.scaling_.sd[0] == pytest.approx(movie().std(), rel=0.2)
    monkeypatch.setattr("cstformer.training.loop.COOL_FROM", 2.0)
    with pytest.warns(UserWarning, match="max_minutes"):
        fit_quickly(small(max_minutes=0.0), blocks(monkeypatch, path, 5), state=tmp_path / "state")
    went_on = fit_quickly(small(), blocks(monkeypatch, path, 5), state=tmp_path / "state")
    assert went_on.report_.history == whole.report_.history
    zarr.open(path, mode="r+")[3] = 0.0
    with pytest.raises(CSTError, match="other settings or data"):
        fit_quickly(small(), blocks(monkeypatch, path, 5), state=tmp_path / "state")


def test_the_command_reads_large_files_lazily(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lazy, "LAZY_FROM", 1000)
    monkeypatch.setattr(samples.Samples, "windows", None)
    options = ["--patch", "4,4", "--window", "4", "--stride", "2", "--preset", "smoke", "--steps", "2", "--order", "0"]
    assert cli.main(["fit", str(path), "--out", str(tmp_path / "model"), *options]) == 0
    assert "fitting LazyFrames(11 windows of 4 frames of 8 × 7 pixels)" in capsys.readouterr().out
    assert CST.load(tmp_path / "model").layout_.patch == (4, 4)


@pytest.mark.long
def test_twenty_gigabytes_train_in_two(tmp_path):
    path, frames, chunk, kinds = tmp_path / "movie.zarr", 305_152, 64, 16
    array = zarr.create_array(path, shape=(frames, 128, 128), dtype="f4", chunks=(chunk, 128, 128))
    rng = np.random.default_rng(0)
    for i in range(kinds):
        array[i * chunk : (i + 1) * chunk] = blob(chunk, 128, 128) + rng.integers(-8, 9, (chunk, 128, 128))
    for i in range(kinds, frames // chunk):  # the recording repeats itself, so that it takes little disk
        (path / "c" / str(i) / "0").mkdir(parents=True)
        os.link(path / "c" / str(i % kinds) / "0" / "0", path / "c" / str(i) / "0" / "0")
    assert array.nbytes > 19.9e9
    code = "import resource, sys; from cstformer.cli import main; code = main(sys.argv[1:]); "
    code += "print('MB', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024); sys.exit(code)"
    options = ["--patch=16,16", "--window=10", "--stride=5", "--preset=smoke", "--order=0", "--steps=90", "--quiet"]
    command = [
        sys.executable,
        "-c",
        code,
        "fit",
        str(path),
        "--out",
        str(tmp_path / "model"),
        "--patience=9",
        "--start=cubic",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    megabytes = int(re.search(r"MB (\d+)", done.stdout)[1])
    print(f"{megabytes} MB resident at most for {array.nbytes / 1e9:.1f} GB")
    assert megabytes < 2000
    assert CST.load(tmp_path / "model").report_.steps == 90
