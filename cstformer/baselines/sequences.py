"""Sequence models: what they see (`Frames`), how they answer at any time, how they are trained.

A sample becomes frames in time: for curves a frame is the vector of values at one time, for patch tokens of a
movie the whole picture. There are three kinds of network, all called as ``network(frames, at)`` with times (B, M)
and answering with frames (B, M, S…):

- a `Reconstructor` gives frames at the context's own times; in between its output is interpolated in time;
- a `Forecaster` answers at t from the few given frames up to t and how long ago each of them was;
- any other module may answer at every time by itself.

All are trained as CST is: noise on the given values (or whatever ``fit(samples, given=corruption)`` draws), some frames
hidden (of a movie never the first and the last), squared error at all observed values.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from cstformer.baselines.base import NeuralBaseline
from cstformer.baselines.interpolation import GaussianProcess
from cstformer.data.batch import Batch, Context
from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import as_batches
from cstformer.errors import CSTError
from cstformer.starts.curves import make_start
from cstformer.starts.frames import Pixels, read_frames
from cstformer.taylor import series
from cstformer.training import sampling
from cstformer.training.losses import data_term
from cstformer.training.settings import setting, setting_fields

NUMBERS_PER_PASS = 2**20  # values of all frames of one pass without gradients: bounds the memory (features are more)
NOISE_SAMPLES = 200  # from which the noise of the data is estimated
Given = Callable[[Tensor, Generator], Tensor]
SAME_TIME = 1e-6  # times closer than this, domain = 1, are the same

_USED = "hide noise steps batch learning_rate warmup weight_decay clip validation patience max_minutes seed"
UNUSED = frozenset(setting_fields()) - frozenset([*_USED.split(), "precision", "threads", "device"])
"""Settings of CST that mean nothing to a sequence model; one that uses some takes them out of its ``ignored``."""


@dataclass(frozen=True)
class Frames:
    """Sequences of frames in the model's units; S is (c,) for curves and (H, W, C) for movies.

    The present frames of a sample come first, in the order of time. Absent ones follow: they repeat the last
    time, and nothing in them is observed. What is not observed is 0, the mean.
    """

    times: Float[Tensor, "B T"]
    values: Float[Tensor, "B T *S"]
    observed: Bool[Tensor, "B T *S"]
    present: Bool[Tensor, "B T"]

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: Any) -> Frames:
        return Frames(self.times[index], self.values[index], self.observed[index], self.present[index])

    @property
    def counts(self) -> Int[Tensor, " B"]:
        """Present frames of each sample."""
        return self.present.sum(1)

    @property
    def gaps(self) -> Float[Tensor, "B T"]:
        """Time since the frame before; 0 at the first."""
        return self.times.diff(dim=1, prepend=self.times[:, :1])

    def only(self, keep: Bool[Tensor, "B T"]) -> Frames:
        """Drop the frames where ``keep`` is False.

        >>> t, y = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> some = Frames(t, y, y > 0, t >= 0).only(torch.tensor([[True, False, True]]))
        >>> some.times.tolist(), some.values.flatten().tolist()
        ([[0.0, 1.0]], [1.0, 3.0])
        """
        keep = keep & self.present
        order = (~keep).long().argsort(dim=1, stable=True)[:, : max(1, int(keep.sum(1).max()))]
        rows = torch.arange(len(self), device=order.device)[:, None]
        present = keep[rows, order]
        last = self.times.masked_fill(~keep, -torch.inf).amax(1, keepdim=True)
        times = torch.where(present, self.times[rows, order], last)
        observed = self.observed[rows, order] & _widen(present, self.values)
        return Frames(times, self.values[rows, order] * observed, observed, present)

    def channels(self, mask: bool, clock: Float[Tensor, "B T"] | None = None) -> Float[Tensor, "B T *F"]:
        """Values, joined along the last axis by what was observed (if ``mask``) and by a number per frame."""
        parts = [self.values] + ([self.observed.to(self.values)] if mask else [])
        if clock is not None:
            parts.append(_widen(clock, self.values).expand(*self.values.shape[:-1], 1))
        return torch.cat(parts, -1)


def _widen(x: Tensor, like: Tensor) -> Tensor:
    """Append axes of size 1 to (B, T) until it has as many as ``like``."""
    return x.reshape(*x.shape, *(1,) * (like.ndim - x.ndim))


def to_frames(points: Context, layout: PatchLayout | None, pixels: Pixels) -> Frames:
    """Frames of a batch of points in the order of time; ``pixels`` are origin and extent of the picture axes."""
    if layout is None:
        times, values, observed, present = points.coords[..., 0], points.values, points.observed, points.tokens
    else:
        times, present, values, observed = read_frames(points, layout, pixels)
        height, width = layout.frame  # what a patch has beyond the frame was never seen
        values, observed = values[:, :, :height, :width], observed[:, :, :height, :width]
    return Frames(times, values, observed, present).only(present)


def between(kind: str, frames: Frames, output: Tensor, at: Float[Tensor, "B M"]) -> Tensor:
    """Interpolate ``output`` (B, T, S…), given at the frames' times, at other times: (B, M, S…).

    ``kind`` is ``linear`` or ``cubic``; beyond the first and last frame the output is held constant.
    """
    count = frames.times.shape[1]
    identity = torch.eye(count, dtype=at.dtype, device=at.device).expand(len(frames), -1, -1)
    exists = frames.present[..., None].expand(-1, -1, count)
    weights = make_start(kind, frames.times[..., None], identity, exists)(series.constant(at[..., None])).value
    return (weights.to(output) @ output.flatten(2)).unflatten(2, output.shape[2:])


def windows(frames: Frames, at: Float[Tensor, "B M"], size: int) -> tuple[Frames, Float[Tensor, "N size"]]:
    """The last ``size`` frames up to each time, N = B·M sequences, and how far ahead of each of them the time is.

    Where there are too few, the first frame is repeated; a time before it looks back from the first frame.

    >>> t = torch.tensor([[0.0, 0.5, 1.0]])
    >>> past, ahead = windows(Frames(t, t[..., None], t[..., None] >= 0, t >= 0), torch.tensor([[0.75]]), 3)
    >>> past.times.tolist(), ahead.tolist()
    ([[0.0, 0.0, 0.5]], [[0.75, 0.75, 0.25]])
    """
    earlier = (frames.times[:, None] <= at[..., None] + SAME_TIME) & frames.present[:, None]  # (B, M, T)
    last = (earlier.sum(-1) - 1).clamp_min(0)
    index = (last[..., None] + torch.arange(1 - size, 1, device=at.device)).clamp_min(0).flatten(0, 1)
    row = torch.arange(len(frames), device=at.device).repeat_interleave(at.shape[1])[:, None]
    past = frames[row, index]
    return past, at.reshape(-1, 1) - past.times


class Reconstructor(nn.Module):
    """A network that gives frames at the times of the given frames."""

    between: str = "linear"

    def reconstruct(self, frames: Frames) -> Float[Tensor, "B T *S"]:
        """Give frames at the given times; what it says at absent frames does not matter."""
        raise NotImplementedError

    def forward(self, frames: Frames, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M *S"]:
        """Reconstruct, then interpolate the output in time."""
        return between(self.between, frames, self.reconstruct(frames), at)


class Forecaster(nn.Module):
    """A network that gives one frame from ``window`` earlier ones."""

    window: int = 5

    def forecast(self, past: Frames, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N ..."]:
        """Give the frame that lies ``ahead`` of each of the given ones."""
        raise NotImplementedError

    def forward(self, frames: Frames, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M *S"]:
        """Answer each time from the window before it."""
        past, ahead = windows(frames, at, self.window)
        return self.forecast(past, ahead).unflatten(0, at.shape)


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceBaseline(NeuralBaseline):
    """A rival that sees frames in time. Subclasses write `_network`; ``self.layout_`` is known there.

    A network whose state is a description of the whole sample also has ``latent(frames) -> (B, features)``.
    """

    ignored: ClassVar[frozenset[str]] = UNUSED

    mask: bool = setting(True, "what was observed is an input of the network, beside the values")
    targets: int = setting(0, "random frames of a sample that a step asks for; 0: all", low=0)

    @abstractmethod
    def _network(self, d: int, c: int) -> nn.Module:
        """Make a fresh network with ``forward(frames: Frames, at (B, M)) -> (B, M, S…)``."""

    def fit(
        self,
        samples: Samples,
        *,
        state: str | os.PathLike[str] | None = None,
        progress: bool = False,
        given: Given | None = None,
    ) -> Self:
        """Learn from samples; ``given`` draws what is given of their frames, as in `CST.fit`."""
        self._given = given
        try:
            return super().fit(samples, state=state, progress=progress)
        finally:
            del self._given  # it may be any function, which nobody could save

    def latent(self, context: Samples) -> Float[np.ndarray, "N features"]:
        """Describe each sample by the state of the network that has seen all of it."""
        context, _ = self._inputs(context, context)
        describe: Callable[[Frames], Tensor] | None = getattr(self.network_, "latent", None)
        if describe is None:
            return super().latent(context)
        data = self._batch(context)
        with torch.no_grad():
            parts = [describe(self._frames(data[i])) for i in self._passes(len(data), context.n)]
        return torch.cat(parts).flatten(1).cpu().double().numpy()

    def frame_shape(self, c: int) -> tuple[int, ...]:
        """S: (c,) for curves and (H, W, C) for movies."""
        return (c,) if self.layout_ is None else (*self.layout_.frame, self.layout_.channels)

    # Training

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        self.noise_ = self.data_noise_ = 0.0
        if self.noise != 0 and self._given is None:  # the same estimate of the noise in the data as CST makes
            few = np.random.default_rng(self.seed).permutation(len(samples))[:NOISE_SAMPLES]
            self.data_noise_ = GaussianProcess(seed=self.seed).fit(samples[np.sort(few)]).kernel_.noise
            self.noise_ = self.data_noise_ if self.noise == "auto" else float(self.noise)
        super()._fit(samples, state, progress)

    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        frames = self._frames(batch)
        shown, target = self._disturb(frames, generator)
        return self._error(shown, *self._choose(frames, target, generator), generator)

    def _error(self, shown: Frames, at: Tensor, target: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        """Loss of a training step; a variational model adds its own terms."""
        return data_term(self.network_(shown, at), target, observed, 2.0)

    def _disturb(self, frames: Frames, generator: Generator) -> tuple[Frames, Tensor]:
        """Hide frames and put noise on the others, as a step of CST does; and the targets of all frames.

        As in CST, a visible frame's target carries the opposite noise, so that the errors of input and target are
        independent and the noise of the data is not learned (recorrupted-to-recorrupted, Pang et al. 2021).
        """
        keep = self._hide(frames.present, self.hide, generator)
        values, target = self._give(frames, generator), frames.values
        if self.noise_ > 0:
            noise = self.noise_ * torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values)
            values = values + noise * frames.observed
            target = target - (self.data_noise_ / self.noise_) ** 2 * noise * _widen(keep, noise)
        return Frames(frames.times, values, frames.observed, frames.present).only(keep), target

    def _give(self, frames: Frames, generator: Generator) -> Tensor:
        """Draw what is given of these frames, in the model's units."""
        given: Given | None = getattr(self, "_given", None)
        if given is None:
            return frames.values
        scale = [a[: frames.values.shape[-1]] for a in (self.scaling_.mean, self.scaling_.sd)]
        mean, sd = (torch.as_tensor(a).to(frames.values) for a in scale)
        return (given(frames.values * sd + mean, generator) - mean) / sd * frames.observed

    def _hide(self, present: Bool[Tensor, "B T"], largest: float, generator: Generator) -> Bool[Tensor, "B T"]:
        """Which frames stay visible; those of a movie are asked for between given ones, as CST is trained."""
        frames = torch.arange(present.shape[1], device=present.device).expand_as(present)
        return sampling.hide_points(present, largest, generator, None if self.layout_ is None else frames)

    def _choose(self, frames: Frames, target: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Times, targets and observed values of the frames that a step asks for."""
        if not 0 < self.targets < frames.times.shape[1]:
            return frames.times, target, frames.observed
        scores = torch.rand(frames.times.shape, generator=generator).to(frames.times.device)
        index = scores.masked_fill(~frames.present, 2.0).argsort(1)[:, : self.targets]
        rows = torch.arange(len(frames), device=index.device)[:, None]
        return frames.times[rows, index], target[rows, index], frames.observed[rows, index]

    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Error at fixed hidden frames without noise; at all frames where none is ever hidden."""
        generator = torch.Generator().manual_seed(self.seed)
        n = held_out.points.coords.shape[1]
        patterns = max(1, min(16, 128 // len(held_out), 2**12 // (len(held_out) * n)))
        batch = held_out[torch.arange(len(held_out)).repeat(patterns)]
        masks = []
        for index in self._passes(len(batch), n):
            present = self._frames(batch[index]).present
            keep = present
            for _ in range(20):  # at least one frame is hidden wherever a sample has three
                drawn = self._hide(present, min(0.5, self.hide), generator)
                keep = torch.where((keep == present).all(1, keepdim=True), drawn, keep)
            masks.append((index, keep, self._give(self._frames(batch[index]), generator)))

        @torch.no_grad()
        def score() -> float:
            errors, counts = [], []
            for index, keep, given in masks:
                frames = self._frames(batch[index])
                shown = Frames(frames.times, given, frames.observed, frames.present)
                hidden = frames.observed & ~_widen(keep, frames.values)
                where = hidden if bool(hidden.any()) else frames.observed
                y = self.network_(shown.only(keep), frames.times)
                errors.append(float(data_term(y, frames.values, where, 2.0)))
                counts.append(int(where.sum()))
            return float(np.average(errors, weights=counts))

        return score

    # Answers

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        data = self._batch(context)
        at = torch.as_tensor(self.scaling_.coords(queries), dtype=self._dtype(), device=self.device_)
        rows = []
        with torch.no_grad():
            for index in self._passes(len(data), context.n):
                frames = self._frames(data[index])
                rows.append(answer(self.network_, frames, at[index.to(at.device)], self.layout_, self._pixels()).cpu())
        return self.scaling_.values(torch.cat(rows).double().numpy())

    def _frames(self, batch: Batch) -> Frames:
        return to_frames(batch.points, self.layout_, self._pixels())

    def _pixels(self) -> Pixels:
        return self.scaling_.low[1:], self.scaling_.span[1:]

    def _passes(self, count: int, n: int) -> list[Tensor]:
        """Sample numbers of passes that fit the memory."""
        return as_batches(count, min(256, NUMBERS_PER_PASS // (n * len(self.scaling_.mean))))

    def _description(self) -> dict[str, Any]:
        return super()._description() | {"noise": self.noise_}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        super()._restore(tensors, about)
        self.noise_ = float(about["noise"])

    def _check_axes(self, samples: Samples) -> None:
        super()._check_axes(samples)
        if samples.layout is None and samples.d != 1:
            raise CSTError(
                f"{type(self).__name__} needs curves (d = 1) or the patch tokens of a movie "
                f"(patches.frames_to_samples), got samples with {samples.d} coordinate axes and no layout"
            )


def answer(
    network: Callable[[Frames, Tensor], Tensor],
    frames: Frames,
    x: Float[Tensor, "B m d"],
    layout: PatchLayout | None,
    pixels: Pixels,
) -> Float[Tensor, "B m c"]:
    """Ask the network for each distinct time once, and cut the patches out of its pictures."""
    times, which = distinct(x[..., 0])
    size = max(1, NUMBERS_PER_PASS // (len(frames) * frames.values[0, 0].numel()))  # frames of the answer
    out: Tensor | None = None
    for first in range(0, times.shape[1], size):
        y = network(frames, times[:, first : first + size])  # (B, size, S…)
        row, column = ((which >= first) & (which < first + size)).nonzero(as_tuple=True)
        number = which[row, column] - first
        if layout is None:
            part = y[row, number]
        else:
            low, span = (torch.as_tensor(a).to(x) for a in pixels)
            corner = low + span * x[row, column, 1:] - (torch.tensor(layout.patch).to(x) - 1) / 2
            part = cut(y.flatten(0, 1), row * y.shape[1] + number, corner, layout.patch, layout.periodic)
        out = part.new_empty(*x.shape[:2], part.shape[-1]) if out is None else out
        out[row, column] = part
    assert out is not None
    return out


def distinct(times: Float[Tensor, "B m"]) -> tuple[Float[Tensor, "B M"], Int[Tensor, "B m"]]:
    """Sort out the distinct times of each row, padded by its last, and which of them each entry is.

    >>> distinct(torch.tensor([[0.5, 0.0, 0.5], [1.0, 2.0, 3.0]]))[0].tolist()
    [[0.0, 0.5, 0.5], [1.0, 2.0, 3.0]]
    """
    ordered, order = times.sort(1)
    rank = torch.zeros_like(order)
    rank[:, 1:] = (ordered[:, 1:] > ordered[:, :-1]).cumsum(1)
    found = ordered[:, -1:].expand(-1, int(rank.max()) + 1).scatter(1, rank, ordered)
    return found, torch.empty_like(rank).scatter_(1, order, rank)


def cut(
    pictures: Float[Tensor, "K H W C"],
    which: Int[Tensor, " Q"],
    corner: Float[Tensor, "Q 2"],
    patch: tuple[int, int],
    periodic: bool = False,
) -> Float[Tensor, "Q c"]:
    """Patches whose first pixel is at ``corner`` of picture ``which``: exact on the pixel grid, bilinear off it.

    Beyond the picture its edge continues, or, if it is ``periodic``, the opposite edge.

    >>> picture = torch.arange(6.0).reshape(1, 2, 3, 1)
    >>> cut(picture, torch.tensor([0]), torch.tensor([[0.5, 1.0]]), (1, 2)).tolist()
    [[2.5, 3.5]]
    """
    height, width = pictures.shape[1:3]
    start = torch.floor(corner + 1e-3)
    fraction = (corner - start).clamp_min(0)
    fraction = torch.where(fraction < 1e-3, torch.zeros_like(fraction), fraction)

    def at(row_step: int, column_step: int) -> Tensor:
        r, c = (
            start[:, i, None].long() + step + torch.arange(patch[i], device=start.device)
            for i, step in ((0, row_step), (1, column_step))
        )
        r, c = (r % height, c % width) if periodic else (r.clamp(0, height - 1), c.clamp(0, width - 1))
        return pictures[which[:, None, None], r[:, :, None], c[:, None, :]]  # (Q, P0, P1, C)

    if not bool(fraction.any()):
        return at(0, 0).flatten(1)
    f, g = (fraction[:, i, None, None, None] for i in (0, 1))
    upper = (1 - g) * at(0, 0) + g * at(0, 1)
    lower = (1 - g) * at(1, 0) + g * at(1, 1)
    return ((1 - f) * upper + f * lower).flatten(1)
