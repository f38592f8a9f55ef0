"""The study of the Sobolev term: its data, equal steps, the unit of its weight, its verdicts."""

import numpy as np
import pytest

from cstformer.data.samples import Samples
from cstformer.experiments.base import run_experiment
from cstformer.experiments.sobolev.experiment import EXPERIMENT, METRICS, WITHOUT, claims, row_of, unit_of
from cstformer.experiments.sobolev.task import make_tracks
from cstformer.experiments.spirals.task import CLEAN, spiral_task


def test_velocity_is_the_slope_of_the_position():
    tracks = make_tracks(3, 5, 12, 0.1, seed=0)
    slope = np.gradient(tracks.position, tracks.at, axis=1, edge_order=2)
    assert np.abs(slope - tracks.velocity).max() < 0.03 * np.abs(tracks.velocity).max()
    assert (len(tracks.train), len(tracks.test)) == (3, 5) and (np.diff(tracks.train.coords[..., 0]) > 0).all()


def test_spirals_with_fewer_points():
    task = spiral_task(30, CLEAN, 0, 5)
    assert task.train.n == 5 and (task.unseen.sum(1) == 95).all()


def test_the_unit_makes_the_term_of_the_data_one():
    """Of sin 2πt the mean square is 1/2, and that of its slope (2π)²/2: in units of the variance, (2π)²."""
    t = np.sort(np.random.default_rng(0).uniform(size=(40, 40)), axis=1)
    samples = Samples(t, np.sin(2 * np.pi * (t + np.random.default_rng(1).uniform(size=(40, 1))))[..., None])
    settings = {"order": 1, "width": 16, "layers": 1, "heads": 2, "seed": 0}
    assert unit_of("default", settings, samples) == pytest.approx((2 * np.pi) ** -2, rel=0.1)


def test_smoke_run_has_equal_steps(tmp_path):
    result = run_experiment(EXPERIMENT, "smoke", tmp_path / "run", quiet=True, jobs=1)
    config = EXPERIMENT.presets["smoke"]
    assert {row["condition"] for row in result["table"]} == set(config.cases)
    assert {row["model"] for row in result["table"]} == {WITHOUT, *(row_of(k, 0.01) for k in (1, 2, 3))}
    assert {row["steps"] for row in result["table"]} == {5}
    for row in result["table"]:
        assert set(row["metrics"]) == set(METRICS.values())
        assert all(np.isfinite(metric["mean"]) for metric in row["metrics"].values())
    assert {t["n"] for t in result["tests"]} == {12, 13}  # four flows are too few
    assert (tmp_path / "run" / "gains.png").stat().st_size > 10_000


def test_verdicts_follow_from_the_tests():
    def row(model, value):
        return {"model": model, "condition": "c", "metrics": {name: {"mean": value} for name in METRICS.values()}}

    table = [row(WITHOUT, 1.0), row(row_of(1, 0.1), 0.9), row(row_of(2, 0.1), 1.2)]
    tests = [
        {"name": f"{row_of(1, 0.1)} vs {WITHOUT}", "condition": f"c, {METRICS['value']}", "p_value": 0.01},
        {"name": f"{row_of(2, 0.1)} vs {WITHOUT}", "condition": f"c, {METRICS['slope']}", "p_value": 0.01},
    ]
    values, slopes = claims(table, tests)
    assert (values["holds"], values["text"]) == ("yes", "k = 1, μ = 0.1: -10.0%, P = 0.01")
    assert (slopes["holds"], slopes["text"]) == ("no", "k = 2, μ = 0.1: +20.0%, P = 0.01")
