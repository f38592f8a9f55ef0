"""Threads go by size, are given back, and nobody gets more than torch had unless he asks."""

import pytest
import torch

from cstformer.system.threads import LARGE, cores, flushes_denormals, thread_limit


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "threads, parameters, inside", [("auto", 10, 1), ("auto", LARGE, 2), (1, LARGE, 1), (3, 10, 3)]
)
def test_threads_inside_and_after(two_threads, threads, parameters, inside):
    with pytest.raises(RuntimeError), thread_limit(threads, parameters):
        assert torch.get_num_threads() == inside
        raise RuntimeError
    assert torch.get_num_threads() == 2


def test_cores():
    assert cores() >= 1


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush denormal numbers")
@pytest.mark.parametrize("before", [False, True])
def test_denormal_numbers_are_zero_inside_and_as_before_after(before):
    tiny = torch.tensor([1e-38])
    torch.set_flush_denormal(before)
    try:
        with thread_limit(1, 10):
            assert float(tiny / 1000) == 0
        assert flushes_denormals() == before
        assert (float(tiny / 1000) == 0) == before
    finally:
        torch.set_flush_denormal(False)
