"""The parameter tables: every row of the paper, its count by formula, and the command that prints them."""

import sys

import pytest

from cstformer.baselines import BASELINES
from cstformer.baselines.sizes import SIZES
from cstformer.cli import main

# Rows whose printed count the paper's own description gives.
DESCRIBED = [
    ("spirals", "CST"),
    ("spirals", "Transformer"),
    ("video", "ConvGRU"),
    ("navier-stokes", "FNO2D"),
    ("navier-stokes", "FNO3D"),
    ("navier-stokes", "CST"),
    ("calcium", "LSTM"),
    ("calcium", "ConvLSTM"),
    ("calcium", "LatentODE"),
    ("calcium", "LFADS"),
    ("calcium", "CST-small"),
    ("calcium", "CST-base"),
]


@pytest.mark.parametrize(("experiment", "label"), DESCRIBED)
def test_counts_are_the_papers(experiment, label):
    size = SIZES[experiment][label]
    assert size.count() == pytest.approx(size.published, rel=0.02)


@pytest.mark.parametrize(
    ("experiment", "label", "published"),
    [
        ("spirals", "CST", 818_016),
        ("navier-stokes", "CST", 821_984),
        ("calcium", "CST-small", 19_051_392),
        ("calcium", "CST-base", 93_283_584),
        ("video", "CST", 95_077_632),
    ],
)
def test_differences_to_the_published_transformer(experiment, label, published):
    """What its code has and ours has not, and the other way round, add up to the last number."""
    size = SIZES[experiment][label]
    a = size.network().architecture
    biases = a.layers * 3 * a.width if a.attention_kind == "nystrom" else 0  # of queries, keys and values
    table, coordinates, missing = 10 * a.width, (3 - a.d) * a.width, a.c * a.width
    assert size.count() == published + biases - table - coordinates + missing


def test_every_row_has_a_model_and_a_count():
    assert [len(rows) for rows in SIZES.values()] == [2, 4, 3, 7]
    for rows in SIZES.values():
        for size in rows.values():
            assert size.key == "cst" or size.key in BASELINES
            assert all(p.is_meta for p in size.network().parameters())
    far = [size for rows in SIZES.values() for size in rows.values() if abs(size.count() / size.published - 1) > 0.02]
    assert all(size.note for size in far)  # whatever differs is explained
    assert {size.key for size in far} == {"vit3d", "vivit", "cst"}


def test_models_of_a_size_can_be_changed():
    model = SIZES["calcium"]["CST-small"].model(seed=3)
    assert (model.width, model.layers, model.heads, model.feedforward, model.seed) == (384, 6, 6, 3072, 3)


def test_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["models", "--experiment", "spirals"]) == 0
    out = capsys.readouterr().out
    assert "817,696" in out and "818 K" in out and "1.000" in out and "ConvGRU" not in out
    assert main(["models"]) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    for rows in SIZES.values():
        for label, size in rows.items():  # in this order
            assert any(f" {label} " in line and size.paper in line and f" {size.count():,} " in line for line in lines)
    assert main(["models", "--experiment", "spiral"]) == 2
    assert "did you mean 'spirals'?" in capsys.readouterr().err


def test_a_missing_package_costs_its_rows_only(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setitem(sys.modules, "neuralop.models", None)
    assert main(["models", "--experiment", "navier-stokes"]) == 0
    out = capsys.readouterr().out
    assert out.count("FNO needs neuraloperator; install it by pip install") == 2 and "823,712" in out
