"""Frames to coefficients of modes and back: closed forms, missing pixels, files."""

import json

import dask.array as da
import numpy as np
import pytest
import zarr

import cstformer as cst
from cstformer import CSTError, LazyFrames, Modes
from cstformer.data import frame_matrix

MASK = np.ones((6, 5), dtype=bool)
MASK[0, :2] = False


def movie(frames=60, noise=0.0, channels=()):
    """Two maps with two courses, and a mean frame."""
    rng = np.random.default_rng(0)
    maps, mean = rng.normal(size=(2, 6, 5, *channels)), rng.normal(size=(6, 5, *channels))
    t = 0.1 * np.arange(frames)
    courses = np.stack([3 * np.sin(t), np.cos(1.7 * t)], -1)
    return mean + np.tensordot(courses, maps, 1) + noise * rng.normal(size=(frames, 6, 5, *channels))


def test_two_pixels_by_hand():
    """(1, 2) ± (3, 4): the mode is (0.6, 0.8), its coefficients are ± 5."""
    frames = np.array([[[4.0, 6.0]], [[-2.0, -2.0]]])
    modes = Modes(1).fit(frames)
    np.testing.assert_allclose(modes.U_, [[[0.6], [0.8]]])
    np.testing.assert_allclose(modes.mean_, [[1, 2]])
    np.testing.assert_allclose(modes.SVT_, [[5, -5]])
    np.testing.assert_allclose(modes.explained_, [1])
    np.testing.assert_allclose(modes.frames([10.0]), [[7, 10]])
    np.testing.assert_allclose(modes.frames([10.0], derivative=True), [[6, 8]])
    np.testing.assert_allclose(modes.frames_sd([10.0]), [[6, 8]])


@pytest.mark.parametrize("channels", [(), (2,)])
def test_frames_of_coefficients_are_the_movie(channels):
    frames = movie(channels=channels)
    modes = Modes().fit(frames, MASK)
    assert modes.rank_ == 2 and modes.U_.shape == (6, 5, *channels, 2)
    back = modes.frames(modes.coefficients(frames).values[0])
    np.testing.assert_allclose(back[:, MASK], frames[:, MASK])
    assert np.isnan(back[:, ~MASK]).all() and (modes.U_[~MASK] == 0).all() and (modes.mask_ == MASK).all()
    np.testing.assert_allclose(modes.explained_.sum(), 1)


def test_shares_of_variance_are_those_of_the_exact_decomposition():
    frames = movie(noise=0.5)
    y = frames.reshape(60, -1) - frames.reshape(60, -1).mean(0)
    s = np.linalg.svd(y, compute_uv=False)
    modes = Modes(5).fit(frames)
    np.testing.assert_allclose(modes.explained_, s[:5] ** 2 / (s**2).sum())
    np.testing.assert_allclose(np.square(modes.SVT_).sum(1), s[:5] ** 2)
    assert (np.abs(modes.U_.reshape(-1, 5)).max(0) == modes.U_.reshape(-1, 5).max(0)).all()  # the sign


def test_the_variance_that_modes_leave_out_is_that_of_new_frames():
    """White noise of each pixel, of which K of P dimensions belong to the modes."""
    rng, sigma = np.random.default_rng(3), np.linspace(0.1, 0.4, 300).reshape(15, 20)
    maps, t = rng.normal(size=(2, 15, 20)), 0.1 * np.arange(240)
    clean = np.tensordot(np.stack([3 * np.sin(t), np.cos(1.7 * t)], -1), maps, 1)
    modes = Modes(20).fit(clean + sigma * rng.normal(size=clean.shape))  # 18 modes of noise
    new = clean + sigma * rng.normal(size=clean.shape)
    left = new - modes.frames(modes.coefficients(new).values[0])
    assert modes.inflation_ == pytest.approx((1 + 20 / 240) / (1 - 20 / 240), rel=0.15)
    assert modes.residual_.mean() == pytest.approx(np.square(left).mean(), rel=0.05)
    assert np.corrcoef(modes.residual_.ravel(), np.square(left).mean(0).ravel())[0, 1] > 0.9
    sd = modes.frames_sd(np.zeros(20), residual=True)
    np.testing.assert_allclose(sd**2, modes.residual_)
    exact = Modes(2).fit(clean)
    np.testing.assert_allclose(exact.residual_, 0, atol=1e-20)


