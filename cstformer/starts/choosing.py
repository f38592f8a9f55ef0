"""Which start a movie gets: the one that predicts hidden frames of training samples best.

Successive frames may share noise. In widefield imaging the control channel, interpolated between its own frames, puts
the same noise into two frames of the signal. A start that follows this noise predicts a hidden frame from its
neighbours, and would be chosen for it. Where frames share noise with the next ones alone, the neighbours of a judged
frame are therefore hidden as well.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.frame_grid import FrameGrid
from cstformer.starts.frame_start import Smoother, frame_movie
from cstformer.starts.modes import FrameModes, fit_modes
from cstformer.starts.waves import Waves

SAMPLES = 32  # samples whose frames are hidden
HELD = 4  # every HELD-th frame of them
# Correlation between successive frames of what modes leave over, and that at twice the distance as a share of it, from
# and up to which frames share noise. Where it is signal that is left over, it does not end after one frame.
BRIEF, LATER = 0.05, 0.25


def choose_modes(batch: Batch, grid: FrameGrid, waves: Waves, seed: int) -> FrameModes | None:
    """Modes fitted to all frames if modes without the hidden frames predict these better than waves do, else None."""
    times, exists, frames = grid.whole(batch)
    few = slice(0, SAMPLES)
    held = held_frames(exists[few])
    if not bool(held.any()):
        return None
    seen = grid.read(batch)[3][few][:, :, : frames.shape[2], : frames.shape[3]]
    modes = fit_modes(times, frames, exists, seed, without=frames[few][held])
    hidden = with_neighbours(held, exists[few]) if share_noise(modes, frames[few], exists[few]) else held

    def error(name: str, smoother: Smoother) -> float:
        movie = frame_movie(name, times[few], exists[few] & ~hidden, frames[few], smoother)
        rest = (movie.at_moments(times[few]) - frames[few])[held]
        return float(rest[seen[held]].double().square().mean())

    if error("modes", modes) >= error("smooth", waves):
        return None
    return fit_modes(times, frames, exists, seed, rank=len(modes.vectors))


def held_frames(exists: Bool[Tensor, "N T"]) -> Bool[Tensor, "N T"]:
    """Frames that are hidden: every `HELD`-th of a sample, but neither the first nor the last.

    >>> held_frames(torch.ones(1, 8, dtype=torch.bool)).int().tolist()
    [[0, 0, 1, 0, 0, 0, 1, 0]]
    """
    number = torch.arange(exists.shape[1], device=exists.device)
    last = exists.sum(1, keepdim=True) - 1
    return exists & (number % HELD == HELD // 2) & (number < last)


def with_neighbours(held: Bool[Tensor, "N T"], exists: Bool[Tensor, "N T"]) -> Bool[Tensor, "N T"]:
    """Frames that are hidden and the ones beside them, but neither the first nor the last of a sample.

    >>> every = torch.ones(1, 8, dtype=torch.bool)
    >>> with_neighbours(held_frames(every), every).int().tolist()
    [[0, 1, 1, 1, 0, 1, 1, 0]]
    """
    wide = held.clone()
    wide[:, 1:] |= held[:, :-1]
    wide[:, :-1] |= held[:, 1:]
    number, last = torch.arange(held.shape[1], device=held.device), exists.sum(1, keepdim=True) - 1
    return wide & (number > 0) & (number < last)


def share_noise(modes: FrameModes, frames: Float[Tensor, "N T H W C"], exists: Bool[Tensor, "N T"]) -> bool:
    """Whether what modes leave over of a frame is also in the next one, and no longer in the one after that."""
    pictures = (modes.vectors * modes.scale[:, None, None, None]).to(frames)
    made = torch.tensordot(modes.coefficients(frames), pictures, 1) + modes.mean.to(frames)
    rest = ((frames - made) * exists[..., None, None, None]).flatten(2)

    def product(lag: int) -> float:
        """Mean product of frames at a distance of ``lag`` frames."""
        count = (exists[:, lag:] & exists[:, : exists.shape[1] - lag]).sum().clamp_min(1)
        return float((rest[:, lag:] * rest[:, : rest.shape[1] - lag]).sum(dtype=torch.float64) / count)

    same, next_, later = (product(lag) for lag in range(3))
    return next_ > BRIEF * same and later < LATER * next_
