"""Frames to tokens and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, samples_to_frames, stitch, window_starts
from cstformer.data.samples import Samples
from cstformer.errors import CSTError

NAN = np.nan


def test_tokens_by_hand():
    movie = np.arange(2 * 3 * 2 * 2, dtype=np.uint8).reshape(2, 3, 2, 2)  # value = 12 t + 4 row + 2 col + channel
    s = frames_to_samples(movie, patch=(2, 1), times=[0.5, 2.0], time_unit="s")
    assert s.coord_names == ("t", "row", "col") and s.units == {"t": "s", "row": "pixel", "col": "pixel"}
    assert s.coords[0, :3].tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 1], [0.5, 2.5, 0]]
    assert s.coords[0, 4].tolist() == [2.0, 0.5, 0]
    assert s.values[0, 1].tolist() == [2, 3, 6, 7]  # pixels (0, 1) and (1, 1), both channels
    assert s.values[0, 2].tolist() == [8, 9, 0, 0]  # row 3 is beyond the frame
    assert s.observed[0, 2].tolist() == [True, True, False, False]
    assert frames_to_samples(movie).units["t"] == "frame"


def test_mask_and_nan_pixels_are_unobserved():
    movie = np.ones((1, 2, 4))
    movie[0, 0, 0] = NAN
    mask = np.array([[True, True, False, False]] * 2)
    s = frames_to_samples(movie, patch=(2, 2), mask=mask)
    assert s.observed[0].tolist() == [[False, True, True, True], [False] * 4]
    assert s.point_observed.tolist() == [[True, False]]
    back = samples_to_frames(s)[0, 0, ..., 0]
    assert np.array_equal(back, [[NAN, 1, NAN, NAN], [1, 1, NAN, NAN]], equal_nan=True)


def test_windows_keep_their_origin():
    movie = np.arange(7.0)[:, None, None] * np.ones((1, 2, 2))
    times = np.array([0.0, 1, 2, 4, 8, 16, 32])
    s = frames_to_samples(movie, patch=(2, 2), window=3, stride=2, times=times)
    assert s.sample_ids == ("0@0", "0@2", "0@8") and s.origin[:, 0].tolist() == [0, 2, 8]
    assert s.coords[..., 0].tolist() == [[0, 1, 2], [0, 2, 6], [0, 8, 24]]
    assert s.values[..., 0].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert frames_to_samples(movie, (2, 2), window=3).origin[:, 0].tolist() == [0, 3]
    assert frames_to_samples(movie, (2, 2), window=3, cover=True).origin[:, 0].tolist() == [0, 3, 4]
    two = frames_to_samples(np.stack([movie, movie + 7])[..., None], (2, 2), window=6)
    assert two.sample_ids == ("0@0", "1@0") and two.values[1, 0, 0] == 7
    movie[2:4] = NAN
    assert frames_to_samples(movie, (2, 2), window=2).origin[:, 0].tolist() == [0, 4]


sizes = st.integers(1, 7)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), sizes, sizes, st.integers(1, 3)),
    patch=st.tuples(sizes, sizes),
    missing=st.floats(0, 0.9),
    seed=st.integers(0, 99),
)
def test_round_trip(shape, patch, missing, seed):
    rng = np.random.default_rng(seed)
    movie = np.where(rng.random(shape) < missing, NAN, rng.normal(size=shape))
    movie[:, 0, 0, 0] = 1.0
    s = frames_to_samples(movie, patch)
    assert np.array_equal(samples_to_frames(s), movie, equal_nan=True)
    assert np.array_equal(np.nan_to_num(movie), stitch(s.values, s.layout))
    assert np.array_equal(stitch(s.values, s.layout), samples_to_frames(s.values, s.layout))
    assert np.allclose(frame_queries(s.layout, range(shape[1]))[s.point_observed[0]], s.coords[0, s.point_observed[0]])


def test_tokens_out_of_order_find_their_place():
    rng = np.random.default_rng(0)
    movie = rng.normal(size=(6, 5, 4))
    mask = rng.random((5, 4)) < 0.4
    s = frames_to_samples(movie, (2, 2), mask=mask)
    expected = np.where(mask, movie, NAN)
    assert np.array_equal(samples_to_frames(s.sorted())[0, ..., 0], expected, equal_nan=True)
    cut = s.windows(length=2, stride=2)
    assert np.array_equal(samples_to_frames(cut)[1, ..., 0], expected[2:4], equal_nan=True)


def test_frame_queries_at_any_times():
    layout = PatchLayout((4, 2), (2, 2))
    assert frame_queries(layout, [0.1, 7]).tolist() == [
        [0.1, 0.5, 0.5],
        [0.1, 2.5, 0.5],
        [7, 0.5, 0.5],
        [7, 2.5, 0.5],
    ]


movie = np.ones((3, 4, 4))


BAD = {
    "rank": (dict(movie=np.ones((4, 4))), "movie must be"),
    "empty": (dict(movie=np.ones((0, 4, 4))), "movie must be"),
    "text": (dict(movie=[[["a"]]]), "movie must be real numbers"),
    "patch": (dict(movie=movie, patch=(0, 8)), "patch must be two positive"),
    "long window": (dict(movie=movie, window=4), "window=4 is longer than the movie of 3 frames"),
    "window": (dict(movie=movie, window=1.5), "window must be a positive number of frames"),
    "stride": (dict(movie=movie, window=2, stride=0), "stride must be a positive number of frames, got 0"),
    "stride alone": (dict(movie=movie, stride=2), "stride=2 needs a window"),
    "times": (dict(movie=movie, times=[0, 1]), "times must be 3 finite increasing"),
    "order": (dict(movie=movie, times=[0, 2, 1]), "times must be 3 finite increasing"),
    "mask": (dict(movie=movie, mask=np.ones((4, 4))), "mask must be bool of shape"),
    "nothing": (dict(movie=movie * NAN, window=2), "no observed pixel"),
    "nothing whole": (dict(movie=movie * NAN), "no value is observed in sample 0"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_refused(arguments, message):
    with pytest.raises(CSTError, match=message):
        frames_to_samples(**arguments)


def test_refused_on_the_way_back():
    layout = PatchLayout((4, 4), (2, 2))
    with pytest.raises(CSTError, match=r"values must be \(N, T \* 4, 4\)"):
        stitch(np.ones((1, 5, 4)), layout)
    with pytest.raises(CSTError, match="layout is needed"):
        samples_to_frames(np.ones((1, 4, 4)))
    with pytest.raises(CSTError, match="holds no patch tokens"):
        samples_to_frames(Samples([0], [[1]]))
    off = Samples([[[0.0, 0.7, 0.5]]], np.ones((1, 1, 4)), layout=layout)
    with pytest.raises(CSTError, match="off the patch grid"):
        samples_to_frames(off)
    with pytest.raises(CSTError, match="layout has 4 values per token, but values have 1"):
        Samples([0], [[1]], layout=layout)
    assert window_starts(3, 3, 1).tolist() == [0]
