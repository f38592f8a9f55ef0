"""Filters of movies against SciPy, hand-worked numbers and known noise."""

import builtins

import numpy as np
import pytest
import scipy.ndimage

from cstformer.baselines.filters import CopyInput, MedianFilter, NonLocalMeans, SwitchingMedian, median_filter
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.errors import CSTError

TIMES = [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]


def noisy(sd: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(2, 6, 12, 14, 1) frames of a slow wave, and the same with noise."""
    rng = np.random.default_rng(seed)
    t, row, col = np.meshgrid(TIMES, np.arange(12), np.arange(14), indexing="ij")
    clean = np.stack([np.sin(0.3 * row + 0.2 * col + 0.1 * t + phase) for phase in (0, 2)])[..., None]
    return clean, clean + sd * rng.normal(size=clean.shape)


def run(model, frames: np.ndarray, times=TIMES) -> np.ndarray:
    samples = frames_to_samples(frames, patch=(4, 7), times=TIMES)
    return stitch(model.fit(samples).predict(samples, frame_queries(samples.layout, times)), samples.layout)


def test_median_inside_is_that_of_scipy():
    _, frames = noisy(1.0)
    ours, reference = median_filter(frames[0]), scipy.ndimage.median_filter(frames[0, ..., 0], size=3)
    np.testing.assert_array_equal(ours[1:-1, 1:-1, 1:-1, 0], reference[1:-1, 1:-1, 1:-1])
    corner = np.median(frames[0, :2, :2, :2])
    assert ours[0, 0, 0, 0] == corner


def test_median_ignores_missing_pixels():
    _, frames = noisy(1.0)
    holes = frames[0].copy()
    holes[2, 5, 5] = holes[3, 5, 6] = np.nan
    around = holes[1:4, 4:7, 4:7]
    assert median_filter(holes)[2, 5, 5, 0] == np.nanmedian(around)
    lonely = np.full((1, 3, 3, 1), np.nan)
    assert np.isnan(median_filter(lonely)).all()


def test_copy_takes_the_nearest_frame_and_fills_what_is_missing():
    _, frames = noisy(0.5)
    frames[1, 1, 3, 3] = np.nan
    y = run(CopyInput(), frames, [0.0, 0.4, 2.9, 3.1])
    np.testing.assert_allclose(y[0], frames[0, [0, 0, 2, 3]], rtol=1e-9)
    filled = run(CopyInput(), frames, [1.0])[1, 0]
    assert filled[3, 3] == pytest.approx(np.nanmean(frames[1, :, 3, 3]))
    np.testing.assert_allclose(np.delete(filled.ravel(), 3 * 14 + 3), np.delete(frames[1, 1].ravel(), 3 * 14 + 3))


def test_frames_between_are_means_in_time():
    _, frames = noisy(0.5)
    y = run(MedianFilter(), frames, [2.0, 2.5, 4.0])
    np.testing.assert_allclose(y[:, 1], 0.75 * y[:, 0] + 0.25 * y[:, 2], rtol=1e-9)
    np.testing.assert_allclose(y[0, 0], median_filter(frames[0])[2], rtol=1e-9)


def test_switching_keeps_what_is_close_to_the_median():
    clean, frames = noisy(0.0)
    frames = frames.copy()
    frames[0, 2, 6, 6] += 5.0
    y = run(SwitchingMedian(threshold=0.5), frames)
    np.testing.assert_allclose(np.delete(y.ravel(), frames.argmax()), np.delete(clean.ravel(), frames.argmax()))
    assert y[0, 2, 6, 6] == pytest.approx(median_filter(frames[0])[2, 6, 6, 0], rel=1e-9)
    nothing_kept = run(SwitchingMedian(threshold=0.0), noisy(1.0)[1])
    np.testing.assert_allclose(nothing_kept, run(MedianFilter(), noisy(1.0)[1]), rtol=1e-9)


@pytest.mark.parametrize(("model", "factor"), [(MedianFilter(), 0.5), (NonLocalMeans(), 0.6), (CopyInput(), 1.01)])
def test_white_noise_becomes_smaller(model, factor):
    clean, frames = noisy(0.3)
    error = np.sqrt(np.mean((run(model, frames) - clean) ** 2))
    assert error < factor * 0.3


def test_nlm_knows_the_noise_and_refuses_missing_pixels(tmp_path):
    _, frames = noisy(0.3)
    samples = frames_to_samples(frames, patch=(4, 7), times=TIMES)
    model = NonLocalMeans().fit(samples)
    assert model.noise_ * model.scaling_.sd[0] == pytest.approx(0.3, rel=0.1)
    model.save(tmp_path / "model")
    assert NonLocalMeans.load(tmp_path / "model").noise_ == model.noise_
    frames[0, 0, 0, 0] = np.nan
    with pytest.raises(CSTError, match="NonLocalMeans cannot use missing pixels"):
        model.predict(frames_to_samples(frames, patch=(4, 7), times=TIMES), samples.coords)
    with pytest.raises(CSTError, match="at least 3 × 3"):
        NonLocalMeans().fit(frames_to_samples(frames[:, :, :2, :2], patch=(2, 2)))


def test_nlm_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.startswith("skimage"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CSTError, match=r"pip install .cstformer\[video\]"):
        NonLocalMeans().fit(frames_to_samples(noisy(0.3)[1], patch=(4, 7)))


def test_one_frame_is_enough():
    _, frames = noisy(0.3)
    model = MedianFilter().fit(frames_to_samples(frames, patch=(4, 7), times=TIMES))
    one = frames_to_samples(frames[:, :1], patch=(4, 7))
    y = stitch(model.predict(one, frame_queries(one.layout, [0.0, 3.0])), one.layout)
    np.testing.assert_allclose(y[0, 0], median_filter(frames[0, :1])[0], rtol=1e-9)
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
