"""What the explorer computes, without a page: against the estimator, closed forms and numbers worked out by hand."""

import copy
import itertools

import numpy as np
import pytest
from small_models import blob, fit_quickly, shaken, wave_model, waves

from cstformer import CST, CSTError, Samples, frames_to_samples
from cstformer.explorer import curves, fields
from cstformer.explorer.curves import Changes
from cstformer.models.calibration import Calibration


@pytest.fixture(scope="module")
def film_model():
    """A model of small frames, all of whose weights are at work, and its samples."""
    samples = frames_to_samples(blob(), patch=(4, 3), window=5, stride=2)
    return shaken(fit_quickly(CST.preset("smoke", steps=1, precision="float64"), samples)), samples


@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_a_reader_answers_as_the_estimator_does(pattern):
    model, sample = wave_model(pattern=pattern), waves()[2]
    at, orders = np.linspace(2.1, 4.9, 9)[:, None], [(0,), (1,), (2,)]
    reader = model.reader(sample)
    expected = model.derivatives(sample, at[None], orders)
    for _ in range(2):  # what is kept is not changed by being asked
        for found, known in zip(reader.partials(at, orders), expected, strict=True):
            np.testing.assert_allclose(found, known, rtol=1e-10, atol=1e-10)
    maps = model.attention(sample, at[None]).maps[0]
    np.testing.assert_allclose(reader.attention(at)[0], maps[:, :, -9:, : sample.n], atol=1e-12)


def test_a_reader_takes_samples_that_fit():
    with pytest.raises(CSTError, match="1 channels; the model was fitted with 1 and 2"):
        wave_model().reader(waves(channels=1)[0])


# --- Curves ---


def test_interpolants_of_a_parabola_are_exact():
    t, at = np.array([0.0, 0.7, 1.5, 2.0]), np.array([0.0, 0.35, 1.9, 2.0, 2.5])
    found = curves.interpolants(Samples(t, (3 * t**2 - t)[None]), at)
    np.testing.assert_allclose(found["cubic"][0, :4, 0], 3 * at[:4] ** 2 - at[:4], atol=1e-12)
    np.testing.assert_allclose(found["cubic"][1, :4, 0], 6 * at[:4] - 1, atol=1e-11)
    np.testing.assert_allclose(found["cubic"][2, :4, 0], 6, atol=1e-10)
    slopes = np.diff(3 * t**2 - t) / np.diff(t)
    np.testing.assert_allclose(found["linear"][1, :4, 0], slopes[[0, 0, 2, 2]], atol=1e-12)
    assert np.isnan(found["linear"][2]).all()
    # Outside of its points a curve is held.
    assert [found[k][0, 4, 0] for k in found] == [found[k][0, 3, 0] for k in found]
    assert found["cubic"][1, 4, 0] == found["cubic"][2, 4, 0] == 0


def test_interpolants_take_each_channel_at_its_own_points():
    y = np.array([[0.0, 5.0], [1.0, np.nan], [4.0, 9.0]])
    found = curves.interpolants(Samples([0.0, 1.0, 2.0], y[None]), np.array([1.0]))
    assert found["linear"][0, 0].tolist() == [1.0, 7.0]


def test_noise_grows_and_gaps_stay_where_they_are():
    sample, sd = waves(1, 9)[0], np.array([10.0, 20.0])
    added = {n: curves.disturbed(sample, Changes(noise=n, seed=3), sd).values - sample.values for n in (0.0, 0.1, 0.2)}
    assert not added[0.0].any()
    np.testing.assert_allclose(added[0.2], 2 * added[0.1], atol=1e-12)
    assert 0.05 < np.std(added[0.1] / sd) < 0.2
    assert (curves.disturbed(sample, Changes(noise=0.1, seed=4), sd).values - sample.values != added[0.1]).all()
    keep = [curves.kept(sample, Changes(removed=k, seed=3)) for k in range(8)]
    assert [k.sum() for k in keep] == [9, 8, 7, 6, 5, 4, 3, 2]
    assert all((more <= fewer).all() for fewer, more in itertools.pairwise(keep))
    assert keep[-1].tolist() == [True] + 7 * [False] + [True]  # the ends stay


