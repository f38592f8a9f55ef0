"""A blind-spot network in the manner of DeepInterpolation (Lecoq et al. 2021): a frame from its neighbours in time.

A small U-Net predicts a frame from a few frames before and after it. It never sees the frame itself, whose noise is
independent of theirs, so that the squared error to the noisy frame has the same minimum as the error to the clean one
(Lehtinen et al. 2018). Training needs noisy frames alone.

Between frames the same network answers from the nearest frames on both sides. The time from each neighbour to the
query is an input. This departs from the published method, whose frames are regular, and so do the size and the skip:
the network adds to the linear interpolation of the two nearest neighbours.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from cstformer.baselines.sequences import SAME_TIME, SequenceBaseline, TimeSeries
from cstformer.training.settings import setting

TENTHS = 10.0  # times enter in tenths of the domain, so that gaps between frames are about as large as values
LEVELS = 2  # how many times the U-Net halves the resolution


def neighbours(
    frames: TimeSeries, at: Float[Tensor, "B M"], reach: int
) -> tuple[Int[Tensor, "B M 2*reach"], Bool[Tensor, "B M 2*reach"]]:
    """Numbers of the ``reach`` nearest frames before and after each time, and whether they exist.

    A frame at the time itself is none of them. Frames before come first; in both groups the nearest one does.

    >>> t = torch.tensor([[0.0, 0.5, 1.0]])
    >>> series = TimeSeries(t, t[..., None], t[..., None] >= 0, t >= 0)
    >>> [x[0].tolist() for x in neighbours(series, torch.tensor([[0.5, 0.75]]), 1)]
    [[[0, 2], [1, 2]], [[True, True], [True, True]]]
    """
    steps = torch.arange(reach, device=at.device)
    times, exists = frames.times[:, None], frames.exists[:, None]  # (B, 1, T)
    before = ((times < at[..., None] - SAME_TIME) & exists).sum(-1)[..., None]  # how many lie before: (B, M, 1)
    after = ((times <= at[..., None] + SAME_TIME) & exists).sum(-1)[..., None]  # number of the first one behind
    index = torch.cat([before - 1 - steps, after + steps], -1)
    there = (index >= 0) & (index < frames.counts[:, None, None])
    return index.clamp(0, frames.times.shape[1] - 1), there


class UNet(nn.Module):
    """Convolutions at three resolutions, joined by concatenation (Ronneberger et al. 2015); the output starts at 0."""

    def __init__(self, inputs: int, outputs: int, width: int):
        super().__init__()
        sizes = [width * 2**i for i in range(LEVELS + 1)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([inputs, *sizes[:-1]], sizes, strict=True))
        self.up = nn.ModuleList(_block(a + b, a) for a, b in itertools.pairwise(sizes))
        self.out = nn.Conv2d(width, outputs, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]

    def forward(self, x: Float[Tensor, "N inputs H W"]) -> Float[Tensor, "N outputs H W"]:
        """Pictures of the same size; at the edges the picture continues."""
        height, width = x.shape[2:]
        side = 2**LEVELS
        x = F.pad(x, (0, -width % side, 0, -height % side), mode="replicate")
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if i else x)
            kept.append(x)
        for block, fine in zip(reversed(self.up), reversed(kept[:-1]), strict=True):
            x = block(torch.cat([fine, F.interpolate(x, scale_factor=2.0)], 1))
        return self.out(x)[..., :height, :width]


def _block(inputs: int, outputs: int) -> nn.Module:
    convolutions = (nn.Conv2d(a, outputs, 3, padding=1) for a in (inputs, outputs))
    return nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.GELU())))


class BlindSpotNetwork(nn.Module):
    """A U-Net on the frames before and after a time."""

    def __init__(self, shape: tuple[int, ...], reach: int, width: int, mask: bool):
        super().__init__()
        self.reach, self.mask = reach, mask
        channels = shape[-1]
        self.unet = UNet(2 * reach * (channels * (1 + mask) + 1), channels, width)

    def forward(self, frames: TimeSeries, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M H W C"]:
        """Frames at any times; a frame at such a time is not looked at."""
        index, there = neighbours(frames, at, self.reach)
        row = torch.arange(len(frames), device=at.device)[:, None, None]
        observed = frames.observed[row, index] & there[..., None, None, None]  # (B, M, 2·reach, H, W, C)
        values = frames.values[row, index] * observed
        ahead = (frames.times[row, index] - at[..., None]) * there
        parts = [values, *([observed.to(values)] if self.mask else [])]
        parts.append((TENTHS * ahead)[..., None, None, None].expand(*values.shape[:-1], 1))
        x = torch.cat(parts, -1).flatten(0, 1).movedim(-1, 2).flatten(1, 2)  # (B·M, inputs, H, W)
        rest = self.unet(x).movedim(1, -1).unflatten(0, at.shape)
        return self._between(values, observed, ahead) + rest

    def _between(self, values: Tensor, observed: Tensor, ahead: Tensor) -> Tensor:
        """Linear interpolation of the nearest frames before and after; the one of them that is there, else 0."""
        near = [0, self.reach]
        distance = ahead[..., near].abs()[..., None, None, None] + SAME_TIME  # (B, M, 2, 1, 1, 1)
        weight = distance.flip(2) * observed[:, :, near]
        return (weight * values[:, :, near]).sum(2) / weight.sum(2).clamp_min(SAME_TIME**2)


@dataclass(kw_only=True, eq=False, repr=False)
class BlindSpot(SequenceBaseline):
    """U-Net that predicts each frame from its neighbours in time; all settings are keyword arguments."""

    name: ClassVar[str] = "blind-spot"
    label: ClassVar[str] = "DeepInterpolation"
    frames_only: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"width": 4, "reach": 1, "steps": 30, "batch": 8},
        "paper": {"width": 64, "reach": 30, "mask": False},
    }

    reach: int = setting(3, "frames before, and as many after, that the network sees", low=1)
    width: int = setting(16, "features of the U-Net at full resolution", low=1)
    hide: float = setting(0.0, "largest fraction of a sample's frames hidden per step", low=0, high=0.95)
    noise: float | str = setting(0.0, "sd of noise added to context values; it needs none", ("auto",), low=0)
    targets: int = setting(4, "random frames of a sample in the loss of a step; 0: all", low=0)
    batch: int = setting(8, "samples per step", low=1)

    def _network(self, d: int, c: int) -> BlindSpotNetwork:
        return BlindSpotNetwork(self.frame_shape(c), self.reach, self.width, self.mask)
