"""The corruption against its law: shares, blocks, motion, moments of the noise."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from cstformer.datasets.corruption import MOTIONS, corrupt, corrupt_frames, draw_masks
from cstformer.errors import CSTError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("block", [1, 16])
def test_every_frame_has_its_share(block, motion):
    masks = draw_masks(6, (10, 64, 80), generator(), block=block, motion=motion)
    share = masks.double().mean((2, 3))
    assert masks.shape == (6, 10, 64, 80) and masks.dtype == torch.bool
    assert 0.4 <= share.min() < 0.46 and 0.54 < share.max() <= 0.6


def test_number_of_blocks_is_uniform():
    """Of ten blocks 4, 5 or 6 are corrupted, each number as often; and each block as often as any other."""
    masks = draw_masks(3000, (1, 2, 5), generator())
    assert chisquare(torch.bincount(masks.sum((1, 2, 3)))[4:7]).pvalue > 0.01
    assert masks.sum() / masks.numel() == pytest.approx(0.5, abs=0.01)
    assert masks.double().mean((0, 1)).numpy() == pytest.approx(np.full((2, 5), 0.5), abs=0.04)


def test_blocks_are_whole_and_in_place():
    masks = draw_masks(2, (3, 48, 32), generator(), block=16)
    tiles = masks.unfold(2, 16, 16).unfold(3, 16, 16).flatten(-2)
    assert bool((tiles.all(-1) | ~tiles.any(-1)).all())


def test_masks_over_time():
    draw = {motion: draw_masks(4, (6, 32, 32), generator(), motion=motion) for motion in MOTIONS}
    assert bool((draw["fixed"] == draw["fixed"][:, :1]).all())
    agree = (draw["fresh"][:, 1:] == draw["fresh"][:, :-1]).double().mean()
    assert agree == pytest.approx(0.5, abs=0.02)
    # A moving mask is its first frame shifted by speed · t in one direction, around the edges.
    first = draw["moving"][0, 0]
    for t, frame in enumerate(draw["moving"][0]):
        shifts = [
            (r, c) for r in range(-10, 11) for c in range(-10, 11) if bool((first.roll((r, c), (0, 1)) == frame).all())
        ]
        assert len(shifts) == 1 and np.hypot(*shifts[0]) == pytest.approx(2 * t, abs=0.75)


def test_a_faster_mask_moves_further():
    masks = draw_masks(1, (2, 64, 64), generator(3), motion="moving", speed=5)
    shifts = [
        (r, c)
        for r in range(-6, 7)
        for c in range(-6, 7)
        if bool((masks[0, 0].roll((r, c), (0, 1)) == masks[0, 1]).all())
    ]
    assert np.hypot(*shifts[0]) == pytest.approx(5, abs=0.75)


def test_noise_is_gaussian_where_the_mask_is_and_nowhere_else():
    clips = torch.rand(2, 4, 32, 32, 3, generator=generator(1), dtype=torch.float64)
    values, masks = corrupt(clips, generator())
    added = values - clips
    assert bool((added[~masks] == 0).all())
    noise = added[masks]  # (pixels, 3): one mask for all colours, noise of its own for each
    assert kstest(noise.flatten().numpy() / 0.5, "norm").pvalue > 0.01
    correlation = np.corrcoef(noise.numpy().T)
    assert correlation == pytest.approx(np.eye(3), abs=0.05)
    assert values.min() < -1 and values.max() > 2, "nothing is clipped"


def test_copying_costs_an_eighth():
    clips = torch.zeros(8, 10, 32, 32, 3)
    values, _ = corrupt(clips, generator())
    assert float((values**2).mean()) == pytest.approx(0.125, rel=0.02)


def test_the_seed_decides_and_arrays_get_the_same():
    clips = np.random.default_rng(0).random((2, 3, 16, 16, 3))
    values, masks = corrupt_frames(clips, seed=5, block=4, motion="moving", noise=0.1)
    again, same = corrupt(torch.from_numpy(clips), generator(5), block=4, motion="moving", noise=0.1)
    assert np.array_equal(values, again.numpy()) and np.array_equal(masks, same.numpy())
    assert not np.array_equal(values, corrupt_frames(clips, seed=6, block=4)[0])
    assert values.dtype == np.float64 and corrupt_frames(clips.astype(np.float32), 5)[0].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 16}, "block=16 must be a positive divisor of the frame size 8 × 8"),
        ({"block": 0}, "block=0"),
        ({"motion": "movin"}, "did you mean 'moving'"),
        ({"share": (0.6, 0.4)}, r"share=\(0.6, 0.4\)"),
        ({"share": (0.3, 0.4), "block": 4}, "a whole number of 4 blocks"),
        ({"noise": -1.0}, "noise must be a standard deviation"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(CSTError, match=message):
        corrupt(torch.zeros(1, 2, 8, 8, 3), generator(), **options)


def test_bad_clips():
    with pytest.raises(CSTError, match=r"clips must be floats .* torch.uint8 \(2, 8, 8, 3\)"):
        corrupt(torch.zeros(2, 8, 8, 3, dtype=torch.uint8), generator())
