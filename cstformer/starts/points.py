"""Curves and scattered points: every point is a token of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from cstformer.data.batch import Batch
from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.starts.coupled import CoupledKernel, CoupledMean, CoupledSpread
from cstformer.starts.coupled_fit import fit_coupled
from cstformer.starts.curves import Start, constant_outside, make_start
from cstformer.starts.frame_start import Smoother
from cstformer.starts.gaussian_process import Kernel, posterior_weights
from cstformer.starts.kernel_fit import SMOOTHNESS, fit_channels, fit_kernel
from cstformer.starts.kind import MAX_NOISE, Corruption, DataKind, in_user_units, kernel_from
from cstformer.starts.shared_noise import independent_noise
from cstformer.starts.spread import Spread
from cstformer.system.described import numbers
from cstformer.taylor import series
from cstformer.taylor.derivatives import MultiIndex

KERNEL_CELLS = 2**20  # cells, observed or not, of the samples that the kernel is fitted to
SEVERAL = 4  # channels from which on the preset is ``series``
FEWEST_CELLS, MOST_CELLS = 0.25, 0.9  # bounds of the share of samples that hide single cells


class Points(DataKind):
    """Points with coordinates of any dimension; see `DataKind`."""

    tries: ClassVar[bool] = True

    def __init__(self, scaling: Scaling, layout: PatchLayout | None = None):
        super().__init__(scaling, layout)
        self.coupled: CoupledKernel | None = None
        """Takes the place of the kernel where channels tell each other's missing cells."""

    @property
    def preset(self) -> str:
        """Several channels may explain each other, which takes a wider network."""
        return "series" if len(self.scaling.mean) >= SEVERAL else "default"

    @classmethod
    def of(cls, samples: Samples, scaling: str = "linear") -> Self:
        """Measure each channel for itself."""
        return cls(Scaling.of(samples, how=scaling))

    def outside(self, queries: Float[np.ndarray, "N m d"]) -> Float[np.ndarray, "N m d"]:
        """All axes have an outside."""
        return self.scaling.coords(queries)

    def cell_gaps(self, batch: Batch) -> float:
        """Share of the missing cells that lie at points which exist.

        The other missing cells are those of whole points: a sample is taken to miss what it has fewer than the longest.
        Bounded by `FEWEST_CELLS` and `MOST_CELLS` where cells are missing at all, so that both cells and points are
        learned: a user may ask for either.
        """
        exists = batch.exists
        single = int((exists[..., None] & ~batch.observed).sum())
        whole = int((exists.sum(1).max() - exists.sum(1)).sum()) * batch.observed.shape[-1]
        return min(MOST_CELLS, max(FEWEST_CELLS, single / (single + whole))) if single else 0.0

    def spacing(self, batch: Batch) -> Float[Tensor, " d"]:
        """N points in [0,1]^d are about n^(−1/d) apart."""
        d = batch.coords.shape[-1]
        return batch.coords.new_full((d,), float(batch.exists.sum(1).double().mean()) ** (-1 / d))

    def state_shape(self, c: int) -> tuple[int, ...]:
        """All channels."""
        return (c,)

    def sequence(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The points of a curve as they are."""
        return batch.coords[..., 0], batch.values, batch.observed, batch.exists

    def read_states(self, states: Tensor, which: Tensor, queries: Tensor) -> Tensor:
        """The state at the query's time."""
        return states[which]

    def fit_kernel(self, batch: Batch, seed: int) -> Kernel:
        """Fit in all coordinates, with the smoothness of the data; channels that differ get kernels of their own."""
        some = batch
        if batch.observed.numel() > KERNEL_CELLS:  # enough for the kernel, and channels multiply the work
            few = max(1, KERNEL_CELLS * len(batch) // batch.observed.numel())
            some = batch[torch.randperm(len(batch), generator=Generator().manual_seed(seed))[:few]]
        coords, values, mask = one_mask(some)
        seen = mask.any(1)
        shared = fit_kernel(coords[seen], values[seen], mask[seen], seed, MAX_NOISE, smoothness=SMOOTHNESS)
        if batch.values.shape[-1] == 1:
            return shared
        return fit_channels(shared, batch.coords, batch.values, batch.observed, seed, MAX_NOISE)

    def fit_noises(self, kernel: Kernel, batch: Batch, seed: int) -> tuple[float, ...]:
        """Noise that is independent between channels."""
        return tuple(independent_noise(kernel, batch.coords, batch.values, batch.observed, seed))

    def fit_prior(self, batch: Batch, start: str, seed: int, corruption: Corruption | None = None) -> str:
        """Fit the kernel, and the coupling of channels for the start that reads it."""
        chosen = super().fit_prior(batch, start, seed, corruption)
        if chosen == "smooth":
            self.couple(batch, seed)
        return chosen

    def couple(self, batch: Batch, seed: int) -> None:
        """Fit processes that know of each other, where single cells are missing that others may tell.

        Without missing cells a coupled process predicts nearly as well as one for each channel, and takes longer.
        """
        assert self.kernel is not None, "fit the kernel first"
        if self.cell_gaps(batch) > 0:
            self.coupled = fit_coupled(self.kernel, batch.coords, batch.values, batch.observed, seed)
        if self.coupled is not None:
            alone = np.broadcast_to(self.noises or self.kernel.noises, len(self.coupled.noises))
            self.noises = tuple(np.minimum(alone, self.coupled.noises.numpy()).tolist())

    def start(self, name: str, batch: Batch, smoother: Smoother = None) -> Start:
        """Interpolate the observed values."""
        if name == "smooth" and smoother is None and self.coupled is not None:
            mean = CoupledMean(self.coupled, batch.coords, batch.values, batch.observed)
            return constant_outside(mean, batch.coords, batch.exists)
        kernel = smoother if isinstance(smoother, Kernel) else self.kernel
        return make_start(name, batch.coords, batch.values, batch.observed, kernel)

    def network_options(self, start: str, pattern: str) -> dict[str, Any]:
        """With coupled channels, context tokens carry what the start knows of their missing cells."""
        split = pattern == "context" and start == "smooth" and self.coupled is not None
        return super().network_options(start, pattern) | {"split_context": split}

    def posterior_mean(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """K(x, X) (K + σ²I)⁻¹ y; unlike the start ``smooth`` it returns to the mean far from the data."""
        if self.coupled is not None:
            coupled = CoupledMean(self.coupled, batch.coords, batch.values, batch.observed)
            return lambda x: coupled(series.constant(x)).value
        kernel = self.kernel
        assert kernel is not None, "fit the kernel first"
        coords, values, mask = one_mask(batch, fold=bool(kernel.channels))
        folds = len(coords) // len(batch)  # channels with points of their own were folded into the batch
        rows = kernel.rows(coords, torch.arange(len(coords)) % folds)
        weights = posterior_weights(rows, coords, values, mask)

        def mean(x: Tensor) -> Tensor:
            covariance = rows.covariance(series.constant(x.repeat_interleave(folds, 0)), coords).value
            y = covariance @ weights
            return y if folds == 1 else y.squeeze(-1).unflatten(0, (len(x), -1)).transpose(1, 2)

        return mean

    def spread(self, start: str, batch: Batch) -> Callable[[Tensor, MultiIndex], Tensor]:
        """Posterior variance of the process of each channel."""
        if start == "smooth" and self.coupled is not None:
            return CoupledSpread(self.coupled, batch.coords, batch.observed)
        assert self.kernel is not None, "fit the kernel first"
        return Spread(self.kernel, batch.coords, batch.observed)

    def corrupt(self, batch: Batch, corruption: Corruption, generator: Generator) -> Tensor:
        """Corrupt the values (B, n, c)."""
        return in_user_units(self.scaling, corruption, generator)(batch.values)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        kernel = None if self.kernel is None else dataclasses.asdict(self.kernel)
        coupled = None if self.coupled is None else self.coupled.describe()
        fitted = {"kernel": kernel, "coupled": coupled, "noises": list(self.noises), "waves": None, "trust": None}
        return {"scaling": self.scaling.describe(), "layout": None} | fitted

    def tensors(self) -> dict[str, Tensor]:
        """The coupled kernel, if there is one."""
        return {} if self.coupled is None else self.coupled.tensors()

    def restore_tensors(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Inverse of `tensors`."""
        if about.get("coupled") is not None:
            d, c = len(self.scaling.low), len(self.scaling.mean)
            self.coupled = CoupledKernel.from_tensors(tensors, about["coupled"], d, c)

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> Self:
        """From JSON."""
        kind = cls(Scaling.from_description(about["scaling"]))
        kind.kernel = kernel_from(about.get("kernel"), len(kind.scaling.low), len(kind.scaling.mean))
        if kind.kernel is not None:
            noises = about.get("noises", kind.kernel.noises)  # version 0.1.0 wrote the kernel's alone
            kind.noises = numbers("noises", noises, 0)
        return kind


def one_mask(batch: Batch, fold: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates, values and mask (B', n): channels observed at different points become samples of their own.

    With ``fold`` they do in any case.
    """
    coords, values, observed = batch.coords, batch.values, batch.observed
    if not fold and bool((observed == observed[..., :1]).all()):
        return coords, values, batch.exists
    by_channel = lambda x: x.transpose(1, 2).flatten(0, 1)  # noqa: E731
    return coords.repeat_interleave(values.shape[-1], 0), by_channel(values)[..., None], by_channel(observed)
