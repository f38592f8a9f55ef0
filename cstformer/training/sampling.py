"""Where the dummy points of a training step fall: drawn from one generator, vectorised over the batch."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from cstformer.training.sharing import draw


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


def box(coords: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest observed coordinate of each sample: two tensors (B, d)."""
    far = torch.finfo(coords.dtype).max
    absent = ~exists[..., None]
    return coords.masked_fill(absent, far).amin(1), coords.masked_fill(absent, -far).amax(1)
