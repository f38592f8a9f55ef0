"""`Points` and `Frames` do what `DataKind` promises."""

import json

import numpy as np
import pytest
import torch
from small_models import blob, known_kernel, patched_kernel, waves

from cstformer import CSTError, PatchLayout, Samples, frames_to_samples
from cstformer.starts.coupled import CoupledMean
from cstformer.starts.curves import make_start
from cstformer.starts.frame_start import frame_start
from cstformer.starts.frames import Frames
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kind import MAX_NOISE
from cstformer.starts.kinds import kind_from, kind_of, unfitted_kind
from cstformer.starts.pixel_view import PixelView
from cstformer.starts.points import Points
from cstformer.starts.trust import Odds, Trust
from cstformer.starts.waves import Waves
from cstformer.taylor.series import constant
from cstformer.training.settings import resolve

nan = np.nan
CPU = torch.device("cpu")
KERNEL = Kernel((0.3,), 1.1, 0.4, 0.2)


def curves() -> Samples:
    """Six curves of two channels in units of their own; one value is missing, and one curve is short."""
    samples = waves()
    values = samples.values * [1.0, 10.0] + [0.0, 7.0]
    values[1, 2, 0] = values[2, 4:] = nan
    return Samples(samples.coords, values, coord_names=["t"])


def scattered() -> Samples:
    rng = np.random.default_rng(0)
    return Samples(rng.random((4, 9, 2)) * [3.0, 100.0], rng.normal(size=(4, 9)))


def movie(periodic=False) -> Samples:
    """Windows of two image channels; without a period the patches stick out and pixels are missing."""
    frames = blob(8, 12, 8, 2) if periodic else blob(8, 10, 9, 2)
    if not periodic:
        frames[3, 5, 6] = nan
        frames[2, :, :, 1] += 3
    return frames_to_samples(frames, (4, 4), window=4, stride=2, times=2.0 * np.arange(8), periodic=periodic)


def torus() -> Samples:
    return movie(periodic=True)


def batch_of(samples: Samples):
    kind = kind_of(samples)
    return kind, kind.batch(samples.sorted(), torch.float64, CPU)


def pixels_of(samples: Samples) -> np.ndarray:
    """Observed pixels (·, C)."""
    values = np.where(samples.observed, samples.values, nan)
    return values.reshape(-1, samples.layout.channels)


ALL = pytest.mark.parametrize("make", [curves, scattered, movie, torus])

# Units and tensors


def test_frames_have_a_layout_and_points_have_none():
    for make, cls in ((curves, Points), (scattered, Points), (movie, Frames), (torus, Frames)):
        kind = kind_of(make())
        assert type(kind) is cls and kind.layout == make().layout


def test_channels_of_points_are_measured_each_for_itself():
    values = np.where(curves().observed, curves().values, nan)
    scaling = kind_of(curves()).scaling
    np.testing.assert_allclose(scaling.mean, np.nanmean(values, (0, 1)))
    np.testing.assert_allclose(scaling.sd, np.nanstd(values, (0, 1)))
    assert not np.isclose(scaling.sd[0], scaling.sd[1], rtol=0.5)


def test_pixels_of_frames_are_measured_together():
    """One mean and standard deviation for each image channel; pixels that are missing or beyond the frame count not."""
    scaling, pixels = kind_of(movie()).scaling, pixels_of(movie())
    np.testing.assert_allclose(scaling.mean.reshape(16, 2), np.tile(np.nanmean(pixels, 0), (16, 1)))
    np.testing.assert_allclose(scaling.sd.reshape(16, 2), np.tile(np.nanstd(pixels, 0), (16, 1)))


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_in_the_units_of_the_model(make, dtype):
    samples = make().sorted()
    kind = kind_of(samples)
    batch = kind.batch(samples, dtype, CPU)
    assert batch.coords.dtype == batch.values.dtype == dtype
    exists = samples.point_observed
    assert np.array_equal(batch.exists, exists)
    user = kind.scaling.user_coords(batch.coords.double().numpy())
    np.testing.assert_allclose(user[exists], samples.coords[exists], rtol=1e-6, atol=1e-6)
    values = kind.scaling.values(batch.values.double().numpy())
    np.testing.assert_allclose(values[samples.observed], samples.values[samples.observed], rtol=1e-5)
    assert (batch.frame is None) == (samples.layout is None)


