"""Motion between frames: known shifts are found, still and flat frames stand still, and units do not matter."""

import math

import pytest
import torch

from cstformer.errors import CSTError
from cstformer.starts.motion import motion

SHIFTS = [(0.3, -0.7), (1.6, 2.4), (-3.3, 0.5), (4.7, -5.2)]


def texture(at, size=(48, 48), seed=0):
    """A smooth picture of three channels, sums of sinusoids, moved by ``at`` (rows, columns)."""
    generator = torch.Generator().manual_seed(seed)
    angle, phase = 2 * math.pi * torch.rand(2, 3, 24, generator=generator)
    frequency = 2 * math.pi / (6 * 6 ** torch.rand(3, 24, generator=generator))
    row, col = torch.meshgrid(*(torch.arange(float(n)) for n in size), indexing="ij")
    row, col = row[..., None, None] - at[0], col[..., None, None] - at[1]
    return torch.cos(frequency * (angle.sin() * row + angle.cos() * col) + phase).mean(-1)


def movie(shift, times=(0, 1), **kwargs):
    return torch.stack([texture((t * shift[0], t * shift[1]), **kwargs) for t in times])[None]


def middle(x, edge=14):
    return x[:, :, edge:-edge, edge:-edge]


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_known_shifts_are_found(shift, seed):
    found = motion(movie(shift, seed=seed))
    assert found.shape == (1, 1, 48, 48, 2)
    assert float((middle(found) - torch.tensor(shift)).abs().max()) < 0.1


def test_pairs_are_found_in_their_movies():
    frames = torch.cat([movie(shift, times=(0, 1, 2), size=(32, 32)) for shift in SHIFTS[:2]])
    field = motion(frames)
    assert field.shape == (2, 2, 32, 32, 2)
    for b in range(2):
        for t in range(2):
            alone = motion(frames[b : b + 1, t : t + 2])[0, 0]
            torch.testing.assert_close(field[b, t], alone, rtol=0, atol=1e-3)


def test_still_frames_stand_still():
    frames = movie((0.0, 0.0), size=(16, 16)).expand(1, 2, 16, 16, 3)
    assert torch.equal(motion(frames), torch.zeros(1, 1, 16, 16, 2))


@pytest.mark.parametrize("levels", [(0.0, 0.0), (0.3, 0.3), (0.3, 0.7)])
@pytest.mark.parametrize("size", [(32, 32), (16, 17), (3, 2), (1, 1)])
def test_flat_frames_have_no_motion(levels, size):
    frames = torch.tensor(levels).reshape(1, 2, 1, 1, 1).expand(1, 2, *size, 3)
    assert torch.equal(motion(frames), torch.zeros(1, 1, *size, 2))


@pytest.mark.parametrize("scale", [2.0**-20, 1e-3, 255.0])
def test_units_do_not_matter(scale):
    frames = movie(SHIFTS[1], size=(32, 32))
    torch.testing.assert_close(motion(scale * frames), motion(frames), rtol=0, atol=2e-3)


def test_backwards_is_the_opposite():
    frames = movie(SHIFTS[0], size=(32, 32))
    torch.testing.assert_close(motion(frames.flip(1)), -motion(frames), rtol=0, atol=2e-3)


def test_the_same_twice_and_in_double_precision():
    frames = movie(SHIFTS[2], size=(32, 32))
    assert torch.equal(motion(frames), motion(frames))
    torch.testing.assert_close(motion(frames.double()).float(), motion(frames), rtol=0, atol=2e-3)


def test_one_frame_is_refused():
    with pytest.raises(CSTError, match="at least 2"):
        motion(torch.zeros(1, 1, 8, 8, 3))
