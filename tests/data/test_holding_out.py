"""Held-out windows share no point with training windows."""

import numpy as np
import pytest

from cstformer import Samples, frames_to_samples
from cstformer.data.holding_out import hold_out, split_samples


def movie(windows: int = 20, movies: int = 1) -> Samples:
    """Windows of 4 frames, one every 2 frames."""
    frames = np.random.default_rng(0).normal(size=(movies, 2 * windows + 2, 4, 4, 1))
    return frames_to_samples(frames, (4, 4), window=4, stride=2)


def times(samples: Samples, index) -> set:
    """Recording and time of every frame of these windows."""
    found = set()
    for i in index.tolist():
        name = samples.sample_ids[i].split("@")[0]
        found |= {(name, t) for t in (samples.origin[i, 0] + samples.coords[i, :, 0]).tolist()}
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("movies", [1, 3, 12])
def test_no_frame_is_in_both_parts(movies, seed):
    samples = movie(movies=movies)
    training, held_out = hold_out(samples, 0.1, seed)
    assert len(held_out) >= 2 * movies and len(training) >= len(samples) // 2
    assert not times(samples, training) & times(samples, held_out)
    assert not times(samples, split_samples(len(samples), 0.1, seed)[0]).isdisjoint(times(samples, held_out))


def test_of_many_recordings_whole_ones_are_held_out():
    samples = movie(windows=5, movies=20)
    training, held_out = hold_out(samples, 0.1, seed=0)
    assert len(training) + len(held_out) == 100 and len({samples.sample_ids[i][:2] for i in held_out.tolist()}) == 2


def test_samples_that_share_nothing_are_divided_at_random():
    t = np.linspace(0, 1, 5)
    curves = Samples(t, np.random.default_rng(0).normal(size=(20, 5)), sample_ids=[f"a@{i}" for i in range(20)])
    long = Samples(np.arange(100.0), np.random.default_rng(0).normal(size=(1, 100)))
    for samples in (curves, long.windows(5, 5)):
        expected = split_samples(20, 0.2, 3)
        assert all((a == b).all() for a, b in zip(hold_out(samples, 0.2, 3), expected, strict=True))


def test_windows_of_curves_and_few_windows():
    long = Samples(np.arange(100.0), np.random.default_rng(0).normal(size=(1, 100)))
    samples = long.windows(10, 3)
    training, held_out = hold_out(samples, 0.1, seed=0)
    ends = samples.origin[training.numpy(), 0] + 9
    assert held_out.tolist() and ends.max() < samples.origin[held_out.numpy(), 0].min()
    few = long.windows(80, 4)  # all of them share points with all others
    training, held_out = hold_out(few, 0.2, seed=0)
    assert len(training) + len(held_out) == len(few)
