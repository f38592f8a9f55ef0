"""A movie between its frames: known motion, ends, derivatives in time, and a CST that starts from it."""

import math

import numpy as np
import pytest
import torch
from textures import SHIFTS, middle, movie

from cstformer import CST, Samples, frames_to_samples
from cstformer.errors import CSTError
from cstformer.starts.film import LEAST, USUAL, Film, shifted
from cstformer.starts.kinds import kind_of
from cstformer.starts.pixel_view import LOUDEST
from cstformer.taylor.series import constant


def film(frames, times=None) -> Film:
    batch, length = frames.shape[:2]
    times = torch.arange(length).to(frames) if times is None else torch.as_tensor(times).to(frames)
    return Film(times.expand(batch, -1), torch.ones(batch, length, dtype=torch.bool), frames)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("at", [0.25, 0.5])
def test_frames_in_between_are_far_better_than_a_blend(shift, at):
    frames, truth = movie(shift), movie(shift, times=(at,))
    guess = film(frames)(torch.tensor([[at]])).value[..., :3]
    blend = (1 - at) * frames[:, :1] + at * frames[:, 1:]
    error, of_blend = (float(middle(x - truth).square().mean()) for x in (guess, blend))
    assert error < 0.1 * of_blend  # of the smallest shift; what is left is cubic convolution


def test_the_pair_and_the_fraction_of_a_moment():
    """By hand: one pixel, 0, 1, 3 at the times 0, 1, 3, which fades from one to the next and stays beyond the ends."""
    frames = torch.tensor([0.0, 1.0, 3.0]).reshape(1, 3, 1, 1, 1)
    found = film(frames, [0.0, 1.0, 3.0])(torch.tensor([[-1.0, 0.0, 0.25, 1.0, 2.5, 3.0, 9.0]])).value[0, :, 0, 0]
    guess, rest, odds, unsure = found.unbind(-1)
    torch.testing.assert_close(guess, torch.tensor([0.0, 0.0, 0.25, 1.0, 2.5, 3.0, 3.0]))
    torch.testing.assert_close(rest, torch.tensor([-1.0, -1.0, -1.0, -2.0, -2.0, -2.0, -2.0]))
    torch.testing.assert_close(odds[[2, 4]] * LOUDEST, torch.tensor([math.log(3), -math.log(3)]))
    first, second = 0.75 * np.sqrt([1 + LEAST, 4 + LEAST]) / USUAL
    np.testing.assert_allclose(unsure, [0, 0, first, 0, second, 0, 0], rtol=1e-5)


def test_ends_are_the_frames():
    frames = torch.cat([movie(shift, times=(0, 1, 2), size=(16, 20)) for shift in SHIFTS[:2]])
    found = film(frames)(torch.tensor([[0.0, 1.0, 2.0]]).expand(2, -1)).value
    torch.testing.assert_close(found[..., :3], frames)


def test_frames_that_do_not_exist_are_not_shown():
    frames = movie(SHIFTS[0], times=(0, 1, 2), size=(16, 16))
    exists = torch.tensor([[True, True, False]])
    short = Film(torch.tensor([[0.0, 1.0, 0.0]]), exists, frames)(torch.tensor([[0.5, 1.0, 1.7]])).value
    torch.testing.assert_close(short[:, :2], film(frames[:, :2])(torch.tensor([[0.5, 1.0]])).value)
    torch.testing.assert_close(short[:, 2, ..., :3], frames[:, 1])
    exists = torch.tensor([[True, False, True]])  # hidden ones may lie in the middle
    hidden = Film(torch.tensor([[0.0, 0.0, 2.0]]), exists, frames)(torch.tensor([[0.5, 2.0]])).value
    torch.testing.assert_close(hidden, film(frames[:, ::2], [0.0, 2.0])(torch.tensor([[0.5, 2.0]])).value)
    one = film(frames[:, :1])(torch.tensor([[0.0, 4.0]])).value[..., :3]
    torch.testing.assert_close(one, frames[:, :1].expand_as(one))


