"""Motion between frames: known shifts are found, still and flat frames stand still, and units do not matter."""

import pytest
import torch
from textures import SHIFTS, middle, movie

from cstformer.errors import CSTError
from cstformer.starts.motion import motion


@pytest.mark.parametrize("shift", SHIFTS)
def test_known_shifts_are_found(shift):
    found = motion(movie(shift, seed=1))
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


@pytest.mark.parametrize("levels", [(0.0, 0.0), (0.3, 0.7)])
@pytest.mark.parametrize("size", [(16, 17), (3, 2), (1, 1)])
def test_flat_frames_have_no_motion(levels, size):
    frames = torch.tensor(levels).reshape(1, 2, 1, 1, 1).expand(1, 2, *size, 3)
    assert torch.equal(motion(frames), torch.zeros(1, 1, *size, 2))


@pytest.mark.parametrize("scale", [2.0**-20, 255.0])
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
