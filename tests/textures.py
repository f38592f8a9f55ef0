"""Movies of a smooth picture that moves by a known number of pixels per frame."""

from __future__ import annotations

import math

import torch

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
