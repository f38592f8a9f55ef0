"""The start of patch tokens: frames interpolated in time, patches cut anywhere."""

import dataclasses

import numpy as np
import pytest
import torch
from movies import movie_batch, ripples
from problems import entry, nested_derivatives, relative_error
from small_models import blob

from cstformer import frame_queries
from cstformer.data.patches import stitch
from cstformer.starts.frame_start import bounded_start, frame_start
from cstformer.starts.gaussian_process import Kernel, posterior_weights
from cstformer.starts.time_posterior import TimePosterior, narrow_variance
from cstformer.starts.waves import Waves
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import constant, straight_line

nan = np.nan
KERNEL = Kernel((0.4,), 1.0, 0.5, 0.05)


class Started:
    """A movie whose coordinates alone are scaled, and its start at coordinates in frames and pixels."""

    def __init__(self, movie, name="linear", times=None, periodic=False, smoother=KERNEL):
        self.movie = movie_batch(movie, (4, 4), times, periodic)
        self.layout, self.scaled = self.movie.grid.layout, self.movie.scaled
        self.start = frame_start(name, self.movie.batch, self.movie.grid, smoother)

    def __call__(self, at):
        """Patches (m, P0, P1, C) of the first sample at coordinates (m, 3)."""
        y = self.start(constant(self.scaled(at))).value[0].numpy()
        return y.reshape(-1, *self.layout.patch, self.layout.channels)

    def frames(self, times):
        """Whole frames (T, H, W, C) of the first sample."""
        y = self.start(constant(self.scaled(frame_queries(self.layout, times)))).value.numpy()
        return stitch(y, self.layout)[0]


def plane(frames=4, height=12, width=8, channels=1):
    """Linear in time and space, where linear interpolation and cubic convolution are exact."""
    t, r, c = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    return (5 + 2 * t + 3 * r - 0.5 * c)[..., None] * np.arange(1, channels + 1)


