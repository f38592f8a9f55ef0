"""``cst models``: the parameter tables and the cost of training."""

import sys

import pytest

from cstformer.baselines.sizes import SIZES


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no row is wrapped."""
    monkeypatch.setenv("COLUMNS", "160")


def test_tables_of_parameters(cst, refused):
    out = cst("models", "--experiment", "spirals")[1]
    assert "817,696" in out and "818 K" in out and "1.000" in out and "ConvGRU" not in out
    lines = iter(cst("models")[1].splitlines())
    for rows in SIZES.values():
        for label, size in rows.items():  # in this order
            assert any(f" {label} " in line and size.paper in line and f" {size.count():,} " in line for line in lines)
    refused(["models", "--experiment", "spiral"], "did you mean 'spirals'?")


def test_a_missing_package_costs_its_rows_only(cst, monkeypatch):
    monkeypatch.setitem(sys.modules, "neuralop.models", None)
    code, out, _ = cst("models", "--experiment", "navier-stokes")
    assert code == 0
    assert out.count("FNO needs neuraloperator; pip install") == 2 and "823,712" in out


def test_cost_of_training(cst, refused):
    code, out, _ = cst("models", "--cost", "--hours", "100", "--processes", "8")
    assert code == 0
    assert "719,999 windows" in out and "CST-base, context" in out and "hours / epoch" not in out
    assert "hours / epoch" in cst("models", "--cost", "--speed", "100")[1]
    refused(["models", "--experiment", "spirals", "--cost"], "--cost is for recordings of frames")
    refused(["models", "--cost", "--strategy", "dpp"], "did you mean 'ddp'?")
    refused(["models", "--cost", "--hours", "0"], "--hours 0", "must be positive")