def test_a_click_takes_a_point_away_and_gives_it_back():
    sample = waves(1, 5)[0]
    gone = np.flatnonzero(~curves.kept(sample, Changes(removed=1)))[0]
    assert curves.kept(sample, Changes(removed=1, clicked=frozenset({int(gone)}))).all()
    assert curves.kept(sample, Changes(clicked=frozenset({0, 99}))).tolist() == [False] + 4 * [True]
    with pytest.raises(CSTError, match="two points at least"):
        curves.kept(sample, Changes(clicked=frozenset(range(4))))


def test_a_curve_can_be_saved_with_its_derivatives(tmp_path):
    sample = waves()[1]
    at = np.linspace(2, 5, 11)
    found = curves.curves(wave_model().reader(sample), at)
    saved = curves.as_samples(at, found["CST"], sample)
    assert saved.value_names == ("y0", "y1", "y0_t", "y1_t", "y0_tt", "y1_tt")
    assert saved.units == {"t": "s", "y0": "mV", "y0_t": "mV/s", "y1_t": "1/s", "y0_tt": "mV/s²", "y1_tt": "1/s²"}
    np.testing.assert_array_equal(saved.values[0, :, 2:4], found["CST"][1])


# --- Frames ---


def test_a_film_has_the_frames_and_times_that_were_cut():
    movie = blob()
    movie[:, :2, :3] = np.nan  # never observed
    film = fields.Recording(frames_to_samples(movie, patch=(4, 3), window=5, stride=4)[1])
    np.testing.assert_array_equal(film.frames[..., 0], movie[4:9])
    assert film.times.tolist() == [0, 1, 2, 3, 4] and film.nearest(2.6) == 3
    assert not film.exists[:2, :3].any() and film.exists.sum() == 90 - 6
    with pytest.raises(CSTError, match="points, not frames"):
        _ = fields.Recording(waves()[0]).layout


def test_pictures_are_the_models_partial_derivatives(film_model):
    model, samples = film_model
    reader, t = model.reader(samples[0]), 1.3
    found = fields.pictures(reader, t, gradient=True)[..., 0]
    assert found.shape == (4, 10, 9)
    # A patch of the grid, by the estimator: its pixels (the lower rows are blended with the last patch) and slopes.
    at = np.array([[t, 5.5, 4.0]])
    for k, index in enumerate([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]):
        known = model.derivative(samples[0], at, index)[0, 0].reshape(4, 3)
        np.testing.assert_allclose(found[k, 4:6, 3:6], known[:2], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fields.pictures(reader, t, slope=False)[0, ..., 0], found[0], rtol=1e-9)


def test_a_finer_picture_agrees_where_pixels_coincide(film_model):
    reader = film_model[0].reader(film_model[1][0])
    coarse, fine = (fields.pictures(reader, 2.0, zoom)[0, ..., 0] for zoom in (1, 3))
    assert fine.shape == (28, 25)
    np.testing.assert_allclose(fine[::3, ::3], coarse, rtol=1e-9)


def test_the_trace_of_a_pixel_runs_through_its_pictures(film_model):
    reader = film_model[0].reader(film_model[1][0])
    trace = fields.pixel_trace(reader, (5, 4), np.array([0.4, 2.2]))[..., 0]
    for k, t in enumerate((0.4, 2.2)):
        np.testing.assert_allclose(trace[k], fields.pictures(reader, t, slope=False)[0, 5, 4, 0], rtol=1e-9)


