"""The moving scene against its formula: exact motion, occlusion, smoothness in time, natural statistics."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import kurtosis

from cstformer.datasets.moving_scene import MovingScene
from cstformer.datasets.video import Clips
from cstformer.errors import CSTError

SMALL = (24, 32)
ROWS, COLS = np.arange(24.0)[:, None], np.arange(32.0)


def test_frames_are_the_function_on_the_pixels():
    scene = MovingScene(seed=3, size=SMALL)
    times = [0.0, 2.5]
    frames = scene.frames(times)
    assert frames.shape == (2, 24, 32, 3)
    scattered = scene([0.0, 2.5, 2.5], [5.0, 5.0, 23.0], [7.0, 7.0, 0.0])
    assert scattered == pytest.approx(np.stack([frames[0, 5, 7], frames[1, 5, 7], frames[1, 23, 0]]), abs=1e-12)


def test_one_layer_without_zoom_is_carried_along_rigidly():
    scene = MovingScene(seed=1, size=SMALL, layers=1, zoom=0.0)
    row, col = scene.seen_at(0, 4.3, 0.0, 0.0)
    assert scene(4.3, ROWS, COLS) == pytest.approx(scene(0.0, ROWS + row, COLS + col), abs=1e-9)


def test_near_layers_move_faster():
    """Without sway and zoom layer l moves by speed · t / depth in one direction: 3, 6 and 12 pixels in four frames."""
    scene = MovingScene(seed=2, sway=0.0, zoom=0.0)
    moved = np.array([scene.seen_at(layer, 4.0, 10.0, 20.0) for layer in range(3)]) - (10, 20)
    assert np.hypot(*moved.T) == pytest.approx([3, 6, 12])
    assert moved == pytest.approx(np.outer([1, 2, 4], moved[0]))


def test_zoom_keeps_the_centre_and_grows_the_rest():
    scene = MovingScene(speed=0.0, sway=0.0, zoom=0.1, size=(5, 9))
    assert scene.seen_at(2, 7.0, 2.0, 4.0) == (2, 4)
    assert scene.seen_at(2, 7.0, 2.0, 8.0) == pytest.approx((2, 4 + 4 * np.exp(-0.7)))
    assert scene.seen_at(0, 7.0, 0.0, 4.0) == pytest.approx((2 - 2 * np.exp(-0.7 / 4), 4))


def test_the_camera_sways_back():
    scene = MovingScene(speed=0.0, zoom=0.0, size=SMALL)
    assert scene.frames(0.7) == pytest.approx(scene.frames(12.7), abs=1e-9)
    row, col = scene.seen_at(2, 3.0, 0.0, 0.0)  # a quarter of the period: the whole sway
    assert np.hypot(row, col) == pytest.approx(2)


def test_a_layer_hides_those_behind_it():
    """Exchange the far layer: a pixel shows all of the change or none of it, but for edges about a pixel wide."""
    scene, other = (MovingScene(seed=5, layers=2) for _ in range(2))
    object.__setattr__(other, "_layers", [MovingScene(seed=6)._layers[0], scene._layers[1]])
    change = scene.frames(0) - other.frames(0)
    behind = MovingScene(seed=5, layers=1).frames(0) - MovingScene(seed=6, layers=1).frames(0)
    seen = (change * behind).sum(-1) / (behind**2).sum(-1)
    assert seen.min() > -1e-9 and seen.max() < 1 + 1e-9
    assert 0.25 < (seen < 0.05).mean() < 0.75 and 0.25 < (seen > 0.95).mean() < 0.75
    assert (abs(seen - 0.5) < 0.45).mean() < 0.15


def test_in_between_frames_are_smooth_in_time():
    """The error of linear interpolation between t − h and t + h falls as h²."""
    scene, steps = MovingScene(seed=4, size=SMALL), np.array([0.02, 0.01, 0.005])
    middle = scene.frames(1.3)
    errors = [np.abs((scene.frames(1.3 - h) + scene.frames(1.3 + h)) / 2 - middle).mean() for h in steps]
    assert np.polyfit(np.log(steps), np.log(errors), 1)[0] == pytest.approx(2, abs=0.1)


def test_statistics_of_natural_pictures():
    """Power falls as f⁻² to f⁻³·⁵, differences have heavy tails (edges), colours go together, values fill [0, 1]."""
    window = np.outer(np.hanning(128), np.hanning(160))
    frequency = np.hypot(np.fft.fftfreq(128)[:, None], np.fft.fftfreq(160))
    bands = np.geomspace(0.02, 0.4, 8)
    pictures = np.concatenate([MovingScene(seed=seed).frames(0) for seed in range(4)])
    assert pictures.min() > 0 and pictures.max() < 1 and 0.03 < pictures.var() < 0.15
    grey = pictures.mean(-1)
    power = (np.abs(np.fft.fft2((grey - grey.mean((1, 2), keepdims=True)) * window)) ** 2).mean(0)
    spectrum = [power[(frequency >= a) & (frequency < b)].mean() for a, b in pairwise(bands)]
    slope = np.polyfit(np.log(np.sqrt(bands[1:] * bands[:-1])), np.log(spectrum), 1)[0]
    assert -3.5 < slope < -2
    assert kurtosis(np.diff(grey, axis=2).ravel()) > 3
    correlation = np.corrcoef(pictures.reshape(-1, 3).T)
    assert 0.4 < correlation.min() < 0.999


def test_seeds():
    assert np.array_equal(MovingScene(1, SMALL).frames(0), MovingScene(1, SMALL).frames(0))
    assert np.abs(MovingScene(1, SMALL).frames(0) - MovingScene(2, SMALL).frames(0)).mean() > 0.05


def test_a_recording_of_it():
    scene = MovingScene(seed=8, size=SMALL)
    clips = Clips([scene.recording(25)])
    assert clips.names == ["scene-8@0", "scene-8@10"]
    assert np.abs(clips[1] - scene.frames(np.arange(10, 20))).max() <= 0.5 / 255 + 1e-6


def test_nonsense_is_refused():
    with pytest.raises(CSTError, match="layers=0"):
        MovingScene(layers=0)
