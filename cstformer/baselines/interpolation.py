"""Rivals without a network: mean, last value, nearest point, lines, splines, Gaussian process, Wiener filters.

All treat each sample and channel on its own and use observed values only. A channel that was not observed in a sample
gets its training mean. Outside the observed range, lines and splines are constant, as every start of CST is, because
an extrapolated cubic soon leaves the data. The Gaussian process returns to the mean there.

Movies are interpolated frame by frame in time (`frame_start`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.interpolate
import scipy.spatial
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.data.batch import Batch, as_batches
from cstformer.data.samples import Samples
from cstformer.models.model import Model
from cstformer.starts.frame_start import Smoother
from cstformer.starts.frames import Frames
from cstformer.taylor import series
from cstformer.training.settings import setting

NUMBERS_PER_PASS = 2**22  # entries of a queries × points matrix: bounds the memory
Method = Callable[[Batch], Callable[[Tensor], Tensor]]
"""From a context to a function of queries (B, m, d), both in the model's units."""


@dataclass(kw_only=True, eq=False, repr=False)
class Mean(Model):
    """The mean of all training values, a constant per channel.

    >>> train = Samples([0.0, 1.0], [[1.0, 2.0], [3.0, 6.0]])
    >>> Mean().fit(train).predict(train, [0.3])[:, 0, 0].tolist()
    [3.0, 3.0]
    """

    name: ClassVar[str] = "mean"
    label: ClassVar[str] = "Mean"

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        count = np.maximum(samples.observed.sum((0, 1)), 1)
        self.mean_ = samples.values.sum((0, 1)) / count  # unobserved values are stored as 0

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        return np.tile(self.mean_, (*queries.shape[:2], 1))

    def _description(self) -> dict[str, Any]:
        return {"mean": self.mean_.tolist()}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.mean_ = np.asarray(about["mean"], dtype=float)


@dataclass(kw_only=True, eq=False, repr=False)
class CopyNearest(Model):
    """The value of the nearest observed point; each axis is scaled to the training domain.

    >>> train = Samples([0.0, 1.0], [[1.0, 2.0], [3.0, 6.0]])
    >>> CopyNearest().fit(train).predict(train, [0.3])[:, 0, 0].tolist()
    [1.0, 3.0]
    """

    name: ClassVar[str] = "nearest"
    label: ClassVar[str] = "Nearest point"

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        pass

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        out = np.tile(self.scaling_.mean, (*queries.shape[:2], 1))
        points, at = self.scaling_.coords(context.coords), self.scaling_.coords(queries)
        for i, channels, seen in _channel_groups(context):
            nearest = scipy.spatial.cKDTree(points[i, seen]).query(at[i])[1]
            out[i][:, channels] = context.values[i, seen][nearest][:, channels]
        return out


