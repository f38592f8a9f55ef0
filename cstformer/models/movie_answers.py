"""Answers of a movie: whole frames at any times of a recording, in blocks that fit into memory."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.arrays import as_floats
from cstformer.data.checks import OUTSIDE, extrapolation
from cstformer.data.layout import PatchLayout
from cstformer.data.modes import Modes
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.data.samples import Samples
from cstformer.data.unread import ReadAhead
from cstformer.errors import CSTError, CSTWarning
from cstformer.models import mode_intervals
from cstformer.models.answers import with_bounds
from cstformer.models.cst import CST
from cstformer.system.memory import memory_left

BLOCK_BYTES = 2**26
"""Answers that are computed and written at once."""


class MovieAnswers(ABC):
    """Whole frames at any times of a recording. Each time is answered from the window of frames around it.

    Attributes
    ----------
    frame : (H, W) or (H, W, C), as the frames of the recording are
    parts : 1 for frames alone; 3 for frames, lower and upper bounds
    clock : (T,), times of the frames of the recording
    """

    frame: tuple[int, ...]

    def __init__(self, model: Any, clock: np.ndarray, level: float | None):
        self.model, self.clock, self.level, self.parts = model, clock, level, 1 if level is None else 3

    def __call__(self, at: np.ndarray) -> Float[np.ndarray, "parts m *frame"]:
        """Answer at checked times: all of a block, whose frames fit into memory."""
        with extrapolation(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", OUTSIDE, CSTWarning)  # `checked` has told
            return self._answer(at)

    def checked(self, at: Any) -> Float[np.ndarray, " m"]:
        """The times as an array; refuse what cannot be answered before any work."""
        at = as_floats("at", at)
        if at.ndim != 1 or not np.isfinite(at).all() or len(at) == 0:
            raise CSTError(f"a movie is asked at times (m,), got shape {at.shape}")
        queries = np.tile((self.model.scaling_.low + self.model.scaling_.span / 2), (1, len(at), 1))
        queries[..., 0] = at - self.windows(at)[2]
        self.model._check_outside(queries)
        return at

    def in_memory(self, at: Any) -> Float[np.ndarray, "parts m *frame"]:
        """Answer at any number of times, block by block."""
        at = self.checked(at)
        size = 8 * self.parts * len(at) * math.prod(self.frame)
        if size > memory_left():
            raise CSTError(
                f"the answer has {size:,} bytes, more than the free memory; ask for fewer times, or let `cst predict` "
                "write .zarr or .tif, which need little"
            )
        out = np.empty((self.parts, len(at), *self.frame))
        for first in range(0, len(at), self.block):
            part = slice(first, first + self.block)
            out[:, part] = self(at[part])
        return out

    @property
    def block(self) -> int:
        """Times that are answered at once. It depends on the size of frames alone, so that answers do not on memory."""
        return max(1, BLOCK_BYTES // (8 * self.parts * math.prod(self.frame)))

    @abstractmethod
    def _answer(self, at: np.ndarray) -> Float[np.ndarray, "parts m *frame"]:
        """Answer at the times of a block."""

    def windows(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The frames [begin, end) from which each time is answered, and what to subtract from times: each (len(at),).

        A window is as long as those of the training, whose times begin at the same number; the time lies in its middle,
        except near the ends of the recording.
        """
        clock, first, span = self.clock, float(self.model.scaling_.low[0]), float(self.model.scaling_.span[0])
        wanted = np.clip(at - span / 2, clock[0], max(clock[0], clock[-1] - span))
        begin = np.searchsorted((clock[1:] + clock[:-1]) / 2, wanted)  # the frame nearest to the wanted start
        end = np.searchsorted(clock, clock[begin] + span * (1 + 1e-9), side="right")
        return begin, end, clock[begin] - first


