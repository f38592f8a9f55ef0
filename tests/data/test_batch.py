"""The batch that a network sees."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cstformer.data.batch import Batch, as_batches
from cstformer.data.holding_out import split_samples

nan = torch.nan


def batch() -> Batch:
    """Two samples of three points of one axis and two channels; one value is missing, and one point is padding."""
    coords = torch.tensor([[[0.0], [0.5], [1.0]], [[0.25], [0.75], [0.0]]])
    values = torch.tensor([[[1.0, 2.0], [3.0, nan], [5.0, 6.0]], [[7.0, 8.0], [9.0, 10.0], [nan, nan]]])
    frame = torch.tensor([[0, 1, 2], [0, 1, 0]])
    return Batch(coords, values, ~values.isnan(), frame, 10 + frame)


def test_padding_has_no_observed_channel_and_unknown_values_are_zero():
    assert batch().exists.tolist() == [[True, True, True], [True, True, False]]
    assert batch().known.tolist() == [[[1, 2], [3, 0], [5, 6]], [[7, 8], [9, 10], [0, 0]]]


def test_samples_are_chosen_with_all_their_tensors():
    chosen = batch()[torch.tensor([1, 1, 0])]
    assert len(chosen) == 3
    assert chosen.coords[:, 0, 0].tolist() == [0.25, 0.25, 0.0]
    assert chosen.patch[:, 1].tolist() == [11, 11, 11] and chosen.frame[2].tolist() == [0, 1, 2]
    assert chosen.initial is None


def test_points_are_chosen_for_each_sample():
    initial = torch.arange(24.0).reshape(2, 3, 4)
    picked = batch().replace(initial=initial).pick(torch.tensor([[2, 0], [1, 1]]))
    assert picked.coords[..., 0].tolist() == [[1.0, 0.0], [0.75, 0.75]]
    assert picked.values.tolist() == [[[5, 6], [1, 2]], [[9, 10], [9, 10]]]
    assert picked.frame.tolist() == [[2, 0], [1, 1]]
    assert picked.initial.tolist() == [initial[0, [2, 0]].tolist(), initial[1, [1, 1]].tolist()]


def test_packing_leaves_out_what_no_sample_needs():
    """Sample 0 loses its middle point, sample 1 has two points already: two slots are left."""
    observed = batch().observed.clone()
    observed[0, 1] = False
    packed = batch().replace(observed=observed).packed()
    assert packed.coords[..., 0].tolist() == [[0.0, 1.0], [0.25, 0.75]]
    assert packed.exists.all() and packed.frame.tolist() == [[0, 2], [0, 1]]
    assert batch().packed().coords.shape == (2, 3, 1)  # sample 0 is full
    assert batch().replace(observed=torch.zeros_like(observed)).packed().exists.tolist() == [[False], [False]]


def test_appended_points_do_not_exist():
    more = batch().padded(2)
    assert more.coords.shape == (2, 5, 1) and more.patch.shape == (2, 5)
    assert more.exists.tolist() == [[True] * 3 + [False] * 2, [True] * 2 + [False] * 3]


def test_numbers_change_their_format_and_masks_do_not():
    moved = batch().to(torch.float64, torch.device("cpu"))
    assert moved.coords.dtype == moved.values.dtype == torch.float64
    assert moved.observed.dtype == torch.bool and moved.frame.dtype == torch.int64


def test_replacing_leaves_the_batch_as_it_was():
    first = batch()
    other = first.replace(coords=first.coords + 1)
    assert torch.equal(other.coords, first.coords + 1) and torch.equal(first.coords, batch().coords)
    assert other.frame is first.frame


def test_the_fingerprint_is_that_of_all_numbers():
    first = batch().fingerprint(0)
    assert batch().fingerprint(1) == first
    for name in ("coords", "values", "observed"):
        changed = getattr(batch(), name).clone()
        changed[0, 1, 0] = False if name == "observed" else 0.125
        assert batch().replace(**{name: changed}).fingerprint(0) != first
    assert batch()[torch.tensor([1, 0])].fingerprint(0) != first


@given(st.integers(1, 40), st.integers(0, 12))
def test_batches_cover_everything_once_in_order(count, size):
    parts = as_batches(count, size)
    assert torch.cat(parts).tolist() == list(range(count))
    assert max(map(len, parts)) <= max(1, size)


@pytest.mark.parametrize(
    ("count", "fraction", "held"), [(10, 0.2, 2), (10, 0.01, 1), (5, 0.5, 2), (4, 0.5, 0), (10, 0.0, 0)]
)
def test_training_and_validation_samples(count, fraction, held):
    """At least one sample is held out; of fewer than five samples none, and the same ones serve both."""
    training, held_out = split_samples(count, fraction, seed=1)
    if held == 0:
        assert torch.equal(training, held_out)
        held_out = held_out[:0]
    assert len(held_out) == held
    assert sorted(torch.cat([training, held_out]).tolist()) == list(range(count))
    assert torch.equal(training, split_samples(count, fraction, seed=1)[0])
    assert not torch.equal(split_samples(40, 0.2, seed=1)[1], split_samples(40, 0.2, seed=2)[1])


def test_what_is_known_of_a_sample_has_no_points():
    batch = Batch(torch.rand(3, 4, 1), torch.rand(3, 4, 2), torch.ones(3, 4, 2) > 0, covariates=torch.rand(3, 5))
    assert torch.equal(batch[torch.tensor([2])].covariates, batch.covariates[2:])
    picked = batch.pick(torch.tensor([[0, 1]] * 3)).padded(3)
    assert picked.coords.shape == (3, 5, 1) and torch.equal(picked.covariates, batch.covariates)
    other = batch.replace(covariates=batch.covariates + 1)
    assert other.fingerprint(0) != batch.fingerprint(0)


def test_batches_have_samples_of_similar_length():
    lengths = torch.tensor([2, 3, 4, 30] * 40)
    observed = (torch.arange(30) < lengths[:, None])[..., None]
    batch = Batch(torch.zeros(160, 30, 1), torch.zeros(160, 30, 1), observed)
    assert torch.equal(batch.lengths, lengths)
    some = torch.arange(0, 160, 1)[lengths != 3]
    order = batch.shuffle(some, 10)
    first, second = (order(torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert sorted(first.tolist()) == list(range(120)) and not torch.equal(first, second)
    padded = sum(int(lengths[some][part].max()) * len(part) for part in first.split(10))
    assert padded < 1.4 * int(lengths[some].sum())  # by chance it would be 2.5 times as much
    assert batch.shuffle(torch.arange(0, 160, 4), 10) is None  # all have two points
