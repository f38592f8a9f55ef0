"""The learning-rate search: the rate that learns wins, everything is recorded, nothing else changes."""

import json
import math

import numpy as np
import pytest

from cstformer.baselines import BASELINES, LSTM, BertTransformer
from cstformer.baselines.search import search_learning_rate
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST


def waves(count: int = 24) -> Samples:
    t = np.linspace(0, 1, 9)
    return Samples(t, np.sin(2 * np.pi * (t + np.random.default_rng(0).uniform(size=(count, 1)))))


def test_the_rate_that_learns_wins():
    """Among rates of 1e-9, 1e-2 and 1e6 only one can learn in 40 steps."""
    model = LSTM.preset("smoke", steps=80, learning_rate=1e-2, seed=3)
    chosen, search = search_learning_rate(model, waves(), factors=(1e8, 1.0, 1e-7), share=0.5)
    assert search.learning_rate == chosen.learning_rate == 1e-2
    assert [t.learning_rate for t in search.trials] == pytest.approx([1e-9, 1e-2, 1e6])
    assert search.trials[1].score == min(t.score for t in search.trials)
    assert search.trials[1].steps == 40
    assert chosen.settings() == model.settings() | {"learning_rate": 1e-2}
    assert not hasattr(chosen, "network_") and not hasattr(model, "network_")


def test_the_same_search_twice_and_as_json():
    model = BertTransformer.preset("smoke", max_minutes=5.0)
    first, second = (search_learning_rate(model, waves(), share=0.2)[1] for _ in range(2))
    assert [t.score for t in first.trials] == [t.score for t in second.trials]
    record = json.loads(json.dumps(first.record()))
    assert record["learning_rate"] == first.learning_rate and len(record["trials"]) == 3
    assert record["seconds"] == pytest.approx(sum(t["seconds"] for t in record["trials"]), abs=0.06)
    assert all(math.isfinite(t["score"]) for t in record["trials"])


def test_cst_too():
    chosen, search = search_learning_rate(CST.preset("smoke", mu="search", order=0), waves(12), share=0.1)
    assert isinstance(chosen, CST) and chosen.mu == "search" and chosen.steps == 30
    assert chosen.learning_rate == search.learning_rate in [t.learning_rate for t in search.trials]


def test_rates_that_explode_never_win(monkeypatch):
    def explode(self, batch, generator):
        loss = BertTransformer._loss(self, batch, generator)
        return loss * float("nan") if self.learning_rate > 0.1 else loss

    class Fragile(BertTransformer):
        _loss = explode

    _, search = search_learning_rate(Fragile.preset("smoke", learning_rate=0.1), waves(), (1.0, 10.0))
    assert search.learning_rate == 0.1 and search.trials[1].score == math.inf
    assert search.record()["trials"][1]["score"] is None
    with pytest.raises(CSTError, match="gave a finite loss"):
        search_learning_rate(Fragile.preset("smoke", learning_rate=1.0), waves(), (1.0, 10.0))


def test_what_is_refused():
    with pytest.raises(CSTError, match="CubicSpline has no learning rate"):
        search_learning_rate(BASELINES["cubic"](), waves())
    for factors in ((), (0.0, 1.0), (-1.0,)):
        with pytest.raises(CSTError, match="factors must be positive"):
            search_learning_rate(LSTM(), waves(), factors)
    for share in (0.0, 1.5):
        with pytest.raises(CSTError, match="share="):
            search_learning_rate(LSTM(), waves(), share=share)
