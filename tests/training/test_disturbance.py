"""What a step hides and disturbs: shares, groups, and noise of input and target that is independent."""

import pytest
import torch
from problems import generator, normal, uniform

from cstformer.training.disturbance import Disturbance, hide_for_validation, hide_points, validation_patterns


def some_points(batch: int = 300, n: int = 12) -> torch.Tensor:
    return uniform(batch, n, seed=5) > 0.3


@pytest.mark.parametrize("largest", [0.0, 0.3, 0.5, 0.95])
def test_hidden_share_is_within_bounds(largest):
    exists = some_points()
    keep = hide_points(exists, largest, generator(0))
    assert not (keep & ~exists).any()
    count, hidden = exists.sum(1), (exists & ~keep).sum(1)
    assert bool((hidden <= (largest * count).round()).all())
    assert bool((keep.sum(1) >= count.clamp(max=2)).all())
    if largest == 0.5:  # uniform between none and half: a quarter on average
        assert float((hidden / count).mean()) == pytest.approx(0.25, abs=0.03)


def test_every_point_may_be_hidden():
    exists = torch.ones(500, 6, dtype=torch.bool)
    share = (~hide_points(exists, 0.9, generator(1))).double().mean(0)
    torch.testing.assert_close(share, torch.full((6,), float(share.mean())).double(), rtol=0, atol=0.08)


def test_groups_hide_together_and_two_stay():
    groups = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 4, 4]]).expand(300, -1)
    exists = torch.ones(300, 10, dtype=torch.bool)
    exists[:, 9] = False  # a patch that does not exist
    exists[:100, 5] = False  # a whole group that does not exist
    keep = hide_points(exists, 0.95, generator(2), groups)
    assert not (keep & ~exists).any()
    for g in range(5):
        members = exists & (groups == g)
        kept = (keep & members).sum(1)
        assert bool(((kept == 0) | (kept == members.sum(1))).all())
    groups_kept = torch.stack([(keep & (groups == g)).any(1) for g in range(5)], 1).sum(1)
    assert int(groups_kept.min()) == 2 and int(groups_kept.max()) == 4  # at least one is hidden
    assert bool(keep[:, [0, 1, 8]].all())  # the first and the last group stay, all others are hidden now and then
    assert all(0 < float(keep[200:, place].double().mean()) < 1 for place in (2, 5, 6))


def test_a_group_is_hidden_however_small_the_share_but_not_if_two_are_all():
    groups = torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(50, -1)
    exists = torch.ones(50, 6, dtype=torch.bool)
    assert torch.equal(hide_points(exists, 0.01, generator(0), groups), groups != 1)
    assert hide_points(exists, 0.0, generator(0), groups).all()
    assert hide_points(exists, 0.9, generator(0), groups.clamp(max=1)).all()


def test_hiding_is_reproducible():
    exists = some_points()
    assert torch.equal(hide_points(exists, 0.5, generator(3)), hide_points(exists, 0.5, generator(3)))
    assert not torch.equal(hide_points(exists, 0.5, generator(3)), hide_points(exists, 0.5, generator(4)))


def test_validation_hides_something_wherever_three_points_exist():
    exists = torch.ones(200, 4, dtype=torch.bool)
    exists[:50, 2:] = False
    keep = hide_for_validation(exists[..., None], exists, 0.5, 0.0, generator(0))[..., 0]
    assert torch.equal(keep[:50], exists[:50])  # two points always stay
    assert bool((keep[50:].sum(1) < 4).all()) and bool((keep.sum(1) >= 2).all())


def test_few_small_samples_have_many_patterns():
    assert validation_patterns(2, 10, 4096) == 16
    assert validation_patterns(40, 10, 4096) == 3
    assert validation_patterns(2, 1000, 4096) == 2
    assert validation_patterns(1000, 1000, 4096) == 1


