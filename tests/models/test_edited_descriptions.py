"""Edits of model.json: whatever is written into any entry, the model is refused in one line or answers with numbers."""

import copy
import json

import numpy as np
import pytest
import torch
from small_models import blob, fit_quickly, shaken, wave_model, waves

from cstformer import CST, CSTError, Samples, frames_to_samples
from cstformer.models.model_files import DESCRIPTION

WRONG = (None, "x", -1, 0, 1e308, float("nan"), [], {}, [1, 2, 3])
PRIOR = ("scaling", "kernel", "noises", "waves", "trust", "names", "layout", "noise", "mu", "cells", "d", "c")


def curves():
    return wave_model(), waves(), np.linspace(2.1, 4.6, 3)


def heavy_tails():
    rng = np.random.default_rng(0)
    samples = Samples(np.sort(rng.random((8, 9)), 1), np.exp(2 * rng.normal(size=(8, 9, 2))))
    return fit_quickly(CST.preset("smoke", steps=1, scaling="robust"), samples), samples, [0.3, 0.4]


def movie():
    samples = frames_to_samples(blob(5, 6, 5), (4, 4))
    return shaken(fit_quickly(CST.preset("smoke", steps=1), samples)), samples, [[1.5, 1.5, 2.0]]


def median_movie():
    samples = frames_to_samples(blob(6, 8, 8), (4, 4))
    model = CST.preset("smoke", steps=1, start="median", batch=1)

    def given(x, generator):
        return torch.where(torch.rand(x.shape, generator=generator) < 0.3, 100.0, x)

    return fit_quickly(model, samples, given=given), samples, [[1.5, 1.5, 1.5]]


def entries(x, path=()):
    """Paths of all entries; of a list the first one alone, because the others are like it."""
    for key in x if isinstance(x, dict) else range(len(x))[:1]:
        yield (*path, key)
        if isinstance(x[key], dict | list):
            yield from entries(x[key], (*path, key))


def edited(about, path, value):
    new = copy.deepcopy(about)
    place = new
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return new


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [curves, heavy_tails, movie, median_movie], ids=lambda f: f.__name__)
def test_an_edit_is_refused_or_harmless(make, tmp_path):
    model, context, at = make()
    folder = tmp_path / "model"
    model.save(folder)
    about = json.loads((folder / DESCRIPTION).read_text())
    assert np.isfinite(CST.load(folder).predict(context, at)).all()
    refused = 0
    for path in entries({k: v for k, v in about.items() if k in PRIOR}):
        for value in WRONG:
            (folder / DESCRIPTION).write_text(json.dumps(edited(about, path, value)))
            try:
                answer = CST.load(folder).predict(context, at)
            except CSTError as error:
                assert "\n" not in str(error)
                refused += 1
            else:
                assert np.isfinite(answer).all(), (path, value)
    assert refused > 100
