"""The spirals experiment: its data do not leak, its numbers are those of the arrays, an interrupted run goes on."""

import json

import numpy as np
import pytest

from cstformer.baselines import BASELINES
from cstformer.errors import CSTError
from cstformer.experiments import base
from cstformer.experiments.metrics import euclidean_error, paired_test, roughness
from cstformer.experiments.spirals.claims import claims
from cstformer.experiments.spirals.experiment import EXPERIMENT
from cstformer.experiments.spirals.rows import BERT, BERT_STEPS, CST_DEFAULT, CST_PAPER, CST_STEPS, FLOOR, make_model
from cstformer.experiments.spirals.task import CLEAN, CONDITIONS, IRREGULAR, NOISY, spiral_task

QUICK = [CST_DEFAULT, "linear", "cubic", FLOOR]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """One whole smoke run: every row of every condition, in two processes."""
    out = tmp_path_factory.mktemp("runs") / "smoke"
    return base.run_experiment(EXPERIMENT, "smoke", out, seed=0, quiet=True, jobs=2), out


def test_no_curve_is_in_training_and_test():
    task = spiral_task(30, CLEAN, 0)
    train = {tuple(y) for y in task.train.values[:, 0].tolist()}
    test = {tuple(y) for y in task.test.values[:, 0].tolist()}
    assert (len(train), len(test), train & test) == (21, 9, set())


def test_conditions_share_curves_and_differ_in_what_they_say():
    clean, irregular, noisy = (spiral_task(30, c, 0) for c in (CLEAN, IRREGULAR, NOISY))
    assert (clean.values == noisy.values).all() and (clean.values == irregular.values).all()
    assert (clean.test.coords == noisy.test.coords).all()
    many = [spiral_task(200, c, 1).train.values for c in (CLEAN, NOISY)]
    added = many[1] - many[0]  # 2800 numbers: their sd is known to 1.3 %
    assert added.std() == pytest.approx(0.1, rel=0.05) and abs(added.mean()) < 0.01
    grids = {tuple(x) for x in irregular.train.coords[..., 0].tolist()}
    assert len(grids) == len(irregular.train)
    for task in (clean, irregular, noisy):
        assert (task.unseen.sum(1) == 90).all()
        seen = task.times[np.nonzero(~task.unseen)[1]].reshape(9, 10)
        assert np.allclose(seen, task.test.coords[..., 0])


def test_every_row_is_there(smoke):
    result, _ = smoke
    cells = {(row["model"], row["condition"]) for row in result["table"]}
    assert cells == {(c.model, c.condition) for c in EXPERIMENT.cells(EXPERIMENT.presets["smoke"])}
    assert {c for _, c in cells} == set(CONDITIONS)
    paper = {(r["model"], r["condition"]): r["paper"] for r in result["table"] if r["paper"]}
    assert paper == {(CST_PAPER, CLEAN): 0.03859, (BERT, CLEAN): 0.04329}


def test_numbers_follow_from_the_stored_arrays(smoke):
    result, out = smoke
    task = spiral_task(40, NOISY, 0)
    stored = {m: np.load(out / "cells" / base.Cell(m, NOISY).slug / "arrays.npz") for m in (CST_DEFAULT, "cubic")}
    errors = {m: euclidean_error(a["grid"], task.values, task.unseen) for m, a in stored.items()}
    row = next(r for r in result["table"] if (r["model"], r["condition"]) == (CST_DEFAULT, NOISY))
    assert row["metrics"]["error"]["mean"] == pytest.approx(errors[CST_DEFAULT].mean())
    assert row["metrics"]["error"]["n"] == 12
    unit = np.quantile(np.abs(spiral_task(40, CLEAN, 0).values), 0.98)
    assert row["metrics"]["scaled error"]["mean"] == pytest.approx(errors[CST_DEFAULT].mean() / unit)
    rough = roughness(stored[CST_DEFAULT]["fine"], task.clean_fine).mean()
    assert row["metrics"]["roughness"]["mean"] == pytest.approx(rough)
    test = next(t for t in result["tests"] if t["name"] == "CST vs cubic" and t["condition"] == NOISY)
    assert test["p_single"] == pytest.approx(paired_test(errors[CST_DEFAULT], errors["cubic"]).p_value)
    assert test["p_value"] >= test["p_single"]


def test_the_papers_models_have_equal_steps_and_equal_minutes(smoke):
    result, _ = smoke
    rows = {row["model"]: row for row in result["table"] if row["condition"] == CLEAN}
    config = EXPERIMENT.presets["smoke"]
    assert rows[CST_STEPS]["steps"] == rows[BERT_STEPS]["steps"] == config.steps
    default = EXPERIMENT.presets["default"]
    assert make_model(CST_PAPER, default, 0).max_minutes == make_model(BERT, default, 0).max_minutes == default.minutes
    assert all(row["epochs"] == pytest.approx(row["steps"] * 8 / (28 * 0.9), rel=0.01) for row in (rows[CST_STEPS],))
    assert {"yes", "no", "not clear"} >= {c["holds"] for c in result["claims"] if "noise" not in c["claim"]}


def test_seeds_of_the_compared_models():
    config = EXPERIMENT.presets["default"]
    repeats = {cell.model: EXPERIMENT.repeats(cell, config) for cell in EXPERIMENT.cells(config)}
    assert {repeats[row] for row in (CST_DEFAULT, CST_PAPER, BERT, CST_STEPS, BERT_STEPS)} == {5}
    assert repeats["LSTM"] == repeats["CST without noise"] == 3 and repeats["cubic"] == repeats[FLOOR] == 1


