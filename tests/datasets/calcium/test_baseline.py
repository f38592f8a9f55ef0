"""The two baselines against their responses in closed form."""

import numpy as np
import pytest

from cstformer.datasets.calcium.baseline import _smooth, baseline, delta_f, response
from cstformer.errors import CSTError


@pytest.mark.parametrize("frequency", [0.0005, 0.001, 0.002])
def test_the_smooth_baseline_has_the_response_that_its_equation_gives(frequency):
    expected = 1 / (1 + (frequency / 0.001) ** 6)
    assert response(frequency, rate=10.0) == pytest.approx(expected, abs=0.005)


def test_a_hundred_taps_cannot_cut_at_a_thousandth_of_a_hertz():
    assert response(0.001, 10.0, "literal") > 0.999  # nothing is cut there
    assert response(0.0656, 10.0, "literal") == pytest.approx(2**-0.5, abs=0.002)  # −3 dB
    assert response(0.0914, 10.0, "literal") == pytest.approx(0.5, abs=0.002)
    assert response(0.5, 10.0, "literal") < 0.01


@pytest.mark.parametrize("kind", ["smooth", "literal"])
def test_no_phase(kind):
    t = np.arange(6000) / 10
    bump = np.exp(-(((t - 300) / 60) ** 2))
    slow = baseline(bump, 10.0, kind)
    # A hundred taps have their centre between two frames.
    assert abs(t[slow.argmax()] - 300) < 0.11
    np.testing.assert_allclose(slow[1000:5000], slow[::-1][999:4999], atol=2e-3)


@pytest.mark.parametrize("kind", ["smooth", "literal"])
def test_bleaching_goes_into_the_baseline_up_to_the_ends(kind):
    t = np.arange(6000) / 10
    fading = 4000 * (1 - 0.15 * (1 - np.exp(-t / 300)))
    assert np.abs(delta_f(fading, 10.0, kind)).max() < 5e-3


def test_delta_f_is_the_relative_change():
    t = np.arange(6000) / 10
    wave = 0.02 * np.sin(2 * np.pi * t / 7)
    traces = np.stack([100 * (1 + wave), 3000 * (1 + wave)], axis=1)
    np.testing.assert_allclose(delta_f(traces, 10.0), np.stack([wave, wave], axis=1), atol=5e-4)
    # The literal baseline follows 1/7 Hz a little and takes that much of it away.
    kept = delta_f(traces, 10.0, "literal")[500:-500].std(axis=0) / wave[500:-500].std()
    np.testing.assert_allclose(kept, 1 - response(1 / 7, 10.0, "literal"), atol=5e-3)


def test_the_smoother_solves_its_equation():
    y = np.random.default_rng(0).normal(size=(40, 3))
    bend = np.diff(np.eye(40), n=3, axis=0)
    weight = (2 * np.sin(np.pi * 0.05)) ** -6
    np.testing.assert_allclose((np.eye(40) + weight * bend.T @ bend) @ _smooth(y, 0.05), y, atol=1e-8)


def test_no_light_no_number():
    assert np.isnan(delta_f(np.zeros((400, 2)), 10.0)).all()


@pytest.mark.parametrize("count", [2, 5, 130])
def test_short_recordings_keep_their_level(count):
    np.testing.assert_allclose(baseline(np.full(count, 7.0), 10.0), 7.0, rtol=1e-5)
    np.testing.assert_allclose(baseline(np.full(count, 7.0), 10.0, "literal"), 7.0, rtol=1e-5)


def test_bad_input():
    with pytest.raises(CSTError, match="did you mean 'literal'"):
        baseline(np.ones(10), 10.0, "litteral")
    with pytest.raises(CSTError, match="half the frame rate, 5 Hz"):
        baseline(np.ones(10), 10.0, cutoff=5.0)
