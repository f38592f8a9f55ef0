"""The simulated truth: where, when and how strongly; noise and clocks as promised."""

import dask
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.signal import fftconvolve

from cstformer.datasets.calcium.cortex import AREAS, SmoothMaps, area_map, outline
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.calcium.recording import CONTRASTS
from cstformer.datasets.calcium.simulator import CONTROL, SIGNAL, CalciumSimulation, kinetics
from cstformer.errors import CSTError

MADE = CalciumSimulation(minutes=3, size=32, seed=1)


def area(name, size=32):
    return area_map((size, size)) == AREAS.index(name) + 1


@pytest.fixture(scope="module")
def responses():
    """Mean neural signal (contrasts, frames, H, W) from 1 s before to 5 s after the start of a stimulus."""
    made = CalciumSimulation(minutes=20, size=32, seed=3)
    offsets = np.arange(-1, 5, 0.25)
    shown = made.neural((made.stimuli.start[:, None] + offsets).ravel()).reshape(-1, len(offsets), 32, 32)
    return np.stack([shown[made.stimuli.contrast == c].mean(axis=0) for c in CONTRASTS]), offsets


def test_kinetics_are_the_convolution_of_a_box_with_the_kernel():
    t = np.arange(0, 12, 0.001)
    kernel = (np.exp(-t / 0.7) - np.exp(-t / 0.1)) / 0.6
    box = (t < 2.0).astype(float)
    np.testing.assert_allclose(kinetics(t, 2.0), fftconvolve(box, kernel)[: len(t)] * 0.001, atol=2e-3)


def test_the_left_visual_cortex_answers_and_more_to_more_contrast(responses):
    shown, offsets = responses
    late = (offsets > 1) & (offsets < 2.5)
    rise = shown[:, late].mean(axis=1) - shown[:, offsets <= 0].mean(axis=1)
    left, right = (rise[:, area(f"{side} V1")].mean(axis=-1) for side in ("left", "right"))
    assert (np.diff(left[[0, 2, 3, 4, 5]]) > 0).all()
    assert left[-1] > 0.02
    assert np.abs(right).max() < 0.25 * left[-1]
    assert rise[-1, area("left LM")].mean() > 4 * np.abs(rise[-1, area("left M1")].mean())


def test_the_response_travels():
    """Far pixels follow later, by distance over 20 mm/s; without waves, on a fine clock."""
    quiet = CalciumSimulation(minutes=0.2, size=64)
    object.__setattr__(quiet, "_waves", np.empty((0, 6)))
    start = quiet.stimuli.start[0]
    t = start + np.arange(0, 3, 0.004)
    movie = quiet.neural(t)
    reach = [t[np.argmax(trace > 0.5 * trace.max())] for trace in (movie[:, 44, 18], movie[:, 37, 12])]
    distance = np.hypot(7, 6) * 10 / 64
    assert reach[1] - reach[0] == pytest.approx(distance / 20, abs=0.006)


def test_truth_is_continuous_in_time_and_the_same_on_any_grid():
    t = 20 + np.arange(0, 1, 1e-3)
    x = MADE.neural(t)
    assert np.abs(np.diff(x, axis=0)).max() < 30 * 1e-3 * x.max()
    half = MADE.neural([20.0, 33.3], size=16)
    full = MADE.neural([20.0, 33.3]).reshape(2, 16, 2, 16, 2).mean(axis=(2, 4))
    inside = outline((32, 32)).reshape(16, 2, 16, 2).all(axis=(1, 3))
    np.testing.assert_allclose(half[:, inside], full[:, inside], atol=0.05 * x.max())
    np.testing.assert_array_equal(MADE.neural([33.3, 20.0])[::-1], MADE.neural([20.0, 33.3]))


def test_both_channels_share_the_hemodynamics_but_not_the_neurons():
    t = np.arange(0, 120, 0.5)
    mask = MADE.mask
    z, az, x = MADE.hemodynamic(t), MADE.hemodynamic(t, wavelength=CONTROL), MADE.neural(t)
    each = [np.corrcoef(a, b)[0, 1] for a, b in zip(z[:, mask].T, az[:, mask].T, strict=True)]
    assert np.median(each) > 0.98
    gain = az[:, mask].std(axis=0) / z[:, mask].std(axis=0)
    assert gain.min() < 0.75 < 0.85 < gain.max()
    assert z[:, mask].std() == pytest.approx(0.012, rel=0.25)
    fading = 1 - 0.15 * (1 - np.exp(-t / 300))
    light = MADE.brightness() * fading[:, None, None]
    np.testing.assert_allclose(MADE.fluorescence(t), light * (1 + x + z), rtol=1e-5)
    np.testing.assert_allclose(MADE.fluorescence(t, CONTROL), 0.6 * light * (1 + az), rtol=1e-5)


