"""A missing cell is predicted from the other channels at the same time, because training hides single cells."""

import numpy as np
import pytest
import torch

from cstformer import CST, Samples
from cstformer.starts.kinds import kind_of


def coupled(count: int = 60, points: int = 12, seed: int = 0) -> tuple[Samples, np.ndarray, np.ndarray]:
    """Two channels of white noise in time, the second a function of the first; a fifth of the cells is missing."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(count, points))
    values = np.stack([a, 3 - 2 * a], -1)
    missing = rng.random(values.shape) < 0.2
    missing[missing.all(-1)] = False  # a point with nothing observed says nothing
    return Samples(np.arange(points, dtype=float), np.where(missing, np.nan, values)), values, missing


def error(hide_cells: float | str) -> float:
    """Error of the missing cells of unseen samples, over their spread."""
    settings = dict(steps=400, order=0, start="linear", noise=0.0, nearness="always", learning_rate=5e-3)
    model = CST.preset("smoke", hide_cells=hide_cells, **settings).fit(coupled()[0])
    context, values, missing = coupled(seed=1)
    found = model.predict(context, context.coords)
    return float(np.std((found - values)[missing]) / np.std(values[missing]))


def test_a_missing_cell_is_predicted_from_the_other_channel():
    """Nothing in time helps: who hides whole points alone never learns to look at the other channel."""
    with_cells = error("auto")
    assert with_cells < 0.35
    assert error(0.0) > 2 * with_cells


def test_the_share_of_cells_mirrors_the_gaps():
    def gaps(samples: Samples) -> float:
        kind = kind_of(samples)
        return kind.cell_gaps(kind.batch(samples, torch.float64, torch.device("cpu")))

    t, y = np.arange(6.0), np.ones((4, 6, 2)) * np.arange(6.0)[:, None]
    assert gaps(Samples(t, y)) == 0.0  # nothing is missing
    cells = y.copy()
    cells[:, ::2, 1] = np.nan
    assert gaps(Samples(t, cells)) == 0.9  # single cells alone
    cells[1:, 3:] = np.nan  # and three whole points of three samples: 18 cells beside 9 single ones
    assert gaps(Samples(t, cells)) == pytest.approx(9 / 27)


def test_a_loaded_model_remembers_its_share_of_cells(tmp_path):
    model = CST.preset("smoke", steps=1).fit(coupled()[0])
    model.save(tmp_path / "model")
    assert CST.load(tmp_path / "model").cells_ == model.cells_ == 0.9
