"""What must not matter does not: order, padding, missing points, units; tried on samples that hypothesis invents."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import fit_quickly, wave_model

from cstformer import CST, Samples

AT = np.linspace(2.2, 4.8, 6)
SCALE = 10.0  # of the values of the curves that the models know

common = settings(
    max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
seeds = st.integers(0, 2**32 - 1)
patterns = st.sampled_from(["context", "joint"])


def ragged(seed: int, count: int = 3, most: int = 9) -> list[tuple[np.ndarray, np.ndarray]]:
    """Curves of 2 to ``most`` points each, some of whose channels are missing."""
    rng = np.random.default_rng(seed)
    curves = []
    for n in rng.integers(2, most + 1, count):
        t = np.sort(rng.uniform(2, 5, n))
        y = 40 + SCALE * rng.normal(size=(n, 2))
        y[rng.random((n, 2)) < 0.15] = np.nan
        y[0] = 40.0  # at least one point is there
        curves.append((t, y))
    return curves


def answers(model: CST, samples: Samples) -> np.ndarray:
    """Values and slopes, in one array."""
    return np.concatenate(model.derivatives(samples, AT, [(0,), (1,)]), -1)


@common
@given(seeds, patterns)
def test_the_order_of_points_does_not_matter(seed, pattern):
    model, curves = wave_model(pattern=pattern), ragged(seed)
    rng = np.random.default_rng(seed + 1)
    mixed = [(t[order], y[order]) for t, y in curves for order in [rng.permutation(len(t))]]
    assert np.array_equal(answers(model, Samples.from_list(curves)), answers(model, Samples.from_list(mixed)))


@common
@given(seeds, patterns, st.integers(1, 40))
def test_padding_does_not_matter(seed, pattern, more):
    """Unobserved points, with any numbers in them and at any place, change nothing."""
    model, plain = wave_model(pattern=pattern), Samples.from_list(ragged(seed))
    rng = np.random.default_rng(seed + 1)
    place = np.sort(rng.integers(0, plain.n + 1, more))
    coords = np.insert(plain.coords, place, rng.normal(size=(3, more, 1)) * 1e6, axis=1)
    values = np.insert(plain.values, place, rng.choice([np.nan, 1e9, -7.0], (3, more, 2)), axis=1)
    observed = np.insert(plain.observed, place, False, axis=1)
    padded = Samples(coords, values, observed)
    assert padded.n == plain.n + more
    assert np.abs(answers(model, padded) - answers(model, plain)).max() < 1e-9 * SCALE


@common
@given(seeds, patterns, st.sampled_from(["linear", "hermite", "cubic", "smooth"]))
def test_missing_points_are_removed_points(seed, pattern, start):
    model, curves = wave_model(pattern=pattern, start=start), ragged(seed)
    rng = np.random.default_rng(seed + 1)
    holes, removed = [], []
    for t, y in curves:
        keep = rng.random(len(t)) < 0.6
        keep[0] = True
        holes.append((t, np.where(keep[:, None], y, np.nan)))
        removed.append((t[keep], y[keep]))
    a, b = (answers(model, Samples.from_list(s)) for s in (holes, removed))
    assert np.abs(a - b).max() < 1e-9 * SCALE


@common
@given(seeds, patterns)
def test_other_samples_do_not_matter(seed, pattern):
    model, samples = wave_model(pattern=pattern), Samples.from_list(ragged(seed, count=5))
    together = answers(model, samples)
    chosen = np.random.default_rng(seed).permutation(5)[:3]
    assert np.abs(answers(model, samples[chosen]) - together[chosen]).max() < 1e-8 * SCALE


def refitted(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[CST, Samples]:
    samples = Samples.from_list(curves)
    return fit_quickly(CST.preset("smoke", steps=3, precision="float64", seed=5), samples), samples


@settings(common, max_examples=3)
@given(seeds, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_units_do_not_matter_to_a_refit(seed, shift, stretch, offset, gain):
    """Coordinates s·t + a and values g·y + b: the same seed learns the same function, in the other units."""
    curves = [(np.linspace(2, 5, 6), y) for _, y in ragged(seed, count=6, most=6)]
    curves = [(t[: len(y)], y) for t, y in curves]
    model, samples = refitted(curves)
    moved_model, moved = refitted([(t * stretch + shift, y * gain + offset) for t, y in curves])
    low, high = samples.coords[samples.point_observed].min(), samples.coords[samples.point_observed].max()
    at = np.linspace(low + 0.05, high - 0.05, 5)
    value, slope = model.derivatives(samples, at, [(0,), (1,)])
    moved_value, moved_slope = moved_model.derivatives(moved, at * stretch + shift, [(0,), (1,)])
    # Rounding: a number of size |a| has an error of 1e-16 |a|, which is divided by the extent of the data.
    worst = 1e-9 * (1 + abs(shift) / stretch + abs(offset) / gain)
    assert np.abs((moved_value - offset) / gain - value).max() < worst * SCALE
    assert np.abs(moved_slope / gain * stretch - slope).max() < 30 * worst * SCALE


@settings(common, max_examples=3)
@given(seeds)
def test_order_padding_and_missing_points_do_not_matter_to_a_refit(seed):
    curves = ragged(seed, count=6)
    curves = [(np.append(t, 5.0), np.append(y, [[41.0, 39.0]], 0)) for t, y in curves]  # two points each, at least
    rng = np.random.default_rng(seed + 1)
    disturbed = []
    for t, y in curves:
        t, y = np.append(t, rng.uniform(2, 5, 3)), np.append(y, np.full((3, 2), np.nan), 0)
        order = rng.permutation(len(t))
        disturbed.append((t[order], y[order]))
    (model, samples), (other, untidy) = refitted(curves), refitted(disturbed)
    assert untidy.n == samples.n + 3
    assert np.abs(answers(other, untidy) - answers(model, samples)).max() < 1e-8 * SCALE


@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_the_answers_are_not_all_alike(pattern):
    """The properties above would hold for a model that answers with a constant; ours does not."""
    y = answers(wave_model(pattern=pattern), Samples.from_list(ragged(0)))
    assert y[..., :2].std(axis=(0, 1)).min() > 0.1 * SCALE
    assert y[..., 2:].std(axis=(0, 1)).min() > 0.1 * SCALE