def test_blurred_maps_are_blurred():
    maps = SmoothMaps.draw(np.random.default_rng(0), 2, scale=1.0)
    sharp, soft = maps.on((100, 100)), maps.on((100, 100), blur=0.4)
    np.testing.assert_allclose(gaussian_filter(sharp[0], 4.0)[20:-20, 20:-20], soft[0][20:-20, 20:-20], atol=0.02)


def test_shot_noise_grows_with_light_and_the_noise_setting():
    for noise in (1.0, 3.0):
        made = CalciumSimulation(minutes=1, size=32, seed=2, noise=noise)
        index = np.arange(0, 400, 2)
        expected = made.fluorescence(made.camera_times[index])
        error = made.camera(index).astype(float) - 100 - expected
        ratio = (error**2).mean(axis=0)[made.mask] / expected.mean(axis=0)[made.mask]
        assert np.median(ratio) == pytest.approx(noise**2, rel=0.03)


def test_frames_interleave_and_some_are_lost():
    made = CalciumSimulation(minutes=1, size=16, dropped=0.05)
    recording = made.recording()
    signal, control = recording.channel(SIGNAL), recording.channel(CONTROL)
    assert signal.dropped + control.dropped == 1200 - len(made.camera_times) > 20
    assert np.allclose(signal.times * 10 % 1, 0, atol=1e-9) or np.allclose(
        np.rint(signal.times * 10), signal.times * 10
    )
    np.testing.assert_allclose(np.rint(control.times * 20) % 2, 1)


def test_jitter_and_dropped_times():
    made = CalciumSimulation(minutes=0.5, size=16, dropped=0.1, jitter=0.5)
    nominal = np.arange(600) / 20
    every = np.sort(np.concatenate([made.camera_times[made.camera_wavelengths == 575], made.dropped_times]))
    late = every - nominal[::2]
    assert len(every) == 300 and (late >= 0).all() and 0.02 < late.max() <= 0.025
    assert (np.diff(made.camera_times) > 0).all()
    plain = CalciumSimulation(minutes=0.5, size=16, dropped=0.1)
    np.testing.assert_array_equal(plain.camera_wavelengths, made.camera_wavelengths)  # the same frames are dropped
    assert np.isin(plain.dropped_times, nominal[::2]).all()


def test_save_and_load(tmp_path):
    made = CalciumSimulation(minutes=0.1, size=16, seed=5, dropped=0.1)
    made.save(tmp_path / "raw.zarr")
    assert CalciumSimulation.load(tmp_path / "raw.zarr") == made
    found, own = open_recording(tmp_path / "raw.zarr"), made.recording()
    for nm in (SIGNAL, CONTROL):
        one, two = dask.compute(found.channel(nm).frames, own.channel(nm).frames)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(found.channel(nm).times, own.channel(nm).times)
    assert found.pixel_mm == 10 / 16
    np.testing.assert_array_equal(found.stimuli.start, made.stimuli.start)
    with pytest.raises(CSTError, match=r"written as \.zarr"):
        made.save(tmp_path / "raw.npz")


def test_the_seed_decides():
    other = CalciumSimulation(minutes=3, size=32, seed=2)
    again = CalciumSimulation(minutes=3, size=32, seed=1)
    np.testing.assert_array_equal(MADE.camera([40]), again.camera([40]))
    assert np.abs(MADE.neural([30.0]) - other.neural([30.0])).max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minutes": 0}, "minutes must be a positive number, got 0"),
        ({"size": 32.5}, "size must be"),
        ({"size": 4}, "too small"),
        ({"noise": -1.0}, "noise must be a non-negative number"),
        ({"dropped": 1.0}, "dropped must be below 1"),
        ({"seed": True}, "seed must be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(CSTError, match=message):
        CalciumSimulation(**settings)


def test_unknown_wavelength():
    with pytest.raises(CSTError, match="unknown wavelength '570'"):
        MADE.brightness(wavelength=570)


def test_spontaneous_waves_scale_with_their_setting():
    times = np.arange(5.0, 12.0, 0.5)
    none, half, usual = (CalciumSimulation(minutes=0.3, size=24, spontaneous=x).neural(times) for x in (0.0, 0.5, 1.0))
    assert (none[times == 5.0] == 0).all() and none.max() > 0.001  # the first stimulus alone
    np.testing.assert_allclose(half - none, (usual - none) / 2, atol=1e-6)
