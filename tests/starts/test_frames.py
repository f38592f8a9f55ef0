"""Movies as a kind of data: noise, pixels as series in time, patches cut anywhere, shifted patches, clean targets."""

import numpy as np
import pytest
import torch
from movies import movie_batch, ripples
from small_models import blob

from cstformer import frames_to_samples
from cstformer.starts.frame_start import frame_start
from cstformer.starts.frames import Frames, cut_patches, pixel_noise, pixel_series
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.waves import Waves
from cstformer.taylor.series import constant

nan = np.nan
KERNEL = Kernel((0.4,), 1.0, 0.5, 0.05)
# Six bands of waves, of which the first two are more than noise.
TWO_LOUD = Waves((1.0,) * 12, (KERNEL, KERNEL, None, None, None, None), 0.1, periodic=True)


def frames_of(movie, **options):
    """The kind and the batch of a movie whose coordinates alone are scaled."""
    made = movie_batch(movie, **options)
    return Frames(made.scaling, made.samples.layout), made.batch


# Clean targets


def test_targets_keep_the_waves_that_are_more_than_noise():
    """Of two waves, one in a loud and one in a quiet band, the first is left, in the same patches."""
    place = np.arange(16) * 2 * np.pi / 16
    slow, fast = np.cos(place)[:, None] * np.ones(16), np.sin(6 * place) * np.ones((16, 1))
    kind, batch = frames_of(np.stack([slow, 2 * slow + fast, fast]), periodic=True)
    kind.waves = TWO_LOUD
    target = torch.tensor(frames_to_samples(np.stack([slow + fast, fast, 3 * slow]), (4, 4)).values)
    want = frames_to_samples(np.stack([slow, 0 * fast, 3 * slow]), (4, 4)).values
    torch.testing.assert_close(kind.clean(batch, target), torch.tensor(want), rtol=0, atol=1e-12)


def test_targets_stay_where_a_whole_patch_is_missing():
    """A patch without a token would count as zeros and smear into its neighbours."""
    movie = np.stack([ripples(1, 8, 8)[0]] * 2)
    movie[1, :4, :4] = nan
    kind, batch = frames_of(movie, periodic=True)
    kind.waves = TWO_LOUD
    assert batch.exists.sum() == 7 and not kind.grid.complete(batch)
    assert kind.clean(batch, batch.values) is batch.values


@pytest.mark.parametrize("missing", [0, 3])
def test_targets_stay_where_pixels_are_missing(missing):
    """One pixel that was not observed, or rows of patches that stick out of the frame."""
    movie = blob(3, 8 - missing, 8)
    movie[1, 2, 3] = nan if missing == 0 else movie[1, 2, 3]
    kind, batch = frames_of(movie)
    kind.waves = TWO_LOUD
    target = torch.randn(batch.values.shape, generator=torch.Generator().manual_seed(0)).double()
    assert kind.clean(batch, target) is target


# Shifted patches


@pytest.mark.parametrize(
    ("size", "periodic", "steps"),
    [((8, 4), False, (4, 1)), ((8, 4), True, (4, 4)), ((10, 9), False, (4, 4)), ((4, 4), False, (1, 1))],
)
def test_shifts_are_less_than_a_patch(size, periodic, steps):
    """Along an axis of one patch only periodic frames can be shifted."""
    kind, batch = frames_of(blob(3, *size), periodic=periodic)
    generator, found = torch.Generator().manual_seed(0), set()
    for _ in range(200):
        shifted, _ = kind.shift(batch, batch.values, generator)
        moved = (shifted.coords - batch.coords)[0, 0, 1:] * torch.tensor(kind.scaling.span[1:])
        found.add(tuple(moved.round(decimals=6).tolist()))
    assert found == {(float(row), float(col)) for row in range(steps[0]) for col in range(steps[1])}


def test_a_shifted_query_is_asked_for_what_the_start_says():
    kind, batch = frames_of(ripples(3, 12, 8), periodic=True)
    shifted, target = kind.shift(batch, 10 * batch.values, torch.Generator().manual_seed(1))
    start = frame_start("linear", batch, kind.grid)
    assert not torch.equal(shifted.coords, batch.coords)
    assert torch.allclose(start(constant(shifted.coords)).value, shifted.values, atol=1e-9)
    assert torch.equal(target, 10 * shifted.values)


