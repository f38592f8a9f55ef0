"""Attention up-sampling: what is compared, on maps and curves whose answer is known."""

import numpy as np
import pytest

from cstformer.data.samples import Samples
from cstformer.datasets.spirals import regular_indices
from cstformer.errors import CSTError
from cstformer.experiments.attention.experiment import EXPERIMENT
from cstformer.experiments.attention.maps import (
    GIVEN,
    LINEAR,
    METHODS,
    NORMALISED,
    TRUTH,
    UPSAMPLED,
    compare_maps,
    map_error,
)
from cstformer.experiments.base import run_experiment
from cstformer.experiments.spirals.task import CLEAN, SpiralTask, spiral_task
from cstformer.models.cst import CST
from cstformer.report.maps import attention_maps

TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 5, "batch": 8, "order": 0, "noise": 0.0}


def straight_task() -> SpiralTask:
    """Straight lines: the linear start at a new coordinate is its true value."""
    task = spiral_task(20, CLEAN, 0)
    rng = np.random.default_rng(0)
    lines = rng.normal(size=(6, 1, 2)) + rng.normal(size=(6, 1, 2)) * task.times[:, None]
    index = regular_indices(len(task.times))
    samples = Samples(task.times[index], lines[:, index])
    return SpiralTask(samples, samples, task.times, task.fine, lines, lines, lines, np.ones((6, 100), dtype=bool))


@pytest.mark.parametrize("pattern", ["joint", "context"])
def test_where_the_start_is_the_truth_so_is_the_map(pattern):
    task = straight_task()
    model = CST(pattern=pattern, start="linear", **TINY).fit(task.train)
    maps = compare_maps(model, task)
    size = (20, 20) if pattern == "joint" else (10, 10)
    assert maps.new.shape == size and maps.all[TRUTH].shape == (6, 2, 2, *size)
    error = map_error(maps.all[UPSAMPLED], maps.all[TRUTH], maps.new)
    linear = map_error(maps.all[LINEAR], maps.all[TRUTH], maps.new)
    assert error.max() < 1e-5 < 1e-4 < linear.min()
    assert (np.diff(maps.rows) > 0).all() and (np.diff(maps.columns) > 0).all()
    for name in (TRUTH, UPSAMPLED, GIVEN):
        np.testing.assert_allclose(maps.all[name].sum(-1), 1, atol=1e-5)


def test_the_small_joint_map_is_that_of_the_ten_tokens():
    """Nine points and the tenth told as a query, against nine points told as queries of the first."""
    task = straight_task()
    model = CST(pattern="joint", start="linear", **TINY).fit(task.train)
    small = compare_maps(model, task).all[GIVEN]
    t, y = task.test.coords[0, :, 0], task.test.values
    other = model.attention(Samples(t[:1], y[:, :1]), t[1:], values=y[:, 1:]).maps
    np.testing.assert_allclose(small, other, atol=1e-6)


def test_interpolated_rows_of_the_joint_map_sum_to_two_and_normalised_ones_to_one():
    task = straight_task()
    model = CST(pattern="joint", start="linear", **TINY).fit(task.train)
    maps = compare_maps(model, task)
    assert np.abs(maps.all[LINEAR].sum(-1) - 2).max() < 0.2
    np.testing.assert_allclose(maps.all[NORMALISED].sum(-1), 1)
    given = np.isin(maps.rows, maps.given)
    np.testing.assert_array_equal(maps.new, ~(given[:, None] & given))
    # Where nothing is new the interpolated map is the small one.
    np.testing.assert_allclose(maps.all[LINEAR][..., given, :][..., given], maps.all[GIVEN])


def test_error_of_a_map_by_hand():
    truth, other = np.zeros((1, 2, 2)), np.array([[[3.0, 4.0], [5.0, 100.0]]])
    new = np.array([[True, True], [False, False]])
    assert map_error(other, truth, new).tolist() == [5.0]


def test_values_of_queries_are_checked():
    task = straight_task()
    model = CST(**TINY).fit(task.train)
    with pytest.raises(CSTError, match=r"values has shape \(6, 3\)"):
        model.attention(task.test, [0.1, 0.2, 0.3], values=np.zeros((6, 3)))


def test_smoke_run(tmp_path):
    result = run_experiment(EXPERIMENT, "smoke", tmp_path / "run", quiet=True, jobs=1)
    rows = {(row["model"], row["condition"]): row["metrics"]["error, head average"] for row in result["table"]}
    assert set(rows) == {
        (method, f"{system}, {where}")
        for system, methods in {"joint": METHODS, "context": METHODS[:2]}.items()
        for method in methods
        for where in ("all layers", "layer 1", "layer 2")
    }
    assert all(row["n"] == 12 for row in rows.values())
    for system in ("joint", "context"):
        layers = [rows["CST", f"{system}, layer {i}"]["mean"] for i in (1, 2)]
        assert rows["CST", f"{system}, all layers"]["mean"] == pytest.approx(np.mean(layers))
    assert [claim["holds"] in ("yes", "no", "not clear") for claim in result["claims"]] == [True, True]
    assert {test["condition"] for test in result["tests"]} == {"joint, all layers", "context, all layers"}
    assert {test["name"] for test in result["tests"]} == {"CST vs linear", "CST vs linear, rows summing to one"}
    assert len(result["figures"]) == 6 and all((tmp_path / "run" / f["file"]).exists() for f in result["figures"])


def test_maps_of_different_sizes_are_drawn_relative_to_even_attention():
    even = {"large": np.full((4, 4), 1 / 4), "small": np.full((2, 2), 1 / 2)}
    fig = attention_maps([even], {"large": (np.arange(4), np.arange(4))}, names=["one"])
    large, small, *_ = (ax.get_images()[0] for ax in fig.axes if ax.get_images())
    assert (np.asarray(large.get_array()) == 1).all() and (np.asarray(small.get_array()) == 1).all()
    with pytest.raises(CSTError, match="no attention map"):
        attention_maps([])
