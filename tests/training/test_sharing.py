"""Shares of a batch: together the processes draw and average what one process would."""

import pytest
import torch

from cstformer.training import sampling
from cstformer.training import sharing as shared
from cstformer.training.disturbance import Disturbance, hide_points
from cstformer.training.sharing import Share, draw, sharing


@pytest.mark.parametrize("law", ["uniform", "stratified"])
def test_shares_of_the_random_numbers_make_up_those_of_one_process(law):
    low, high = torch.zeros(8, 2), torch.ones(8, 2)
    exists = torch.rand(8, 5, generator=torch.Generator().manual_seed(3)) < 0.8
    exists[:, :3] = True

    def drawn(rows):
        g = torch.Generator().manual_seed(7)
        keep = hide_points(exists[rows], 0.9, g)
        dummies = sampling.dummy_coords(law, low[rows], high[rows], 6, g)
        noisy, target = Disturbance(0.0, 0.3, 0.2).add_noise(torch.zeros(8, 5, 2)[rows], keep, g)
        noise = draw(torch.randn, (len(low[rows]), 4), g)
        return keep, dummies, noisy, target, noise, torch.rand(3, generator=g)

    whole, parts = drawn(slice(0, 8)), []
    for rank in range(3):
        share = Share.of(rank, 3, 8)
        with sharing(share):
            parts.append(drawn(share.rows))
    for k in range(5):
        assert torch.equal(torch.cat([part[k] for part in parts]), whole[k])
    assert all(torch.equal(part[5], whole[5]) for part in parts)  # the generators are where that of one process is


def test_a_loss_of_nothing_is_zero_and_has_a_gradient():
    x = torch.ones(3, requires_grad=True)
    for reduce in (shared.mean, shared.maximum):
        nothing = reduce(x[:0])
        nothing.backward()
        assert float(nothing.detach()) == 0 and x.grad.tolist() == [0, 0, 0]


def test_shares_cover_a_batch_and_differ_by_one_at_most():
    for count in range(1, 9):
        for total in range(count, 20):
            shares = [Share.of(rank, count, total) for rank in range(count)]
            assert [i for s in shares for i in range(total)[s.rows]] == list(range(total))
            sizes = [s.last - s.first for s in shares]
            assert max(sizes) - min(sizes) <= 1


def test_a_failed_loss_ends_its_sharing():
    with pytest.raises(ZeroDivisionError), sharing(Share(2, 4, 8)):
        _ = 1 / 0
    assert draw(torch.rand, (3, 2), torch.Generator().manual_seed(0)).shape == (3, 2)
