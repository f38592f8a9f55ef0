"""Truncated decompositions against exact ones, and ranks that are known."""

import tracemalloc

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from cstformer import CSTError
from cstformer.data import frame_matrix, low_rank
from cstformer.data.frame_matrix import FrameMatrix, open_frames
from cstformer.data.low_rank import held_out_errors, tile_folds, truncated_svd

FRAME = (24, 24)


def low_rank_movie(rank, noise, blur=0.0, frames=400, seed=0):
    """Smooth maps with smooth courses of equal power 1, and noise of this sd, blurred in space."""
    rng = np.random.default_rng(seed)
    maps = gaussian_filter(rng.normal(size=(rank, *FRAME)), (0, 4, 4), mode="wrap").reshape(rank, -1)
    maps = np.linalg.qr(maps.T)[0].T * np.sqrt(maps.shape[1] / rank)
    courses = gaussian_filter(rng.normal(size=(frames, rank)), (3, 0))
    courses = np.linalg.qr(courses - courses.mean(0))[0] * np.sqrt(frames)
    disturbance = rng.normal(size=(frames, *FRAME))
    if blur:
        disturbance = gaussian_filter(disturbance, (0, blur, blur))
    signal = (courses @ maps).reshape(frames, *FRAME)
    return signal + noise * disturbance / disturbance.std()


def best_rank(movie, max_rank=30):
    return int(np.argmin(held_out_errors(FrameMatrix.of(movie), FRAME, max_rank, seed=0)))


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-9), (np.float32, 1e-4)])
def test_leading_vectors_are_those_of_the_exact_decomposition(monkeypatch, dtype, tolerance):
    monkeypatch.setattr(frame_matrix, "BLOCK_BYTES", 2**17)  # 28 frames
    movie = low_rank_movie(6, 0.5).astype(dtype)
    matrix = FrameMatrix.of(movie)
    assert len(list(matrix.blocks())) > 10
    y = movie.reshape(400, -1).astype(float)
    w, s, v = np.linalg.svd(y - y.mean(0), full_matrices=False)
    left, found, right = truncated_svd(matrix, 6, seed=0)
    np.testing.assert_allclose(found, s[:6], rtol=tolerance)
    np.testing.assert_allclose(right @ right.T, v[:6].T @ v[:6], atol=tolerance)
    np.testing.assert_allclose(left * found @ right.T, w[:, :6] * s[:6] @ v[:6], atol=100 * tolerance)


@pytest.mark.parametrize("frames", [40, 200])  # fewer frames than pixels, and more
def test_small_movies_are_decomposed_exactly(frames):
    movie = np.random.default_rng(0).normal(size=(frames, 8, 12))
    y = movie.reshape(frames, -1) - movie.reshape(frames, -1).mean(0)
    w, s, v = np.linalg.svd(y, full_matrices=False)
    left, found, right = truncated_svd(FrameMatrix.of(movie), 20, seed=0)  # pure noise: no gap in the spectrum
    np.testing.assert_allclose(found, s[:20], rtol=1e-10)
    np.testing.assert_allclose(left * found @ right.T, w[:, :20] * s[:20] @ v[:20], atol=1e-9)


class Recorder:
    """A movie that is made when it is read, and remembers the longest read."""

    shape, dtype = (3000, *FRAME), np.dtype(np.float32)

    def __init__(self):
        self.movie = low_rank_movie(3, 0.5, frames=300).astype(np.float32)
        self.longest = 0

    def __getitem__(self, rows):
        index = np.arange(*rows.indices(len(self)))
        self.longest = max(self.longest, len(index))
        return self.movie[index % 300]

    def __len__(self):
        return self.shape[0]


