"""Measurements survive a later run of other benchmarks, and become tables."""

import json

import pytest

from cstformer import benchmarks
from cstformer.cli import main
from cstformer.report.benchmarks import benchmark_lines

FIRST = [{"case": "a", "seconds": 0.12345, "peak MB": 1234.5}, {"case": "b | c", "slope": 1.0}]


@pytest.fixture
def measured(monkeypatch):
    """Benchmarks that take no time."""
    rows = {"step": FIRST, "queries": [{"case": "q", "seconds": 2.0}]}
    monkeypatch.setattr(benchmarks, "run_benchmark", lambda n, quick: [{"benchmark": n, **row} for row in rows[n]])


def test_columns_are_those_of_all_rows():
    columns, lines = benchmark_lines([{"benchmark": "step", "axis": "x", **row} for row in FIRST])
    assert columns == ["case", "seconds", "peak MB", "slope"]
    assert lines == [["a", "0.123", "1,234", ""], ["b | c", "", "", "1.00"]]


def test_other_benchmarks_are_kept_and_the_same_replaced(measured, tmp_path, capsys):
    out, page = str(tmp_path / "b.json"), str(tmp_path / "b.md")
    assert main(["bench", "--only", "step", "--out", out]) == 0
    assert main(["bench", "--only", "queries", "--out", out, "--markdown", page]) == 0
    assert main(["bench", "--only", "step", "--out", out]) == 0
    rows = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert [row["benchmark"] for row in rows] == ["queries", "step", "step"]
    text = (tmp_path / "b.md").read_text()
    assert "## step" in text and "| q | 2.00 |" in text and "`cst bench`" in text
    assert "wrote" in capsys.readouterr().out


def test_a_foreign_file_is_left_alone(measured, tmp_path, capsys):
    (tmp_path / "mine.json").write_text('{"a": 1}')
    assert main(["bench", "--only", "step", "--out", str(tmp_path / "mine.json")]) == 2
    assert "not written by cst bench" in capsys.readouterr().err
    assert (tmp_path / "mine.json").read_text() == '{"a": 1}'