@dataclass(kw_only=True, eq=False, repr=False)
class _Field(Model):
    """Base of the Gaussian process and the splines: evaluates a `Method` on samples."""

    def _answers(self, context: Samples, queries: np.ndarray, method: Method) -> np.ndarray:
        """Standardised values (N, m, c) at queries (N, m, d), in chunks that fit in memory."""
        data = self.kind_.batch(context, torch.float64, torch.device("cpu"))
        at = torch.as_tensor(self.scaling_.coords(queries))
        m, n = queries.shape[1], context.n
        chunk = max(1, NUMBERS_PER_PASS // n)
        rows = []
        for index in as_batches(len(data), NUMBERS_PER_PASS // (n * max(n, min(m, chunk)))):
            read = method(data[index])
            rows.append(torch.cat([read(x) for x in at[index].split(chunk, 1)], 1))
        return torch.cat(rows).numpy()

    def _start(self, name: str, smoother: Smoother = None) -> Method:
        """The start of CST with this name."""

        def method(batch: Batch) -> Callable[[Tensor], Tensor]:
            start = self.kind_.start(name, batch, smoother)
            return lambda x: start(series.constant(x)).value

        return method


@dataclass(kw_only=True, eq=False, repr=False)
class _Interpolation(_Field):
    """Curves through the points of each sample; for d > 1 the polyharmonic spline of the same smoothness."""

    start: ClassVar[str]
    """Start of CST that answers for d > 1; models of curves alone have none."""

    @staticmethod
    @abstractmethod
    def _curve(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Values (m, k) at times ``at`` (m,), from values ``y`` (n, k) at increasing knots ``t`` (n,), n ≥ 2.

        All times lie between the first and the last knot.
        """

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        pass

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        if context.d > 1:
            return self.scaling_.values(self._answers(context, queries, self._start(self.start)))
        out = np.tile(self.scaling_.mean, (*queries.shape[:2], 1))
        for i, channels, seen in _channel_groups(context):
            t, y = context.coords[i, seen, 0], context.values[i, seen][:, channels]
            at = np.clip(queries[i, :, 0], t[0], t[-1])
            out[i][:, channels] = self._curve(t, y, at) if len(t) > 1 else y
        return out


@dataclass(kw_only=True, eq=False, repr=False)
class LinearInterpolation(_Interpolation):
    """Linear interpolation between neighbouring points.

    >>> train = Samples([0.0, 1.0, 2.0], [[1.0, 2.0, 0.0]])
    >>> LinearInterpolation().fit(train).predict(train, [0.5, 1.5]).ravel().tolist()
    [1.5, 1.0]
    """

    name: ClassVar[str] = "linear"
    label: ClassVar[str] = "Linear interpolation"
    start: ClassVar[str] = "linear"

    @staticmethod
    def _curve(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(at, t, channel) for channel in y.T], axis=-1)


@dataclass(kw_only=True, eq=False, repr=False)
class LastValue(_Interpolation):
    """The last observed value, carried forward; before the first one, the first.

    >>> train = Samples([0.0, 1.0, 2.0], [[1.0, 2.0, 0.0]])
    >>> LastValue().fit(train).predict(train, [0.0, 0.9, 1.0, 1.9]).ravel().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """

    name: ClassVar[str] = "last"
    label: ClassVar[str] = "Last value"
    curves_only: ClassVar[bool] = True

    @staticmethod
    def _curve(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        return y[np.searchsorted(t, at, side="right") - 1]


@dataclass(kw_only=True, eq=False, repr=False)
class CubicSpline(_Interpolation):
    """Cubic spline with not-a-knot ends, the default of SciPy; a line for two points, a parabola for three.

    For d > 1 it is the polyharmonic spline with kernel r³, for movies the natural cubic spline in time.

    >>> t = np.arange(5.0)
    >>> train = Samples(t, (t**3)[None])
    >>> CubicSpline().fit(train).predict(train, [1.5]).round(9).item()
    3.375
    """

    name: ClassVar[str] = "cubic"
    label: ClassVar[str] = "Cubic spline"
    start: ClassVar[str] = "cubic"

    @staticmethod
    def _curve(t: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
        return scipy.interpolate.CubicSpline(t, y)(at)


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianProcess(_Field):
    """Posterior mean of a Gaussian process whose kernel is fitted to all training samples.

    Kernel and noise maximise the marginal likelihood (`gaussian_process`) of scaled coordinates and standardised
    values. Each sample and channel counts as an independent draw.
    """

    name: ClassVar[str] = "gp"
    label: ClassVar[str] = "Gaussian process"

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        data = self.kind_.batch(samples, torch.float64, torch.device("cpu"))
        self.kind_.kernel = self.kind_.fit_kernel(data, self.seed)

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        return self.scaling_.values(self._answers(context, queries, self.kind_.posterior_mean))

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        if self.kernel_ is None:
            raise ValueError("kernel is missing")


@dataclass(kw_only=True, eq=False, repr=False)
class CoKriging(GaussianProcess):
    """Gaussian processes of the channels that know of each other, where single cells of points are missing.

    The processes are those of the start ``smooth`` (`starts.coupled`). Where the coupling does not predict hidden cells
    better, and for frames, it is `GaussianProcess`.
    """

    name: ClassVar[str] = "co-kriging"
    label: ClassVar[str] = "Co-kriging"

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        super()._fit(samples, state, progress)
        self.kind_.couple(self.kind_.batch(samples, torch.float64, torch.device("cpu")), self.seed)


@dataclass(kw_only=True, eq=False, repr=False)
class WienerCubic(_Field):
    """Wiener filter in space, with spectra of the noisy training frames, then a natural cubic spline in time."""

    name: ClassVar[str] = "wiener"
    label: ClassVar[str] = "Wiener filter + cubic spline"
    frames_only: ClassVar[bool] = True
    start: ClassVar[str] = "wiener"

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        assert isinstance(self.kind_, Frames)  # frames_only
        self.kind_.waves = self.kind_.fit_waves(self.kind_.batch(samples, torch.float64, torch.device("cpu")))

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        return self.scaling_.values(self._answers(context, queries, self._start(self.start)))

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        if about["waves"] is None:
            raise ValueError("waves is missing")


@dataclass(kw_only=True, eq=False, repr=False)
class SpaceTimeWiener(WienerCubic):
    """Wiener filter in space and time, the ``smooth`` start of CST: a Gaussian process in time per frequency band."""

    name: ClassVar[str] = "space-time-wiener"
    label: ClassVar[str] = "Wiener filter in space and time"
    start: ClassVar[str] = "smooth"


@dataclass(kw_only=True, eq=False, repr=False)
class ModesGP(_Field):
    """Frames projected onto spatial modes, then a Gaussian process in time for each.

    The modes are singular vectors, as labs use them. The ``modes`` start of CST turns them before (`modes.persistent`).
    """

    name: ClassVar[str] = "modes-gp"
    label: ClassVar[str] = "Modes + Gaussian process"
    frames_only: ClassVar[bool] = True
    start: ClassVar[str] = "modes"

    rank: int | str = setting("auto", "number of modes; auto: chosen by held-out pixels", ("auto",), low=1)

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        assert isinstance(self.kind_, Frames)  # frames_only
        data = self.kind_.batch(samples, torch.float64, torch.device("cpu"))
        rank = None if self.rank == "auto" else int(self.rank)
        self.kind_.modes = self.kind_.fit_modes(data, self.seed, rank, turned=False)

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        assert isinstance(self.kind_, Frames)
        return self.scaling_.values(self._answers(context, queries, self._start(self.start, self.kind_.modes)))

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        if about["modes"] is None:
            raise ValueError("modes is missing")


@dataclass(kw_only=True, eq=False, repr=False)
class ModesLinear(ModesGP):
    """Frames projected onto spatial modes, then straight lines in time: the usual way of widefield imaging."""

    name: ClassVar[str] = "modes-linear"
    label: ClassVar[str] = "Modes + linear interpolation"
    start: ClassVar[str] = "linear"


def thin_plate(context: Samples, at: Float[np.ndarray, " m"], smoothing: float = 0.0) -> Float[np.ndarray, "N m c"]:
    """SciPy's thin-plate spline through the points of each sample of curves, all of whose cells are observed.

    >>> t = np.linspace(0, 1, 4)
    >>> thin_plate(Samples(t, (1 + 2 * t)[None]), np.array([0.5])).round(9).ravel().tolist()
    [2.0]
    """
    pairs = zip(context.coords, context.values, strict=True)
    return np.stack([scipy.interpolate.RBFInterpolator(x, y, smoothing=smoothing)(at[:, None]) for x, y in pairs])


def _channel_groups(context: Samples) -> Iterator[tuple[int, np.ndarray, Bool[np.ndarray, " n"]]]:
    """Yield (sample, channels observed at the same points, mask of these points); skip unobserved channels."""
    for i, seen in enumerate(context.observed):
        masks, group = np.unique(seen, axis=1, return_inverse=True)
        for k, mask in enumerate(masks.T):
            if mask.any():
                yield i, np.flatnonzero(group.reshape(-1) == k), mask
