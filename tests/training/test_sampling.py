"""Random choices: their laws, their bounds, their reproducibility."""

import pytest
import torch
from problems import generator, uniform

from cstformer.training.sampling import DUMMY_LAWS, box, dummy_coords, hide_points

LOW, HIGH = torch.tensor([[0.0, 0.2], [0.5, -1.0]]), torch.tensor([[1.0, 0.3], [0.6, 2.0]])


@pytest.mark.parametrize("law", DUMMY_LAWS)
@pytest.mark.parametrize("d", [1, 2])
def test_dummies_fall_into_each_samples_box(law, d):
    low, high = LOW[:, :d], HIGH[:, :d]
    x = dummy_coords(law, low, high, 200, generator(0))
    assert x.shape == (2, 200, d) and x.dtype == low.dtype
    assert bool((x >= low[:, None] - 1e-6).all() and (x <= high[:, None] + 1e-6).all())
    unit = (x - low[:, None]) / (high - low)[:, None]
    torch.testing.assert_close(unit.mean(1), torch.full((2, d), 0.5), rtol=0, atol=0.08)  # they fill it


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_stratified_puts_one_point_in_every_slice_of_every_axis(d, count):
    x = dummy_coords("stratified", torch.zeros(4, d).double(), torch.ones(4, d).double(), count, generator(1))
    slices = (x * count).floor().long().sort(1).values
    assert torch.equal(slices, torch.arange(count)[None, :, None].expand(4, count, d))


def test_stratified_axes_are_not_tied_to_each_other():
    x = dummy_coords("stratified", torch.zeros(1, 2).double(), torch.ones(1, 2).double(), 500, generator(2))[0]
    assert abs(float(torch.corrcoef(x.T)[0, 1])) < 0.2


def test_regular_is_a_grid_in_one_dimension_and_fills_more():
    x = dummy_coords("regular", LOW[:, :1], HIGH[:, :1], 5)
    torch.testing.assert_close(x[0, :, 0], torch.linspace(0, 1, 5))
    torch.testing.assert_close(x[1, :, 0], torch.linspace(0.5, 0.6, 5))
    x = dummy_coords("regular", torch.zeros(1, 2).double(), torch.ones(1, 2).double(), 64)[0]
    cells = (x * 4).floor().long()
    assert len({tuple(c) for c in cells.tolist()}) == 16  # no empty cell of a 4 × 4 grid
    distances = torch.cdist(x, x) + torch.eye(64)
    assert float(distances.min()) > 0.3 / 8


@pytest.mark.parametrize("law", DUMMY_LAWS)
def test_dummies_are_reproducible(law):
    draw = lambda seed: dummy_coords(law, LOW, HIGH, 20, generator(seed))  # noqa: E731
    assert torch.equal(draw(3), draw(3))
    assert torch.equal(draw(3), draw(4)) == (law == "regular")


def some_tokens(batch: int = 300, n: int = 12) -> torch.Tensor:
    return uniform(batch, n, seed=5) > 0.3


@pytest.mark.parametrize("largest", [0.0, 0.3, 0.5, 0.95])
def test_hidden_share_is_within_bounds(largest):
    tokens = some_tokens()
    keep = hide_points(tokens, largest, generator(0))
    assert not (keep & ~tokens).any()
    count, hidden = tokens.sum(1), (tokens & ~keep).sum(1)
    assert bool((hidden <= (largest * count).round()).all())
    assert bool((keep.sum(1) >= count.clamp(max=2)).all())
    if largest == 0.5:  # uniform between none and half: a quarter on average
        assert float((hidden / count).mean()) == pytest.approx(0.25, abs=0.03)


def test_every_point_may_be_hidden():
    tokens = torch.ones(500, 6, dtype=torch.bool)
    share = (~hide_points(tokens, 0.9, generator(1))).double().mean(0)
    torch.testing.assert_close(share, torch.full((6,), float(share.mean())).double(), rtol=0, atol=0.08)


def test_groups_hide_together_and_two_stay():
    groups = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 4, 4]]).expand(300, -1)
    tokens = torch.ones(300, 10, dtype=torch.bool)
    tokens[:, 9] = False  # a patch that does not exist
    tokens[:100, 5] = False  # a whole group that does not exist
    keep = hide_points(tokens, 0.95, generator(2), groups)
    assert not (keep & ~tokens).any()
    for g in range(5):
        members = tokens & (groups == g)
        kept = (keep & members).sum(1)
        assert bool(((kept == 0) | (kept == members.sum(1))).all())
    groups_kept = torch.stack([(keep & (groups == g)).any(1) for g in range(5)], 1).sum(1)
    assert int(groups_kept.min()) == 2 and int(groups_kept.max()) == 4  # at least one is hidden
    assert bool(keep[:, [0, 1, 8]].all())  # the first and the last group stay, all others are hidden now and then
    assert all(0 < float(keep[200:, place].double().mean()) < 1 for place in (2, 5, 6))


def test_a_group_is_hidden_however_small_the_share_but_not_if_two_are_all():
    groups = torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(50, -1)
    tokens = torch.ones(50, 6, dtype=torch.bool)
    assert torch.equal(hide_points(tokens, 0.01, generator(0), groups), groups != 1)
    assert hide_points(tokens, 0.0, generator(0), groups).all()
    assert hide_points(tokens, 0.9, generator(0), groups.clamp(max=1)).all()


def test_hiding_is_reproducible():
    tokens = some_tokens()
    assert torch.equal(hide_points(tokens, 0.5, generator(3)), hide_points(tokens, 0.5, generator(3)))
    assert not torch.equal(hide_points(tokens, 0.5, generator(3)), hide_points(tokens, 0.5, generator(4)))


def test_box_sees_existing_points_only():
    coords = torch.tensor([[[0.2, 5.0], [0.4, 3.0], [99.0, -99.0]]])
    low, high = box(coords, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(low, torch.tensor([[0.2, 3.0]]))
    torch.testing.assert_close(high, torch.tensor([[0.4, 5.0]]))
