"""Whole recordings, answered in windows: the weights, the blend and its derivatives, and where windows begin."""

import itertools

import numpy as np
import pytest
from small_models import linear_model, refused

from cstformer import CST, Samples
from cstformer.baselines import BASELINES
from cstformer.data.windows import covering_starts
from cstformer.models.recordings import _weights, blended


def recording(end: float = 100.0, points: int = 260, seed: int = 0, **names) -> Samples:
    """A chirp at irregular times from 20 on."""
    t = 20 + np.sort(np.random.default_rng(seed).uniform(0, end - 20, points))
    return Samples(t, np.sin(t / 3 + (t / 40) ** 2)[None], **names)


def test_weights_of_two_windows_by_hand():
    u = np.array([0.75, 0.25, 0.6, 0.1])  # the first query lies at 0.75 and 0.25, the second at 0.6 and 0.1
    weights = _weights(u, np.array([0, 0, 1, 1]), 2, 2, extent=10.0)
    a, b = 0.24**6, 0.09**6
    assert weights[0] == pytest.approx([0.5, 0.5, a / (a + b), b / (a + b)])
    # d/du of (u (1 − u))^6 is 6 (u (1 − u))^5 (1 − 2u), and W' = (w' S − w S') / S²
    da, db = 6 * 0.24**5 * -0.2, 6 * 0.09**5 * 0.8
    slope = (da * (a + b) - a * (da + db)) / (a + b) ** 2 / 10.0
    assert weights[1, 2:] == pytest.approx([slope, -slope])
    assert weights[:, ::2] + weights[:, 1::2] == pytest.approx(np.array([[1, 1], [0, 0], [0, 0]]), abs=1e-12)


def test_a_query_of_one_window_keeps_its_answer():
    weights = _weights(np.array([1e-3, -0.2, 0.0]), np.arange(3), 3, 3, extent=2.0)
    assert weights.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.fixture(scope="module")
def model():
    return linear_model(recording().windows(15, 7.5))


def test_windows_that_agree_blend_to_the_same_function(model):
    """If every window answers with g(t), so does the blend, and its derivatives are those of g."""
    at = np.linspace(20.5, 99, 301)[None, :, None]

    def ask(windows, x, indices):
        t = x + windows.origin[:, None]
        known = [np.sin(t), np.cos(t), -np.sin(t), -np.cos(t)]
        return [known[q] for (q,) in indices]

    wanted = [(0,), (3,), (1,)]
    found = blended(model, recording(), at, wanted, ask)
    for y, expected in zip(found, (np.sin(at), -np.cos(at), np.cos(at)), strict=True):
        assert np.allclose(y, expected, atol=1e-9)


def test_derivatives_are_those_of_the_blended_value(model):
    """Windows that disagree: each answers with its own slope, and the blend is differentiated numerically."""
    at, h = np.linspace(21, 98, 151)[None, :, None], 1e-4

    def own(windows, x, indices):  # the answer depends on the beginning of the window
        b = windows.origin[:, None]
        return [{0: np.sin(b) * x + x**2, 1: np.sin(b) + 2 * x, 2: 2 + 0 * x}[q] for (q,) in indices]

    low, high = (blended(model, recording(), at + s, [(0,), (1,)], own) for s in (-h, h))
    for k, slope in enumerate(blended(model, recording(), at, [(1,), (2,)], own)):
        assert np.allclose((high[k] - low[k]) / (2 * h), slope, atol=1e-5 * np.abs(slope).max())


def test_the_bound_of_the_standard_deviation_is_the_largest_that_errors_can_reach(model):
    """Errors of ±2 of values and ±3 of slopes, with all combinations of signs in the windows of a query."""
    at, sizes = np.array([[[52.0]]]), (2.0, 3.0)

    def ask(signs):
        def answer(windows, x, indices):
            assert len(windows) <= 3
            return [sizes[q[0]] * signs[q[0]][: len(windows), None, None] * np.ones_like(x) for q in indices]

        return answer

    ones = np.ones(3)
    bound = blended(model, recording(), at, [(1,)], ask((ones, ones)), bound=True)[0]
    signs = [np.array(s) for s in itertools.product((-1.0, 1.0), repeat=3)]
    reached = [blended(model, recording(), at, [(1,)], ask(both))[0] for both in itertools.product(signs, signs)]
    np.testing.assert_allclose(np.max(reached, axis=0), bound)
    assert (bound > 3).all()


