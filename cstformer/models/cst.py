"""CST: fit on samples, ask for values, derivatives and attention anywhere."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from cstformer.data.checks import check_queries, extrapolation, from_model_epoch
from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models import intervals, launching, reader
from cstformer.models.calibration import Calibration
from cstformer.models.fitting import Fitting
from cstformer.models.labelled import as_context, as_samples, labelled
from cstformer.models.neural import NeuralModel
from cstformer.models.reader import AttentionMaps, Reader
from cstformer.models.recordings import RecordingReader, is_recording
from cstformer.network.architecture import Architecture, parameter_count
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.kind import Corruption
from cstformer.system.described import number
from cstformer.taylor.derivatives import check_multi_index
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import (
    AUTOMATIC,
    PRESETS,
    NetworkSettings,
    Settings,
    UserSettings,
    resolve,
    setting_fields,
)

CALIBRATION = "calibration."  # what the names of tensors of the calibration begin with, in a model file
MAX_TOKENS = 2**15  # points of one sample that attention can still hold


@dataclass(kw_only=True, eq=False, repr=False)
class CST(UserSettings, NeuralModel):
    """Continuous Spatiotemporal Transformer.

    Learns functions u: R^d → R^c from samples that are noisy, sparse and irregular, and answers at any
    coordinate.
    All parameters are keyword arguments with defaults that work; ``cst fit --help`` explains each.

    Examples
    --------
    >>> t = np.linspace(0, 1, 8)
    >>> waves = Samples(t, np.sin(2 * np.pi * (t + np.arange(6)[:, None] / 6)))
    >>> model = CST.preset("smoke", seed=1).fit(waves)
    >>> model.predict(waves, at=[0.25, 0.33]).shape
    (6, 2, 1)
    >>> model.derivative(waves, [0.25], (1,)).shape
    (6, 1, 1)
    """

    name: ClassVar[str] = "cst"
    label: ClassVar[str] = "CST"
    presets: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    learns_corruption: ClassVar[bool] = True
    reads_covariates: ClassVar[bool] = True

    # Fitting

    def fit(
        self,
        samples: Any,
        y: None = None,
        *,
        state: str | os.PathLike[str] | None = None,
        progress: bool = False,
        given: Corruption | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Self:
        """Train on samples.

        Parameters
        ----------
        samples : Samples; a DataFrame or Dataset with them; or LazyFrames: a movie that stays on disk
        y : ignored
            Present for scikit-learn's sake.
        state : path, optional
            File that makes the training resumable: call ``fit`` again with it after an interruption.
        progress : bool
            Show a progress bar.
        given : callable, optional
            A corruption: maps clean values (B, n, c), or frames (B, T, H, W, C), in the user's units, and a generator
            to what the model is given, of the same shape; e.g. with half of the pixels replaced by noise. It is drawn
            anew in every step, in the place of noise; ``samples`` are the clean truth.
        columns : dict, optional
            How to read a DataFrame or a Dataset: arguments of `Samples.from_frame` or `Samples.from_xarray`, such as
            ``{"group": "subject", "values": ["glucose"]}``. The model remembers them.
        """
        samples = as_samples(samples, columns)
        self._check_settings()
        if launching.must_launch(self):
            launching.fit_on_processes(self, self._check_samples(samples, given), state, progress)
            return self
        return super().fit(samples, state=state, progress=progress, given=given)

    def calibrate(self, samples: Any, y: None = None) -> Self:
        """Measure errors on samples that the model was not trained on; `fit` does so on its validation samples.

        Intervals and standard deviations follow from these errors. Points of the samples are hidden and asked for, in
        turn. Intervals of level L need L / (1 − L) samples: 9 for 90 %, 19 for 95 %.
        """
        d, c = self._fitted()
        samples = as_context(self, samples)
        check_queries(samples, np.zeros((1, d)), d, c)
        if is_recording(self, samples):
            samples = samples.windows(*self.names_["window"])
        samples, _ = from_model_epoch(samples, np.zeros((1, 1, d)), self.names_)
        found = intervals.calibrated(self, self._batch(samples.merged().sorted()))
        if found is None:
            raise CSTError(f"{samples} cannot calibrate: each sample needs three points or more, so that one can hide")
        self.calibration_: Calibration | None = found
        return self

    # Answers

    @labelled
    def predict(self, context: Any, at: Any, return_std: bool = False, *, extrapolate: bool = False) -> Any:
        """Values at any coordinates, in the user's units.

        Parameters
        ----------
        context : Samples, DataFrame or Dataset
            The observed points of each function. A model that was fitted on windows (`Samples.windows`) also reads
            whole recordings: it cuts them into overlapping windows and blends their answers smoothly.
        at : array (N, m, d), or (m, d) for all samples alike; (m,) where d = 1
            Of a dated time axis also dates, (m,) or (N, m) of datetime64. For a DataFrame also a DataFrame of queries,
            whose column of samples picks those of the context.
        return_std : bool
            Whether to return the standard deviation of the function as well, without the noise of an observation; see
            `interval` for bounds of an observation.
        extrapolate : bool
            Whether to answer queries beyond the training domain by more than a tenth of its extent. The start holds the
            value of the nearest observed point there, and the network has learned nothing.

        Returns
        -------
        array (N, m, c), or two of them; for a DataFrame or a Dataset, these
        """
        with extrapolation(extrapolate):
            context, queries = self._inputs(context, at)
            zero = (0,) * context.d
            if return_std:
                return intervals.with_sd(self, context, queries, zero)
            return self._in_windows(context, queries, [zero], functools.partial(reader.derivatives, self))[0]

    @labelled
    def interval(
        self, context: Any, at: Any, level: float = 0.9, noise: bool = True, *, extrapolate: bool = False
    ) -> tuple[Any, Any]:
        """Lower and upper bounds that a new observation lies between with probability ``level``.

        They are calibrated on held-out samples, see `calibrate`, and hold on average over samples like these and over
        the places that were hidden in them.

        Parameters
        ----------
        context, at, extrapolate : as in `predict`
        level : between 0 and 1
        noise : bool
            False for bounds of the function itself, without the noise of an observation. Nothing can calibrate them
            but an estimate of the noise.

        Examples
        --------
        >>> rng, t = np.random.default_rng(0), np.linspace(0, 1, 8)
        >>> waves = np.sin(2 * np.pi * (t + rng.uniform(size=(100, 1)))) + 0.1 * rng.normal(size=(100, 8))
        >>> model = CST.preset("smoke").fit(Samples(t, waves))
        >>> low, high = model.interval(Samples(t, waves[:2]), at=[0.25, 0.33])
        >>> low.shape, bool((low < high).all())
        ((2, 2, 1), True)
        """
        with extrapolation(extrapolate):
            return intervals.bounds(self, *self._inputs(context, at), level, noise)[1:]

    @labelled
    def derivative(
        self, context: Any, at: Any, index: Sequence[int], return_std: bool = False, *, extrapolate: bool = False
    ) -> Any:
        """Partial derivative at any coordinates, in the user's units.

        Parameters
        ----------
        context, at, extrapolate : as in `predict`
        index : tuple of int
            Order along each coordinate axis, e.g. ``(2,)``, or ``(1, 0, 1)`` for ∂²/∂t∂col. In pattern
            ``joint`` it is the derivative along a simultaneous shift of all queries.
        return_std : bool
            Whether to return the standard deviation as well. It is that of a Gaussian process, times what the errors of
            values say; no observation can calibrate it.

        Returns
        -------
        array (N, m, c), or two of them
        """
        if not return_std:
            return self.derivatives(context, at, [index], extrapolate=extrapolate)[0]
        wanted = check_multi_index(index, self._fitted()[0])
        with extrapolation(extrapolate):
            return intervals.with_sd(self, *self._inputs(context, at), wanted)

    def derivatives(
        self, context: Samples, at: Any, indices: Sequence[Sequence[int]], *, extrapolate: bool = False
    ) -> list[np.ndarray]:
        """Several partial derivatives in one pass; order 0 is the value."""
        wanted = [check_multi_index(index, self._fitted()[0]) for index in indices]
        with extrapolation(extrapolate):
            return self._in_windows(*self._inputs(context, at), wanted, functools.partial(reader.derivatives, self))

    def attention(self, context: Samples, at: Any, values: Any = None) -> AttentionMaps:
        """Attention maps of every layer and head for these context points and queries.

        Parameters
        ----------
        context, at : as in `predict`
        values : array (N, m, c), optional
            What is known at the queries, in the user's units; it then takes the place of their initial values.
        """
        context, queries = self._inputs(context, at)
        if is_recording(self, context):
            raise CSTError("attention is that within a window; pass context.windows(length, stride)")
        return reader.attention_maps(self, context, queries, values)

    def reader(self, context: Samples) -> Reader:
        """Encode a context once, to ask it again and again; answers equal `derivatives` and `attention`."""
        self._fitted()
        if is_recording(self, context):
            return RecordingReader(self, context)
        return reader.make_reader(self, context)

    # What a model writes

    @classmethod
    def _owner(cls) -> str:
        return ""

    def _check_samples(self, samples: Samples | LazyFrames, given: Corruption | None) -> Any:
        processes = self.devices * self.nodes
        if given is not None and processes > 1:
            raise CSTError(f"given= is a function, which {processes} processes cannot share; use devices=1, nodes=1")
        if not isinstance(samples, LazyFrames):
            samples = super()._check_samples(samples, given)
        if samples.n > MAX_TOKENS:
            raise CSTError(
                f"a sample has {samples.n:,} points, more than the {MAX_TOKENS:,} that attention can hold; "
                "cut it by samples.windows(length, stride) (--window), or frames into patches (--patch)"
            )
        return samples

    def _check_kind(self, given: Corruption | None) -> None:
        super()._check_kind(given)
        self.kind_.check_start(self.start, self.pattern, given is not None)
        self.kind_.check_coord_noise(self.coord_noise)

    def _fit(self, samples: Samples | LazyFrames, state: Path | None, progress: bool) -> None:
        # Set by `Fitting`; an annotation in the class would be a setting.
        self.noises_: tuple[tuple[float, ...], tuple[float, ...]]
        try:
            Fitting(self, samples).fit(state, progress)
        except BaseException:
            self.__dict__.pop("network_", None)  # a network that was not trained must not answer
            raise

    def _objective(self, mu: float, run: Settings) -> SobolevObjective:
        """Make the loss of a training step."""
        (added, believed), corruption = self.noises_, getattr(self, "_corruption", None)
        return SobolevObjective(self.network_, self.kind_, run, added, believed, mu, corruption, self.cells_)

    def _network(self, d: int, c: int) -> ContinuousTransformer:
        network = ContinuousTransformer(self._architecture(d, c)).to(self._dtype())
        network.fit_axes(self.kind_.periods)
        return network

    def resolved(self) -> Settings:
        """The settings with numbers in the place of ``auto``: those of the fit, or else those for the kind of data."""
        return getattr(self, "run_", None) or resolve(self.settings(), self.kind_.preset)

    def _architecture(self, d: int, c: int) -> Architecture:
        run = self.resolved()
        near = run.nearness == "always" or (run.nearness == "auto" and self.kind_.near)
        sizes = {name: getattr(run, name) for name in setting_fields(NetworkSettings)}
        if (known := self.kind_.covariates) is not None and (calendar := self.kind_.calendar) is not None:
            sizes |= {"covariates": known.size, "calendar": calendar.rates, "time_axis": calendar.axis}
        return Architecture(d=d, c=c, near=near, **self.kind_.network_options(run.start, self.pattern), **sizes)

    def _tensors(self) -> dict[str, Tensor]:
        found = self.calibration_
        kept = {} if found is None else {CALIBRATION + name: x for name, x in found.tensors().items()}
        return super()._tensors() | kept

    def _description(self) -> dict[str, Any]:
        chosen = {name: getattr(self.run_, name) for name in (*AUTOMATIC, "nearness", "start")}
        return super()._description() | {
            "noise": self.noise_,
            "cells": self.cells_,
            "mu": self.mu_,
            "chosen": {name: value for name, value in chosen.items() if getattr(self, name) == "auto"},
        }

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.run_ = resolve(self.settings() | about.get("chosen", {}), self.kind_.preset)  # 0.1.0 chose nothing
        scores = {k.removeprefix(CALIBRATION): tensors.pop(k) for k in list(tensors) if k.startswith(CALIBRATION)}
        channels = self.kind_.state_shape(c)[-1]
        self.calibration_ = Calibration.from_tensors(scores, channels) if scores else None  # 0.1.0 kept none
        super()._restore(tensors, about, d, c)
        self.noise_, self.mu_ = number("noise", about["noise"], 0), number("mu", about["mu"], 0)
        self.cells_ = number("cells", about.get("cells", 0.0), 0)  # version 0.1.0 hid whole points alone
        self.kind_.check_prior(self.run_.start)

    def _check_sizes(self, tensors: dict[str, Tensor], d: int, c: int) -> None:
        found = sum(v.numel() for v in tensors.values())
        with torch.device("meta"):  # which takes no memory
            shallow = parameter_count(ContinuousTransformer(dataclasses.replace(self._architecture(d, c), layers=1)))
        if shallow > 1_000_000 + 10 * found or self.layers > len(tensors):
            raise ValueError(f"its settings need far more weights than the {found:,} that it has")

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        return reader.derivatives(self, context, queries, [(0,) * context.d])[0]