class PatchAnswers(MovieAnswers):
    """Answers of a model of patches, CST or (without derivatives and bounds) a rival, from a movie (T, H, W[, C])."""

    def __init__(
        self,
        model: Any,
        movie: Any,
        times: np.ndarray | None,
        index: tuple[int, ...] = (0, 0, 0),
        level: float | None = None,
    ):
        layout: PatchLayout | None = model.layout_
        if layout is None:
            raise CSTError("this model was not fitted on a movie; give it samples as context")
        shape = (*movie.shape, 1) if movie.ndim == 3 else movie.shape
        if len(shape) != 4 or shape[1:3] != layout.frame or shape[3] != layout.channels:
            raise CSTError(
                f"the movie has shape {shape}; the model was fitted on frames of {layout.frame} pixels "
                f"with {layout.channels} channel(s)"
            )
        clock = np.arange(shape[0], dtype=float) if times is None else np.asarray(times, dtype=float)
        super().__init__(model, clock, level)
        self.movie, self.index, self.layout, self.frame = movie, index, layout, tuple(movie.shape[1:])

    def _answer(self, at: np.ndarray) -> Float[np.ndarray, "parts m *frame"]:
        model, layout = self.model, self.layout
        begin, end, shift = self.windows(at)
        frames, out = ReadAhead(self.movie, end.max()), np.empty((self.parts, len(at), *self.frame))
        for start in np.unique(begin):
            mine = np.flatnonzero(begin == start)
            stop, moved = end[mine[0]], shift[mine[0]]
            window = frames(start, stop)
            context = frames_to_samples(window, layout.patch, times=self.clock[start:stop] - moved)
            queries = frame_queries(layout, at[mine] - moved)
            if self.level is not None:
                answers = with_bounds(model, context, queries, self.level)
            elif any(self.index):
                answers = (model.derivative(context, queries, self.index),)
            else:
                answers = (model.predict(context, queries),)
            out[:, mine] = [stitch(values, layout)[0].reshape(-1, *self.frame) for values in answers]
        return out


class ModeAnswers(MovieAnswers):
    """Answers of a model of coefficients of modes, from the coefficients of a recording, or a derivative in time."""

    def __init__(self, model: CST, modes: Modes, series: Samples, order: int = 0, level: float | None = None):
        super().__init__(model, series.coords[0, :, 0], level)
        self.modes, self.series, self.order, self.frame = modes, series, order, modes.mean_.shape
        self.values = np.where(series.observed[0], series.values[0], np.nan)  # (T, K)

    def _answer(self, at: np.ndarray) -> Float[np.ndarray, "parts m *frame"]:
        windows = list(zip(*self.windows(at), strict=True))
        pairs = [(self.clock[begin:end] - moved, self.values[begin:end]) for begin, end, moved in windows]
        coord_names, value_names = self.series.coord_names, self.series.value_names
        context = Samples.from_list(pairs, coord_names=coord_names, value_names=value_names)
        queries = (at - [moved for _, _, moved in windows])[:, None, None]
        if self.level is not None:
            context, queries = self.model._inputs(context, queries)
            return mode_intervals.frame_bounds(self.model, self.modes, context, queries, self.level)[:, :, 0]
        answers = self.model.derivative(context, queries, (self.order,))[:, 0]
        return self.modes.frames(answers, derivative=self.order > 0)[None]


def predict_movie(
    model: Any,
    movie: Any,
    times: np.ndarray | None,
    at: np.ndarray,
    index: tuple[int, ...] = (0, 0, 0),
    level: float | None = None,
) -> np.ndarray:
    """Whole frames at any times of a recording by CST (or, without derivatives, a rival): (len(at), H, W, C).

    The movie is an array (T, H, W[, C]), in memory or on disk. Each time is answered from the window of frames around
    it, as long as the windows of the training. With a ``level`` of intervals the answer is frames, lower and upper
    bounds: (3, len(at), H, W, C).
    """
    out = PatchAnswers(model, movie, times, index, level).in_memory(at)
    out = out if movie.ndim == 4 else out[..., None]
    return out[0] if level is None else out


def predict_modes(
    model: CST,
    modes: Modes,
    movie: Any,
    times: np.ndarray | None,
    at: np.ndarray,
    order: int = 0,
    level: float | None = None,
) -> np.ndarray:
    """Whole frames (len(at), H, W[, C]) at any times, or a derivative in time, by a model of coefficients of modes.

    Each time is answered from the window of frames around it, as `predict_movie` does. With a ``level`` of intervals
    (order 0, modes with scores of `calibrate_modes`) the answer is frames, lower and upper bounds:
    (3, len(at), H, W[, C]).
    """
    out = ModeAnswers(model, modes, modes.coefficients(movie, times), order, level).in_memory(at)
    return out[0] if level is None else out
