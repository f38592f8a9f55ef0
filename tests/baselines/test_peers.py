"""SAITS and BRITS of PyPOTS: how samples become sequences, and a short training where the package is installed."""

import numpy as np
import pytest

from cstformer.baselines import peers
from cstformer.baselines.peers import Grid, impute
from cstformer.data.samples import Samples
from cstformer.datasets.oscillators import oscillator_task
from cstformer.errors import CSTError

NAN = np.nan


def test_samples_on_one_grid_keep_it():
    train = Samples([0.0, 1.0, 2.0, 3.0], [[1.0, NAN, 3.0, 4.0], [5.0, 6.0, NAN, NAN]])
    at = np.array([[[1.0], [3.0]], [[2.0], [2.0]]])
    grid = Grid.of(train, train, at)
    values, places = grid.sequences(train, at)
    assert grid.times.tolist() == [0, 1, 2, 3] and places.tolist() == [[1, 3], [2, 2]]
    assert np.array_equal(values[..., 0], [[1, NAN, 3, 4], [5, 6, NAN, NAN]], equal_nan=True)


def test_other_samples_get_their_own_steps_and_time_as_a_channel():
    context = Samples.from_list([([0.0, 4.0], [1.0, 2.0]), ([1.0, 3.0, 7.0], [5.0, 6.0, 7.0])])
    at = np.array([[[2.0], [5.0]], [[2.0], [2.0]]])
    grid = Grid.of(context, context, at)
    values, places = grid.sequences(context, at)
    assert grid.times is None and places.tolist() == [[1, 3], [1, 1]]
    assert np.array_equal(values[0], [[1, 0], [NAN, 2], [2, 4], [NAN, 5]], equal_nan=True)
    assert np.array_equal(values[1], [[5, 1], [NAN, 2], [6, 3], [7, 7]], equal_nan=True)


def test_hidden_cells_are_hidden_and_time_is_not():
    values = np.ones((50, 20, 3))
    cells, steps = (peers._hide(values, points, 2, seed=0) for points in (False, True))
    assert np.isnan(cells[..., :2]).mean() == pytest.approx(0.2, abs=0.03) and not np.isnan(cells[..., 2]).any()
    assert (np.isnan(steps[..., 0]) == np.isnan(steps[..., 1])).all() and not np.isnan(steps[..., 2]).any()
    assert np.isnan(steps[..., 0]).mean() == pytest.approx(0.2, abs=0.03)


def test_clear_errors(monkeypatch):
    task = oscillator_task(train=6, scored=2, points=8)
    with pytest.raises(CSTError, match="unknown peer 'SAIT'; did you mean 'SAITS'"):
        impute("SAIT", task.train, task.context, task.at, 0.1)
    monkeypatch.setattr(peers, "peers_installed", lambda: False)
    with pytest.raises(CSTError, match=r"pip install .cstformer\[peers\]"):
        impute("SAITS", task.train, task.context, task.at, 0.1)


@pytest.mark.skipif(not peers.peers_installed(), reason=peers.MISSING)
@pytest.mark.parametrize(
    "name, sizes", [("SAITS", {"d_model": 32, "d_k": 8, "d_v": 8}), ("BRITS", {"rnn_hidden_size": 32})]
)
def test_a_short_training_beats_the_mean(name, sizes, capfd):
    """Each sample is a constant, the same in both channels."""
    rng = np.random.default_rng(0)
    truth = np.broadcast_to(rng.normal(size=(80, 1, 1)), (80, 12, 2))
    kept = np.where(rng.random(truth.shape) < 0.3, np.nan, truth)
    t = np.arange(12.0)
    train, context = Samples(t, kept[:60]), Samples(t, kept[60:])
    done = impute(name, train, context, np.tile(t[:, None], (20, 1, 1)), 0.15, sizes=sizes)
    error = (done.values - truth[60:])[np.isnan(kept[60:])]
    assert np.square(error).mean() < 0.6 * np.square(truth[60:]).mean()
    assert done.steps > 10 and done.parameters > 1000 and done.seconds >= 9
    assert capfd.readouterr() == ("", "")
