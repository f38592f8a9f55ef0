"""Gradient boosting: features worked out by hand, trees equal to scikit-learn's, better than a line."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from cstformer.baselines import BASELINES, GradientBoosting
from cstformer.baselines.boosting import Gaps
from cstformer.baselines.trees import Trees
from cstformer.datasets.oscillators import oscillator_task

NAN = np.nan


def test_features_worked_out_by_hand():
    times = np.array([[0.0, 1.0, 3.0, 4.0]])
    values = np.array([[[2.0, 10.0], [4.0, 99.0], [8.0, 30.0], [99.0, 50.0]]])
    seen = np.array([[[True, True], [True, False], [True, True], [False, True]]])
    gaps = Gaps(times, values, seen, np.array([[2.0, 1.0, 4.0, -1.0]]))
    # before, time since, after, time to, mean, count, time, linear value of both channels
    assert np.allclose(
        gaps.features(0)[0],
        [
            [4, 1, 8, 1, 14 / 3, 3, 2, 6, 10 + 20 * 2 / 3],
            [4, 0, 8, 2, 14 / 3, 3, 1, 4, 10 + 20 / 3],  # an observed value of the same time is the one before
            [8, 1, NAN, NAN, 14 / 3, 3, 4, 8, 50],
            [NAN, NAN, 2, 1, 14 / 3, 3, -1, 2, 10],
        ],
        equal_nan=True,
    )
    assert np.allclose(gaps.features(1)[0, 0], [10, 2, 30, 1, 30, 3, 2, 6, 10 + 20 * 2 / 3])
    assert gaps.guess(1)[0, 0] == pytest.approx(10 + 20 * 2 / 3)


def test_a_channel_that_was_never_seen():
    gaps = Gaps(np.array([[0.0, 1.0]]), np.ones((1, 2, 2)), np.array([[[True, False]] * 2]), np.array([[0.5]]))
    assert np.allclose(gaps.features(1)[0, 0], [NAN, NAN, NAN, NAN, NAN, 0, 0.5, 1, NAN], equal_nan=True)
    assert gaps.guess(1).tolist() == [[0.0]]


@pytest.fixture(scope="module")
def forest():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    x[rng.random(x.shape) < 0.2] = NAN
    y = np.nan_to_num(x[:, 0]) ** 2 + np.isnan(x[:, 1])
    models = [HistGradientBoostingRegressor(max_iter=12, random_state=0).fit(x, sign * y) for sign in (1, -1)]
    return x, models, Trees.of([models[0], None, models[1]], 12)


def test_trees_equal_those_of_scikit_learn(forest):
    x, models, trees = forest
    x = np.concatenate([x, x[:5] + 0.1])
    np.testing.assert_allclose(trees.sums(0, x), models[0].predict(x), atol=1e-12)
    np.testing.assert_allclose(trees.sums(2, x), models[1].predict(x), atol=1e-12)
    assert (trees.sums(1, x) == 0).all()


def test_damaged_trees_are_refused(forest):
    _, _, trees = forest
    good = trees.tensors()
    Trees.from_tensors(good, channels=3, features=3)
    loop, beyond = good["nodes"].clone(), good["nodes"].clone()
    loop[0, 3], beyond[0, 4] = 0, len(beyond)  # a node that is its own child would never end
    feature = good["nodes"].clone()
    feature[0, 0] = 3
    for nodes in (loop, beyond, feature, good["nodes"] * torch.nan):
        with pytest.raises(ValueError, match="nodes of the trees"):
            Trees.from_tensors(good | {"nodes": nodes}, channels=3, features=3)
    with pytest.raises(ValueError, match="roots of the trees"):
        Trees.from_tensors(good | {"roots": good["roots"] + 10**6}, channels=3, features=3)
    with pytest.raises(ValueError, match="for c=2"):
        Trees.from_tensors(good, channels=2, features=3)


def test_beats_a_line_on_coupled_oscillators():
    task = oscillator_task(train=150, scored=50, part="validation")

    def error(model):
        sums = task.errors(model.fit(task.train).predict(task.context, task.at))
        return sums["squared"].sum() / sums["cells"].sum()

    assert error(GradientBoosting(trees=100)) < 0.75 * error(BASELINES["linear"]())
