"""Answers of a model in the user's shape: samples and movies."""

import numpy as np
import pytest
from small_models import blob, fit_quickly, linear_model, named_waves, refused, wave_model

from cstformer import CST, CSTWarning, frames_to_samples
from cstformer.data.checks import extrapolation
from cstformer.models.answers import predict_samples
from cstformer.models.movie_answers import predict_movie


@pytest.fixture(scope="module")
def context():
    return named_waves()


def test_answers_are_samples_with_names_ids_and_units(context):
    model = wave_model()
    at = np.array([[[3.0], [0.0]], [[0.0], [0.0]], [[3.5], [2.7]]])
    real = np.array([[True, False], [False, False], [True, True]])
    answer = predict_samples(model, context, at, real, (0,))  # the padding at 0 must not warn of extrapolation
    assert answer.sample_ids == ("a", "7")
    assert answer.coord_names == ("t",)
    assert answer.value_names == ("y0", "y1")
    assert answer.units == {"t": "s", "y0": "mV"}
    assert answer.point_observed.tolist() == [[True, False], [True, True]]
    expected = model.predict(context, [3.0, 3.5, 2.7])
    assert np.allclose(answer.values[0, 0], expected[0, 0], atol=1e-9)
    assert np.allclose(answer.values[1], expected[2, 1:], atol=1e-9)


def test_derivatives_do_not_keep_the_unit_of_the_values(context):
    answer = predict_samples(wave_model(), context, np.full((3, 1, 1), 3.0), np.ones((3, 1), dtype=bool), (1,))
    assert answer.units == {"t": "s"}
    assert np.allclose(answer.values, wave_model().derivative(context, [3.0], (1,)), atol=1e-9)


# Movies


def start_model(movie, window: int, patch=(4, 4), times=None) -> CST:
    """A movie model that answers with its linear start, so that the right answer is known."""
    return linear_model(frames_to_samples(movie, patch, window, 1, times=times))


@pytest.mark.parametrize("window", [2, 3, 5, 9])
def test_any_time_of_a_recording_is_inside_a_window(window, recwarn):
    movie = blob(9, 6, 7)
    at = np.array([0.0, 0.4, 1.0, 1.4, 1.6, 4.5, 5.75, 7.9, 8.0])
    frames = predict_movie(start_model(movie, window), movie, None, at)
    below = np.minimum(at.astype(int), 7)
    share = (at - below)[:, None, None]
    assert frames.shape == (9, 6, 7, 1)
    assert np.allclose(frames[..., 0], (1 - share) * movie[below] + share * movie[below + 1], atol=1e-8)
    assert not [w for w in recwarn if issubclass(w.category, CSTWarning)]


def test_times_of_the_recording_and_order_of_the_queries():
    movie, clock = blob(6, 8, 8, 2), np.array([10.0, 10.5, 11.0, 11.5, 12.0, 12.5])
    frames = predict_movie(start_model(movie, 3, times=clock), movie, clock, np.array([12.5, 10.0, 11.25]))
    assert np.allclose(frames, [movie[5], movie[0], (movie[2] + movie[3]) / 2], atol=1e-8)


def test_slope_in_time_is_per_unit_of_time():
    movie, clock = blob(6, 8, 8), np.arange(6) * 0.5
    slope = predict_movie(start_model(movie, 3, times=clock), movie, clock, np.array([1.25]), (1, 0, 0))
    assert np.allclose(slope[0, ..., 0], (movie[3] - movie[2]) / 0.5, atol=1e-8)


def test_a_model_fitted_without_windows(recwarn):
    movie, clock = blob(5, 8, 8), np.arange(100.0, 105.0)
    samples = frames_to_samples(movie, (4, 4), times=clock)
    model = fit_quickly(CST.preset("smoke", steps=1), samples)
    assert np.isfinite(predict_movie(model, movie, clock, np.array([101.5]))).all()
    assert not [w for w in recwarn if issubclass(w.category, CSTWarning)]


def test_beyond_the_recording_warns():
    movie = blob(5, 8, 8)
    model, at = start_model(movie, 3), np.array([6.0])
    refused(lambda: predict_movie(model, movie, None, at), "outside the training domain by up to 100.0%", "'t'")
    with extrapolation(), pytest.warns(CSTWarning, match="outside the training domain by up to 100.0% .* 't'"):
        predict_movie(model, movie, None, at)


def test_bad_movies():
    movie = blob(5, 8, 8)
    model = start_model(movie, 3)
    at = np.array([1.0])
    refused(lambda: predict_movie(wave_model(), movie, None, at), "was not fitted on a movie")
    refused(
        lambda: predict_movie(model, movie[:, :6], None, at),
        "(5, 6, 8, 1)",
        "frames of (8, 8) pixels with 1 channel",
    )
    refused(lambda: predict_movie(model, blob(5, 8, 8, 3), None, at), "(5, 8, 8, 3)")
    refused(lambda: predict_movie(model, movie, None, np.array([np.nan])), "a movie is asked at times (m,)")
    refused(lambda: predict_movie(model, movie, None, np.zeros((0,))), "a movie is asked at times (m,)")
    refused(lambda: predict_movie(model, movie * np.nan, None, at), "no value is observed")
