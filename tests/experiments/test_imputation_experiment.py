"""The imputation experiment: rows, numbers that follow from the arrays, missing files and packages, parts."""

import json

import numpy as np
import pytest

from cstformer.baselines.peers import PEERS, peers_installed
from cstformer.datasets.gaps import GapTask
from cstformer.datasets.oscillators import oscillator_task
from cstformer.experiments import base
from cstformer.experiments.imputation import figures
from cstformer.experiments.imputation.experiment import EXPERIMENT
from cstformer.experiments.imputation.rows import CST_ABSOLUTE, CST_ROW, ETT, PHYSIONET, Config, published, rows_of
from cstformer.experiments.imputation.task import CURVE_POINTS, make_task, shown_samples
from cstformer.experiments.metrics import paired_test

CONDITION = "oscillators, 50 % removed"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A whole smoke run, without the rows of an optional package."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    models = [row for row in rows_of("oscillators") if row not in PEERS]
    return base.run_experiment(EXPERIMENT, "smoke", out, models=models, quiet=True, jobs=1), out


def stored(out, model):
    folders = [out / "cells" / base.Cell(model, CONDITION, repeat=k).slug for k in (0, 1)]
    return [np.load(folder / "arrays.npz") for folder in folders]


def test_numbers_follow_from_the_stored_arrays(smoke):
    result, out = smoke
    row = next(r for r in result["table"] if r["model"] == "linear")
    cells = stored(out, "linear")
    pooled = [a["squared"].sum() / a["cells"].sum() for a in cells]
    each = {
        m: sum(a["squared"] for a in stored(out, m)) / sum(a["cells"] for a in stored(out, m))
        for m in ("linear", "CST")
    }
    assert row["metrics"]["MSE"] == {
        "mean": pytest.approx(np.mean(pooled)),
        "std": pytest.approx(each["linear"].std(ddof=1)),
        "n": 12,
        "seeds": 2,
        "seed_std": pytest.approx(np.std(pooled, ddof=1)),
    }
    test = next(t for t in result["tests"] if t["name"] == "CST vs linear")
    assert test["p_single"] == pytest.approx(paired_test(each["CST"], each["linear"]).p_value)


def test_a_line_scores_what_it_scores(smoke):
    """The whole path from data to table, against interpolation by hand."""
    result, _ = smoke
    scores = []
    for number in (0, 1):
        task = make_task(CONDITION, EXPERIMENT.presets["smoke"], seed=number)
        assert isinstance(task, GapTask)
        squares = []
        for i, k in np.ndindex(len(task.context), task.context.c):
            seen, asked = task.context.observed[i, :, k], task.asked[i, :, k]
            y = np.interp(task.at[i, asked, 0], task.context.coords[i, seen, 0], task.context.values[i, seen, k])
            squares += list((y - task.truth[i, asked, k]) ** 2)
        scores.append(np.mean(squares))
    row = next(r for r in result["table"] if r["model"] == "linear")
    assert row["metrics"]["MSE"]["mean"] == pytest.approx(np.mean(scores))


def test_files_and_rows_of_a_run(smoke):
    result, out = smoke
    assert [r["model"] for r in result["table"]] == [row for row in rows_of("oscillators") if row not in PEERS]
    assert {r["paper"] for r in result["table"]} == {None}
    assert json.loads((out / "result.json").read_text())["tests"] == result["tests"]
    assert {f["file"] for f in result["figures"]} == {"oscillators.png", "learning_curves.png"}
    assert all((out / f["file"]).stat().st_size > 10_000 for f in result["figures"])
    assert (out / "cells" / base.Cell("CST", CONDITION, repeat=1).slug / "model" / "model.json").exists()
    assert EXPERIMENT.context(CONDITION, EXPERIMENT.presets["smoke"], 0, out).n == 48


def test_missing_files_leave_their_conditions_out(monkeypatch, tmp_path):
    monkeypatch.setenv("CST_DATA", str(tmp_path))
    assert {c.condition for c in EXPERIMENT.cells(Config())} == {CONDITION}
    assert {EXPERIMENT.repeats(c, Config()) for c in EXPERIMENT.cells(Config())} == {3}
    notes = EXPERIMENT.gather(Config(), 0, {}, tmp_path)["notes"]
    assert sum(note.startswith("Left out:") and "CST_DATA" in note for note in notes) == 3
    if not peers_installed():
        assert 'Left out: SAITS and BRITS. PyPOTS is not installed; pip install "cstformer[peers]".' in notes


def test_conditions_and_published_numbers(monkeypatch, tmp_path):
    for file in ("ett/ETTh1.csv", "physionet2012/set_a.parquet", "era5_uk/t2m_744x33x49_f32.npz"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).touch()
    monkeypatch.setenv("CST_DATA", str(tmp_path))
    cells = EXPERIMENT.cells(Config(seeds=1))
    conditions = list(dict.fromkeys(c.condition for c in cells))
    assert conditions == list(Config().conditions()) and len(conditions) == 6
    assert [c.condition for c in cells if c.model == CST_ABSOLUTE] == conditions[:3]
    assert {c.condition for c in cells if c.model == "RBF"} == {conditions[4]}
    assert published("SAITS", "ETTh1, 90 % removed", Config()) == 0.507
    assert published("SAITS", "ETTh1, 90 % removed", Config(part="validation")) is None
    assert published("linear", CONDITION, Config()) is None and published(CST_ROW, conditions[0], Config()) is None
    assert len({c.slug for c in cells}) == len(cells)


def test_presets_that_make_choices_never_score_the_test_part():
    for name in ("quick", "validation"):
        assert EXPERIMENT.presets[name].part == "validation"
    assert EXPERIMENT.presets["default"].part == "test" and {ETT, PHYSIONET} <= set(EXPERIMENT.presets["default"].data)


def test_figures_show_what_was_asked():
    """A window of five channels on 48 hours, of which the first day is drawn: lines of both rows, given and asked."""
    task = oscillator_task(train=3, scored=4, points=48, channels=5)
    curves = {name: np.zeros((2, CURVE_POINTS, 5)) for name in (CST_ROW, "linear")}
    i = shown_samples(task)[0]
    fig = figures.one_day(task, curves)
    drawn = [ax for ax in fig.axes if ax.get_visible()]
    assert len(drawn) == 5
    for k, ax in enumerate(drawn):
        lines = {line.get_label(): line.get_ydata() for line in ax.lines}
        assert set(lines) == {CST_ROW, "linear", "given", "asked"}
        assert np.array_equal(lines["asked"], task.truth[i, task.asked[i, :, k], k])
        assert np.array_equal(lines["given"], task.context.values[i, task.context.observed[i, :, k], k])
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [CST_ROW, "linear", "given", "asked"]
    assert len(figures.two_samples(task, curves, "hour").axes) == 8
    metrics = {name: {"mean": 0.2, "std": 0.01, "n": 3} for name in ("MAE", "MSE")}
    rows = [
        {"model": "SAITS", "condition": c, "metrics": metrics, "paper": 0.3} for c in list(Config().conditions())[:3]
    ]
    left, right = figures.error_by_share(rows, Config()).axes
    assert [list(line.get_ydata()) for line in left.lines if line.get_marker() == "x"] == [[0.3] * 3]
    assert not [line for line in right.lines if line.get_marker() == "x"]
