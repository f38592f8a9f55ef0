"""The start of patch tokens: frames interpolated in time, patches cut anywhere."""

import numpy as np
import pytest
import torch
from problems import entry, nested_derivatives, relative_error
from small_models import blob, fit_quickly

from cstformer import CST, PatchLayout, Samples, frame_queries, frames_to_samples, samples_to_frames
from cstformer.data.batch import Batch, Context
from cstformer.data.patches import stitch
from cstformer.data.units import Scaling
from cstformer.starts.frames import frame_noise, frame_series, frame_start, loud_patches, move_patches
from cstformer.starts.gaussian_process import Kernel, posterior_weights
from cstformer.starts.waves import Waves
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import constant, straight_line

nan = np.nan
KERNEL = Kernel((0.4,), 1.0, 0.5, 0.05)


class Frames:
    """A movie as a context (only its coordinates are scaled), and the start at the user's coordinates."""

    def __init__(self, movie, patch=(4, 4), kind="linear", times=None, periodic=False, smoother=KERNEL):
        self.samples = frames_to_samples(movie, patch, times=times, periodic=periodic).sorted()
        self.layout: PatchLayout = self.samples.layout
        points = self.samples.coords[self.samples.point_observed]
        self.low, self.span = points.min(0), np.ptp(points, axis=0)
        self.span = np.where(self.span > 0, self.span, 1.0)
        self.pixels = (self.low[1:], self.span[1:])
        real = self.samples.point_observed[..., None]
        scaled = np.where(real, (self.samples.coords - self.low) / self.span, 0.0)
        self.points = Context(
            torch.tensor(scaled), torch.tensor(self.samples.values), torch.tensor(self.samples.observed)
        )
        self.start = frame_start(kind, self.points, self.layout, self.pixels, smoother)

    def scaled(self, at):
        return torch.tensor((np.asarray(at, dtype=float) - self.low) / self.span).expand(len(self.samples), -1, -1)

    def __call__(self, at):
        """Patches (m, P0, P1, C) of the first sample at coordinates (m, 3) in frames and pixels."""
        y = self.start(constant(self.scaled(at))).value[0].numpy()
        return y.reshape(-1, *self.layout.patch, self.layout.channels)

    def movie(self, times):
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
@pytest.mark.parametrize("kind", ["linear", "hermite", "cubic"])
def test_observed_frames_come_back_exactly(size, channels, kind):
    movie = blob(5, *size, channels)
    assert np.allclose(Frames(movie, kind=kind).movie(np.arange(5)), movie, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_between_two_frames_is_their_average(size):
    movie = blob(5, *size)[..., None]
    assert np.allclose(Frames(movie).movie([1.5]), (movie[1] + movie[2]) / 2, atol=1e-9)
    assert np.allclose(Frames(movie).movie([3.25]), 0.75 * movie[3] + 0.25 * movie[4], atol=1e-9)


def test_irregular_times():
    movie = blob(3, 8, 8)[..., None]
    start = Frames(movie, times=[10.0, 11.0, 15.0])
    assert np.allclose(start.movie([12.0]), 0.75 * movie[1] + 0.25 * movie[2], atol=1e-9)


def test_before_and_after_the_movie_the_edge_frame_stays():
    movie = blob(3, 8, 8)[..., None]
    assert np.allclose(Frames(movie).movie([-2.0, 7.0]), movie[[0, 2]], atol=1e-9)


def test_off_grid_patches_of_a_plane_are_exact():
    movie = plane()
    for t, row, col in [(1.0, 3.0, 3.0), (0.3, 4.7, 2.9), (2.5, 6.25, 4.1)]:
        offsets_r, offsets_c = np.meshgrid(np.arange(4) - 1.5, np.arange(4) - 1.5, indexing="ij")
        expected = 5 + 2 * t + 3 * (row + offsets_r) - 0.5 * (col + offsets_c)
        assert np.allclose(Frames(movie)([[t, row, col]])[0, ..., 0], expected, atol=1e-9)


def test_whole_pixel_shifts_are_exact_pixels():
    movie = blob(3, 12, 12)
    for row, col in [(2.5, 4.5), (3.5, 2.5), (6.5, 7.5)]:
        top, left = int(row - 1.5), int(col - 1.5)
        patch = Frames(movie)([[1.0, row, col]])[0, ..., 0]
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
        patch = Frames(np.stack([image, image]))([[0.5, row, col]])[0, ..., 0]
        errors.append(np.abs(patch - truth).max())
    assert errors[0] < 0.01
    assert np.log2(errors[0] / errors[1]) > 2.7
    assert np.log2(errors[1] / errors[2]) > 2.7


def test_sizes_that_do_not_divide_continue_the_edge_pixel():
    """Beyond the frame there is no zero: a constant movie is constant everywhere."""
    movie = np.full((3, 5, 6), 7.0)
    patches = Frames(movie)([[0.5, 1.5, 1.5], [1.0, 3.1, 3.9], [2.0, 5.5, 5.5], [2.0, 4.9, 4.8], [0.0, -3.0, 99.0]])
    assert np.allclose(patches, 7.0, atol=1e-9)


def waves(frames, height, width):
    """A periodic movie of a few waves."""
    t, r, c = np.meshgrid(np.arange(frames), np.arange(height) / height, np.arange(width) / width, indexing="ij")
    return np.sin(2 * np.pi * r + t) * np.cos(2 * np.pi * (2 * c - r)) + 0.3 * np.cos(2 * np.pi * c)


def test_periodic_frames_have_no_seam():
    """Turning the torus turns the start: patches across an edge are those of the turned movie inside it."""
    movie = waves(3, 12, 16)
    here, turned = Frames(movie, periodic=True), Frames(np.roll(movie, (5, 7), (1, 2)), periodic=True)
    inside = np.array([[1.0, 5.5, 6.5], [0.4, 5.8, 7.1], [1.7, 4.2, 8.9]])
    for shift in ([0, 5, 7], [0, 5 - 12, 7], [0, 5, 7 + 32]):
        assert np.allclose(turned(inside + shift), here(inside), atol=1e-9)
    rows, cols = (np.array([10, 11, 0, 1]), np.array([14, 15, 0, 1]))
    assert np.allclose(here([[2.0, 11.5, -0.5]])[0, ..., 0], movie[2][np.ix_(rows, cols)], atol=1e-9)


def test_slopes_across_a_periodic_edge():
    frames, h = Frames(waves(4, 12, 16), kind="cubic", periodic=True), 1e-5
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
    both = Frames(movies)
    at = [[1.3, 2.2, 4.0]]
    y = both.start(constant(both.scaled(at))).value
    assert torch.allclose(y[1], 3 * y[0], atol=1e-9)
    assert np.allclose(Frames(movies[0])(at).ravel(), y[0].flatten(), atol=1e-9)


def test_a_context_before_time_zero():
    """Scaled times may be negative when a context lies before the training domain."""
    movie = blob(3, 8, 8)
    frames = Frames(movie)
    early = Context(frames.points.coords - torch.tensor([5.0, 0, 0]), frames.points.values, frames.points.observed)
    start = frame_start("linear", early, frames.layout, frames.pixels, KERNEL)
    at = frames.scaled([[0.5, 1.5, 5.5]])
    moved = start(constant(at - torch.tensor([5.0, 0, 0]))).value
    assert torch.allclose(moved, frames.start(constant(at)).value, atol=1e-9)


# Moved patches


@pytest.mark.parametrize("channels", [1, 2])
def test_moved_patches_are_those_of_the_torus(channels):
    movie = np.stack([waves(3, 12, 8) * (k + 1) for k in range(channels)], -1)
    frames = Frames(movie, periodic=True)
    points, target = move_patches(frames.points, 10 * frames.points.values, frames.layout, frames.pixels, (3, 2))
    turned = frames_to_samples(np.roll(movie, (-3, -2), (1, 2)), (4, 4), periodic=True)
    assert torch.equal(points.values, torch.tensor(turned.values))
    assert torch.equal(target, 10 * points.values)
    shift = (points.coords - frames.points.coords) * torch.tensor(frames.span)
    assert torch.allclose(shift, torch.tensor([0.0, 3.0, 2.0]).double(), atol=1e-12)
    # The start there is the same patch: what a moved query is asked for is what it begins with.
    assert torch.allclose(frames.start(constant(points.coords)).value, points.values, atol=1e-9)


def test_moved_patches_stay_inside_a_frame_with_edges():
    movie = blob(3, 12, 10)  # the last column of patches sticks out
    movie[1, 5, 6] = nan
    frames = Frames(movie)
    points, _ = move_patches(frames.points, frames.points.values, frames.layout, frames.pixels, (2, 0))
    seen = points.observed.unflatten(1, (3, 3, 3))  # frame, row and column of patches
    assert not seen[0, :, 2].any()
    assert seen[0, :, :2].any(-1).all()
    moved = torch.where(points.observed, points.values, nan).unflatten(1, (3, 3, 3)).unflatten(-1, (4, 4))[0].numpy()
    assert np.array_equal(moved[1, 0, 1], movie[1, 2:6, 4:8], equal_nan=True)
    assert np.array_equal(moved[2, 1, 2, :, :2], movie[2, 6:10, 8:])
    assert np.isnan(moved[2, 1, 2, :, 2:]).all()


def test_targets_keep_the_waves_that_are_more_than_noise():
    """Of two waves, one in a loud and one in a quiet band, the first is left, in the same patches."""
    place = np.arange(16) * 2 * np.pi / 16
    slow, fast = np.cos(place)[:, None] * np.ones(16), np.sin(6 * place) * np.ones((16, 1))
    frames = Frames(np.stack([slow, 2 * slow + fast, fast]), periodic=True)
    loud = Waves((1.0,) * 12, (KERNEL, KERNEL, None, None, None, None), 0.1, periodic=True)
    target = torch.tensor(frames_to_samples(np.stack([slow + fast, fast, 3 * slow]), (4, 4)).values)
    left = loud_patches(frames.points, target, frames.layout, frames.pixels, loud)
    want = frames_to_samples(np.stack([slow, 0 * fast, 3 * slow]), (4, 4)).values
    torch.testing.assert_close(left, torch.tensor(want), rtol=0, atol=1e-12)


def test_targets_are_cleaned_unless_pixels_are_missing():
    samples = frames_to_samples(waves(6, 8, 8), (4, 4), window=4, stride=1, periodic=True)
    model = fit_quickly(CST.preset("smoke", steps=1), samples)
    points = model.scaling_.batch(samples, torch.float32, model.device_).points
    noise = torch.randn(points.values.shape, generator=torch.Generator().manual_seed(0))
    assert float(model._clean(points, noise).square().mean()) < 0.9 * float(noise.square().mean())
    points.observed[0, 0, 0] = False
    assert model._clean(points, noise) is noise


def test_frames_have_heads_that_look_near_patches_and_muon_but_curves_do_not(tmp_path):
    samples = frames_to_samples(waves(6, 8, 16), (4, 4), window=4, stride=1, periodic=True)
    model = fit_quickly(CST.preset("smoke", steps=1, width=64, heads=32), samples)
    nearness = model.network_.blocks[1].attention.nearness
    # Four frames, two rows and four columns of patches; rows and columns go round the frame.
    spacing = torch.tensor([1 / 3, 1.0, 1 / 3])
    torch.testing.assert_close(nearness.log_width.detach().mean(0).exp(), 0.55 * spacing, rtol=0.3, atol=0)
    torch.testing.assert_close(nearness.period, torch.tensor([4.0, 2.0, 4 / 3]))
    assert model.network_.architecture.guess and model._optimiser() == "muon"
    model.save(tmp_path / "model")
    at = frame_queries(samples.layout, [0.5])
    assert np.array_equal(CST.load(tmp_path / "model").predict(samples, at), model.predict(samples, at))
    plain = fit_quickly(CST.preset("smoke", steps=1, nearness="never", start="linear", optimiser="adamw"), samples)
    assert not (plain.network_.architecture.near or plain.network_.architecture.guess)
    assert plain._optimiser() == "adamw"
    t = np.linspace(0, 1, 8)
    curves = fit_quickly(CST.preset("smoke", steps=1), Samples(t, np.sin(t + np.arange(6)[:, None])))
    assert not (curves.network_.architecture.near or curves.network_.architecture.guess)
    assert curves._optimiser() == "adamw"


def test_training_asks_for_moved_patches_every_second_step(monkeypatch):
    asked = []
    original = CST._move

    def spy(self, points, target, generator):
        asked.append(original(self, points, target, generator)[0].coords)
        return original(self, points, target, generator)

    monkeypatch.setattr(CST, "_move", spy)
    samples = frames_to_samples(waves(6, 8, 8), (4, 4), window=4, stride=1, periodic=True)
    fit_quickly(CST.preset("smoke", steps=20, patience=2.0), samples)
    assert 5 <= len(asked) <= 15
    assert len({tuple(coords[0, 0, 1:].tolist()) for coords in asked}) > 3


# Waves


def test_each_band_has_its_own_weights_in_time():
    """A long and a short wave, each with its own kernel: the sum of two Gaussian processes by hand."""
    place, times = np.arange(16) / 16, np.array([0.0, 1.0, 3.0, 4.0])
    long, short = np.cos(2 * np.pi * place)[:, None], np.sin(2 * np.pi * 4 * place)[None]
    a, b = np.array([1.0, 0.3, -0.5, -0.2]), np.array([0.2, -0.4, 0.1, 0.9])
    movie = a[:, None, None] * long + b[:, None, None] * short
    kernels = (Kernel((0.7,), 2.0, 0.1, 0.3), None, None, Kernel((0.2,), 0.5, 0.1, 0.3), None, None)
    frames = Frames(movie, kind="smooth", times=times, periodic=True, smoother=Waves((), kernels, 0.3, True))
    expected = np.zeros((16, 16))
    for kernel, amounts, wave in ((kernels[0], a, long), (kernels[3], b, short)):
        t = torch.tensor(times / 4)[None, :, None]
        weights = posterior_weights(kernel, t, torch.tensor(amounts)[None, :, None], torch.ones(1, 4).bool())
        amount = kernel.covariance(constant(torch.full((1, 1, 1), 0.5).double()), t).value @ weights
        expected = expected + float(amount) * wave
    assert np.allclose(frames.movie([2.0])[0, ..., 0], expected, atol=1e-9)


def test_wiener_start_filters_then_interpolates_by_a_cubic():
    movie, gains = waves(5, 16, 16), (1.0, 0.5, 0.25) + (0.0,) * 20
    smoother = Waves(gains, (), 0.1, True)
    filtered = smoother.wiener(torch.tensor(movie)[..., None]).numpy()[..., 0]
    start = Frames(movie, kind="wiener", periodic=True, smoother=smoother)
    cubic = Frames(filtered, kind="cubic", periodic=True)
    at = [[0.3, 5.2, 14.9], [2.5, 3.5, 7.5]]
    assert np.allclose(start(at), cubic(at), atol=1e-9)
    assert np.abs(filtered - movie).max() > 0.1


# Missing pixels


def test_a_pixel_missing_in_one_frame_takes_its_mean_over_the_others():
    movie = blob(4, 8, 8)
    movie[1, 2, 3] = nan
    filled = Frames(movie).movie(np.arange(4))[..., 0]
    assert filled[1, 2, 3] == pytest.approx(np.nanmean(movie[:, 2, 3]))
    seen = ~np.isnan(movie)
    assert np.allclose(filled[seen], movie[seen], atol=1e-9)


def test_a_colour_missing_in_one_pixel_takes_its_own_mean():
    movie = blob(4, 8, 8, 2)
    movie[1, 2, 3, 1] = nan
    filled = Frames(movie).movie([1.0])[0]
    assert filled[2, 3, 1] == pytest.approx(np.nanmean(movie[:, 2, 3, 1]))
    assert filled[2, 3, 0] == pytest.approx(movie[1, 2, 3, 0])


def test_a_patch_missing_in_one_frame_takes_its_mean():
    movie = blob(4, 8, 8)
    movie[2, :4, 4:] = nan  # a whole token is absent
    filled = Frames(movie).movie([2.0])[0, ..., 0]
    assert np.allclose(filled[:4, 4:], np.nanmean(movie[:, :4, 4:], 0), atol=1e-9)


def test_a_frame_that_is_missing_is_interpolated():
    movie = blob(5, 8, 8)
    movie[2] = nan
    assert np.allclose(Frames(movie).movie([2.0])[0, ..., 0], (movie[1] + movie[3]) / 2, atol=1e-9)


def test_masked_pixels_start_at_zero_the_mean_of_standardised_values():
    mask = np.ones((8, 8), dtype=bool)
    mask[:3, :2] = False
    movie = np.where(mask, blob(4, 8, 8), nan)
    filled = Frames(movie).movie([0.5])[0, ..., 0]
    assert (filled[~mask] == 0).all()
    assert np.allclose(filled[mask], ((movie[0] + movie[1]) / 2)[mask], atol=1e-9)


# Derivatives


BANDS = Waves((), (KERNEL, None, Kernel((0.2,), 0.5, 0.1, 0.1), None, KERNEL, None), 0.1)


@pytest.mark.parametrize(("kind", "smoother"), [("cubic", None), ("smooth", KERNEL), ("smooth", BANDS)])
def test_all_partials_agree_with_nested_autograd(kind, smoother):
    frames = Frames(blob(5, 12, 12), kind=kind, smoother=smoother)
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
    frames = Frames(blob(5, 12, 12), kind="smooth")
    at, h = frames.scaled([[1.3, 4.7, 5.2]]), 1e-4
    terms = plan(3, [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(at, terms.directions, 1))
    for q in terms.weights:
        step = h * torch.tensor(q, dtype=torch.float64)
        up, down = (frames.start(constant(at + sign * step)).value for sign in (1, -1))
        assert relative_error(terms.partial(y, q), (up - down) / (2 * h)) < 1e-6


def test_slopes_of_a_plane_also_on_the_grid_and_at_its_edge():
    frames = Frames(plane())
    at = frames.scaled([[1.3, 5.5, 5.5], [1.3, 1.5, 1.5], [1.3, 9.5, 5.5]])
    terms = plan(3, [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
    y = frames.start(straight_line(at, terms.directions, 1))
    by_time = terms.partial(y, (1, 0, 0))[0] / frames.span[0]
    assert torch.allclose(by_time, torch.full_like(by_time, 2.0), atol=1e-9)
    by_row = (terms.partial(y, (0, 1, 0))[0] / frames.span[1]).unflatten(-1, (4, 4))
    by_col = (terms.partial(y, (0, 0, 1))[0] / frames.span[2]).unflatten(-1, (4, 4))
    inner = slice(1, 3)  # the pixels at the frame's edge feel the edge pixel that continues
    assert torch.allclose(by_row[:, inner], torch.full_like(by_row[:, inner], 3.0), atol=1e-9)
    assert torch.allclose(by_col[..., inner], torch.full_like(by_col[..., inner], -0.5), atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "hermite", "cubic", "smooth"])
def test_order_zero_of_a_series_is_the_value(kind):
    frames = Frames(blob(4, 10, 9), kind=kind)
    for at in ([[1.3, 4.7, 5.2]], [[1.0, 1.5, 1.5], [1.4, 5.5, 1.5]]):
        x = frames.scaled(at)
        terms = plan(3, up_to(3, 2))
        full = frames.start(straight_line(x, terms.directions, 2)).value
        assert torch.allclose(full, frames.start(constant(x)).value, atol=1e-9)


# Pixels as series, and through the estimator


def test_pixels_as_time_series_for_the_kernel():
    movie = blob(4, 5, 6)
    movie[1, 0, 0] = nan
    frames = Frames(movie)
    times, values, exists = frame_series(Batch(frames.points), frames.layout, frames.pixels)
    assert times.shape == (1, 4, 1)
    assert exists.all()
    assert values.shape == (1, 4, 5 * 6 - 1)  # neither the pixel with a gap nor what sticks out
    always = ~np.isnan(movie).any(0)
    assert np.allclose(values[0].numpy(), movie[:, always], atol=1e-9)


def test_pixels_as_time_series_where_none_is_complete():
    movie = blob(4, 4, 4)
    movie[np.arange(4), :, np.arange(4)] = nan
    frames = Frames(movie)
    _, values, _ = frame_series(Batch(frames.points), frames.layout, frames.pixels)
    assert values.shape == (1, 4, 16)
    assert np.isfinite(values.numpy()).all()


@pytest.mark.parametrize("size", [(8, 8), (10, 7), (4, 4)])
def test_the_estimator_on_frames(size):
    """With the decoder at zero and A = 1 a model answers with its start: frames and averages come back."""
    movie = blob(6, *size)
    samples = frames_to_samples(movie, (4, 4), window=4, stride=1)
    model = fit_quickly(CST.preset("smoke", steps=1, start="linear", precision="float64"), samples)
    with torch.no_grad():
        model.network_.skip.weight.copy_(torch.eye(16))
        model.network_.decode.weight.zero_()
        model.network_.decode.bias.zero_()
    queries = frame_queries(samples.layout, [0.0, 1.5, 3.0])
    answer = samples_to_frames(model.predict(samples, queries), samples.layout)
    assert np.allclose(answer[1, ..., 0], [movie[1], (movie[2] + movie[3]) / 2, movie[4]], atol=1e-8)
    slope = samples_to_frames(
        model.derivative(samples, frame_queries(samples.layout, [1.5]), (1, 0, 0)), samples.layout
    )
    assert np.allclose(slope[1, 0, ..., 0], movie[3] - movie[2], atol=1e-8)


def test_the_estimator_on_a_torus_has_no_seam():
    """A whole period further the answer is the same, whatever the weights, and nobody speaks of extrapolation."""
    samples = frames_to_samples(waves(6, 8, 8), (4, 4), window=4, stride=1, periodic=True)
    model = fit_quickly(CST.preset("smoke", steps=5, learning_rate=0.02, precision="float64"), samples)
    at = np.array([[0.7, 3.1, 6.9], [1.5, 1.5, 1.5]])
    here = model.predict(samples, at)
    for turn in ([0, 8, 0], [0, 0, 8], [0, -8, 16]):
        assert np.allclose(model.predict(samples, at + turn), here, atol=1e-8)
    assert not np.allclose(model.predict(samples, at + np.array([0, 4, 0])), here, atol=1e-2)


def test_an_untrained_model_answers_with_its_start():
    samples = frames_to_samples(waves(6, 8, 8), (4, 4), window=4, stride=1, periodic=True)
    model = fit_quickly(CST.preset("smoke", steps=1, learning_rate=0.0, start="linear", precision="float64"), samples)
    answer = samples_to_frames(model.predict(samples, frame_queries(samples.layout, [1.5])), samples.layout)
    assert np.allclose(answer[0, 0, ..., 0], waves(6, 8, 8)[1:3].mean(0), atol=1e-9)


def test_frames_on_ragged_windows():
    """Samples of different length: what pads the short one is nobody's frame."""
    movie = blob(6, 8, 8)
    long, short = (frames_to_samples(movie[:k], (4, 4)) for k in (6, 3))
    both = Samples.concatenate([long, short])
    model = fit_quickly(CST.preset("smoke", steps=1, precision="float64"), both)
    at = frame_queries(both.layout, [0.7])
    assert np.abs(model.predict(both, at)[1] - model.predict(short, at)[0]).max() < 1e-8


@pytest.mark.parametrize("sd", [0.05, 0.3])
def test_noise_is_told_from_dynamics_by_the_neighbours(sd):
    """A smooth image that changes wholly from frame to frame: in time it looks like noise, in space it does not."""
    rng = np.random.default_rng(0)
    r, c = np.mgrid[:24, :16] / 24
    phase = rng.uniform(0, 6, (10, 1, 1))
    movie = np.sin(2 * r + phase) * np.cos(c - phase) + sd * rng.normal(size=(10, 24, 16))
    movie[:, :5, :5] = np.nan  # unobserved pixels do not count
    samples = frames_to_samples(movie, patch=(8, 8))
    scaling = Scaling.of(samples)
    data = scaling.batch(samples, torch.float64, torch.device("cpu"))
    noise = frame_noise(data, samples.layout, (scaling.low[1:], scaling.span[1:]))
    assert noise * scaling.sd[0] == pytest.approx(sd, rel=0.1)
