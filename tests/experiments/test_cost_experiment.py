"""The cost experiment: every system measured, memory that grows as it must, a figure."""

import pytest

from cstformer.experiments.base import run_experiment
from cstformer.experiments.cost import experiment as cost


def test_smoke_run(tmp_path):
    result = run_experiment(cost.EXPERIMENT, "smoke", tmp_path / "run", quiet=True)
    rows = {(row["model"], row["condition"]): row["metrics"] for row in result["table"]}
    assert len(rows) == 6 and all(m["seconds"]["mean"] > 0 for m in rows.values())
    for system in ("joint, exact", "joint, Nyström", "context"):
        few, many = (rows[system, f"{n} dummy points"]["peak MB"]["mean"] for n in (10, 30))
        assert 1 < many / few < 9
    assert (tmp_path / "run" / "figure15_cost.png").exists()


def test_slopes_and_limits_are_said(tmp_path, monkeypatch):
    """Made-up measurements whose growth is known: exact attention stops early and is quadratic."""

    def series(axis, sizes, changes, rounds):
        power = 2 if changes.get("attention_kind") == "exact" else 1
        sizes = sizes[:-1] if power == 2 else sizes
        return [{"size": n, "seconds": n**power / 1e6, "peak MB": n**power / 1e3, "parameters": 7} for n in sizes]

    monkeypatch.setattr(cost.growth, "measure_series", series)
    monkeypatch.setitem(cost.EXPERIMENT.presets, "smoke", cost.Config(dummies=(100, 500, 1000, 2000)))
    result = run_experiment(cost.EXPERIMENT, "smoke", tmp_path / "run", quiet=True)
    notes = " ".join(result["notes"])
    assert "joint, exact: from 500 to 1000 dummy points time grows with the power 2.00" in notes
    assert "context: from 500 to 2000 dummy points time grows with the power 1.00" in notes
    assert "joint, exact: sizes beyond 1000" in notes and "context: sizes beyond" not in notes
    assert result["table"][0]["parameters"] == 7
    assert sum(row["model"] == "joint, exact" for row in result["table"]) == pytest.approx(3)
