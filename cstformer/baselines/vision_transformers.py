"""Transformers for movies: 3D-ViT and ViViT with its factorised encoder (Arnab et al. 2021).

A token is a *tubelet*, a block of a few frames, rows and columns. In 3D-ViT all tubelets of a movie attend to each
other. In ViViT tubelets attend within one time step, a class token summarises each step, and class tokens attend to
each other over time. Both decode each token into the pixels of its own tubelet, because one vector pooled over the
movie, as in the classifiers, would lose all detail. The paper's parameter counts (215 M, 225 M and 529 M) only fit a
pooled vector with a fully connected layer to the whole clip, so ours are smaller.

The times of the frames of a tubelet are an input. Frames need not be equally spaced, and sequences may have any length.
Frames whose size is not a multiple of the tubelet are padded with unobserved pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from cstformer.baselines.sequences import Reconstructor, SequenceBaseline, TimeSeries
from cstformer.training.settings import setting

OCTAVES = 6  # sines and cosines of time, from half a cycle over the domain to sixteen


@dataclass(frozen=True)
class Sizes:
    """Sizes of a video transformer; see the settings of `_VideoTransformer`."""

    tubelet: tuple[int, int, int]
    dim: int
    layers: int
    head_count: int
    head_width: int
    feedforward: int
    mask: bool = True
    skip: bool = False


def tubelets(x: Float[Tensor, "B T H W C"], size: tuple[int, int, int]) -> Float[Tensor, "B time places P"]:
    """Cut movies into blocks of ``size`` = (frames, rows, columns), with zeros beyond the movie.

    P = frames · rows · columns · C is the number of values of a block.

    >>> movie = torch.arange(8.0).reshape(1, 2, 2, 2, 1)
    >>> tubelets(movie, (2, 1, 2)).tolist()
    [[[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]]
    """
    batch, channels = len(x), x.shape[-1]
    t, h, w = (-(-n // k) for n, k in zip(x.shape[1:4], size, strict=True))
    extra = [m * k - n for m, n, k in zip((t, h, w), x.shape[1:4], size, strict=True)]
    x = F.pad(x, (0, 0, 0, extra[2], 0, extra[1], 0, extra[0]))
    x = x.reshape(batch, t, size[0], h, size[1], w, size[2], channels).permute(0, 1, 3, 5, 2, 4, 6, 7)
    return x.reshape(batch, t, h * w, -1)


def untubelets(
    x: Float[Tensor, "B time places P"], size: tuple[int, int, int], shape: tuple[int, int, int, int]
) -> Float[Tensor, "B T H W C"]:
    """Inverse of `tubelets` for movies of ``shape`` (T, H, W, C).

    >>> movie = torch.rand(2, 3, 5, 7, 2)
    >>> torch.equal(untubelets(tubelets(movie, (2, 2, 3)), (2, 2, 3), (3, 5, 7, 2)), movie)
    True
    """
    T, H, W, channels = shape
    h, w = -(-H // size[1]), -(-W // size[2])
    x = x.reshape(len(x), -1, h, w, *size, channels).permute(0, 1, 4, 2, 5, 3, 6, 7)
    return x.reshape(len(x), x.shape[1] * size[0], h * size[1], w * size[2], channels)[:, :T, :H, :W]


def clock(times: Float[Tensor, "B T"]) -> Float[Tensor, "B T features"]:
    """Features of times in [0, 1]: the time itself, sines and cosines, 1 + 2·OCTAVES in all."""
    angle = math.pi * times[..., None] * 2.0 ** torch.arange(OCTAVES, device=times.device)
    return torch.cat([times[..., None], angle.sin(), angle.cos()], -1)


class Block(nn.Module):
    """Pre-norm transformer block; the width of its heads does not depend on ``dim``."""

    def __init__(self, s: Sizes):
        super().__init__()
        inner = s.head_count * s.head_width
        self.heads = s.head_count
        self.norm1, self.norm2 = nn.LayerNorm(s.dim), nn.LayerNorm(s.dim)
        self.query_key_value = nn.Linear(s.dim, 3 * inner, bias=False)
        self.out = nn.Linear(inner, s.dim)
        self.widen, self.narrow = nn.Linear(s.dim, s.feedforward), nn.Linear(s.feedforward, s.dim)

    def forward(self, x: Float[Tensor, "B n dim"], exists: Bool[Tensor, "B n"] | None) -> Float[Tensor, "B n dim"]:
        """Attention to the tokens that exist (all if None), then the feed-forward step."""
        q, k, v = self.query_key_value(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        readable = None if exists is None else exists[:, None, None]  # (B, 1, 1, n)
        y = F.scaled_dot_product_attention(q, k, v, readable)  # (B, heads, n, head width)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class Encoder(nn.Module):
    """Transformer blocks and a final norm."""

    def __init__(self, s: Sizes, layers: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(s) for _ in range(layers))
        self.norm = nn.LayerNorm(s.dim)

    def forward(self, x: Float[Tensor, "B n dim"], exists: Bool[Tensor, "B n"] | None) -> Float[Tensor, "B n dim"]:
        """Apply the blocks; tokens attend to those that exist."""
        for block in self.blocks:
            x = block(x, exists)
        return self.norm(x)


class VideoTransformer(Reconstructor):
    """Base of both networks: embeds tubelets, and decodes them."""

    def __init__(self, shape: tuple[int, int, int], s: Sizes):
        super().__init__()
        self.shape, self.tubelet, self.mask = shape, s.tubelet, s.mask
        places = math.prod(-(-n // k) for n, k in zip(shape[:2], s.tubelet[1:], strict=True))
        values = math.prod(s.tubelet) * shape[2]
        self.embed = nn.Linear(values * (2 if s.mask else 1), s.dim)
        self.place = nn.Parameter(0.02 * torch.randn(places, s.dim))
        self.time = nn.Linear(s.tubelet[0] * (1 + 2 * OCTAVES), s.dim, bias=False)
        self.decode = nn.Linear(s.dim, values)
        self.skip = s.skip
        if s.skip:  # so that the untrained network copies
            nn.init.zeros_(self.decode.weight)
            nn.init.zeros_(self.decode.bias)

    def tokens(self, frames: TimeSeries) -> tuple[Tensor, Tensor, Bool[Tensor, "B time"]]:
        """Tubelet features (B, time, places, dim), time features (B, time, dim), and which time steps exist."""
        x = tubelets(frames.values, self.tubelet)
        if self.mask:
            x = torch.cat([x, tubelets(frames.observed.to(x), self.tubelet)], -1)
        step = self.tubelet[0]
        extra = -frames.times.shape[1] % step
        times = torch.cat([frames.times, frames.times[:, -1:].expand(-1, extra)], 1)
        when = self.time(clock(times).unflatten(1, (-1, step)).flatten(2))
        return self.embed(x) + self.place, when, frames.exists[:, ::step]

    def encode(self, frames: TimeSeries) -> tuple[Tensor, Tensor]:
        """Features of all tubelets (B, time, places, dim) and of all time steps (B, time, dim)."""
        raise NotImplementedError

    def reconstruct(self, frames: TimeSeries) -> Float[Tensor, "B T H W C"]:
        """Decode each tubelet into its own pixels."""
        places, _ = self.encode(frames)
        y = untubelets(self.decode(places), self.tubelet, (frames.times.shape[1], *self.shape))
        return frames.values + y if self.skip else y

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B dim"]:
        """Features of the time step of the last frame, whose label the calcium experiment decodes."""
        _, moments = self.encode(frames)
        last = (frames.counts - 1) // self.tubelet[0]
        return moments[torch.arange(len(frames), device=last.device), last]


class JointTransformer(VideoTransformer):
    """3D-ViT: all tubelets of a movie attend to each other; a time step is the mean of its tubelets."""

    def __init__(self, shape: tuple[int, int, int], s: Sizes):
        super().__init__(shape, s)
        self.encoder = Encoder(s, s.layers)

    def encode(self, frames: TimeSeries) -> tuple[Tensor, Tensor]:
        """Joint attention over space and time."""
        x, when, exists = self.tokens(frames)
        places = x.shape[2]
        x = self.encoder((x + when[:, :, None]).flatten(1, 2), exists.repeat_interleave(places, 1))
        x = x.unflatten(1, (-1, places))
        return x, x.mean(2)


class FactorisedTransformer(VideoTransformer):
    """ViViT's factorised encoder: attention within each time step, then between the class tokens of the steps."""

    def __init__(self, shape: tuple[int, int, int], s: Sizes, temporal_layers: int):
        super().__init__(shape, s)
        self.summary = nn.Parameter(0.02 * torch.randn(s.dim))
        self.spatial = Encoder(s, s.layers)
        self.temporal = Encoder(s, temporal_layers)

    def encode(self, frames: TimeSeries) -> tuple[Tensor, Tensor]:
        """Attention over space, then over time; tubelets are decoded from the sum of both features."""
        x, when, exists = self.tokens(frames)
        batch, moments = x.shape[:2]
        summary = self.summary.expand(batch * moments, 1, -1)
        x = self.spatial(torch.cat([summary, x.flatten(0, 1)], 1), None).unflatten(0, (batch, moments))
        y = self.temporal(x[:, :, 0] + when, exists)
        return x[:, :, 1:] + y[:, :, None], y


@dataclass(kw_only=True, eq=False, repr=False)
class _VideoTransformer(SequenceBaseline):
    """Settings of both models."""

    frames_only: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {
            "dim": 32,
            "layers": 2,
            "head_count": 2,
            "head_width": 16,
            "feedforward": 64,
            "tubelet_rows": 4,
            "tubelet_cols": 4,
            "noise": 0.0,
            "steps": 30,
            "batch": 8,
        },
        # The paper's sizes; it does not give the feed-forward width.
        "paper": {
            "dim": 1024,
            "head_count": 6,
            "head_width": 64,
            "feedforward": 2048,
            "tubelet_rows": 16,
            "tubelet_cols": 32,
            "mask": False,
            "noise": 0.1,
            "hide": 0.0,
            "learning_rate": 1e-4,
        },
    }

    dim: int = setting(128, "features of a token", low=1)
    layers: int = setting(4, "transformer blocks (ViViT: of the spatial encoder)", low=1)
    head_count: int = setting(4, "attention heads", low=1)
    head_width: int = setting(32, "features of a head", low=1)
    feedforward: int = setting(256, "width of the feed-forward step", low=1)
    tubelet_frames: int = setting(2, "frames of a tubelet", low=1)
    tubelet_rows: int = setting(8, "rows of a tubelet, in pixels", low=1)
    tubelet_cols: int = setting(8, "columns of a tubelet, in pixels", low=1)
    skip: bool = setting(False, "predict the change to the context frames, starting at zero change")
    learning_rate: float = setting(1e-3, "peak learning rate of AdamW", low=0)

    def _sizes(self) -> Sizes:
        names = ("dim", "layers", "head_count", "head_width", "feedforward", "mask", "skip")
        tubelet = (self.tubelet_frames, self.tubelet_rows, self.tubelet_cols)
        return Sizes(tubelet, **{name: getattr(self, name) for name in names})


@dataclass(kw_only=True, eq=False, repr=False)
class ViT3D(_VideoTransformer):
    """3D-ViT: joint attention over tubelets of space and time, decoded token by token."""

    name: ClassVar[str] = "vit3d"
    label: ClassVar[str] = "3D-ViT"

    def _network(self, d: int, c: int) -> JointTransformer:
        height, width, channels = self.frame_shape(c)
        return JointTransformer((height, width, channels), self._sizes())


@dataclass(kw_only=True, eq=False, repr=False)
class ViViT(_VideoTransformer):
    """ViViT with the factorised encoder, decoded token by token."""

    name: ClassVar[str] = "vivit"
    label: ClassVar[str] = "ViViT"
    # With a pooled decoder, this feed-forward width fits the paper's count best.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        **_VideoTransformer.presets,
        "paper": _VideoTransformer.presets["paper"] | {"feedforward": 768},
    }

    temporal_layers: int = setting(4, "transformer blocks of the temporal encoder", low=1)

    def _network(self, d: int, c: int) -> FactorisedTransformer:
        height, width, channels = self.frame_shape(c)
        return FactorisedTransformer((height, width, channels), self._sizes(), self.temporal_layers)
