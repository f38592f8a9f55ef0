"""Tokens of a batch as frames and back."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from movies import movie_batch, ripples
from small_models import blob

from cstformer import PatchLayout, Samples, frames_to_samples
from cstformer.data.frame_grid import FrameGrid, distinct_times, fill_pixels
from cstformer.data.units import Scaling

nan = np.nan


def counted(frames=2, height=3, width=4):
    """A movie whose pixel at (t, row, col) is 100 t + 10 row + col + 1."""
    t, r, c = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    return 100.0 * t + 10 * r + c + 1


# Numbers by hand


def test_tokens_are_numbered_by_time_row_and_column():
    movie = movie_batch(counted(), (2, 2))
    assert movie.batch.frame.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert movie.batch.patch.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert movie.grid == FrameGrid(PatchLayout((3, 4), (2, 2)), (0.5, 0.5), (2.0, 2.0))
    assert movie.grid.pixel(torch.tensor([0.0, 0.25, 1.0]), 0).tolist() == [0.5, 1.0, 2.5]
    assert movie.grid.first_pixel(movie.batch.coords[0, :4, 1], 0).tolist() == [0, 0, 2, 2]
    assert movie.grid.first_pixel(movie.batch.coords[0, :4, 2], 1).tolist() == [0, 2, 0, 2]


def test_rows_and_columns_have_units_of_their_own():
    scaling = Scaling(np.array([9.0, 1.5, 0.5]), np.array([7.0, 8.0, 6.0]), np.zeros(8), np.ones(8))
    grid = FrameGrid.of(PatchLayout((12, 8), (4, 2)), scaling)
    assert (grid.origin, grid.extent) == ((1.5, 0.5), (8.0, 6.0))
    assert grid.first_pixel(torch.tensor([0.5]), 0).item() == 4 and grid.first_pixel(torch.tensor([0.5]), 1).item() == 3


def test_a_patch_that_sticks_out_is_unobserved_beyond_the_frame():
    movie = movie_batch(counted(), (2, 2))
    times, exists, frames, seen = movie.grid.read(movie.batch)
    assert times.tolist() == [[0.0, 1.0]] and exists.all()
    assert frames[0, 1, ..., 0].tolist() == [[101, 102, 103, 104], [111, 112, 113, 114], [121, 122, 123, 124], [0] * 4]
    assert seen[0, 1, ..., 0].tolist() == [[True] * 4] * 3 + [[False] * 4]
    assert movie.grid.whole(movie.batch)[2][0, ..., 0].tolist() == counted().tolist()


def test_channels_of_a_pixel_stay_together():
    colours = np.stack([counted(), -counted(), 1000 + counted()], -1)
    movie = movie_batch(colours, (2, 4))
    assert np.array_equal(movie.grid.whole(movie.batch)[2][0], colours)


def test_samples_of_different_length():
    """T is that of the longest sample; the padding of the others is nobody's frame."""
    both = Samples.concatenate([frames_to_samples(counted(k, 4, 4), (2, 2)) for k in (3, 1)]).sorted()
    scaling = Scaling.of(both, pooled=1)
    grid = FrameGrid.of(both.layout, scaling)
    batch = grid.locate(scaling.batch(both, torch.float64, torch.device("cpu")))
    times, exists, frames, seen = grid.read(batch)
    assert exists.tolist() == [[True] * 3, [True, False, False]]
    assert times.tolist() == [[0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    assert torch.equal(frames[1, 0], frames[0, 0]) and not frames[1, 1:].any() and not seen[1, 1:].any()
    early = batch.replace(coords=torch.where(batch.exists[..., None], batch.coords - 5, 0))  # padding stays at zero
    assert grid.read(early)[0].tolist() == [[-5.0, -4.5, -4.0], [-5.0, 0.0, 0.0]]


# What is missing


def test_a_missing_patch_leaves_the_others_in_their_place():
    pixels = counted(3, 4, 4)
    pixels[1, :2, 2:] = nan  # the second patch of the second frame
    pixels[2, :2] = nan  # the first row of patches of the third
    movie = movie_batch(pixels, (2, 2))
    assert movie.batch.frame.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2]]
    assert movie.batch.patch.tolist() == [[0, 1, 2, 3, 0, 2, 3, 2, 3]]
    times, exists, frames, seen = movie.grid.read(movie.batch)
    assert times.tolist() == [[0.0, 0.5, 1.0]] and exists.all()
    assert np.array_equal(seen[0, ..., 0], ~np.isnan(pixels))
    assert np.array_equal(frames[0, ..., 0], np.nan_to_num(pixels))


