"""Learning rates, the stream of batches, and the generators of steps."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cstformer.training.schedule import batch_indices, generator_for, learning_rate_factor


def test_learning_rate_schedule_by_hand():
    assert [learning_rate_factor(s, 100, 0.1) for s in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert learning_rate_factor(10, 100, 0.1) == 1.0
    assert learning_rate_factor(55, 100, 0.1) == pytest.approx(0.5)
    assert learning_rate_factor(100, 100, 0.1) == 0.0
    assert learning_rate_factor(40, 100, 0.1) == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_learning_rate_schedule_at_its_limits(warmup):
    factors = [learning_rate_factor(s, 10, warmup) for s in range(10)]
    assert max(factors) == 1.0
    assert min(factors) > 0
    assert factors == sorted(factors, reverse=warmup == 0.0)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 3))
def test_every_epoch_visits_every_sample_once(batch, count, seed):
    stream = torch.cat([batch_indices(step, batch, count, seed) for step in range(3 * count)])
    assert len(stream) == 3 * count * batch
    for epoch in stream.split(count):
        assert sorted(epoch.tolist()) == list(range(count))


def test_epochs_are_shuffled_and_depend_on_the_seed():
    epochs = {tuple(batch_indices(e, 20, 20, 0).tolist()) for e in range(5)}
    assert len(epochs) == 5
    assert batch_indices(0, 20, 20, 0).tolist() != batch_indices(0, 20, 20, 1).tolist()


def test_a_shuffle_of_ones_own_gets_the_generator_of_its_epoch():
    def backwards(generator):
        return torch.arange(4).flip(0) + 10 * int(torch.randint(2, (), generator=generator))

    assert torch.equal(batch_indices(1, 2, 4, 0, backwards), backwards(generator_for(0, -1))[2:])
    assert torch.equal(batch_indices(2, 2, 4, 0, backwards), backwards(generator_for(0, -2))[:2])


def test_generators_of_steps_seeds_and_epochs_differ():
    draws = {float(torch.rand((), generator=generator_for(seed, step))) for seed in (0, 1, 2) for step in range(-5, 5)}
    assert len(draws) == 30