def test_the_slope_of_the_frames_is_that_of_the_coefficients():
    frames, modes, step = movie(), Modes(2).fit(movie()), 1e-3
    before, after = frames[10], frames[10] + step * (frames[11] - frames[10])
    slope = np.diff(modes.coefficients(np.stack([before, after])).values[0], axis=0)[0] / step
    np.testing.assert_allclose(modes.frames(slope, derivative=True), frames[11] - frames[10], atol=1e-9)


def test_missing_pixels_do_not_change_the_coefficients():
    frames = movie()
    modes, rng = Modes(2).fit(frames), np.random.default_rng(1)
    holes = np.where(rng.random(frames.shape) < 0.3, np.nan, frames)
    holes[7] = np.nan
    holes[9].reshape(-1)[:16] = np.nan  # less than half is left
    whole, some = (modes.coefficients(x) for x in (frames, holes))
    seen = ~np.isin(np.arange(60), (7, 9))
    np.testing.assert_allclose(some.values[0, seen], whole.values[0, seen], atol=1e-9)
    assert some.point_observed[0].tolist() == seen.tolist()


def test_a_mode_in_missing_pixels_alone_is_zero():
    modes = Modes(2)
    modes._set(np.eye(4)[:, :2].reshape(2, 2, 2), np.zeros((2, 2)))
    series = modes.coefficients(np.array([[[np.nan, 3.0], [0.0, 0.0]]]))
    np.testing.assert_allclose(series.values, [[[0, 3]]])


def test_a_fit_with_missing_values_finds_the_modes():
    rng, frames = np.random.default_rng(2), movie(400)
    holes = np.where(rng.random(frames.shape) < 0.02, np.nan, frames)
    holes[5] = np.nan
    found, true = (Modes(2).fit(x) for x in (holes, frames))
    angles = np.linalg.svd(found.U_.reshape(-1, 2).T @ true.U_.reshape(-1, 2), compute_uv=False)
    assert angles.min() > 0.999
    assert np.isnan(found.SVT_[:, 5]).all() and np.isfinite(np.delete(found.SVT_, 5, 1)).all()


def test_windows_are_those_of_movies():
    times, frames = np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, 60)), movie()
    frames[20:30] = np.nan  # a whole window without frames
    modes = Modes(2).fit(frames)
    options = {"window": 5, "stride": 3, "times": times, "time_unit": "s"}
    series, tokens = modes.coefficients(frames, **options), cst.frames_to_samples(frames, (6, 5), **options)
    assert series.sample_ids == tokens.sample_ids and series.units == {"t": "s"}
    np.testing.assert_array_equal(series.coords[..., 0], tokens.coords[..., 0])
    np.testing.assert_array_equal(series.origin[:, 0], tokens.origin[:, 0])
    np.testing.assert_allclose(modes.frames(series.values)[0], frames[:5], atol=1e-9)
    assert series.value_names == ("mode_1", "mode_2")
    assert modes.coefficients(frames).units == {"t": "frame"}


def test_the_same_modes_from_every_source(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_matrix, "BLOCK_BYTES", 2**12)
    frames, times = movie(noise=0.1), 0.1 * np.arange(60)
    zarr.save_array(tmp_path / "plain.zarr", frames)
    group = zarr.create_group(tmp_path / "timed.zarr")
    group.create_array("frames", data=frames)
    group.create_array("times", data=times)
    np.save(tmp_path / "movie.npy", frames)
    expected = Modes().fit(frames)
    lazy = LazyFrames(tmp_path / "timed.zarr", (2, 2), 4, 2)
    for source in (da.from_array(frames, chunks=(7, 3, 5)), tmp_path / "plain.zarr", str(tmp_path / "movie.npy"), lazy):
        modes = Modes().fit(source)
        np.testing.assert_allclose(modes.U_, expected.U_, atol=1e-12)
        np.testing.assert_allclose(modes.coefficients(source).values, expected.coefficients(frames).values, atol=1e-9)
    for source in (tmp_path / "timed.zarr", lazy):
        np.testing.assert_array_equal(modes.coefficients(source).coords[0, :, 0], times)