def test_padding_changes_nothing():
    movie = movie_batch(counted(), (2, 2))
    for more in (movie.batch.padded(2), movie.grid.locate(movie.batch.padded(2))):
        for found, expected in zip(movie.grid.read(more), movie.grid.read(movie.batch), strict=True):
            assert torch.equal(found, expected)
        assert not movie.grid.tokens(more, movie.grid.read(more)[2] + 1)[:, -2:].any()


def test_hidden_frames_keep_their_numbers():
    movie = movie_batch(counted(3, 4, 4), (2, 2))
    visible = movie.batch.frame != 1
    hidden = movie.batch.replace(observed=movie.batch.observed & visible[..., None])
    times, exists, frames, seen = movie.grid.read(hidden)
    assert exists.tolist() == [[True, False, True]]
    assert times.tolist() == [[0.0, 0.0, 1.0]]
    assert torch.equal(seen.flatten(2).any(2), exists)
    assert np.array_equal(frames[0, [0, 2], ..., 0], counted(3, 4, 4)[[0, 2]])
    assert not frames[0, 1].any()


def test_the_last_frames_may_be_hidden_too():
    movie = movie_batch(counted(3, 4, 4), (2, 2))
    hidden = movie.batch.replace(observed=movie.batch.observed & (movie.batch.frame == 0)[..., None])
    _, exists, frames, _ = movie.grid.read(hidden)
    assert exists.tolist() == [[True, False, False]] and frames.shape[1] == 3


def test_a_pixel_missing_in_one_frame_takes_its_mean_over_the_others():
    pixels = blob(4, 8, 8, 2)
    pixels[1, 2, 3, 1] = nan  # one colour of one pixel
    pixels[2, :4, 4:] = nan  # a whole token
    movie = movie_batch(pixels)
    filled = movie.grid.whole(movie.batch)[2][0].numpy()
    missing = np.isnan(pixels)
    expected = np.where(missing, np.nanmean(pixels, 0), pixels)
    np.testing.assert_allclose(filled, expected, rtol=1e-12)
    assert np.array_equal(filled[~missing], pixels[~missing])


def test_a_pixel_that_was_never_seen_is_zero_and_hidden_frames_do_not_count():
    frames = torch.tensor([2.0, 50.0, 4.0, 0.0]).reshape(1, 4, 1, 1, 1).expand(-1, -1, 1, 2, -1).clone()
    seen = torch.tensor([True, False, True, False]).reshape(1, 4, 1, 1, 1).expand_as(frames).clone()
    seen[:, :, :, 1] = False
    filled = fill_pixels(frames, seen, torch.tensor([[True, True, True, False]]))
    assert filled[0, :3, 0, 0, 0].tolist() == [2.0, 3.0, 4.0]
    assert filled[0, :3, 0, 1, 0].tolist() == [0.0, 0.0, 0.0]


def test_frames_that_are_close_in_time_are_told_apart_in_float32():
    """Times are compared in double precision, once; in float32 all three are the same."""
    movie = movie_batch(counted(4, 4, 4), (2, 2), times=[0.0, 1e-9, 2e-9, 1.0])
    batch = movie.batch.to(torch.float32, torch.device("cpu"))
    assert len(batch.coords[..., 0].unique()) == 4
    batch = batch.replace(coords=batch.coords + torch.tensor([1.0, 0.0, 0.0]))
    assert len(batch.coords[..., 0].unique()) == 2
    times, exists, frames, _ = movie.grid.read(batch)
    assert exists.all() and times.tolist() == [[1.0, 1.0, 1.0, 2.0]]
    assert np.array_equal(frames[0, ..., 0], counted(4, 4, 4))


# There and back


sizes = st.integers(1, 6)


