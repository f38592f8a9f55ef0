"""Data in the model's units: tensors in memory, or windows that are read when a step asks for them."""

import numpy as np
import pytest
import torch
import zarr
from small_models import blob

from cstformer import frames_to_samples
from cstformer.data import lazy
from cstformer.data.batch import Batch
from cstformer.data.lazy import LazyFrames
from cstformer.data.lazy_batch import LazyBatch, in_memory, memory_limit, open_data
from cstformer.starts.kinds import kind_of

PATCH, WINDOW, STRIDE = (4, 4), 4, 2


@pytest.fixture
def lazily(tmp_path):
    zarr.create_array(tmp_path / "movie.zarr", data=blob(24, 8, 8), chunks=(5, 8, 8))
    return LazyFrames(tmp_path / "movie.zarr", PATCH, WINDOW, STRIDE)


def eagerly(movie=None):
    return frames_to_samples(blob(24, 8, 8) if movie is None else movie, PATCH, WINDOW, STRIDE)


def to_batch(samples):
    """In the units of the whole movie."""
    return kind_of(eagerly()).batch(samples, torch.float64, torch.device("cpu"))


def equal(a: Batch, b: Batch) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("coords", "values", "observed", "frame"))


def test_windows_are_those_of_the_movie_in_memory(lazily):
    data, memory = open_data(lazily, to_batch), open_data(eagerly(), to_batch)
    assert isinstance(data, LazyBatch) and isinstance(memory, Batch)
    assert len(data) == len(memory) == 11
    for index in ([0], [10, 3, 3], list(range(11))):
        assert equal(data[torch.tensor(index)], memory[torch.tensor(index)])


def test_all_batches_have_one_size(tmp_path):
    """Patches that are missing in some windows become padding in these, and in windows read alone too."""
    movie = blob(24, 8, 8)
    movie[:4, :4] = np.nan  # in the first window two of four patches of each frame
    zarr.create_array(tmp_path / "movie.zarr", data=movie)
    data = open_data(LazyFrames(tmp_path / "movie.zarr", PATCH, WINDOW, STRIDE), to_batch)
    alone, both = data[torch.tensor([0])], data[torch.tensor([0, 5])]
    assert alone.coords.shape[1] == both.coords.shape[1] == 4 * 4
    assert alone.exists.sum() == 4 * 2
    assert torch.equal(alone.values[0], both.values[0]) and torch.equal(alone.frame[0], both.frame[0])


def test_an_epoch_has_one_order_until_others_replace_it(lazily, monkeypatch):
    """A step asks for the order of its epoch, and the next epoch begins before the last step of this one is over."""
    asked, epoch = [], LazyFrames.epoch
    monkeypatch.setattr(LazyFrames, "epoch", lambda self, *a: asked.append(1) or epoch(self, *a))
    order = open_data(lazily, to_batch).shuffle(torch.arange(3, 11), 2)

    def of(seed):
        return order(torch.Generator().manual_seed(seed)).tolist()

    first, second = of(0), of(1)
    assert sorted(first) == list(range(8)) and first != second
    assert of(0) == first and of(1) == second and len(asked) == 2
    of(2)
    assert of(1) == second and len(asked) == 3
    assert of(0) == first and len(asked) == 4  # forgotten, and the same again
    assert open_data(eagerly(), to_batch).shuffle(torch.arange(11), 2) is None


def test_the_fingerprint_notices_other_values_and_times(lazily, tmp_path):
    first = open_data(lazily, to_batch).fingerprint(0)
    assert open_data(lazily, to_batch).fingerprint(0) == first
    group = zarr.create_group(tmp_path / "timed.zarr")
    group.create_array("frames", data=blob(24, 8, 8))
    group.create_array("times", data=1.5 * np.arange(24))
    assert LazyFrames(tmp_path / "timed.zarr", PATCH, WINDOW, STRIDE).fingerprint(0) != first
    zarr.open(lazily.path, mode="r+")[3] = 0.0
    assert LazyFrames(lazily.path, PATCH, WINDOW, STRIDE).fingerprint(0) != first


def test_the_windows_that_fit_in_memory(lazily, monkeypatch):
    assert memory_limit(eagerly()) == len(in_memory(eagerly(), 0)) == 11
    assert in_memory(lazily, seed=0).equals(eagerly())
    monkeypatch.setattr(lazy, "SUBSET_VALUES", 1)
    few = in_memory(lazily, seed=0)
    assert memory_limit(lazily) == len(few) == 8  # never fewer
    assert few.equals(eagerly()[lazily.subset(0)])
    assert in_memory(lazily, seed=0).sample_ids != in_memory(lazily, seed=1).sample_ids