SIZES = [(8, 8), (10, 9), (3, 5), (4, 4)]  # whole patches, patches that stick out, one patch


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["linear", "hermite", "cubic"])
def test_observed_frames_come_back_exactly(size, channels, name):
    movie = blob(5, *size, channels)
    assert np.allclose(Started(movie, name=name).frames(np.arange(5)), movie, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_between_two_frames_is_their_average(size):
    movie = blob(5, *size)[..., None]
    assert np.allclose(Started(movie).frames([1.5]), (movie[1] + movie[2]) / 2, atol=1e-9)
    assert np.allclose(Started(movie).frames([3.25]), 0.75 * movie[3] + 0.25 * movie[4], atol=1e-9)


def test_irregular_times():
    movie = blob(3, 8, 8)[..., None]
    start = Started(movie, times=[10.0, 11.0, 15.0])
    assert np.allclose(start.frames([12.0]), 0.75 * movie[1] + 0.25 * movie[2], atol=1e-9)


def test_before_and_after_the_movie_the_edge_frame_stays():
    movie = blob(3, 8, 8)[..., None]
    assert np.allclose(Started(movie).frames([-2.0, 7.0]), movie[[0, 2]], atol=1e-9)


def test_off_grid_patches_of_a_plane_are_exact():
    movie = plane()
    for t, row, col in [(1.0, 3.0, 3.0), (0.3, 4.7, 2.9), (2.5, 6.25, 4.1)]:
        offsets_r, offsets_c = np.meshgrid(np.arange(4) - 1.5, np.arange(4) - 1.5, indexing="ij")
        expected = 5 + 2 * t + 3 * (row + offsets_r) - 0.5 * (col + offsets_c)
        assert np.allclose(Started(movie)([[t, row, col]])[0, ..., 0], expected, atol=1e-9)


def test_whole_pixel_shifts_are_exact_pixels():
    movie = blob(3, 12, 12)
    for row, col in [(2.5, 4.5), (3.5, 2.5), (6.5, 7.5)]:
        top, left = int(row - 1.5), int(col - 1.5)
        patch = Started(movie)([[1.0, row, col]])[0, ..., 0]
        assert np.allclose(patch, movie[1, top : top + 4, left : left + 4], atol=1e-9)


def test_cubic_convolution_is_of_third_order():
    """A smooth image on finer and finer pixels: the error between them falls like h³ (Keys, 1981)."""
    errors = []
    for scale in (1, 2, 4):
        r, c = np.meshgrid(np.arange(16), np.arange(16), indexing="ij")
        image = np.sin(r / (2 * scale)) * np.cos(c / (3 * scale))
        row, col = 6.9, 7.3
        rows, cols = np.meshgrid(row + np.arange(4) - 1.5, col + np.arange(4) - 1.5, indexing="ij")
        truth = np.sin(rows / (2 * scale)) * np.cos(cols / (3 * scale))
        patch = Started(np.stack([image, image]))([[0.5, row, col]])[0, ..., 0]
        errors.append(np.abs(patch - truth).max())
    assert errors[0] < 0.01
    assert np.log2(errors[0] / errors[1]) > 2.7
    assert np.log2(errors[1] / errors[2]) > 2.7


def test_a_patch_beyond_the_frame_is_held_at_its_edge_and_does_not_change_there():
    movie = blob(3, 12, 8)
    frames = Started(movie)
    at = [[1.0, -2.0, 3.5], [1.0, 13.0, 99.0]]
    assert np.allclose(frames(at)[0, ..., 0], movie[1, :4, 2:6], atol=1e-9)
    assert np.allclose(frames(at)[1, ..., 0], movie[1, 8:, 4:], atol=1e-9)
    terms = plan(3, [(0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(frames.scaled(at), terms.directions, 1))
    by_row, by_col = (terms.partial(y, q)[0] for q in terms.weights)
    assert not by_row.any() and by_col[0].any() and not by_col[1].any()


def test_sizes_that_do_not_divide_continue_the_edge_pixel():
    """Beyond the frame there is no zero: a constant movie is constant everywhere."""
    movie = np.full((3, 5, 6), 7.0)
    patches = Started(movie)([[0.5, 1.5, 1.5], [1.0, 3.1, 3.9], [2.0, 5.5, 5.5], [2.0, 4.9, 4.8], [0.0, -3.0, 99.0]])
    assert np.allclose(patches, 7.0, atol=1e-9)


def test_periodic_frames_have_no_seam():
    """Turning the torus turns the start: patches across an edge are those of the turned movie inside it."""
    movie = ripples(3, 12, 16)
    here, turned = Started(movie, periodic=True), Started(np.roll(movie, (5, 7), (1, 2)), periodic=True)
    inside = np.array([[1.0, 5.5, 6.5], [0.4, 5.8, 7.1], [1.7, 4.2, 8.9]])
    for shift in ([0, 5, 7], [0, 5 - 12, 7], [0, 5, 7 + 32]):
        assert np.allclose(turned(inside + shift), here(inside), atol=1e-9)
    rows, cols = (np.array([10, 11, 0, 1]), np.array([14, 15, 0, 1]))
    assert np.allclose(here([[2.0, 11.5, -0.5]])[0, ..., 0], movie[2][np.ix_(rows, cols)], atol=1e-9)


def test_slopes_across_a_periodic_edge():
    frames, h = Started(ripples(4, 12, 16), name="cubic", periodic=True), 1e-5
    at = frames.scaled([[1.3, 11.3, 15.2], [2.2, -0.4, 3.1]])
    terms = plan(3, [(0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(at, terms.directions, 1))
    for q in terms.weights:
        step = h * torch.tensor(q, dtype=torch.float64)
        up, down = (frames.start(constant(at + sign * step)).value for sign in (1, -1))
        assert relative_error(terms.partial(y, q), (up - down) / (2 * h)) < 1e-6
        assert terms.partial(y, q).abs().max() > 0.1


def test_two_samples_do_not_mix():
    movies = np.stack([blob(4, 8, 8, 1), 3 * blob(4, 8, 8, 1)])
    both = Started(movies)
    at = [[1.3, 2.2, 4.0]]
    y = both.start(constant(both.scaled(at))).value
    assert torch.allclose(y[1], 3 * y[0], atol=1e-9)
    assert np.allclose(Started(movies[0])(at).ravel(), y[0].flatten(), atol=1e-9)


def test_a_context_before_time_zero():
    """Scaled times may be negative when a context lies before the training domain."""
    movie = blob(3, 8, 8)
    frames, back = Started(movie), torch.tensor([5.0, 0, 0])
    early = frames.movie.batch.replace(coords=frames.movie.batch.coords - back)
    start = frame_start("linear", early, frames.movie.grid, KERNEL)
    at = frames.scaled([[0.5, 1.5, 5.5]])
    assert torch.allclose(start(constant(at - back)).value, frames.start(constant(at)).value, atol=1e-9)


# Waves


def test_each_band_has_its_own_weights_in_time():
    """A long and a short wave, each with its own kernel: the sum of two Gaussian processes by hand."""
    place, times = np.arange(16) / 16, np.array([0.0, 1.0, 3.0, 4.0])
    long, short = np.cos(2 * np.pi * place)[:, None], np.sin(2 * np.pi * 4 * place)[None]
    a, b = np.array([1.0, 0.3, -0.5, -0.2]), np.array([0.2, -0.4, 0.1, 0.9])
    movie = a[:, None, None] * long + b[:, None, None] * short
    kernels = (Kernel((0.7,), 2.0, 0.1, 0.3), None, None, Kernel((0.2,), 0.5, 0.1, 0.3), None, None)
    frames = Started(movie, name="smooth", times=times, periodic=True, smoother=Waves((), kernels, 0.3, True))
    expected = np.zeros((16, 16))
    for kernel, amounts, wave in ((kernels[0], a, long), (kernels[3], b, short)):
        t = torch.tensor(times / 4)[None, :, None]
        weights = posterior_weights(kernel, t, torch.tensor(amounts)[None, :, None], torch.ones(1, 4).bool())
        amount = kernel.covariance(constant(torch.full((1, 1, 1), 0.5).double()), t).value @ weights
        expected = expected + float(amount) * wave
    assert np.allclose(frames.frames([2.0])[0, ..., 0], expected, atol=1e-9)


def test_wiener_start_filters_then_interpolates_by_a_cubic():
    movie, gains = ripples(5, 16, 16), (1.0, 0.5, 0.25) + (0.0,) * 20
    smoother = Waves(gains, (), 0.1, True)
    filtered = smoother.wiener(torch.tensor(movie)[..., None]).numpy()[..., 0]
    start = Started(movie, name="wiener", periodic=True, smoother=smoother)
    cubic = Started(filtered, name="cubic", periodic=True)
    at = [[0.3, 5.2, 14.9], [2.5, 3.5, 7.5]]
    assert np.allclose(start(at), cubic(at), atol=1e-9)
    assert np.abs(filtered - movie).max() > 0.1


# Missing pixels


def test_a_frame_that_is_missing_is_interpolated():
    movie = blob(5, 8, 8)
    movie[2] = nan
    assert np.allclose(Started(movie).frames([2.0])[0, ..., 0], (movie[1] + movie[3]) / 2, atol=1e-9)


@pytest.mark.parametrize("name", ["linear", "cubic", "smooth"])
def test_a_hidden_frame_is_as_good_as_missing(name):
    movie = blob(5, 8, 8)
    hidden, missing = Started(movie), movie.copy()
    missing[2] = nan
    batch = hidden.movie.batch
    batch = batch.replace(observed=batch.observed & (batch.frame != 2)[..., None])
    start, at = frame_start(name, batch, hidden.movie.grid, KERNEL), [[2.0, 1.5, 5.5], [0.3, 3.1, 4.9]]
    assert np.allclose(start(constant(hidden.scaled(at))).value[0].reshape(2, 4, 4, 1), Started(missing, name)(at))


def test_masked_pixels_start_at_zero_the_mean_of_standardised_values():
    mask = np.ones((8, 8), dtype=bool)
    mask[:3, :2] = False
    movie = np.where(mask, blob(4, 8, 8), nan)
    filled = Started(movie).frames([0.5])[0, ..., 0]
    assert (filled[~mask] == 0).all()
    assert np.allclose(filled[mask], ((movie[0] + movie[1]) / 2)[mask], atol=1e-9)


# Derivatives


BANDS = Waves((), (KERNEL, None, Kernel((0.2,), 0.5, 0.1, 0.1), None, KERNEL, None), 0.1)


@pytest.mark.parametrize(("name", "smoother"), [("cubic", None), ("smooth", KERNEL), ("smooth", BANDS)])
def test_all_partials_agree_with_nested_autograd(name, smoother):
    frames = Started(blob(5, 12, 12), name=name, smoother=smoother)
    at = frames.scaled([[1.3, 4.7, 5.2], [2.6, 3.1, 6.8]])
    wanted = up_to(3, 2)
    terms = plan(3, wanted)
    y = frames.start(straight_line(at, terms.directions, terms.order))
    derivatives = nested_derivatives(lambda s: frames.start(constant(at + s)).value, 3, 2)
    assert (1, 0, 1) in wanted
    assert (0, 1, 1) in wanted
    for q in wanted:
        assert relative_error(terms.partial(y, q), entry(derivatives, q)) < 1e-8, q


def test_partials_agree_with_differences():
    frames = Started(blob(5, 12, 12), name="smooth")
    at, h = frames.scaled([[1.3, 4.7, 5.2]]), 1e-4
    terms = plan(3, [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(at, terms.directions, 1))
    for q in terms.weights:
        step = h * torch.tensor(q, dtype=torch.float64)
        up, down = (frames.start(constant(at + sign * step)).value for sign in (1, -1))
        assert relative_error(terms.partial(y, q), (up - down) / (2 * h)) < 1e-6


def test_slopes_of_a_plane_also_on_the_grid_and_at_its_edge():
    frames = Started(plane())
    at = frames.scaled([[1.3, 5.5, 5.5], [1.3, 1.5, 1.5], [1.3, 9.5, 5.5]])
    terms = plan(3, [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(at, terms.directions, 1))
    by_time = terms.partial(y, (1, 0, 0))[0] / frames.movie.scaling.span[0]
    assert torch.allclose(by_time, torch.full_like(by_time, 2.0), atol=1e-9)
    by_row = (terms.partial(y, (0, 1, 0))[0] / frames.movie.scaling.span[1]).unflatten(-1, (4, 4))
    by_col = (terms.partial(y, (0, 0, 1))[0] / frames.movie.scaling.span[2]).unflatten(-1, (4, 4))
    inner = slice(1, 3)  # the pixels at the frame's edge feel the edge pixel that continues
    assert torch.allclose(by_row[:, inner], torch.full_like(by_row[:, inner], 3.0), atol=1e-9)
    assert torch.allclose(by_col[..., inner], torch.full_like(by_col[..., inner], -0.5), atol=1e-9)


@pytest.mark.parametrize("blend", [0, 1e9])
@pytest.mark.parametrize(
    ("name", "smoother"), [(name, KERNEL) for name in ("linear", "hermite", "cubic", "smooth")] + [("smooth", BANDS)]
)
def test_order_zero_of_a_series_is_the_value(name, smoother, blend, monkeypatch):
    """Values come from windows of all frames, as series do, or from whole frames blended at each moment."""
    monkeypatch.setattr("cstformer.starts.frame_start._BLEND", blend)
    frames = Started(blob(4, 10, 9), name=name, smoother=smoother)
    for at in ([[1.3, 4.7, 5.2]], [[1.0, 1.5, 1.5], [1.4, 5.5, 1.5]]):
        x = frames.scaled(at)
        terms = plan(3, up_to(3, 2))
        full = frames.start(straight_line(x, terms.directions, 2)).value
        assert torch.allclose(full, frames.start(constant(x)).value, atol=1e-9)


# How much of a change is allowed


FAST = Waves((), (Kernel((0.12,), 1.0, 0.01, 0.01), None, Kernel((0.1,), 0.5, 0.01, 0.01), None, None, None), 0.01)


def bounded(movie, times=None):
    """The bounded start of a movie whose waves are `FAST`, with the variance at its hidden frames."""
    frames = movie_batch(movie, (4, 4), times)
    seen, exists, _ = frames.grid.whole(frames.batch)
    shares = FAST.shares(*movie.shape[1:3])
    waves = dataclasses.replace(FAST, narrow=narrow_variance(FAST.loud, shares, seen, exists))
    return frames, bounded_start("smooth", frames.batch, frames.grid, waves)


def test_a_bounded_start_ends_with_the_allowed_share():
    """Little at a frame and between two frames; nearly all where a frame is missing."""
    movie = blob(9, 12, 12)[..., None]
    frames, start = bounded(movie)
    plain = frame_start("smooth", frames.batch, frames.grid, FAST)
    at = frames.scaled([[4.0, 5.5, 5.5], [4.5, 5.5, 5.5]])
    y = start(constant(at)).value[0]
    assert torch.equal(y[:, :-1], plain(constant(at)).value[0])
    assert (y[:, -1] < 0.1).all()
    thin = np.delete(movie, 4, axis=0)
    frames, hidden = bounded(thin, np.delete(np.arange(9.0), 4))
    posterior = TimePosterior(FAST.loud, *frames.grid.whole(frames.batch)[:2])
    x = frames.scaled([[4.0, 5.5, 5.5]])
    variance = posterior.variance(constant(x[..., :1])).value[0, 0] @ FAST.shares(12, 12)
    narrow = narrow_variance(FAST.loud, FAST.shares(12, 12), *frames.grid.whole(frames.batch)[:2])
    ratio = (2 * variance / narrow) ** 3
    assert hidden(constant(x)).value[0, 0, -1].item() == pytest.approx((ratio / (1 + ratio)).item())
    assert hidden(constant(x)).value[0, 0, -1] > 0.8


def test_partials_of_the_allowed_share_agree_with_nested_autograd():
    frames, start = bounded(blob(5, 12, 12)[..., None])
    at = frames.scaled([[1.3, 4.7, 5.2], [2.6, 3.1, 6.8]])
    terms = plan(3, up_to(3, 2))
    y = start(straight_line(at, terms.directions, terms.order)).map(lambda c: c[..., -1:])
    derivatives = nested_derivatives(lambda s: start(constant(at + s)).value[..., -1:], 3, 2)
    for q in ((1, 0, 0), (2, 0, 0)):
        assert relative_error(terms.partial(y, q), entry(derivatives, q)) < 1e-6, q
    assert terms.partial(y, (1, 1, 0)).abs().max() < 1e-12