def test_noise_of_input_and_target_is_independent():
    """Data = clean + e, e ~ N(0, σ²). Input error e + n and target error e − (σ²/s²) n must not correlate."""
    sigma, s, shape = 0.3, 0.2, (200, 100, 2)
    error, clean = sigma * normal(*shape, seed=1), normal(*shape, seed=2)
    keep = torch.rand(200, 100, generator=generator(4)) > 0.3
    values, target = Disturbance(noise=s, data_noise=sigma).add_noise(clean + error, keep, generator(5))
    input_error, target_error = values - clean, target - clean
    pairs = torch.stack([input_error[keep].flatten(), target_error[keep].flatten()])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 4 / pairs.shape[1] ** 0.5
    assert float(pairs[0].std()) == pytest.approx((sigma**2 + s**2) ** 0.5, rel=0.02)
    # without recorruption they do correlate
    assert float(torch.corrcoef(torch.stack([input_error[keep].flatten(), error[keep].flatten()]))[0, 1]) > 0.5
    # a hidden point was not an input: its target stays the datum
    assert torch.equal(target[~keep], (clean + error)[~keep])


def test_frames_are_disturbed_as_values_are():
    """States (B, T, H, W, C) of a rival: the whole frame of a hidden time keeps its target."""
    frames, keep = normal(2, 3, 4, 5, 1), torch.tensor([[True, False, True], [True, True, True]])
    values, target = Disturbance(noise=0.2, data_noise=0.3).add_noise(frames, keep, generator(0))
    assert bool((values != frames).all())
    assert torch.equal(target != frames, keep[..., None, None, None].expand_as(frames))


def test_no_noise_leaves_the_values_alone():
    values, target = Disturbance(noise=0.0, data_noise=0.3).add_noise(
        normal(2, 3, 1), torch.ones(2, 3, dtype=bool), generator(0)
    )
    assert values is target


def test_cells_are_hidden_in_their_share_of_the_samples():
    """A sample hides whole points or single cells, and two cells always stay."""
    exists = torch.ones(4000, 6, dtype=torch.bool)
    observed = exists[..., None].repeat(1, 1, 3)
    observed[:, 0, 1:] = False
    keep = Disturbance(hide=0.9, cells=0.3).keep(observed, exists, generator(0)) & observed
    partly = keep.any(-1) & (observed & ~keep).any(-1)  # some cells of a point are hidden, others visible
    share = float(partly.any(1).double().mean())
    assert 0.2 < share < 0.3  # a few of the 30 % hide nothing, or whole points by chance
    assert int(keep.flatten(1).sum(1).min()) >= 2
    points = Disturbance(hide=0.9).keep(observed, exists, generator(0))
    assert torch.equal(points, points[..., :1].expand_as(points))
    cells = Disturbance(hide=0.8, cells=1.0).keep(observed, exists, generator(1)) & observed
    hidden = 1 - cells.sum() / observed.sum()
    assert float(hidden) == pytest.approx(0.4, abs=0.02)  # the mean of a share between 0 and 0.8


def test_validation_is_scored_at_points_and_at_cells():
    exists = torch.ones(40, 5, dtype=torch.bool)
    observed = exists[..., None].repeat(1, 1, 4)
    keep = hide_for_validation(observed, exists, 0.5, 0.5, generator(0))
    whole = (keep == keep[..., :1]).all(-1).all(-1)
    assert bool(whole[::2].all()) and int(whole[1::2].sum()) < 4


def test_each_channel_has_noise_of_its_own():
    two = Disturbance(noise=(0.1, 0.0), data_noise=(0.05, 0.0))
    values, target = two.add_noise(torch.zeros(2000, 5, 2), torch.ones(2000, 5, 2, dtype=torch.bool), generator(0))
    assert float(values[..., 0].std()) == pytest.approx(0.1, rel=0.05) and not values[..., 1].any()
    torch.testing.assert_close(target[..., 0], -0.25 * values[..., 0])  # (0.05 / 0.1)²
    assert not target[..., 1].any()