def test_memory_does_not_grow_with_the_movie(monkeypatch):
    monkeypatch.setattr(frame_matrix, "BLOCK_BYTES", 2**18)
    source = Recorder()
    tracemalloc.start()
    matrix = FrameMatrix.of(source)
    _, s, _ = truncated_svd(matrix, 3, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert source.longest == 56 and peak < 0.5 * 4 * np.prod(source.shape)  # bytes of the movie
    once = truncated_svd(FrameMatrix.of(source.movie), 3, seed=0)[1]
    np.testing.assert_allclose(s, np.sqrt(10) * once, rtol=1e-4)


@pytest.mark.parametrize("rank", [1, 5, 9])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_the_rank_is_found_in_white_noise(rank, noise):
    assert best_rank(low_rank_movie(rank, noise)) == rank


def test_noise_that_neighbours_share_hardly_changes_the_rank(monkeypatch):
    movie = low_rank_movie(5, 2.0, blur=1.5)
    assert 5 <= best_rank(movie) <= 7
    monkeypatch.setattr(low_rank, "GAP", 100)  # held-out pixels next to those that predict them: noise predicts noise
    assert best_rank(movie) > 10


def test_noise_alone_has_rank_zero():
    assert best_rank(np.random.default_rng(0).normal(size=(300, *FRAME))) == 0


def test_held_out_errors_by_hand():
    """Rank one without noise: one term predicts the held-out block exactly, so that the error falls from 1 to 0."""
    row = np.arange(16.0)
    movie = np.sin(np.arange(32.0))[:, None, None] * np.outer(1 + row, 2 + row)
    errors = held_out_errors(FrameMatrix.of(movie), (16, 16), 1, seed=0)
    np.testing.assert_allclose(errors, [1, 0], atol=1e-12)


def test_held_out_pixels_keep_their_distance():
    mask = np.random.default_rng(0).random((20, 32)) < 0.8
    matrix = FrameMatrix.of(np.zeros((2, 20, 32, 2)), mask)
    place = np.stack(np.nonzero(mask), 1)
    for given, asked in tile_folds(matrix, (20, 32)):
        assert given.any() and asked.any() and not (given & asked).any()
        np.testing.assert_array_equal(given[::2], given[1::2])  # channels of a pixel stay together
        apart = np.abs(place[given[::2]][:, None] - place[asked[::2]]).max(-1)
        assert apart.min() == 3  # tiles of 8 pixels, a gap of 2 between


def test_missing_pixels_frames_and_masks():
    frames = np.arange(24.0).reshape(4, 2, 3)
    frames[:3, 0, 0] = np.nan  # missing in three of four frames: left out
    frames[1, 1, 1] = np.nan  # missing once: its mean
    frames[2] = np.nan  # a missing frame
    mask = np.ones((2, 3), dtype=bool)
    mask[1, 2] = False
    matrix = FrameMatrix.of(frames, mask)
    assert matrix.rows.tolist() == [0, 1, 3] and matrix.columns.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(matrix.mean, [(1 + 7 + 19) / 3, (2 + 8 + 20) / 3, (3 + 9 + 21) / 3, (4 + 22) / 2])
    ((rows, x),) = matrix.blocks()
    assert (rows.start, rows.stop) == (0, 3)
    np.testing.assert_allclose(x[:, 3], [-9, 0, 9])


@pytest.mark.parametrize(
    "frames, message",
    [
        (np.zeros((3, 4)), r"frames must be \(T, H, W\) or \(T, H, W, C\), got shape \(3, 4\)"),
        (np.zeros((0, 4, 4)), "got shape"),
        (np.zeros((2, 3, 3), dtype=complex), "real numbers, got dtype complex"),
        ("nowhere.zarr", "there is no such file"),
    ],
)
def test_what_is_no_movie_is_refused(frames, message):
    with pytest.raises(CSTError, match=message):
        open_frames(frames)


def test_movies_without_pixels_are_refused():
    with pytest.raises(CSTError, match="no observed pixel"):
        FrameMatrix.of(np.full((3, 2, 2), np.nan))
    with pytest.raises(CSTError, match=r"mask must be bool of shape \(2, 2\), got int64"):
        FrameMatrix.of(np.zeros((3, 2, 2)), np.ones((2, 2), dtype=int))
    with pytest.raises(CSTError, match="give the rank as a number"):
        held_out_errors(FrameMatrix.of(np.random.default_rng(0).normal(size=(2, 2, 2))), (2, 2), 5, 0)