def test_frames_close_in_time_stay_apart_in_float32():
    """Two exposures 1e-6 apart after a long pause: in float32 they have one time, but they are still two frames."""
    samples = frames_to_samples(blob(3, 8, 8), (4, 4), times=[0.0, 1e4, 1e4 + 1e-6])
    batch = kind_of(samples).batch(samples.sorted(), torch.float32, CPU)
    assert len(batch.coords[0, :, 0].unique()) == 2
    assert batch.frame[0].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_units_of_a_kind_that_was_not_fitted_are_those_of_the_model():
    layout = PatchLayout((8, 8), (4, 4))
    for kind, cls in ((unfitted_kind(2, 3), Points), (unfitted_kind(3, 16, layout), Frames)):
        assert type(kind) is cls
        x, y = np.random.default_rng(0).normal(size=(2, 5, len(kind.scaling.low))), np.ones((2, 5, 1))
        assert np.array_equal(kind.scaling.coords(x), x) and np.array_equal(kind.scaling.values(y)[..., :1], y)


# Axes


def test_a_periodic_frame_has_no_outside_in_space():
    queries = np.array([[[99.0, -99.0, 99.0]]])
    for make, axes in ((movie, 3), (torus, 1)):
        kind = kind_of(make())
        assert np.array_equal(kind.outside(queries), kind.scaling.coords(queries)[..., :axes])
    assert np.array_equal(
        kind_of(scattered()).outside(queries[..., :2]), kind_of(scattered()).scaling.coords(queries[..., :2])
    )


def test_spacing_of_points_is_that_of_a_grid_of_as_many():
    kind, batch = batch_of(curves())
    assert kind.spacing(batch).tolist() == pytest.approx([6 / (5 * 7 + 4)])  # one of six curves has four points
    kind, batch = batch_of(scattered())
    assert kind.spacing(batch).tolist() == pytest.approx([1 / 3, 1 / 3])  # nine points of a square


def test_spacing_of_frames_is_that_of_frames_and_patches():
    kind, batch = batch_of(movie())  # four frames of three by three patches, first to last in [0, 1]
    assert kind.spacing(batch).tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 2])
    parts = [frames_to_samples(blob(k, 4, 8), (4, 4)) for k in (6, 3)]
    kind, batch = batch_of(Samples.concatenate(parts))
    assert kind.spacing(batch).tolist() == pytest.approx([1 / 3.5, 1.0, 1.0])  # 4.5 frames on average; one row


def test_periods_are_those_of_the_frame():
    assert kind_of(curves()).periods == kind_of(movie()).periods == {}
    # 12 rows and 8 columns; the centres of the patches are 1.5 … 9.5 and 1.5 … 5.5.
    assert kind_of(torus()).periods == {1: pytest.approx(12 / 8), 2: pytest.approx(8 / 4)}


# Sequences in time


def test_a_sequence_of_points_is_the_curve():
    kind, batch = batch_of(curves())
    times, states, observed, exists = kind.sequence(batch)
    assert torch.equal(times, batch.coords[..., 0]) and torch.equal(states, batch.values)
    assert torch.equal(observed, batch.observed) and torch.equal(exists, batch.exists)
    assert states.shape[2:] == kind.state_shape(2)
    which = torch.tensor([6, 0, 6])
    assert torch.equal(kind.read_states(states[0], which, batch.coords[0, which]), batch.values[0, which])


@pytest.mark.parametrize("make", [movie, torus])
def test_a_sequence_of_frames_is_the_movie_and_patches_are_read_back(make):
    kind, batch = batch_of(make())
    times, states, observed, exists = kind.sequence(batch)
    frames = blob(8, 10, 9, 2) if make is movie else blob(8, 12, 8, 2)
    assert states.shape == (3, 4, *kind.state_shape(batch.values.shape[-1])) and exists.all()
    assert states.shape[2:4] == kind.layout.frame == frames.shape[1:3]
    np.testing.assert_allclose(times[0], [0, 1 / 3, 2 / 3, 1])
    user, seen = states[1] * kind.scaling.sd[0] + kind.scaling.mean[0], observed[1, ..., 0]  # the first channel
    np.testing.assert_allclose(user[..., 0][seen], frames[2:6, ..., 0][seen])
    assert bool(observed.all()) == (make is torus)
    for sample in range(3):
        patches = kind.read_states(states[sample], batch.frame[sample], batch.coords[sample])
        here = batch.observed[sample]
        torch.testing.assert_close(patches[here], batch.values[sample][here])


# The prior and the start


