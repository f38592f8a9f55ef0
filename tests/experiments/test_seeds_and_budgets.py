"""Seeds of a row, its budget, whether it converged, and the search for the rate and optimiser of rivals."""

from dataclasses import dataclass

import numpy as np
import pytest

from cstformer.baselines import BASELINES
from cstformer.baselines.search import Search, Trial
from cstformer.experiments import training
from cstformer.experiments.base import Cell, CellResult, Experiment, merged, run_experiment, table_row
from cstformer.experiments.metrics import summary
from cstformer.experiments.training import has_converged, search_notes, searched
from cstformer.report.tables import groups


@dataclass(frozen=True)
class Config:
    pass


def result(value, steps, converged=True):
    facts = {"steps": steps, "epochs": steps / 10, "converged": converged, "seconds": 1.0}
    return CellResult({"x": np.full(3, value)}, 7, float(steps), facts)


def test_seeds_are_merged_into_one_row():
    one = merged([result(1.0, 10), None, result(3.0, 30, converged=False)])
    row = table_row(Cell("CST", "clean"), one, {"error": summary(one.over_seeds(lambda arrays: arrays["x"]))})
    assert row["metrics"]["error"] == {"mean": 2.0, "std": 0.0, "n": 3, "seeds": 2, "seed_std": pytest.approx(2**0.5)}
    assert (row["steps"], row["epochs"], row["train_seconds"], row["converged"]) == (20, 2, 20, False)


def test_a_run_computes_every_seed_once_and_first_seeds_first(tmp_path):
    computed = []

    class Two(Experiment):
        name, presets = "two", {"default": Config()}

        def cells(self, config):
            return [Cell("CST", "c"), Cell("linear", "c")]

        def repeats(self, cell, config):
            return 3 if cell.model == "CST" else 1

        def compute(self, cell, config, seed, folder, progress):
            computed.append((cell.model, cell.repeat))
            return result(float(seed + cell.repeat), 10)

        def gather(self, config, seed, results, out):
            rows = {c: summary(r.over_seeds(lambda arrays: arrays["x"])) for c, r in results.items()}
            table = [table_row(cell, results[cell], {"error": found}) for cell, found in rows.items()]
            return {"table": table, "tests": [], "figures": [], "notes": []}

    found = run_experiment(Two(), "default", tmp_path / "run", seed=5, quiet=True, jobs=1)
    assert computed == [("CST", 0), ("linear", 0), ("CST", 1), ("CST", 2)]
    cst, linear = (row["metrics"]["error"] for row in found["table"])
    assert (cst["mean"], cst["seeds"], cst["seed_std"]) == (6.0, 3, 1.0) and "seeds" not in linear
    assert found["seconds"] == 4.0
    (group,) = groups(found)
    assert group.columns[:3] == ["model", "error", "± over seeds"]
    assert [line[2].text for line in group.lines] == ["1 (3)", "–"]
    run_experiment(Two(), "default", tmp_path / "run", seed=5, quiet=True, jobs=1)
    assert len(computed) == 4


@pytest.mark.parametrize(
    ("ended", "last", "epochs", "converged"),
    [
        ("cap", 0.30, 5, False),  # still falling when the time was over
        ("cap", 0.49, 5, True),
        ("finished", 0.30, 5, True),  # as many steps as were chosen
        ("patience", 0.60, 5, True),
        ("finished", 0.30, 0.9, False),  # not all samples were seen
        ("not finite", 0.49, 5, False),
    ],
)
def test_what_counts_as_converged(ended, last, epochs, converged):
    assert has_converged(ended, [(0, 1.0), (40, 0.6), (80, 0.5), (100, last)], epochs) is converged


def test_a_rival_gets_the_best_rate_of_the_best_optimiser(monkeypatch):
    scores = {("adamw", 1e-3): 0.5, ("muon", 3e-3): 0.4}

    def search(model, samples, **options):
        rate = {"adamw": 1e-3, "muon": 3e-3}[model.optimiser]
        found = type(model)(**model.settings() | {"learning_rate": rate})
        return found, Search(rate, (Trial(rate, scores[model.optimiser, rate], 3, 2.0),))

    monkeypatch.setattr(training, "search_learning_rate", search)
    model, facts = searched(BASELINES["transformer"].preset("smoke"), None)
    assert (model.optimiser, model.learning_rate) == ("muon", 3e-3)
    assert facts["search"]["seconds"] == 4.0 and facts["search"]["optimiser"] == "muon"
    linear = BASELINES["linear"]()
    assert searched(linear, None) == (linear, {})
    (note,) = search_notes({Cell("Transformer", "c"): CellResult({}, 0, 0.0, facts)})
    assert note.endswith("Transformer 0.003 muon (4 s).")