def test_saved_modes_answer_the_same(tmp_path):
    modes = Modes().fit(movie(noise=0.1), MASK)
    modes.save(tmp_path / "modes")
    modes.save(tmp_path / "modes")  # over the old ones
    again = Modes.load(tmp_path / "modes")
    assert again.scores_ is None and again.inflation_ == modes.inflation_
    for name in ("U_", "SVT_", "mean_", "mask_", "explained_", "residual_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(modes, name))
    assert again.rank_ == modes.rank_ and {f.name for f in tmp_path.iterdir()} == {"modes"}


def test_the_files_of_other_tools(tmp_path):
    """U (H, W, K), not orthonormal, NaN outside the cortex, and SVT (K, T)."""
    rng = np.random.default_rng(0)
    U, SVT = rng.normal(size=(6, 5, 3)), rng.normal(size=(3, 20))
    U[~MASK] = np.nan
    np.save(tmp_path / "U.npy", U.astype(np.float32))
    np.save(tmp_path / "SVT.npy", SVT.astype(np.float32))
    modes = Modes.load(tmp_path)
    frames = modes.frames(modes.SVT_.T)
    np.testing.assert_allclose(frames[:, MASK], (U @ SVT)[MASK].T, rtol=1e-4, atol=1e-5)
    assert (modes.mask_ == MASK).all() and np.isnan(modes.explained_).all()
    with pytest.raises(CSTError, match="do not say what they leave out"):
        modes.frames_sd([1.0, 1.0, 1.0], residual=True)
    np.testing.assert_allclose(modes.coefficients(frames).values[0], modes.SVT_.T, atol=1e-6)


def test_damaged_folders_are_refused(tmp_path):
    modes = Modes(2).fit(movie())
    modes.save(tmp_path / "modes")
    file = tmp_path / "modes" / "SVT.npy"
    np.save(file, np.zeros((3, 60)))
    with pytest.raises(CSTError, match=r"SVT \(3, 60\).* do not fit together"):
        Modes.load(tmp_path / "modes")
    modes.save(tmp_path / "other")
    for name, shape in (("residual", (5, 5)), ("scores", (3, 7))):
        np.save(tmp_path / "other" / f"{name}.npy", np.zeros(shape))
        with pytest.raises(CSTError, match=rf"{name}.npy must be"):
            Modes.load(tmp_path / "other")
        (tmp_path / "other" / f"{name}.npy").unlink()
    np.save(file, np.array([{"code": 1}]), allow_pickle=True)
    with pytest.raises(CSTError, match="holds Python objects"):
        Modes.load(tmp_path / "modes")
    file.unlink()
    (tmp_path / "modes" / "modes.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(CSTError, match="format 9"):
        Modes.load(tmp_path / "modes")
    (tmp_path / "modes" / "U.npy").unlink()
    with pytest.raises(CSTError, match=r"U\.npy: there is no such file"):
        Modes.load(tmp_path / "modes")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: Modes("some").fit(movie()), "rank must be 'auto' or a positive integer, got 'some'"),
        (lambda m: Modes(31).fit(movie()), "rank=31 is more than the 30"),
        (lambda m: Modes(max_rank=0).fit(movie()), "max_rank must be a positive integer"),
        (lambda m: Modes().frames([1.0]), "not fitted yet"),
        (lambda m: m.frames([1.0, 2.0, 3.0]), r"values must be \(\.\.\., 2\), .* got shape \(3,\)"),
        (lambda m: m.coefficients(np.zeros((3, 5, 5))), r"frames have shape \(5, 5\); the modes are those of \(6, 5\)"),
        (lambda m: m.coefficients(movie(), stride=2), "stride=2 needs a window"),
        (lambda m: m.coefficients(movie(), times=[1, 2]), "times must be 60 finite increasing numbers"),
        (lambda m: m.coefficients(np.full((3, 6, 5), np.nan)), "no frame with half of the pixels"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(CSTError, match=message):
        call(Modes(2).fit(movie()))