@pytest.mark.parametrize("start", ["linear", "smooth", "median", "motion"])
@pytest.mark.parametrize("pattern", ["context", "joint"])
@pytest.mark.parametrize("corrupted", [False, True])
def test_which_starts_are_refused(start, pattern, corrupted):
    special = start in ("median", "motion")
    fits_frames = not special or (pattern == "context" and (start == "motion" or corrupted))
    for make, fits in ((curves, not special), (movie, fits_frames)):
        kind = kind_of(make())
        if fits:
            kind.check_start(start, pattern, corrupted)
        else:
            with pytest.raises(CSTError, match=f"start='{start}' is for frames .* choose another start"):
                kind.check_start(start, pattern, corrupted)


def test_patches_cannot_leave_their_grid():
    kind_of(curves()).check_coord_noise(0.1)
    kind_of(movie()).check_coord_noise(0.0)
    with pytest.raises(CSTError, match="coord_noise cannot be used with frames"):
        kind_of(movie()).check_coord_noise(0.1)


def test_the_kernel_of_points_sees_each_channel_where_it_was_observed():
    """Channels observed at different points become samples of their own; samples without a point are left out."""
    found = []
    kind, batch = batch_of(curves())
    observed = batch.observed.clone()
    observed[3, :, 1] = False
    batch = batch.replace(observed=observed)
    with patched_kernel(lambda *a: found.append(a) or KERNEL):
        assert kind.fit_kernel(batch, seed=5) is KERNEL
    coords, values, mask, seed, max_noise = found[0]
    assert (len(coords), values.shape[-1], seed, max_noise) == (2 * 6 - 1, 1, 5, MAX_NOISE)
    assert int(mask.sum()) == int(observed.sum())
    assert torch.equal(values[:2, :, 0].T, batch.values[0])


def test_the_kernel_of_frames_is_in_time_and_its_noise_is_bounded_by_the_neighbours():
    found = []
    kind, batch = batch_of(torus())
    with patched_kernel(lambda *a: found.append(a) or KERNEL):
        kind.fit_kernel(batch, seed=5)
    coords, values, mask, seed, max_noise = found[0]
    assert coords.shape == (3, 4, 1) and values.shape == (3, 4, 12 * 8 * 2) and mask.all() and seed == 5
    assert max_noise == kind.noise(batch) < MAX_NOISE


def test_the_noise_of_samples_is_that_of_their_kernel():
    seen = []
    for make in (curves, torus):
        with patched_kernel(lambda coords, *a: seen.append(coords.dtype) or known_kernel(coords)):
            noises = kind_of(make()).estimate_noises(make(), seed=0)
        assert max(noises) == 0.1 and (make is curves or noises == (0.1,))  # curves: what their channels do not share
    assert seen == [torch.float64] * 2


def fitted(make, start="smooth"):
    """The kind of data after `fit_prior`, with noise on half of the pixels as corruption."""

    def corruption(frames, generator):
        bad = torch.rand(frames.shape[:-1], generator=generator) < 0.5
        return frames + 20 * torch.randn(frames.shape, generator=generator) * bad[..., None]

    kind, batch = batch_of(make())
    with patched_kernel():
        kind.fit_prior(batch, start, 0, corruption)
    return kind, batch


def test_each_kind_fits_what_its_starts_need():
    points, _ = fitted(curves)
    assert points.kernel.noise == 0.1 and not hasattr(points, "waves")
    frames, _ = fitted(torus)
    assert isinstance(frames.waves, Waves) and frames.waves.periodic and frames.trust is None
    assert isinstance(fitted(torus, "median")[0].trust, Trust)
    assert not fitted(movie)[0].waves.periodic


def test_points_start_with_the_fitted_kernel_or_another():
    kind, batch = fitted(curves)
    kind.coupled = None
    at = constant(torch.rand(6, 5, 1, dtype=torch.float64))
    for smoother, kernel in ((None, kind.kernel), (KERNEL, KERNEL)):
        want = make_start("smooth", batch.coords, batch.values, batch.observed, kernel)(at)
        assert torch.equal(kind.start("smooth", batch, smoother)(at).value, want.value)


def test_channels_that_tell_each_other_are_coupled_where_cells_are_missing():
    kind, batch = fitted(curves)
    assert kind.coupled is not None  # both channels of a sample are waves of one frequency
    at, noises = constant(batch.coords), kind.noises
    want = CoupledMean(kind.coupled, batch.coords, batch.values, batch.observed)(at)
    assert torch.equal(kind.start("smooth", batch)(at).value[batch.exists], want.value[batch.exists])
    assert torch.equal(kind.posterior_mean(batch)(batch.coords), want.value)
    assert kind.network_options("smooth", "context")["split_context"]
    assert not kind.network_options("linear", "context")["split_context"]
    assert (torch.tensor(noises) <= kind.coupled.noises).all()
    again = kind_from(json.loads(json.dumps(kind.describe())))
    again.restore_tensors(kind.tensors(), kind.describe())
    assert torch.equal(again.start("smooth", batch)(at).value[batch.exists], want.value[batch.exists])
    kind, batch = batch_of(waves())
    with patched_kernel():
        kind.fit_prior(batch, "smooth", 0)
    assert kind.coupled is None  # no cell is missing


