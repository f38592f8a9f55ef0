"""The Navier–Stokes experiment: its data, its truths, its numbers, and runs that were interrupted."""

import dataclasses
import json

import numpy as np
import pytest
from stopped_runs import Stopped, stop_and_go_on

from cstformer.data.patches import samples_to_frames
from cstformer.datasets.navier_stokes import Law
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.experiments import base
from cstformer.experiments.navier_stokes import errors, rows
from cstformer.experiments.navier_stokes import experiment as ns
from cstformer.experiments.navier_stokes.task import (
    Flows,
    closer_truth,
    filtered_task,
    flow_task,
    make_data,
    unseen_times,
    zoomed_truth,
)
from cstformer.models.cst import CST
from cstformer.report.results_page import write_results_md
from cstformer.report.tables import load_result

# One setting, two levels of noise and few rows: the whole smoke run takes longer.
CONFIG = dataclasses.replace(ns.EXPERIMENT.presets["smoke"], given=(4,), levels=(0.05, 0.1))
FILTERED_FNO = "FNO3D (resampled) after the Wiener filter"
ROWS = [rows.SMOOTH, rows.MIXED, "Transformer + spline", FILTERED_FNO, "linear", rows.WIENER]


class Recorded(Stopped, ns.NavierStokesExperiment):
    presets = {"smoke": CONFIG}  # noqa: RUF012


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """16 flows on 32 × 32 points, times 1 to 8."""
    made = Flows(tmp_path_factory.mktemp("data") / "flows.zarr", 12, Law(samples=16, until=8, size=32), 8, seed=0)
    make_data(made, progress=False)
    return made


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A smoke run of some rows that was stopped in the middle and given again."""
    return stop_and_go_on(Recorded, tmp_path_factory.mktemp("runs") / "smoke", ROWS)


def test_an_interrupted_run_goes_on(smoke):
    _, _, before, after = smoke
    assert not set(before) & set(after)
    wanted = {ns.EXPERIMENT.row_name(name) for name in ROWS}
    assert {*before, *after} == {cell for cell in ns.EXPERIMENT.cells(CONFIG) if cell.model in wanted}


def test_every_row_and_condition(smoke):
    result, out, *_ = smoke
    found = {(row["model"], row["condition"]) for row in result["table"]}
    table = {rows.SMOOTH, rows.TO_LINEAR, rows.TO_SPLINE, FILTERED_FNO, "linear", rows.WIENER}
    expected = {(name, f"given=4,{times}") for times in ("all", "unseen") for name in table}
    levels = [f"given=4,noise={level:g}" for level in CONFIG.levels]
    expected |= {(name, level) for level in levels for name in (rows.MIXED, "linear", rows.WIENER)}
    fine = (errors.ZOOMED, errors.TILED, errors.FOURIER, errors.BICUBIC, "solver (truth)")
    expected |= {(name, "given=4,32 × 32 points") for name in fine}
    assert found == expected
    files = {"fields.png", "slopes.png", "error_time.png", "error_noise.png", "zoom.png", "learning_curves.png"}
    assert {figure["file"] for figure in result["figures"]} == files
    assert "Transformer + spline" in (out / "report.html").read_text()
    text = write_results_md([load_result(out)], out / "RESULTS.md").read_text()
    assert "## navier-stokes" in text and "given=4,unseen (n = 4)" in text


def test_numbers_follow_from_the_stored_arrays(smoke):
    result, out, *_ = smoke
    run = ns._flows(CONFIG, 0, out)
    unseen = unseen_times(run, 4)

    def stored(name):
        arrays = np.load(out / "cells" / base.Cell(name, "given=4").slug / "arrays.npz")
        return arrays[ns.SEPARATOR.join((name, "given=4", "mse"))]

    mine, other = (
        np.array([e[u].mean() for e, u in zip(stored(n), unseen, strict=True)]) for n in (rows.SMOOTH, "linear")
    )
    table = {(row["model"], row["condition"]): row["metrics"] for row in result["table"]}
    assert table[rows.SMOOTH, "given=4,unseen"]["MSE"]["mean"] == pytest.approx(mine.mean())
    assert table[rows.SMOOTH, "given=4,unseen"]["MSE"]["std"] == pytest.approx(mine.std(ddof=1))
    assert result["tests"] == []  # four flows are too few
    assert table["linear", "given=4,unseen"]["MSE"]["mean"] == pytest.approx(other.mean())
    # The level of the table is one of the levels.
    assert table["linear", "given=4,noise=0.1"]["MSE"] == table["linear", "given=4,all"]["MSE"]
    assert table["solver (truth)", "given=4,32 × 32 points"]["MSE"]["mean"] == 0


def test_both_rows_of_the_transformer_share_a_training(smoke):
    result, out, *_ = smoke
    table = {(row["model"], row["condition"]): row for row in result["table"]}
    linear, spline = (table[name, "given=4,all"] for name in (rows.TO_LINEAR, rows.TO_SPLINE))
    assert linear["train_seconds"] == spline["train_seconds"] > 0
    arrays = np.load(out / "cells" / base.Cell(rows.TRANSFORMER, "given=4").slug / "arrays.npz")
    both = [arrays[ns.SEPARATOR.join((name, "given=4", "mse"))] for name in (rows.TO_LINEAR, rows.TO_SPLINE)]
    unseen = unseen_times(ns._flows(CONFIG, 0, out), 4)
    np.testing.assert_allclose(both[0][~unseen], both[1][~unseen], rtol=1e-5)  # at given frames nothing lies between
    assert (both[0][unseen] != both[1][unseen]).all()


def test_paper_numbers_belong_to_its_setting():
    cells = ns.EXPERIMENT.cells(rows.Config())
    trained = [c for c in cells if c.model not in rows.CLASSICAL]
    assert len(trained) == 11 and len(cells) == len(set(cells))
    seeds = {cell.model: ns.EXPERIMENT.repeats(cell, rows.Config()) for cell in trained}
    assert seeds[rows.SMOOTH] == seeds[rows.TRANSFORMER] == seeds[rows.JOINT] == 3 and seeds["FNO2D"] == 1
    assert set(rows.PAPER_ERROR) <= {*rows.CST_ROWS, *rows.RIVALS, rows.TO_LINEAR, rows.TO_SPLINE}
    published = {c.model for c in cells if c.condition == "given=10" and c.model in rows.RIVALS}
    assert published == set(rows.PUBLISHED)
    for name in ("fno3d", "wiener", "cst", "transformer-linear"):
        assert ns.EXPERIMENT.row_name(name) in {c.model for c in cells}


def test_presets_make_models_that_accept_their_settings():
    for preset in ns.EXPERIMENT.presets.values():
        for cell in ns.EXPERIMENT.cells(preset):
            model = rows.make_model(cell.model, preset, seed=3)
            getattr(model, "_check_settings", lambda: None)()
            assert model.seed == 3
            if isinstance(model, CST):
                assert model.pattern == ("joint" if cell.model == rows.JOINT else "context")


def test_given_frames_and_their_noise(flows):
    task = flow_task(flows, 4, 0.1)
    frames = Solutions(flows.path).frames()
    assert (len(task.train), len(task.test)) == (12, 4) and (task.truth == frames[12:]).all()
    assert (task.unseen.sum(1) == 4).all() and not task.unseen[:, [0, -1]].any()
    times = task.test.coords[..., 0].reshape(4, 4, -1)
    assert (times == times[..., :1]).all()
    seen = [flows.times[~row] for row in task.unseen]
    np.testing.assert_array_equal(times[..., 0], seen)
    noisy = samples_to_frames(task.test)[..., 0]
    added = noisy - np.stack([w[~row] for w, row in zip(task.truth, task.unseen, strict=True)])
    sd = frames[:12].std()
    assert added.std() == pytest.approx(0.1 * sd, rel=0.02)  # 16,384 numbers: known to 0.6 %
    assert abs(np.corrcoef(added[:, :, :-1].ravel(), added[:, :, 1:].ravel())[0, 1]) < 0.03
    # Other flows get other times; the same call gives the same data.
    assert len({tuple(row) for row in task.unseen.tolist()}) > 1
    flow_task.cache_clear()
    assert (flow_task(flows, 4, 0.1).train.values == task.train.values).all()


def test_filtered_frames_have_less_noise(flows):
    task = flow_task(flows, 4, 0.1)
    clean = filtered_task(task, flows)
    truth = np.stack([w[~row] for w, row in zip(task.truth, task.unseen, strict=True)])
    noisy, filtered = (np.square(samples_to_frames(t.test)[..., 0] - truth).mean() for t in (task, clean))
    assert filtered < 0.5 * noisy and (clean.test.coords == task.test.coords).all()


def test_mixed_levels_of_noise(flows):
    quiet, mixed = flow_task(flows, 4, 0.0), flow_task(flows, 4, 0.05, 0.2)
    level = (mixed.train.values - quiet.train.values).std((1, 2)) / Solutions(flows.path).frames()[:12].std()
    assert 0.045 < level.min() < 0.1 < 0.15 < level.max() < 0.205


def test_the_truth_between_the_frames(flows):
    """It passes through the frames of the file, and its slope is that of its differences, of second order."""
    w, slope = closer_truth(flows, 2)
    assert w.shape == slope.shape == (2, len(flows.fine_times), 32, 32) and len(flows.fine_times) == 29
    np.testing.assert_allclose(w[:, ::4], Solutions(flows.path).frames([12, 13]), atol=2e-6)
    difference = (w[:, 2:] - w[:, :-2]) / 0.5
    error = np.square(difference - slope[:, 1:-1]).mean() / np.square(slope).mean()
    assert error < 2e-3
    coarse = (w[:, 4:] - w[:, :-4]) / 1.0
    assert np.square(coarse - slope[:, 2:-2]).mean() / np.square(slope).mean() > 8 * error  # 16 at second order


def test_the_truth_between_the_pixels(flows):
    fine = zoomed_truth(flows, 2, 4.5, 4)
    coarse = closer_truth(flows, 2)[0][:, 14]
    assert fine.shape == (2, 128, 128) and flows.fine_times[14] == 4.5
    np.testing.assert_allclose(fine[:, ::4, ::4], coarse, atol=1e-3 * np.abs(coarse).max())
    up = errors.fourier_upsampled(coarse, 4)
    assert np.square(up - fine).mean() < 1e-6 * fine.var()  # the flow has no wave that 32 points could not show
    cubic = np.stack([errors.bicubic_upsampled(w, 4) for w in coarse])
    assert np.square(cubic - fine).mean() < 1e-4 * fine.var()
    np.testing.assert_allclose(cubic[:, ::4, ::4], coarse, atol=1e-6)


def test_shown_times_lie_between_frames(flows):
    times = flows.fine_times[errors.shown_times(flows)]
    assert times.tolist() == [2.5, 4.5, 6.5]


@pytest.mark.long
def test_the_whole_smoke_run(tmp_path):
    result = base.run_experiment(ns.EXPERIMENT, "smoke", tmp_path / "run", quiet=True, jobs=2)
    names = {row["model"] for row in result["table"] if row["condition"] == "given=6,all"}
    published = {rows.TO_LINEAR, rows.TO_SPLINE, *rows.PUBLISHED[1:]}
    assert names == {rows.SMOOTH, rows.JOINT, *published, *rows.CLASSICAL}
    few = {row["model"] for row in result["table"] if row["condition"] == "given=4,all"}
    assert {f"{row}{rows.FILTERED}" for row in (rows.TO_LINEAR, rows.TO_SPLINE, "FNO3D (resampled)")} <= few
    assert [entry["CST"]["model"] for entry in result["main"]] == [rows.SMOOTH] * 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["tests"] == result["tests"]