@settings(max_examples=40, deadline=None)
@given(st.tuples(st.integers(1, 3), sizes, sizes, st.integers(1, 2)), st.tuples(sizes, sizes), st.randoms())
def test_tokens_are_the_inverse_of_frames(shape, patch, random):
    generator = torch.Generator().manual_seed(random.randrange(1000))
    pixels = torch.randn(2, *shape, generator=generator, dtype=torch.float64).numpy()
    pixels[torch.rand(pixels.shape, generator=generator).numpy() < 0.1] = nan
    pixels[:, 0, 0, 0] = pixels[:, -1, -1, -1] = 0.0  # an empty movie is refused
    movie = movie_batch(pixels, patch)
    values = movie.batch.values
    frames = movie.grid.frames(movie.batch, values)
    assert torch.equal(movie.grid.tokens(movie.batch, frames), values)
    assert np.array_equal(movie.grid.read(movie.batch)[2][:, :, : shape[1], : shape[2]], np.nan_to_num(pixels))


def test_change_is_applied_to_whole_frames():
    """The function gets frames without what a patch has beyond them; that and missing tokens stay as they are."""
    pixels = counted(3, 3, 4)
    pixels[1, 2:] = nan
    movie, given = movie_batch(np.stack([pixels, pixels], -1), (2, 2)), []

    def brighter(frames):
        given.append(frames.clone())
        return frames + torch.tensor([1000.0, 0.0]).double()

    batch = movie.batch.padded(1)
    changed = movie.grid.change(batch, brighter)
    assert given[0].shape == (1, 3, 3, 4, 2)
    assert np.array_equal(given[0][0, [0, 2], ..., 0], pixels[[0, 2]])
    expected = batch.values + 1000 * batch.observed * torch.tensor([1.0, 0.0] * 4).double()
    assert torch.equal(changed, expected)


# Shifted patches


@pytest.mark.parametrize("channels", [1, 2])
def test_shifted_patches_are_those_of_the_torus(channels):
    pixels = np.stack([ripples(3, 12, 8) * (k + 1) for k in range(channels)], -1)
    movie = movie_batch(pixels, periodic=True)
    shifted, target = movie.grid.shift(movie.batch, 10 * movie.batch.values, (3, 2))
    turned = frames_to_samples(np.roll(pixels, (-3, -2), (1, 2)), (4, 4), periodic=True)
    assert torch.equal(shifted.values, torch.tensor(turned.values))
    assert torch.equal(target, 10 * shifted.values)
    assert shifted.observed.all()
    distance = (shifted.coords - movie.batch.coords) * torch.tensor(movie.scaling.span)
    assert torch.allclose(distance, torch.tensor([0.0, 3.0, 2.0]).double(), atol=1e-12)


def test_shifted_patches_stay_inside_a_frame_with_edges():
    pixels = blob(3, 12, 10)  # the last column of patches sticks out
    pixels[1, 5, 6] = nan
    movie = movie_batch(pixels)
    shifted, _ = movie.grid.shift(movie.batch, movie.batch.values, (2, 0))
    seen = shifted.observed.unflatten(1, (3, 3, 3))  # frame, row and column of patches
    assert not seen[0, :, 2].any()
    assert seen[0, :, :2].any(-1).all()
    values = torch.where(shifted.observed, shifted.values, nan).unflatten(1, (3, 3, 3)).unflatten(-1, (4, 4))[0].numpy()
    assert np.array_equal(values[1, 0, 1], pixels[1, 2:6, 4:8], equal_nan=True)
    assert np.array_equal(values[2, 1, 2, :, :2], pixels[2, 6:10, 8:])
    assert np.isnan(values[2, 1, 2, :, 2:]).all()


def test_no_shift_changes_nothing():
    movie = movie_batch(blob(3, 10, 9))
    shifted, target = movie.grid.shift(movie.batch, 2 * movie.batch.values, (0, 0))
    for name in ("coords", "values", "observed"):
        assert torch.equal(getattr(shifted, name), getattr(movie.batch, name))
    assert torch.equal(target, 2 * movie.batch.values)


def test_distinct_times_find_their_way_back():
    times = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)).repeat(1, 2)[:, torch.randperm(14)]
    found, which = distinct_times(times)
    assert found.shape == (3, 7) and (found.diff(dim=1) > 0).all()
    assert torch.equal(found.gather(1, which), times)
