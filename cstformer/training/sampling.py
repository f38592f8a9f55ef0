"""Random choices of a training step, all drawn from one generator and vectorised over the batch."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from cstformer.training.sharing import draw

DUMMY_LAWS = ("uniform", "stratified", "regular")


def dummy_coords(law: str, low: Tensor, high: Tensor, count: int, generator: Generator | None = None) -> Tensor:
    """Coordinates of dummy points inside each sample's box.

    Parameters
    ----------
    law : ``uniform``, ``stratified`` (one point in each of ``count`` equal slices of every axis) or ``regular``
    low, high : Tensor (B, d)
    count : int

    Returns
    -------
    Tensor (B, count, d)

    Examples
    --------
    >>> dummy_coords("regular", torch.zeros(1, 1), torch.ones(1, 1), 3).flatten().tolist()
    [0.0, 0.5, 1.0]
    """
    batch, d = low.shape
    if law == "regular":
        unit = _regular_points(count, d).to(low).expand(batch, -1, -1)
    else:
        unit = draw(torch.rand, (batch, count, d), generator, dtype=torch.float64).to(low)
        if law == "stratified":
            unit = (torch.arange(count, device=low.device)[None, :, None] + unit) / count
            if d > 1:  # Latin hypercube: every axis visits its slices in its own order
                shuffle = draw(torch.rand, (batch, count, d), generator).argsort(1).to(low.device)
                unit = unit.gather(1, shuffle)
    return low[:, None] + unit * (high - low)[:, None]


def _regular_points(count: int, d: int) -> Tensor:
    """``count`` points that fill [0,1]^d evenly: a line in one dimension, a rank-1 lattice in more."""
    if d == 1:
        return torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    # Powers of the generalised golden ratio: the root of x^{d+1} = x + 1.
    ratio = 2.0
    for _ in range(60):
        ratio = (1 + ratio) ** (1 / (d + 1))
    steps = torch.tensor([ratio ** -(i + 1) for i in range(d)], dtype=torch.float64)
    return (0.5 + torch.arange(1, count + 1, dtype=torch.float64)[:, None] * steps) % 1


def hide_points(
    tokens: Tensor, largest: float, generator: Generator | None = None, groups: Tensor | None = None
) -> Tensor:
    """Which points stay visible: each sample hides a random share of its points, between none and ``largest``.

    The share is rounded to whole points, and two points always stay. ``groups`` (B, n), integers that increase with
    time, hides points together (all patches of a frame), at least one group; the first and the last group stay, because
    frames are asked for between given ones.

    Returns
    -------
    Tensor (B, n) of bool
        True where a point exists and stays visible.
    """
    batch, n = tokens.shape
    share = draw(torch.rand, (batch, 1), generator).to(tokens.device) * largest
    scores = draw(torch.rand, (batch, n), generator).to(tokens.device)
    exists = tokens
    if groups is not None:
        exists = torch.zeros_like(tokens).scatter_reduce(1, groups, tokens, "amax")
        before, after = exists.cumsum(1), exists.flip(1).cumsum(1).flip(1)
        scores = scores.masked_fill((before == 1) | (after == 1), 1.5)  # the ends come last, and two always stay
    count = exists.sum(1, keepdim=True)
    hidden = (share * count).round()
    if groups is not None and largest > 0:
        hidden = hidden.clamp_min(1)
    hidden = torch.minimum(hidden, (count - 2).clamp_min(0))
    rank = scores.masked_fill(~exists, 2.0).argsort(1).argsort(1)
    keep = rank >= hidden
    if groups is not None:
        keep = keep.gather(1, groups)
    return keep & tokens


def box(coords: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest observed coordinate of each sample: two tensors (B, d)."""
    far = torch.finfo(coords.dtype).max
    absent = ~tokens[..., None]
    return coords.masked_fill(absent, far).amin(1), coords.masked_fill(absent, -far).amax(1)
