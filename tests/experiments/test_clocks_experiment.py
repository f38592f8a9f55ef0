"""Gaps of a recording: what is asked for, what each method makes of it, and the run."""

import dask.array as da
import numpy as np
import pytest

from cstformer import Modes
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.experiments.base import run_experiment
from cstformer.experiments.clocks import task
from cstformer.experiments.clocks.experiment import BY_INDEX, EXPERIMENT, FLOOR, LINEAR, MAIN, ROWS, Config, shown


@pytest.fixture
def gaps():
    """Frames without noise, at the times at which the camera took them."""
    made = CalciumSimulation(minutes=1, size=12, dropped=0.05, jitter=0.5, hemodynamics=0.0, coupling=0.0)
    times = made.camera_times[made.camera_wavelengths == 575]
    mask = made.mask
    level = task._level(made)
    return task.Gaps(made, np.where(mask, made.neural(times) - level, np.nan), times, mask)


def test_what_is_missing(gaps):
    assert len(gaps.missing) + len(gaps.times) == pytest.approx(600, abs=1)
    assert not np.isin(gaps.missing, gaps.times).any()
    assert gaps.error(gaps.truth(gaps.missing), gaps.missing) == 0
    assert gaps.error(0 * gaps.truth(gaps.missing), gaps.missing) == pytest.approx(1)


def test_methods_on_frames_without_noise(gaps):
    """Only the curvature is lost between neighbours; a clock by index is wrong by seconds at the end."""
    at = gaps.missing
    straight, pretended = (gaps.error(fill(gaps, at), at) for fill in (task.linear, task.by_index))
    assert straight < 0.01 and pretended > 0.5
    modes = Modes(20).fit(gaps.frames)
    floor = gaps.error(task.projected(gaps, at, modes), at)
    assert floor < gaps.error(task.modes_linear(gaps, at, modes), at) < 0.02
    when, (row, col) = shown(gaps)
    assert when in at and abs(gaps.truth(np.array([when]))[0, row, col]) == np.nanmax(np.abs(gaps.truth([when])))


def test_recordings_keep_their_clock(tmp_path, monkeypatch):
    made = CalciumSimulation(minutes=0.5, size=12, dropped=0.05, jitter=0.5, noise=0.0, hemodynamics=0.0, coupling=0.0)
    task.make_gaps(made, tmp_path / "a.zarr", progress=False)
    monkeypatch.setattr(task, "preprocess", None)  # what is there is not made again
    task.make_gaps(made, tmp_path / "a.zarr", progress=False)
    read = task.load_gaps(made, tmp_path / "a.zarr")
    channel = made.recording().channel(575)
    assert isinstance(channel.frames, da.Array)
    np.testing.assert_array_equal(read.times, channel.times)
    assert read.error(read.frames, read.times) < 0.05  # rounding of counts, and the slow baseline


def test_smoke_run(tmp_path):
    result = run_experiment(EXPERIMENT, "smoke", tmp_path / "run", quiet=True)
    errors = {row["model"]: row["metrics"]["relative error"] for row in result["table"]}
    assert list(errors) == list(ROWS) and {e["n"] for e in errors.values()} == {2}
    assert errors[FLOOR]["mean"] < errors[MAIN]["mean"] < 0.5 * errors[LINEAR]["mean"]
    assert errors[LINEAR]["mean"] < errors[BY_INDEX]["mean"]
    assert (tmp_path / "run" / "clocks.png").exists() and (tmp_path / "run" / "report.html").exists()


def test_presets_differ_in_size_alone():
    assert EXPERIMENT.presets["default"] == Config()
    assert {c.dropped for c in EXPERIMENT.presets.values()} == {0.05}
