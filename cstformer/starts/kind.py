"""The kind of data: one object for everything that differs between curves and movies.

Nothing else asks "frames or curves?". `Points` and `Frames` are the two kinds; `kinds.kind_of` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from cstformer.data.batch import Batch
from cstformer.data.calendar import Calendar
from cstformer.data.covariates import CovariateEncoder
from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError
from cstformer.starts.curves import Start
from cstformer.starts.frame_start import Smoother
from cstformer.starts.gaussian_process import Kernel
from cstformer.taylor.derivatives import MultiIndex

Corruption = Callable[[Tensor, Generator], Tensor]
"""Maps clean values (B, n, c), or frames (B, T, H, W, C), in the user's units to what the model is given of them, of
the same shape; random numbers come from the generator."""
MAX_NOISE = 3.0  # largest noise that a kernel may find, in standard deviations of the values
# Starts that only some data have, and what they need.
SPECIAL_STARTS = {
    "median": "frames (frames_to_samples), fit(frames, given=corruption) and pattern='context'",
    "motion": "frames (frames_to_samples) and pattern='context'",
    "modes": "frames (frames_to_samples)",
}


class DataKind(ABC):
    """How samples of one kind are scaled, hidden, started from and described.

    Attributes
    ----------
    scaling : Scaling
        Between the user's units and the model's.
    layout : PatchLayout or None
        How patches tile a frame; None for points.
    kernel : Kernel, set by `fit_prior`
        Gaussian process of the training data: their noise, and the start ``smooth``.
    noises : tuple of float, set by `fit_prior`
        Noise of each channel that training may remove, or one for all channels.
    covariates, calendar : CovariateEncoder and Calendar, set by `fit_known`
        What a model reads at every coordinate. None of them reaches a `Batch` of a model that does not read it.
    """

    noise_share: ClassVar[float] = 1.0
    """Automatic training noise over the noise of the data."""
    optimiser: ClassVar[str] = "adamw"
    """What ``optimiser="auto"`` means."""
    near: ClassVar[bool] = False
    """What ``nearness="auto"`` means where no trials are made."""
    tries: ClassVar[bool] = False
    """Whether short trials choose what is ``auto``."""
    hidden_first: ClassVar[int] = 1
    """How many times as likely a training step asks about a hidden point as about a visible one."""
    ends_stay: ClassVar[bool] = False
    """Whether the first and the last moment of a sample are never hidden."""
    bounded_axes: ClassVar[int | None] = None
    """How many axes, from the first, refuse queries far outside the training domain; all by default."""
    shifts: ClassVar[bool] = False
    """Whether `shift` does anything."""

    def __init__(self, scaling: Scaling, layout: PatchLayout | None = None):
        self.scaling, self.layout = scaling, layout
        self.kernel: Kernel | None = None
        self.noises: tuple[float, ...] = ()
        self.covariates: CovariateEncoder | None = None
        self.calendar: Calendar | None = None

    @property
    @abstractmethod
    def preset(self) -> str:
        """The preset that stands for settings which are ``auto``."""

    @classmethod
    @abstractmethod
    def of(cls, samples: Samples, scaling: str = "linear") -> Self:
        """Measure the units of samples of this kind; ``scaling`` as in `kinds.kind_of`."""

    # Samples and tensors

    def batch(self, samples: Samples, dtype: torch.dtype, device: torch.device) -> Batch:
        """Turn samples into tensors in the model's units."""
        batch, known = self.scaling.batch(samples, dtype, device), dict[str, np.ndarray]()
        if self.covariates is not None:
            features = self.covariates.encode(samples)
            known |= {"covariates": features} if features.shape[1] else {}
        if self.calendar is not None and self.calendar.names:
            known["phases"] = self.calendar.phases(samples, self.scaling.low)
        return batch.replace(**{k: torch.as_tensor(x, dtype=dtype, device=device) for k, x in known.items()})

    def fit_known(self, samples: Samples) -> None:
        """Measure the covariates of training samples and take over their calendar."""
        self.covariates = CovariateEncoder.of(samples)
        self.calendar = Calendar.of(samples, self.scaling.span)

    @abstractmethod
    def outside(self, queries: Float[np.ndarray, "N m d"]) -> Float[np.ndarray, "N m a"]:
        """Queries in the model's units, along the first axes: those that have an outside."""

    def cell_gaps(self, batch: Batch) -> float:
        """Share of the missing cells that lie at points which exist, between 0 and 1; see `Points`."""
        return 0.0

    @abstractmethod
    def spacing(self, batch: Batch) -> Float[Tensor, " d"]:
        """Mean distance between neighbouring tokens along each axis, in the model's units."""

    def judging(self, start: str, hide: float) -> tuple[float, float]:
        """Largest share of points hidden from a network that is judged, and by how much it must improve on its start.

        ``hide`` is the share that training hides. A network that improves by less is not kept.
        """
        return min(0.5, hide), 0.0

    @property
    def periods(self) -> dict[int, float]:
        """Period, in the model's units, of each axis that has one."""
        return {}

    # Sequences in time, for models that read one state after the other

    @abstractmethod
    def state_shape(self, c: int) -> tuple[int, ...]:
        """Shape S of the state at one time: (c,) for curves, (H, W, C) for movies."""

    @abstractmethod
    def sequence(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T *S"], Bool[Tensor, "B T *S"], Bool[Tensor, "B T"]]:
        """Times, states, observed values and existence of a batch in the order of time."""

    @abstractmethod
    def read_states(
        self, states: Float[Tensor, K * S], which: Int[Tensor, " Q"], queries: Float[Tensor, "Q d"]
    ) -> Float[Tensor, "Q c"]:
        """Token values at queries, each from the state with number ``which``."""

    # The prior and the start

    def check_start(self, start: str, pattern: str, corrupted: bool) -> None:
        """Refuse a start that this kind of data does not have."""
        if start in SPECIAL_STARTS:
            raise CSTError(f"start={start!r} is for {SPECIAL_STARTS[start]}; choose another start")

    @abstractmethod
    def fit_kernel(self, batch: Batch, seed: int) -> Kernel:
        """Fit a Gaussian process to the values, in time or in all coordinates."""

    def fit_noises(self, kernel: Kernel, batch: Batch, seed: int) -> tuple[float, ...]:
        """Noise of each channel that training may remove, or one for all channels."""
        return kernel.noises

    def estimate_noises(self, samples: Samples, seed: int) -> tuple[float, ...]:
        """Noise of the data as in `fit_noises`, in standardised units."""
        batch = self.batch(samples, torch.float64, torch.device("cpu"))
        return self.fit_noises(self.fit_kernel(batch, seed), batch, seed)

    def fit_prior(self, batch: Batch, start: str, seed: int, corruption: Corruption | None = None) -> str:
        """Fit what the starts need to training samples; returns the start, chosen by the data where it is ``auto``."""
        self.kernel = self.fit_kernel(batch, seed)
        self.noises = self.fit_noises(self.kernel, batch, seed)
        return "smooth" if start == "auto" else start

    def couple(self, batch: Batch, seed: int) -> None:  # noqa: B027
        """Fit what channels tell of each other, where the kind of data has use for it."""

    def check_prior(self, start: str) -> None:
        """Refuse a model file without what its start needs."""
        if self.kernel is None:
            raise ValueError("kernel is missing")

    @abstractmethod
    def start(self, name: str, batch: Batch, smoother: Smoother = None) -> Start:
        """The start of this name from a context; ``smoother`` takes the place of the fitted prior."""

    def initial(self, name: str, batch: Batch, bounded: bool) -> Start:
        """What the network is shown of each query: the start, and more if the network is ``bounded``."""
        return self.start(name, batch)

    @abstractmethod
    def posterior_mean(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """Mean of the Gaussian process given a context: from queries (B, m, d) to values (B, m, c)."""

    @abstractmethod
    def spread(self, start: str, batch: Batch) -> Callable[[Tensor, MultiIndex], Tensor]:
        """Variance of the process given a context, for the scale of intervals.

        From queries (B, m, d) and a multi-index q to the variance of D^q (B, m, c), in float64.
        """

    def network_options(self, start: str, pattern: str) -> dict[str, Any]:
        """What the network must know of this start: ``split_context``, ``bounded`` and ``view`` of `Architecture`."""
        return {"split_context": False, "bounded": False, "view": None}

    # Training

    def check_coord_noise(self, coord_noise: float) -> None:  # noqa: B027
        """Refuse noise on coordinates that cannot move."""

    @abstractmethod
    def corrupt(self, batch: Batch, corruption: Corruption, generator: Generator) -> Tensor:
        """Draw what the model is given of a batch, in the model's units."""

    def shift(self, batch: Batch, target: Tensor, generator: Generator) -> tuple[Batch, Tensor]:
        """Other points of the same samples at which targets are known, so that places between them are learned."""
        return batch, target

    def clean(self, batch: Batch, target: Tensor) -> Tensor:
        """Targets with less noise of the same mean, which disturb the gradient less."""
        return target

    # Files

    def describe_known(self) -> dict[str, Any]:
        """As JSON: covariates and calendar, of a model that reads them."""
        known = {"covariates": self.covariates, "calendar": self.calendar}
        return {name: x.describe() for name, x in known.items() if x is not None and x.names}

    def restore_known(self, about: dict[str, Any]) -> None:
        """Inverse of `describe_known`, for a model that reads covariates."""
        covariates, calendar = about.get("covariates"), about.get("calendar")
        self.covariates = CovariateEncoder.from_description(covariates) if covariates else CovariateEncoder()
        self.calendar = Calendar.from_description(calendar) if calendar else Calendar()

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """As JSON: scaling, layout and what `fit_prior` fitted."""

    def tensors(self) -> dict[str, Tensor]:
        """What `fit_prior` fitted and JSON should not hold."""
        return {}

    def restore_tensors(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:  # noqa: B027
        """Take back what `tensors` gave."""

    @classmethod
    @abstractmethod
    def from_description(cls, about: dict[str, Any]) -> Self:
        """Inverse of `describe`."""


def kernel_from(about: dict[str, Any] | None, axes: int, channels: int) -> Kernel | None:
    """Read from JSON a kernel of so many axes, of all channels or of each of so many."""
    if about is None:
        return None
    kernel = Kernel.from_description(about)
    if {len(one.lengthscales) for one in (kernel, *kernel.channels)} != {axes}:
        raise ValueError(f"lengthscales of the kernel must be {axes}, one for each axis")
    if len(kernel.channels) not in (0, channels):
        raise ValueError(f"the kernel is of {len(kernel.channels)} channels, not of {channels}")
    return kernel


def in_user_units(scaling: Scaling, corruption: Corruption, generator: Generator) -> Callable[[Tensor], Tensor]:
    """Make a function of standardised values from a corruption of values in the user's units."""

    def change(x: Tensor) -> Tensor:
        y = corruption(x, generator)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            what = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise CSTError(f"given must return a tensor of the shape that it gets, {tuple(x.shape)}, got {what}")
        return y

    return lambda x: scaling.in_user_units(change, x)
