"""Which start a movie gets: the one that predicts hidden frames of training samples best."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.frame_grid import FrameGrid
from cstformer.starts.frame_start import Smoother, frame_movie
from cstformer.starts.modes import FrameModes, fit_modes
from cstformer.starts.waves import Waves

SAMPLES = 32  # samples whose frames are hidden
HELD = 4  # every HELD-th frame of them


def choose_modes(batch: Batch, grid: FrameGrid, waves: Waves, seed: int) -> FrameModes | None:
    """Modes fitted to all frames if modes without the hidden frames predict these better than waves do, else None."""
    times, exists, frames = grid.whole(batch)
    few = slice(0, SAMPLES)
    held = held_frames(exists[few])
    if not bool(held.any()):
        return None
    seen = grid.read(batch)[3][few][:, :, : frames.shape[2], : frames.shape[3]]

    def error(name: str, smoother: Smoother) -> float:
        movie = frame_movie(name, times[few], exists[few] & ~held, frames[few], smoother)
        rest = (movie.at_moments(times[few]) - frames[few])[held]
        return float(rest[seen[held]].double().square().mean())

    modes = fit_modes(times, frames, exists, seed, without=frames[few][held])
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