def test_frames_start_with_the_waves_or_the_trust_or_a_kernel():
    kind, batch = fitted(torus, "median")
    at = constant(torch.rand(3, 5, 3, dtype=torch.float64))
    for name, smoother, used in (
        ("smooth", None, kind.waves),
        ("wiener", None, kind.waves),
        ("median", None, kind.trust),
        ("smooth", KERNEL, KERNEL),
    ):
        want = frame_start(name, batch, kind.grid, used)(at).value
        assert torch.equal(kind.start(name, batch, smoother)(at).value, want), name


@pytest.mark.parametrize(
    ("make", "start", "pattern", "split", "view"),
    [
        (curves, "smooth", "context", False, None),
        (movie, "smooth", "context", True, None),
        (movie, "smooth", "joint", False, None),
        (movie, "cubic", "context", False, None),
        (movie, "motion", "context", False, PixelView(4, 4, 2)),
        (movie, "median", "context", False, PixelView(4, 4, 2)),
    ],
)
def test_what_the_network_must_know(make, start, pattern, split, view):
    """Before the fit of the prior; the start ``smooth`` then knows its error."""
    expected = {"split_context": split, "bounded": False, "view": view}
    assert kind_of(make()).network_options(start, pattern) == expected


def test_the_preset_of_what_is_automatic():
    """Several channels take a wider network."""
    t, rng = np.linspace(0, 1, 5), np.random.default_rng(0)
    presets = [kind_of(Samples(t, rng.normal(size=(3, 5, c)))).preset for c in (1, 3, 4, 40)]
    assert presets == ["default", "default", "series", "series"]
    assert kind_of(movie()).preset == "frames"
    assert resolve({"width": "auto", "steps": 7}, "series").width == 128
    assert resolve({"width": 32}, "series").width == 32


# The posterior mean, against the formula


def dense_mean(kernel: Kernel, x, at, y) -> np.ndarray:
    """k(at, x) (K + σ²I)⁻¹ y with dense matrices: points (n, d), queries (m, d), values (n,)."""

    def k(a, b):
        square = (((a[:, None] - b[None]) / np.array(kernel.lengthscales)) ** 2).sum(-1)
        return kernel.offset**2 + kernel.amplitude**2 * np.exp(-square / 2)

    return k(at, x) @ np.linalg.solve(k(x, x) + kernel.noise**2 * np.eye(len(x)), y)


@pytest.mark.parametrize("make", [curves, scattered])
def test_posterior_mean_of_points(make):
    """Per sample and channel, from the points where that channel was observed; also far from the data."""
    kind, batch = batch_of(make())
    d, c = batch.coords.shape[-1], batch.values.shape[-1]
    kind.kernel = Kernel((0.3, 0.5)[:d], 1.1, 0.4, 0.2)
    at = 3 * torch.rand(len(batch), 5, d, dtype=torch.float64) - 1
    found = kind.posterior_mean(batch)(at)
    for sample in range(len(batch)):
        for channel in range(c):
            there = batch.observed[sample, :, channel]
            x, y = batch.coords[sample][there].numpy(), batch.values[sample, :, channel][there].numpy()
            want = dense_mean(kind.kernel, x, at[sample].numpy(), y)
            np.testing.assert_allclose(found[sample, :, channel], want, rtol=1e-7, atol=1e-8)


def test_posterior_mean_of_points_returns_to_the_mean_far_away():
    """Unlike the start, which stays at its value on the edge of the data."""
    kind, batch = batch_of(curves())
    kind.kernel = Kernel((0.3,), 1.1, 1e-9, 0.01)
    far = torch.full((6, 1, 1), 50.0, dtype=torch.float64)
    assert kind.posterior_mean(batch)(far).abs().max() < 1e-12
    assert kind.start("smooth", batch)(constant(far)).value.abs().max() > 0.1