def test_the_band_of_a_pixel_is_the_interval_of_its_patch(film_model):
    model, samples = copy.copy(film_model[0]), film_model[1]
    times, one = np.array([0.4, 2.2]), np.ones(1)
    model.calibration_ = None
    assert fields.pixel_band(model, samples[0], (5, 4), times) is None
    count = np.arange(20)
    model.calibration_ = Calibration(one, 0.1 * one, 0 * one, count / 10, count, 0 * count)
    level, low, high = fields.pixel_band(model, samples[0], (5, 4), times)
    at = np.array([[t, 5.5, 4.0] for t in times])  # patches of 4 × 3 pixels: the second row and column of this one
    for bound, known in zip((low, high), model.interval(samples[0], at, 0.9), strict=True):
        np.testing.assert_allclose(bound[:, 0], known[0].reshape(2, 4, 3)[:, 1, 1])
    assert level == 0.9 and (low < high).all()


def test_wave_velocity_of_a_plane_wave_is_its_own():
    # u = sin(k·x − ωt) moves along k with ω / |k|.
    rows, cols = np.meshgrid(np.linspace(0, 5, 40), np.linspace(0, 5, 50), indexing="ij")
    k, omega = np.array([0.6, -0.8]), 1.7
    phase = k[0] * rows + k[1] * cols - omega * 0.3
    velocity = fields.wave_velocity(-omega * np.cos(phase), k[:, None, None] * np.cos(phase))
    steep = np.abs(np.cos(phase)) > fields.FLAT * 1.01
    np.testing.assert_allclose(velocity[:, steep], np.broadcast_to(omega * k[:, None], (2, steep.sum())), rtol=1e-12)
    assert np.isnan(velocity[:, np.abs(np.cos(phase)) < fields.FLAT * 0.99]).all()
    ends = fields.arrows(velocity, zoom=2)
    direction = np.stack([ends["y1"] - ends["y0"], ends["x1"] - ends["x0"]])
    np.testing.assert_allclose(
        direction / np.hypot(*direction), np.broadcast_to(k[:, None], direction.shape), rtol=1e-9
    )


def test_arrows_stay_away_from_what_does_not_move():
    still = fields.wave_velocity(np.zeros((8, 8)), np.ones((2, 8, 8)))
    assert all(len(ends) == 0 for ends in fields.arrows(still, 1).values())


def test_attention_is_laid_out_as_its_tokens_are(film_model):
    model, samples = film_model
    reader = model.reader(samples[0])
    times, tiles = fields.attention_frames(reader, (1.3, 5.5, 4.0))
    assert times.tolist() == [0, 1, 2, 3, 4] and tiles.shape == (5, 3, 3)
    assert np.isclose(tiles.mean(), 1)  # rows of attention sum to one
    known = model.attention(samples[0], np.array([[1.3, 5.5, 4.0]]))
    one = np.flatnonzero((known.columns[0] == [3.0, 5.5, 7.0]).all(1)).item()
    second = fields.attention_frames(reader, (1.3, 5.5, 4.0), layer=1)[1]
    assert np.isclose(second[3, 1, 2], known.maps[0, 1, :, 0, one].mean() * 45)


def test_a_picture_can_be_saved_with_its_slope(film_model):
    model, samples = film_model
    reader, film = model.reader(samples[0]), fields.Recording(samples[0])
    picture = fields.pictures(reader, 1.3, zoom=2)
    saved = fields.as_samples(picture, 1.3, 2, film)
    assert saved.coords[0, 18].tolist() == [1.3, 0.5, 0.5] and saved.units["row"] == "pixel"
    assert saved.values[0, 18].tolist() == picture[:, 1, 1, 0].tolist()


def test_what_was_never_observed_is_not_shown():
    exists = np.array([[True, False], [True, True]])
    shown = fields.outside_hidden(np.ones((3, 3, 1)), exists, 2)
    assert np.isnan(shown[..., 0]).tolist() == [[False, True, True], [False, False, False], [False, False, False]]
    xs, ys = fields.outline(exists)
    assert sorted(zip(xs, ys, strict=True)) == [([0.5, 0.5], [-0.5, 0.5]), ([0.5, 1.5], [0.5, 0.5])]
    assert fields.outline(np.ones((2, 2), dtype=bool)) == ([], [])
