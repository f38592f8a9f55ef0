"""fit(samples, given=…): trained on pairs of what is given and what is asked for; and the median start."""

import numpy as np
import pytest
import torch
from small_models import blob, fit_quickly, waves

from cstformer import CST, Samples
from cstformer.baselines import BASELINES
from cstformer.data.patches import frame_queries, frames_to_samples, samples_to_frames
from cstformer.datasets.corruption import corrupt
from cstformer.errors import CSTError

TINY = {"width": 16, "layers": 2, "heads": 2, "feedforward": 16, "batch": 4, "hide": 0.0, "order": 0}


def movies(count=6):
    """Moving blobs of three colours in [0, 1]; each movie has a ground of its own."""
    ground = np.random.default_rng(0).random((count, 1, 1, 1, 3))
    return 0.5 * (blob(4, 12, 12, 1)[None] - 100) / 50 + 0.5 * ground


def pixels(frames, generator):
    return corrupt(frames, generator)[0]


@pytest.fixture(scope="module")
def model():
    made = CST(**TINY, start="median", precision="float64", steps=6, seed=1)
    return fit_quickly(made, frames_to_samples(movies(), (4, 4)), given=pixels)


def context(seed=3):
    given = pixels(torch.from_numpy(movies(2)), torch.Generator().manual_seed(seed)).numpy()
    return frames_to_samples(given, (4, 4))


def test_an_offset_of_what_is_given_is_learned():
    """Given is the curve plus 30: without pairs the answer would be too high by 30."""
    samples = waves(12)
    shifted = Samples(samples.coords, samples.values + 30)
    settings = {"width": 16, "layers": 1, "heads": 2, "feedforward": 16, "steps": 150, "start": "linear", "seed": 0}
    made = fit_quickly(CST(**settings, order=0), samples, given=lambda y, _: y + 30)
    error = made.predict(shifted, samples.coords) - samples.values
    assert abs(error.mean()) < 5 < 30


def test_each_step_draws_anew_and_a_run_is_a_function_of_its_seed():
    drawn: list[float] = []

    def spy(frames, generator):
        y = pixels(frames, generator)
        drawn.append(float((y - frames).abs().sum()))
        return y

    samples = frames_to_samples(movies(), (4, 4))
    fitted = [fit_quickly(CST(**TINY, start="linear", steps=3), samples, given=spy) for _ in range(2)]
    half = len(drawn) // 2
    assert drawn[:half] == drawn[half:] and len(set(drawn[:half])) == half >= 4
    at = frame_queries(samples.layout, [1.5])
    assert (fitted[0].predict(context(), at) == fitted[1].predict(context(), at)).all()


def test_given_sees_frames_in_the_users_units():
    seen = []

    def spy(frames, generator):
        seen.append(frames)
        return pixels(frames, generator)

    fit_quickly(
        CST(**TINY, start="median", steps=1, precision="float64"), frames_to_samples(movies(), (4, 4)), given=spy
    )
    assert all(x.shape[1:] == (4, 12, 12, 3) for x in seen)
    truth = {movie.tobytes() for movie in np.round(movies(), 9)}
    assert {np.round(movie.numpy(), 9).tobytes() for x in seen for movie in x} <= truth


def test_the_median_start_is_where_an_untrained_network_begins():
    given = context()
    made = CST(**TINY, start="median", precision="float64", steps=2, learning_rate=0.0)
    model = fit_quickly(made, frames_to_samples(movies(), (4, 4)), given=pixels)
    guess = model.kind_.trust.guess(
        torch.from_numpy((samples_to_frames(given) - model.scaling_.mean[:3]) / model.scaling_.sd[:3])
    )
    guess = guess.numpy() * model.scaling_.sd[:3] + model.scaling_.mean[:3]
    answer = samples_to_frames(model.predict(given, frame_queries(given.layout, np.arange(4.0))), given.layout)
    np.testing.assert_allclose(answer, guess, atol=1e-9)
    assert np.square(answer - movies(2)).mean() < 0.2 * np.square(samples_to_frames(given) - movies(2)).mean()


@pytest.mark.parametrize("index", [(1, 0, 0), (0, 1, 0), (0, 1, 1), (0, 0, 2)])
def test_derivatives_of_the_gated_answer(model, index):
    at, step = np.array([[1.3, 5.2, 6.1], [2.6, 3.4, 7.3]]), 1e-4
    found = model.derivative(context(), at, index)
    axis = int(np.flatnonzero(index)[-1])
    less = tuple(k - (i == axis) for i, k in enumerate(index))
    move = step * np.eye(3)[axis]
    plus, minus = (model.derivative(context(), at + sign * move, less) for sign in (1, -1))
    np.testing.assert_allclose(found, (plus - minus) / (2 * step), atol=1e-5 * max(1, np.abs(found).max()))


def test_saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model")
    at = frame_queries(context().layout, [0.5])
    assert (CST.load(tmp_path / "model").predict(context(), at) == model.predict(context(), at)).all()


@pytest.mark.parametrize("name", ["convgru", "vit3d", "vivit"])
def test_rivals_learn_from_pairs(name):
    """Given is the movie plus 0.2, which a rival that begins with copying must take off."""
    samples = frames_to_samples(movies(), (4, 4))
    rival = BASELINES[name].preset("smoke", steps=60, hide=0.0, skip=True, learning_rate=1e-2, seed=0)
    rival.fit(samples, given=lambda frames, _: frames + 0.2)
    shifted = frames_to_samples(movies() + 0.2, (4, 4))
    error = rival.predict(shifted, samples.coords) - samples.values
    assert abs(error.mean()) < 0.1


def test_what_cannot_be_used_is_refused(model):
    samples = frames_to_samples(movies(), (4, 4))
    for settings, data, options in (
        ({}, samples, {}),
        ({}, waves(), {"given": lambda y, _: y}),
        ({"pattern": "joint"}, samples, {"given": pixels}),
    ):
        with pytest.raises(CSTError, match="start='median' is for frames"):
            CST(start="median", **settings).fit(data, **options)
    with pytest.raises(CSTError, match="2 processes cannot share"):
        CST(devices=2).fit(samples, given=pixels)
    with pytest.raises(CSTError, match=r"given must return a tensor .* got shape \(16, 1"):
        fit_quickly(CST(**TINY, start="linear"), samples, given=lambda y, _: y[:, :1])
    with pytest.raises(CSTError, match="values cannot replace the initial values"):
        model.attention(context(), [[1.0, 5.5, 5.5]], values=np.zeros((2, 1, 48)))