def test_posterior_mean_of_frames_is_one_process_in_time_for_each_pixel():
    kind, batch = batch_of(torus())
    kind.kernel, kind.waves = KERNEL, None
    times, frames, _, _ = kind.sequence(batch)
    t = np.array([-0.7, 0.0, 0.4, 1.0, 1.9])
    at = torch.tensor(np.column_stack([t, np.full(5, 0.5), np.full(5, 1.0)])).expand(3, -1, -1)
    found = kind.posterior_mean(batch)(at).unflatten(-1, (4, 4, 2))  # the patch in row 1 and column 1
    for sample in range(3):
        for row, col, channel in ((0, 0, 0), (3, 1, 1), (2, 2, 0)):
            y = frames[sample, :, 4 + row, 4 + col, channel].numpy()
            held = np.clip(t, 0, 1)[:, None]  # beyond the first and the last frame the weights stay
            want = dense_mean(KERNEL, times[sample][:, None].numpy(), held, y)
            np.testing.assert_allclose(found[sample, :, row, col, channel], want, atol=1e-7)


# Training


@pytest.mark.parametrize("make", [curves, movie, torus])
def test_a_corruption_sees_values_or_whole_frames_in_the_units_of_the_user(make):
    kind, batch = batch_of(make())
    seen = []

    def corruption(values, generator):
        seen.append(values.clone())
        return 2 * values + torch.rand((), generator=generator)

    corrupted = kind.corrupt(batch, corruption, torch.Generator().manual_seed(3))
    more = float(torch.rand((), generator=torch.Generator().manual_seed(3)))
    samples = make().sorted()
    if make is curves:
        assert seen[0].shape == (6, 7, 2)
        np.testing.assert_allclose(seen[0][batch.observed], samples.values[samples.observed])
    else:
        assert seen[0].shape == (3, 4, *kind.layout.frame, 2)
        whole = kind.sequence(batch)[2]
        np.testing.assert_allclose(np.sort(seen[0][whole]), np.sort(samples.values[samples.observed]))
    user = kind.scaling.values(corrupted.numpy())
    np.testing.assert_allclose(user[samples.observed], 2 * samples.values[samples.observed] + more)


@pytest.mark.parametrize("make", [curves, movie])
@pytest.mark.parametrize(
    ("wrong", "got"), [(lambda x, _: x[:, 1:], r"shape \(\d+, \d+"), (lambda x, _: x.numpy(), "ndarray")]
)
def test_a_corruption_that_returns_something_else_is_refused(make, wrong, got):
    kind, batch = batch_of(make())
    with pytest.raises(CSTError, match=f"given must return a tensor of the shape that it gets, .* got {got}"):
        kind.corrupt(batch, wrong, torch.Generator())


def test_points_are_neither_shifted_nor_cleaned():
    kind, batch = batch_of(curves())
    target = batch.values + 1
    assert not kind.shifts
    shifted = kind.shift(batch, target, torch.Generator())
    assert shifted[0] is batch and shifted[1] is target and kind.clean(batch, target) is target


# Files


@ALL
def test_a_description_goes_through_json_unchanged(make):
    """Before and after the prior is fitted, with bands of noise alone among the waves and trust in pixels."""
    odds = Odds(2.0, (-1.0, -1.0, 0.0, 0.0, 0.0, 0.0), (0.01, 0.01))
    plain, full = kind_of(make()), kind_of(make())
    full.kernel = Kernel((0.3,) * (1 if full.layout else len(full.scaling.low)), 1.1, 0.4, 0.2)
    if isinstance(full, Frames):
        full.waves = Waves((1.0,) * 20, (KERNEL, None, KERNEL), 0.25, full.layout.periodic)
        full.trust = Trust(odds, odds, odds, fine=0.01, noise=0.25, usual=0.02)
    for kind in (plain, full):
        text = json.dumps(kind.describe())
        back = kind_from(json.loads(text))
        assert type(back) is type(kind) and json.dumps(back.describe()) == text
        assert back.layout == kind.layout and back.kernel == kind.kernel
        for name in ("low", "span", "mean", "sd"):
            assert np.array_equal(getattr(back.scaling, name), getattr(kind.scaling, name))
        if isinstance(kind, Frames):
            assert back.waves == kind.waves and back.grid == kind.grid


def test_starts_are_the_same_after_a_description():
    kind, batch = fitted(torus, "median")
    back = kind_from(json.loads(json.dumps(kind.describe())))
    at = constant(torch.rand(3, 5, 3, dtype=torch.float64))
    for name in ("smooth", "wiener", "median"):
        assert torch.equal(back.start(name, batch)(at).value, kind.start(name, batch)(at).value)


def test_descriptions_of_older_files_have_no_waves_and_no_trust():
    about = kind_of(torus()).describe()
    for name in ("waves", "trust", "kernel"):
        del about[name]
    kind = kind_from(about)
    assert kind.waves is kind.trust is kind.kernel is None