def test_derivatives_in_time():
    """Taylor coefficients against nested automatic differentiation, in double precision."""
    movies = film(movie(SHIFTS[1], times=(0, 1, 2), size=(16, 16)).double(), [0.0, 0.7, 2.0])
    t = torch.tensor([[0.3, 0.9]], dtype=torch.float64, requires_grad=True)
    found = movies(t.detach(), order=3)
    weight = torch.randn(found.value.shape[2:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = (movies(t).value * weight).sum((2, 3, 4))
    for j in range(4):
        torch.testing.assert_close((found.coefs[j] * weight).sum((2, 3, 4)) * math.factorial(j), value.detach())
        if j < 3:
            value = torch.autograd.grad(value.sum(), t, create_graph=True)[0]


def test_frames_are_shifted_exactly_where_they_are_parabolas():
    x = torch.arange(12, dtype=torch.float64)
    y = (x**2 - 3 * x).reshape(1, 1, 1, 12, 1).expand(1, 1, 5, 12, 1)
    by = torch.tensor([0.0, 0.3], dtype=torch.float64).expand(1, 1, 5, 12, 2)
    torch.testing.assert_close(shifted(y, constant(by)).value[0, 0, 2, 2:-2, 0], ((x + 0.3) ** 2 - 3 * (x + 0.3))[2:-2])


def test_edges_continue():
    y = torch.arange(4.0).reshape(1, 1, 1, 4, 1)
    assert shifted(y, constant(torch.tensor([0.0, 9.0]).expand(1, 1, 1, 4, 2))).value.flatten().tolist() == [3.0] * 4


def samples(**kwargs):
    return frames_to_samples(movie((0.8, -1.2), times=(0, 1, 2, 3), size=(16, 16)).numpy(), patch=(4, 4), **kwargs)


@pytest.fixture(scope="module")
def model():
    """Untrained: three steps of size zero."""
    settings = {"start": "motion", "order": 0, "steps": 3, "learning_rate": 0.0, "hide": 0.5, "validation": 0.0}
    return CST.preset("smoke", **settings).fit(samples())


def test_an_untrained_model_is_the_film(model):
    context = samples()
    at = np.array([[1.5, 5.5, 9.5], [2.25, 1.5, 1.5]])
    found = model.predict(context, at)[0].reshape(2, 4, 4, 3)
    frames = (torch.from_numpy(context.values.reshape(1, 4, 4, 4, 4, 4, 3)).float()).permute(0, 1, 2, 4, 3, 5, 6)
    frames = frames.reshape(1, 4, 16, 16, 3)
    mean, sd = (torch.from_numpy(x.reshape(4, 4, 3)[0, 0]).float() for x in (model.scaling_.mean, model.scaling_.sd))
    truth = mean + sd * film((frames - mean) / sd)(torch.tensor([[1.5, 2.25]])).value[..., :3]
    np.testing.assert_allclose(found[0], truth[0, 0, 4:8, 8:12], atol=1e-5)
    np.testing.assert_allclose(found[1], truth[0, 1, 0:4, 0:4], atol=1e-5)


def test_it_has_derivatives(model):
    """∂/∂t and ∂/∂row against differences of the answers, between pixels too."""
    context, at = samples(), np.array([[1.4, 6.1, 8.3]])
    step = 1e-2
    for axis, index in ((0, (1, 0, 0)), (1, (0, 1, 0))):
        move = step * np.eye(3)[axis]
        found = model.derivative(context, at, index)
        rough = (model.predict(context, at + move) - model.predict(context, at - move)) / (2 * step)
        np.testing.assert_allclose(found, rough, atol=2e-3 + 0.02 * np.abs(rough).max())


def test_many_moments_are_answered_a_few_at_a_time(model, monkeypatch):
    context = samples()
    at = np.column_stack([np.linspace(0, 3, 9), np.full(9, 5.5), np.full(9, 5.5)])
    whole = model.predict(context, at)
    monkeypatch.setattr("cstformer.starts.frame_start._FILM_PIXELS", 600)
    np.testing.assert_allclose(model.predict(context, at), whole, atol=1e-6)


def test_it_is_kept_with_the_model(model, tmp_path):
    model.save(tmp_path / "model")
    at = np.array([[1.5, 5.5, 9.5]])
    np.testing.assert_array_equal(CST.load(tmp_path / "model").predict(samples(), at), model.predict(samples(), at))


def test_training_improves_what_is_hidden():
    settings = {"start": "motion", "order": 0, "noise": 0.0, "hide": 0.5, "validation": 0.0, "learning_rate": 3e-3}
    movies = torch.cat([movie(s, times=range(5), size=(16, 16), seed=i) for i, s in enumerate(SHIFTS)]).numpy()
    given = frames_to_samples(movies[:, ::2], patch=(4, 4), times=[0, 2, 4])
    truth = frames_to_samples(movies[:, 1::2], patch=(4, 4), times=[1, 3])
    errors = []
    for steps in (1, 200):
        fitted = CST.preset("smoke", **settings, steps=steps).fit(frames_to_samples(movies, patch=(4, 4)))
        errors.append(np.square(fitted.predict(given, truth.coords[0]) - truth.values).mean())
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("gain, kept", [(0.01, False), (0.1, True)])
def test_a_network_that_hardly_improves_on_the_motion_is_not_kept(gain, kept, model, monkeypatch):
    """Its gain may be that of one recording's motion alone."""
    scores = iter([1.0] + [1 - gain] * 99)
    monkeypatch.setattr("cstformer.training.objective.Validation.score", lambda self: next(scores))
    settings = {"start": "motion", "order": 0, "noise": 0.0, "hide": 0.5, "validation": 0.0, "learning_rate": 3e-3}
    fitted = CST.preset("smoke", **settings, steps=5).fit(samples())
    at = np.array([[1.5, 5.5, 9.5]])
    same = np.allclose(fitted.predict(samples(), at), model.predict(samples(), at), atol=1e-6)
    assert (same, fitted.report_.useless) == (not kept, not kept)


def test_networks_on_motion_are_judged_by_wider_gaps_than_others():
    kind = kind_of(samples())
    assert kind.judging("motion", 0.5)[0] > kind.judging("smooth", 0.5)[0] == 0.5
    assert kind.judging("smooth", 0.3) == (0.3, 0.0)


def test_curves_and_joint_attention_are_refused():
    curves = Samples(np.linspace(0, 1, 8), np.random.default_rng(0).normal(size=(4, 8)))
    for data, pattern in ((curves, "context"), (samples(), "joint")):
        with pytest.raises(CSTError, match="start='motion' is for frames"):
            CST.preset("smoke", start="motion", steps=2, pattern=pattern).fit(data)
