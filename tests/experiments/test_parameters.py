"""Sizes of the models: every row of the paper's tables and its count by formula."""

import pytest

from cstformer.baselines import BASELINES
from cstformer.baselines.sizes import SIZES

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
