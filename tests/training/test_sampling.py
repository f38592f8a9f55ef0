"""Dummy points: their laws, their bounds, their reproducibility."""

import pytest
import torch
from problems import generator

from cstformer.training.sampling import box, dummy_coords
from cstformer.training.settings import setting_fields

DUMMY_LAWS = setting_fields()["dummy_law"].metadata["choices"]
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


def test_box_sees_existing_points_only():
    coords = torch.tensor([[[0.2, 5.0], [0.4, 3.0], [99.0, -99.0]]])
    low, high = box(coords, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(low, torch.tensor([[0.2, 3.0]]))
    torch.testing.assert_close(high, torch.tensor([[0.4, 5.0]]))