# Pixels


def test_pixels_as_time_series_for_the_kernel():
    movie = blob(4, 5, 6)
    movie[1, 0, 0] = nan
    kind, batch = frames_of(movie)
    times, values, exists = pixel_series(batch, kind.grid)
    assert times[0, :, 0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert exists.all()
    assert values.shape == (1, 4, 5 * 6 - 1)  # neither the pixel with a gap nor what sticks out
    always = ~np.isnan(movie).any(0)
    assert np.allclose(values[0].numpy(), movie[:, always], atol=1e-9)


def test_pixels_as_time_series_where_none_is_complete():
    movie = blob(4, 4, 4)
    movie[np.arange(4), :, np.arange(4)] = nan
    kind, batch = frames_of(movie)
    _, values, _ = pixel_series(batch, kind.grid)
    assert np.allclose(values[0].unflatten(-1, (4, 4)), np.where(np.isnan(movie), np.nanmean(movie, 0), movie))


@pytest.mark.parametrize("sd", [0.05, 0.3])
def test_noise_is_told_from_dynamics_by_the_neighbours(sd):
    """A smooth image that changes wholly from frame to frame: in time it looks like noise, in space it does not."""
    rng = np.random.default_rng(0)
    r, c = np.mgrid[:24, :16] / 24
    phase = rng.uniform(0, 6, (10, 1, 1))
    movie = np.sin(2 * r + phase) * np.cos(c - phase) + sd * rng.normal(size=(10, 24, 16))
    movie[:, :5, :5] = np.nan  # unobserved pixels do not count
    samples = frames_to_samples(movie, patch=(8, 8))
    kind = Frames.of(samples)
    batch = kind.batch(samples, torch.float64, torch.device("cpu"))
    assert kind.noise(batch) * kind.scaling.sd[0] == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("size", [(2, 9), (9, 1)])
def test_frames_too_narrow_for_the_mask_do_not_bound_the_noise(size):
    kind, batch = frames_of(blob(3, *size), patch=(1, 1))
    assert pixel_noise(batch, kind.grid) == np.inf


# Patches cut out of frames


def test_patches_are_bilinear_between_pixels():
    """A picture that is linear in row and column is cut exactly anywhere inside."""
    row, col = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    pictures = torch.stack([2 * row + col, row - 3 * col]).double()[..., None]
    corner = torch.tensor([[1.25, 0.5], [2.0, 1.0], [3.75, 2.5]]).double()
    patches = cut_patches(pictures, torch.tensor([0, 1, 0]), corner, (2, 2)).unflatten(1, (2, 2))
    for patch, k, (r, c) in zip(patches, (0, 1, 0), corner.tolist(), strict=True):
        i, j = torch.meshgrid(torch.arange(2.0), torch.arange(2.0), indexing="ij")
        expected = 2 * (r + i) + c + j if k == 0 else (r + i) - 3 * (c + j)
        torch.testing.assert_close(patch, expected.double())
    edge = cut_patches(pictures, torch.tensor([0]), torch.tensor([[5.0, 4.0]]).double(), (2, 2))
    assert edge.tolist() == [[14.0] * 4]  # beyond the picture its edge continues


def test_patches_of_a_periodic_picture_go_on_at_the_opposite_edge():
    picture = torch.sin(torch.arange(8.0).double() * torch.pi / 4)[:, None].expand(8, 6)[None, ..., None]
    corner = torch.tensor([[6.0, 5.0], [-3.0, 11.0], [7.5, 0.0]]).double()
    patches = cut_patches(picture, torch.zeros(3, dtype=torch.long), corner, (4, 2), periodic=True).unflatten(1, (4, 2))
    row = torch.arange(4).double()
    for patch, first in zip(patches[:2], (6, -3), strict=True):
        torch.testing.assert_close(patch, torch.sin((first + row) * torch.pi / 4)[:, None].expand(4, 2))
    middle = (torch.sin((7 + row) * torch.pi / 4) + torch.sin((8 + row) * torch.pi / 4)) / 2
    torch.testing.assert_close(patches[2], middle[:, None].expand(4, 2))