def test_any_time_of_a_recording_is_interpolated(model, recwarn):
    r = recording(seed=3, end=90.0)
    t, y = r.coords[0, :, 0], r.values[0, :, 0]
    at = np.linspace(t[0], t[-1], 777)
    assert np.allclose(model.predict(r, at)[0, :, 0], np.interp(at, t, y), atol=1e-8)
    slopes = np.diff(y) / np.diff(t)
    inner = at[1:-1]
    expected = slopes[np.searchsorted(t, inner) - 1]
    assert np.allclose(model.derivative(r, inner, (1,))[0, :, 0], expected, rtol=1e-6, atol=1e-6)
    assert not recwarn.list


def test_recordings_of_different_length_and_queries_in_any_order(model):
    long, short = recording(seed=1), recording(points=8, end=28.0, seed=2)
    both = Samples.concatenate([long, short])
    at = np.stack([np.array([90.0, 25.0, 61.5]), np.array([24.0, 26.0, 23.0])])[..., None]
    found = model.predict(both, at)
    for i, r in enumerate((long, short)):
        assert np.allclose(found[i, :, 0], np.interp(at[i, :, 0], r.coords[0, :, 0], r.values[0, :, 0]), atol=1e-8)


def test_windows_cut_by_hand_are_read_as_they_are(model):
    windows = recording().windows(15, 7.5)
    found = model.predict(windows, [3.0, 4.5])
    for i in (0, 5):
        t, y = (a[i, windows.point_observed[i], 0] for a in (windows.coords, windows.values))
        assert np.allclose(found[i, :, 0], np.interp([3.0, 4.5], t, y), atol=1e-8)


def test_a_gap_longer_than_a_window(model):
    r = recording()
    t = r.coords[0, :, 0]
    r = r.subset_points(((t < 40) | (t > 80))[None])
    t, y = (a[r.point_observed] for a in (r.coords[..., 0], r.values[..., 0]))
    assert np.allclose(model.predict(r, [30.0, 90.0])[0, :, 0], np.interp([30.0, 90.0], t, y), atol=1e-8)
    refused(lambda: model.predict(r, [60.0]), "outside the training domain", "extrapolate=True")
    with pytest.warns(UserWarning, match="outside the training domain"):
        assert np.isfinite(model.predict(r, [60.0], extrapolate=True)).all()


def test_the_window_survives_files_and_choices(model, tmp_path):
    windows = recording().windows(15, 7.5)
    for name in ("w.npz", "w.nc"):
        windows.save(tmp_path / name)
        assert Samples.load(tmp_path / name).window == (15.0, 7.5, 0)
    assert windows[2:4].window == Samples.concatenate([windows[:4], windows[4:]]).window == (15.0, 7.5, 0)
    assert Samples.concatenate([windows[:4], windows[4:].replace(window=None)]).window is None
    model.save(tmp_path / "model")
    again, at = CST.load(tmp_path / "model"), [33.0, 71.0]
    assert np.array_equal(again.predict(recording(), at), model.predict(recording(), at))
    refused(lambda: model.attention(recording(), at), "within a window", "context.windows")
    reader = model.reader(recording())
    assert np.array_equal(reader.partials(np.array(at)[:, None], [(0,)])[0], model.predict(recording(), at))
    assert reader.domain[0] > 20 and reader.domain[1] < 100
    refused(lambda: reader.attention(np.array([[33.0]])), "within a window")


def test_a_rival_reads_recordings_too():
    rival = BASELINES["linear"]().fit(recording().windows(15, 7.5))
    r, at = recording(seed=4), np.linspace(25, 95, 50)
    assert np.allclose(rival.predict(r, at)[0, :, 0], np.interp(at, r.coords[0, :, 0], r.values[0, :, 0]))


@pytest.mark.parametrize("stride", [0.5, 3.0, 7.5, 15.0, 40.0])
@pytest.mark.parametrize("end", [10.0, 14.0, 14.5, 31.0, 100.0])
def test_covering_windows_overlap_from_the_first_point_to_the_last(stride, end):
    here = np.arange(0.0, end + 0.1, 0.5)
    starts = covering_starts(here, (15.0, stride, 0), 0.0, 14.5)
    assert starts[0] == 0 and starts[-1] == max(0, end - 14.5)
    gaps = np.diff(starts)
    assert (gaps > 0).all() and (gaps <= 0.75 * 14.5 + 1e-9).all()
    assert len(starts) <= 2 + 4 * end / 14.5
    assert np.allclose(starts % 0.5, 0) or stride in (7.5, 15.0, 40.0)  # a regular grid keeps its place in the windows
