"""Corruption of the video experiment: Gaussian noise on a random part of each frame, unknown to the model.

A frame of H × W pixels is tiled by square blocks (a pixel is a block of size one). Between 40 and 60 % of the blocks
are chosen at random; Gaussian noise of standard deviation 0.5 is added to every colour of their pixels, and nothing is
clipped. A model that returns its input unchanged has a mean squared error of 0.5 · 0.5² = 0.125.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from cstformer.errors import CSTError, unknown

MOTIONS = ("fresh", "fixed", "moving")
"""Masks over time: a new one for each frame, the same in all frames, or one that drifts and wraps around."""


def draw_masks(
    clips: int,
    size: tuple[int, int, int],
    generator: Generator,
    *,
    block: int = 1,
    motion: str = "fresh",
    share: tuple[float, float] = (0.4, 0.6),
    speed: float = 2.0,
) -> Bool[Tensor, "clips T H W"]:
    """Draw masks, True where a pixel is to be corrupted.

    Parameters
    ----------
    clips : number of clips
    size : frames, height and width of a clip
    generator : source of all random numbers; the masks are on its device
    block : side of the square blocks in pixels; it divides height and width
    motion : one of `MOTIONS`
    share : smallest and largest part of a frame to corrupt; the number of blocks is uniform between them
    speed : drift of a ``moving`` mask in pixels per frame, in a random direction

    Examples
    --------
    >>> masks = draw_masks(1, (3, 4, 5), torch.Generator().manual_seed(0), share=(0.5, 0.5))
    >>> masks.sum((2, 3)).tolist()
    [[10, 10, 10]]
    """
    frames, height, width = size
    if motion not in MOTIONS:
        raise unknown("motion of the mask", motion, MOTIONS)
    if block < 1 or height % block or width % block:
        raise CSTError(f"block={block} must be a positive divisor of the frame size {height} × {width}")
    rows, cols = height // block, width // block
    low, high = (share[0] * rows * cols, share[1] * rows * cols)
    fewest, most = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    if not 0 <= share[0] <= share[1] <= 1 or fewest > most:
        raise CSTError(f"share={share} must be 0 ≤ low ≤ high ≤ 1 and allow a whole number of {rows * cols} blocks")
    device = generator.device
    drawn = (clips, frames if motion == "fresh" else 1)
    count = torch.randint(fewest, most + 1, (*drawn, 1), generator=generator, device=device)
    order = torch.rand(*drawn, rows * cols, generator=generator, device=device).argsort(-1)
    chosen = torch.arange(rows * cols, device=device) < count  # the first `count` blocks of a random order
    masks = torch.zeros_like(chosen).scatter(-1, order, chosen).unflatten(-1, (rows, cols))
    masks = masks.repeat_interleave(block, 2).repeat_interleave(block, 3)
    if motion != "moving":
        return masks.expand(-1, frames, -1, -1)
    angle = 2 * math.pi * torch.rand(clips, 1, generator=generator, device=device)
    along = speed * torch.arange(frames, device=device)
    row = torch.arange(height, device=device) - (along * angle.sin()).round().long()[..., None]  # (clips, T, H)
    col = torch.arange(width, device=device) - (along * angle.cos()).round().long()[..., None]
    which = torch.arange(clips, device=device)[:, None, None, None]
    return masks[which, 0, (row % height)[..., None], (col % width)[:, :, None]]


def corrupt(
    clips: Float[Tensor, "clips T H W C"], generator: Generator, *, noise: float = 0.5, **mask: Any
) -> tuple[Float[Tensor, "clips T H W C"], Bool[Tensor, "clips T H W"]]:
    """Corrupt clips; also return the masks, for figures only: a model must not see them.

    Training draws new corruption at each step. Corrupt whole frames, then crop: in a small crop the number of corrupted
    blocks would not vary as it does in a frame.

    Parameters
    ----------
    clips : values in [0, 1]
    generator : source of all random numbers, on the device of the clips
    noise : standard deviation of the noise
    mask : options of `draw_masks`

    Examples
    --------
    >>> clip = torch.zeros(1, 2, 4, 4, 3)
    >>> values, masks = corrupt(clip, torch.Generator().manual_seed(0), block=2, share=(0.5, 0.5))
    >>> bool(((values != 0).all(-1) == masks).all()), int(masks.sum())
    (True, 16)
    """
    if clips.ndim != 5 or not clips.is_floating_point():
        raise CSTError(f"clips must be floats (clips, T, H, W, C), got {clips.dtype} {tuple(clips.shape)}")
    if not noise >= 0:
        raise CSTError(f"noise must be a standard deviation ≥ 0, got {noise!r}")
    count, frames, height, width = clips.shape[:4]
    masks = draw_masks(count, (frames, height, width), generator, **mask)
    added = torch.randn(clips.shape, generator=generator, device=clips.device, dtype=clips.dtype)
    return clips + noise * added * masks[..., None], masks


def corrupt_frames(
    clips: Float[np.ndarray, "clips T H W C"], seed: int, *, noise: float = 0.5, **mask: Any
) -> tuple[Float[np.ndarray, "clips T H W C"], Bool[np.ndarray, "clips T H W"]]:
    """`corrupt` for NumPy arrays and a seed."""
    values, masks = corrupt(torch.from_numpy(clips), torch.Generator().manual_seed(seed), noise=noise, **mask)
    return values.numpy(), masks.numpy()