def test_claims_follow_from_numbers_and_tests():
    def row(model, error, rough, condition=CLEAN):
        return {
            "model": model,
            "condition": condition,
            "metrics": {"error": {"mean": error}, "roughness": {"mean": rough}},
        }

    table = [row(CST_PAPER, 0.06, 60.0), row(BERT, 0.04, 0.8), row(CST_STEPS, 0.06, 60.0), row(BERT_STEPS, 0.1, 0.8)]
    tests = [
        {"name": f"{a} vs {b}", "condition": CLEAN, "p_value": p}
        for a, b, p in ((CST_PAPER, BERT, 0.001), (CST_STEPS, BERT_STEPS, 0.2))
    ]
    found = [(c["claim"].split(",")[-1].strip(), c["holds"]) for c in claims(table, tests)]
    assert found[:3] == [
        ("at equal steps", "not clear"),
        ("at equal minutes", "no"),
        ("CST is smoother than the Transformer", "no"),
    ]
    assert {holds for _, holds in found[3:]} == {"not run"}


def test_the_floor_is_the_noise_of_the_file(smoke):
    result, _ = smoke
    row = next(r for r in result["table"] if (r["model"], r["condition"]) == (FLOOR, CLEAN))
    assert row["metrics"]["error"]["mean"] == pytest.approx(0.0274, rel=0.1)
    assert row["metrics"]["error vs noise-free"]["mean"] == 0
    assert row["metrics"]["roughness"]["mean"] == pytest.approx(1)


def test_files_of_a_run(smoke):
    result, out = smoke
    assert json.loads((out / "result.json").read_text())["table"] == result["table"]
    page = (out / "report.html").read_text()
    assert "CST (paper preset)" in page
    numbers = {f["file"] for f in result["figures"]}
    assert {f"figure{n}" for n in ("2", "6", "7", "8", "9", "10")} <= {name.split("_")[0] for name in numbers}
    assert all((out / name).stat().st_size > 10_000 for name in numbers)
    assert result["command"] == "cst run spirals --preset smoke --seed 0"


def test_all_runs_every_rival_that_reads_curves():
    """A rival joins by its line in the registry, under its label; those of the interpolators keep their rows."""
    config = EXPERIMENT.presets["smoke"]
    plain, every = ({c.model for c in cells(config)} for cells in (EXPERIMENT.cells, EXPERIMENT.all_cells))
    assert {"LSTM", "LatentODE", "LFADS"} <= plain < every
    reading = {EXPERIMENT.row_name(key) for key, cls in BASELINES.items() if not cls.frames_only}
    assert reading <= every and {"Transformer + linear", "GP", BERT} <= reading
    assert not every & {cls.label for cls in BASELINES.values() if cls.frames_only}
    assert {c.model for c in EXPERIMENT.cells(EXPERIMENT.presets["demo"])}.isdisjoint({"LSTM", "LFADS"})


def test_a_rival_by_its_key_with_a_recorded_search(tmp_path):
    result = base.run_experiment(
        EXPERIMENT, "smoke", tmp_path / "run", models=["lstm", "gp", "linear"], quiet=True, jobs=1
    )
    assert {row["model"] for row in result["table"]} == {"LSTM", "GP", "linear"}
    done = json.loads((tmp_path / "run" / "cells" / base.Cell("LSTM", CLEAN).slug / "done.json").read_text())
    search = done["facts"]["search"]
    rate = BASELINES["lstm"]().learning_rate
    assert [t["learning_rate"] for t in search["trials"]] == pytest.approx([rate / 3, rate, 3 * rate])
    saved = BASELINES["lstm"].load(tmp_path / "run" / "cells" / base.Cell("LSTM", CLEAN).slug / "model")
    assert saved.learning_rate == search["learning_rate"]
    assert any("three short trials" in note and "LSTM" in note for note in result["notes"])


def test_finished_rows_are_not_computed_again(tmp_path, monkeypatch):
    """A run that stopped after some rows goes on with the others."""
    out = tmp_path / "run"
    base.run_experiment(EXPERIMENT, "smoke", out, seed=0, models=["linear", FLOOR], quiet=True, jobs=1)
    computed = []
    compute = type(EXPERIMENT).compute
    monkeypatch.setattr(
        type(EXPERIMENT),
        "compute",
        lambda self, cell, *rest: (computed.append(cell.model), compute(self, cell, *rest))[1],
    )
    result = base.run_experiment(
        EXPERIMENT, "smoke", out, seed=0, models=["linear", "cubic", FLOOR], quiet=True, jobs=1
    )
    assert set(computed) == {"cubic"}
    assert {row["model"] for row in result["table"]} == {"linear", "cubic", FLOOR}


def test_another_seed_needs_another_directory(tmp_path):
    out = tmp_path / "run"
    base.run_experiment(EXPERIMENT, "smoke", out, seed=0, models=["linear"], quiet=True, jobs=1)
    with pytest.raises(CSTError, match="another preset, seed or version"):
        base.run_experiment(EXPERIMENT, "smoke", out, seed=1, models=["linear"], quiet=True, jobs=1)


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(CSTError, match="did you mean 'linear'"):
        base.run_experiment(EXPERIMENT, "smoke", tmp_path / "a", models=["linaer"])
    with pytest.raises(CSTError, match="unknown preset"):
        base.run_experiment(EXPERIMENT, "smok", tmp_path / "b")


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CSTError, match="not a run of cstformer"):
        base.run_experiment(EXPERIMENT, "smoke", tmp_path, models=["linear"], quiet=True)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]
