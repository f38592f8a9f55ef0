"""Sequence models: their input (`TimeSeries`), their answers at any time, and their training.

A sample is a sequence of frames in time. For curves a frame is the vector of values at one time, for movies the whole
picture. Every network is called as ``network(frames, at)`` with query times ``at`` (B, M) and returns frames
(B, M, S…). There are three kinds:

- a `Reconstructor` returns frames at the times of the context; its output is interpolated in time;
- a `Forecaster` answers at t from the last few context frames up to t and the time since each of them;
- any other module answers at every time by itself.

All are trained as CST is. A step adds noise to the context values, or draws the corruption of ``fit(given=)``, and
hides some frames; the first and the last frame of a movie always stay. The loss is the squared error at all observed
values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from cstformer.baselines.neural import NeuralBaseline
from cstformer.data.batch import Batch, as_batches, widen
from cstformer.data.checks import extrapolation
from cstformer.data.frame_grid import distinct_times
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.starts.curves import make_start
from cstformer.starts.kind import Corruption, DataKind, in_user_units
from cstformer.starts.kinds import kind_of
from cstformer.taylor import series
from cstformer.training.disturbance import (
    Disturbance,
    hide_for_validation,
    noise_levels,
    root_mean_square,
    validation_patterns,
)
from cstformer.training.losses import data_term
from cstformer.training.objective import TOKENS_PER_STEP
from cstformer.training.settings import DisturbanceSettings, setting

NUMBERS_PER_PASS = 2**20  # values of all frames of one pass without gradients: bounds the memory
NOISE_SAMPLES = 200  # samples used to estimate the noise of the data
SAME_TIME = 1e-6  # times closer than this share of the domain are the same


@dataclass(frozen=True)
class TimeSeries:
    """Sequences of frames in the model's units; a frame has shape S, (c,) for curves and (H, W, C) for movies.

    The frames of a sample come first, in the order of time. Padding follows: it repeats the last time, and nothing in
    it is observed. Unobserved values are 0, the mean of standardised data.

    Attributes
    ----------
    times : (B, T)
    values, observed : (B, T, S…)
    exists : (B, T)
        False where a frame is padding.
    """

    times: Float[Tensor, "B T"]
    values: Float[Tensor, "B T *S"]
    observed: Bool[Tensor, "B T *S"]
    exists: Bool[Tensor, "B T"]

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: Any) -> TimeSeries:
        return TimeSeries(self.times[index], self.values[index], self.observed[index], self.exists[index])

    @classmethod
    def of(cls, batch: Batch, kind: DataKind) -> TimeSeries:
        """The frames of a batch in the order of time."""
        times, values, observed, exists = kind.sequence(batch)
        return cls(times, values, observed, exists).only(exists)

    @property
    def counts(self) -> Int[Tensor, " B"]:
        """Number of frames of each sample, without padding."""
        return self.exists.sum(1)

    @property
    def gaps(self) -> Float[Tensor, "B T"]:
        """Time since the previous frame; 0 for the first frame."""
        return self.times.diff(dim=1, prepend=self.times[:, :1])

    def only(self, keep: Bool[Tensor, "B T"]) -> TimeSeries:
        """Drop the frames where ``keep`` is False.

        >>> t, y = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> some = TimeSeries(t, y, y > 0, t >= 0).only(torch.tensor([[True, False, True]]))
        >>> some.times.tolist(), some.values.flatten().tolist()
        ([[0.0, 1.0]], [1.0, 3.0])
        """
        keep = keep & self.exists
        order = (~keep).long().argsort(dim=1, stable=True)[:, : max(1, int(keep.sum(1).max()))]
        rows = torch.arange(len(self), device=order.device)[:, None]
        exists = keep[rows, order]
        last = self.times.masked_fill(~keep, -torch.inf).amax(1, keepdim=True)
        times = torch.where(exists, self.times[rows, order], last)
        observed = self.observed[rows, order] & widen(exists, self.values)
        return TimeSeries(times, self.values[rows, order] * observed, observed, exists)

    def visible(self, keep: Bool[Tensor, "B T *S"]) -> TimeSeries:
        """Hide the cells where ``keep`` is False; states of which nothing is left are dropped."""
        observed = self.observed & keep
        left = observed.flatten(2).any(-1)
        return TimeSeries(self.times, self.values * observed, observed, self.exists).only(left)

    def channels(self, mask: bool, clock: Float[Tensor, "B T"] | None = None) -> Float[Tensor, "B T *F"]:
        """Values, ``observed`` (if ``mask``) and a number per frame (``clock``), concatenated along the last axis."""
        parts = [self.values] + ([self.observed.to(self.values)] if mask else [])
        if clock is not None:
            parts.append(widen(clock, self.values).expand(*self.values.shape[:-1], 1))
        return torch.cat(parts, -1)


def between(kind: str, frames: TimeSeries, output: Tensor, at: Float[Tensor, "B M"]) -> Tensor:
    """Interpolate ``output`` (B, T, S…), known at the times of the frames, at times ``at``: (B, M, S…).

    ``kind`` is ``linear`` or ``cubic``. Before the first and after the last frame the result is constant.
    """
    count = frames.times.shape[1]
    # Interpolating unit vectors gives the weight of each frame: (B, M, T).
    identity = torch.eye(count, dtype=at.dtype, device=at.device).expand(len(frames), -1, -1)
    exists = frames.exists[..., None].expand(-1, -1, count)
    weights = make_start(kind, frames.times[..., None], identity, exists)(series.constant(at[..., None])).value
    return (weights.to(output) @ output.flatten(2)).unflatten(2, output.shape[2:])


def windows(frames: TimeSeries, at: Float[Tensor, "B M"], size: int) -> tuple[TimeSeries, Float[Tensor, "N size"]]:
    """For each query time, the last ``size`` frames up to it and the time from each of them to the query.

    Returns N = B·M sequences of ``size`` frames. Where there are fewer frames the first one is repeated; a query before
    the first frame gets that frame, with a negative time.

    >>> t = torch.tensor([[0.0, 0.5, 1.0]])
    >>> past, ahead = windows(TimeSeries(t, t[..., None], t[..., None] >= 0, t >= 0), torch.tensor([[0.75]]), 3)
    >>> past.times.tolist(), ahead.tolist()
    ([[0.0, 0.0, 0.5]], [[0.75, 0.75, 0.25]])
    """
    earlier = (frames.times[:, None] <= at[..., None] + SAME_TIME) & frames.exists[:, None]  # (B, M, T)
    last = (earlier.sum(-1) - 1).clamp_min(0)
    index = (last[..., None] + torch.arange(1 - size, 1, device=at.device)).clamp_min(0).flatten(0, 1)
    row = torch.arange(len(frames), device=at.device).repeat_interleave(at.shape[1])[:, None]
    past = frames[row, index]
    return past, at.reshape(-1, 1) - past.times


class Reconstructor(nn.Module):
    """A network whose output frames are at the times of its input frames."""

    between: str = "linear"

    def reconstruct(self, frames: TimeSeries) -> Float[Tensor, "B T *S"]:
        """Return frames at the times of the input; the output at padding is ignored."""
        raise NotImplementedError

    def forward(self, frames: TimeSeries, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M *S"]:
        """Reconstruct, then interpolate in time."""
        return between(self.between, frames, self.reconstruct(frames), at)


class Forecaster(nn.Module):
    """A network that predicts one frame from ``window`` earlier ones."""

    window: int = 5

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N ..."]:
        """Predict the frame that is ``ahead`` of each frame of the window by this time."""
        raise NotImplementedError

    def forward(self, frames: TimeSeries, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M *S"]:
        """Predict each query time from the window before it."""
        past, ahead = windows(frames, at, self.window)
        return self.forecast(past, ahead).unflatten(0, at.shape)


@dataclass(kw_only=True, eq=False, repr=False)
class SequenceBaseline(DisturbanceSettings, NeuralBaseline):
    """A rival that reads frames in the order of time. Subclasses write `_network`, where ``kind_`` is set already.

    A network with a state that describes the whole sample also has a method ``latent(frames) -> (B, features)``.
    """

    learns_corruption: ClassVar[bool] = True

    mask: bool = setting(True, "the network also reads which values were observed")
    targets: int = setting(0, "random frames of a sample in the loss of a step; 0: all", low=0)

    @abstractmethod
    def _network(self, d: int, c: int) -> nn.Module:
        """Make a fresh network whose forward pass maps ``frames`` and times (B, M) to frames (B, M, S…)."""

    def latent(self, context: Samples) -> Float[np.ndarray, "N features"]:
        """State of the network after it has read all of each sample."""
        with extrapolation():  # of a context that is longer than the training samples
            context, _ = self._inputs(context, context)
        describe: Callable[[TimeSeries], Tensor] | None = getattr(self.network_, "latent", None)
        if describe is None:
            return super().latent(context)
        data = self._batch(context)
        with torch.no_grad():
            parts = [describe(self._frames(data[i])) for i in self._passes(len(data), context.n)]
        return torch.cat(parts).flatten(1).cpu().double().numpy()

    def frame_shape(self, c: int) -> tuple[int, ...]:
        """Shape S of a frame: (c,) for curves and (H, W, C) for movies."""
        return self.kind_.state_shape(c)

    # Training

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        added: tuple[float, ...] = (0.0,)
        believed = added
        if self.noise != 0 and self._corruption is None:  # estimated as CST does
            few = np.sort(np.random.default_rng(self.seed).permutation(len(samples))[:NOISE_SAMPLES])
            found = kind_of(samples[few], self._scaling()).estimate_noises(samples[few], self.seed)
            added, believed = noise_levels(self.noise, found, self.kind_.noise_share)
        self.noise_ = root_mean_square(added)
        cells = (
            self.kind_.cell_gaps(self.kind_.batch(samples, torch.float32, torch.device("cpu")))
            if self.hide_cells == "auto"
            else float(self.hide_cells)
        )
        self._disturbance = Disturbance(self.hide, added, believed, cells=cells)
        super()._fit(samples, state, progress)

    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        frames = self._frames(batch)
        keep = self._disturbance.keep(frames.observed, frames.exists, generator, self._groups(frames))
        if self._corruption is not None:
            values, target = self._corrupted(frames, generator), frames.values
        else:
            values, target = self._disturbance.add_noise(frames.values, keep, generator)
        shown = TimeSeries(frames.times, values * frames.observed, frames.observed, frames.exists).visible(keep)
        return self._error(shown, *self._choose(frames, target, generator), generator)

    def _error(self, shown: TimeSeries, at: Tensor, target: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        """Loss of a training step, a scalar; variational models add a term."""
        return data_term(self.network_(shown, at), target, observed, 2.0, self.channel_weights)

    def _corrupted(self, frames: TimeSeries, generator: Generator) -> Tensor:
        """Corrupted values (B, T, S…) in the model's units; the values themselves if there is no corruption."""
        if self._corruption is None:
            return frames.values
        return in_user_units(self.scaling_, self._corruption, generator)(frames.values) * frames.observed

    def _groups(self, frames: TimeSeries) -> Tensor | None:
        """Frame numbers (B, T), where the first and the last frame must stay; None where any frame may be hidden."""
        if not self.kind_.ends_stay:
            return None
        return torch.arange(frames.exists.shape[1], device=frames.exists.device).expand_as(frames.exists)

    def _choose(self, frames: TimeSeries, target: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Times, targets and ``observed`` of the frames in the loss of a step."""
        if not 0 < self.targets < frames.times.shape[1]:
            return frames.times, target, frames.observed
        scores = torch.rand(frames.times.shape, generator=generator).to(frames.times.device)
        index = scores.masked_fill(~frames.exists, 2.0).argsort(1)[:, : self.targets]
        rows = torch.arange(len(frames), device=index.device)[:, None]
        return frames.times[rows, index], target[rows, index], frames.observed[rows, index]

    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Error at fixed hidden frames, or at all frames if ``hide`` is 0. The input is corrupted, but has no noise."""
        generator = torch.Generator().manual_seed(self.seed)
        n = held_out.coords.shape[1]
        patterns = validation_patterns(len(held_out), n, TOKENS_PER_STEP)
        batch = held_out[torch.arange(len(held_out)).repeat(patterns)]
        masks = []
        for index in self._passes(len(batch), n):
            frames = self._frames(batch[index])
            hide, cells = min(0.5, self.hide), self._disturbance.cells
            keep = hide_for_validation(frames.observed, frames.exists, hide, cells, generator, self._groups(frames))
            masks.append((index, keep, self._corrupted(frames, generator)))

        @torch.no_grad()
        def score() -> float:
            errors, counts = [], []
            for index, keep, given in masks:
                frames = self._frames(batch[index])
                shown = TimeSeries(frames.times, given, frames.observed, frames.exists)
                hidden = frames.observed & ~keep
                where = hidden if bool(hidden.any()) else frames.observed
                y = self.network_(shown.visible(keep), frames.times)
                errors.append(float(data_term(y, frames.values, where, 2.0, self.channel_weights)))
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
                rows.append(answer(self.network_, frames, at[index.to(at.device)], self.kind_).cpu())
        return self.scaling_.values(torch.cat(rows).double().numpy())

    def _frames(self, batch: Batch) -> TimeSeries:
        return TimeSeries.of(batch, self.kind_)

    def _passes(self, count: int, n: int) -> list[Tensor]:
        """Split samples of ``n`` points into passes that fit in memory."""
        return as_batches(count, min(256, NUMBERS_PER_PASS // (n * len(self.scaling_.mean))))

    def _description(self) -> dict[str, Any]:
        return super()._description() | {"noise": self.noise_}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        super()._restore(tensors, about, d, c)
        self.noise_ = float(about["noise"])

    def _check_samples(self, samples: Samples, given: Corruption | None) -> Samples:
        samples = super()._check_samples(samples, given)
        if samples.layout is None and samples.d != 1:
            raise CSTError(
                f"{type(self).__name__} needs curves (d = 1) or the patches of a movie (frames_to_samples), got "
                f"samples with {samples.d} coordinate axes and no layout"
            )
        return samples


def answer(
    network: Callable[[TimeSeries, Tensor], Tensor],
    frames: TimeSeries,
    x: Float[Tensor, "B m d"],
    kind: DataKind,
) -> Float[Tensor, "B m c"]:
    """Run the network once for each distinct query time, then read the queries out of its frames."""
    times, which = distinct_times(x[..., 0])
    size = max(1, NUMBERS_PER_PASS // (len(frames) * frames.values[0, 0].numel()))  # query times of a pass
    out: Tensor | None = None
    for first in range(0, times.shape[1], size):
        y = network(frames, times[:, first : first + size])  # (B, size, S…)
        row, column = ((which >= first) & (which < first + size)).nonzero(as_tuple=True)
        number = which[row, column] - first
        part = kind.read_states(y.flatten(0, 1), row * y.shape[1] + number, x[row, column])
        out = part.new_empty(*x.shape[:2], part.shape[-1]) if out is None else out
        out[row, column] = part
    assert out is not None
    return out
