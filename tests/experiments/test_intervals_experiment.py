"""Measures of intervals by hand, the distance to observations, and the run."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.experiments.base import run_experiment
from cstformer.experiments.intervals.experiment import EXPERIMENT
from cstformer.experiments.intervals.measures import LEVELS, SHOWN, Predicted, measure, normal_crps, worst_stratum
from cstformer.experiments.intervals.rows import CST_ROW, PROCESS, RAW, ROWS
from cstformer.experiments.intervals.task import CORTEX, IntervalTask, make_task


def task_of(truth, at=(0.1, 0.3, 0.9)) -> IntervalTask:
    context = Samples.from_list([([0.0, 1.0], [0.0, 0.0]), ([0.0, 0.5, 1.0], [0.0, 0.0, 0.0])])
    at = np.tile(np.array(at)[:, None], (2, 1, 1))
    truth = np.asarray(truth, dtype=float)[..., None]
    return IntervalTask(context, context, at, truth, np.ones(truth.shape, dtype=bool))


def test_distances_to_the_nearest_observation():
    task = task_of(np.zeros((2, 3)))
    np.testing.assert_allclose(task.distance, [[0.1, 0.3, 0.1], [0.1, 0.2, 0.1]])


def test_coverage_width_and_winkler_by_hand():
    """Half widths of 1 at all levels, in units of 2: bounds at ±2 about 0."""
    task = task_of([[0.0, 1.9, 2.5], [-2.1, 0.0, 0.0]])
    scaling = Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.array([2.0]))
    found = measure(task, Predicted(np.zeros((2, 3, 1)), np.ones((2, 3, 1)), np.ones((len(LEVELS), 1))), scaling)
    np.testing.assert_allclose(found["coverage"][SHOWN], [2 / 3, 2 / 3])
    np.testing.assert_allclose(found["width"][SHOWN], [4, 4])
    np.testing.assert_allclose(found["winkler"][SHOWN], [4 + 20 * 0.5 / 3, 4 + 20 * 0.1 / 3])
    assert found["channel_coverage"][SHOWN].tolist() == pytest.approx([4 / 6])
    assert found["gap_cells"].sum() == 6 and (np.diff(found["gap"]) > 0).all()
    assert np.isnan(worst_stratum(found))  # no stratum has 500 cells


def test_strata_by_noise():
    """Six cells of three levels of noise, of which the second is never covered."""
    task = task_of([[0.0, 9.0, 1.0], [0.5, 9.0, 9.0]])
    noise = np.tile([[0.1], [0.2], [0.3]], (2, 1, 1))
    task = dataclasses.replace(task, noise=noise)
    scaling = Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.array([2.0]))
    found = measure(task, Predicted(np.zeros((2, 3, 1)), np.ones((2, 3, 1)), np.ones((len(LEVELS), 1))), scaling)
    assert found["noise_cells"].tolist() == [2, 2, 2]
    assert found["noise_coverage"][SHOWN].tolist() == [1.0, 0.0, 0.5]
    many = found | {"noise_cells": np.full(3, 500)}
    assert worst_stratum(many) == 0.0


def test_pixels_of_the_cortex_have_the_noise_that_the_task_says():
    task = make_task(CORTEX, 60, "test", 3, Path())
    assert len(task.train) == 40 and task.at.shape == (20, 4 * 4, 3) and task.truth.shape == (20, 16, 64)
    assert task.noise is not None and task.noise.max() > 1.3 * task.noise.min()
    steps = np.diff(task.train.values.reshape(40, 10, 4, 64), axis=1)  # twice the variance of the noise, and the signal
    spread = np.sqrt(np.median(steps**2, axis=(0, 1)) / 0.455 / 2)  # 0.455: median of a chi-squared of one degree
    level = task.noise[0].reshape(4, 4, 64)[0]
    np.testing.assert_allclose(spread, level, rtol=0.35)
    assert np.corrcoef(spread.ravel(), level.ravel())[0, 1] > 0.8


def test_crps_is_the_integral_of_the_squared_difference_of_distributions():
    from scipy.special import ndtr

    x = np.linspace(-30, 30, 200_001)
    for error, sd in ((0.7, 1.3), (-2.0, 0.4)):
        integral = np.trapezoid((ndtr(x / sd) - (x >= error)) ** 2, x)
        assert float(normal_crps(np.array(error), np.array(sd))) == pytest.approx(integral, rel=1e-3)


def test_smoke_run(tmp_path):
    result = run_experiment(EXPERIMENT, "smoke", tmp_path / "run", quiet=True)
    rows = {(row["condition"], row["model"]): row["metrics"] for row in result["table"]}
    assert {model for _, model in rows} == set(ROWS)
    for condition in EXPERIMENT.presets["smoke"].conditions:
        for row in (CST_ROW, PROCESS):
            assert rows[condition, row]["coverage at 90 %"]["mean"] == pytest.approx(0.9, abs=0.08), (condition, row)
        assert rows[condition, RAW]["Winkler score at 90 %"]["mean"] > 0
    assert {figure["file"] for figure in result["figures"]} == {"reliability.png", "widths.png"}
    assert (tmp_path / "run" / "report.html").exists()
