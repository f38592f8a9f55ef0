"""CST: fit on samples, ask for values, derivatives and attention anywhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor

from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models import launching, reader
from cstformer.models.fitting import Fitting
from cstformer.models.neural import NeuralModel
from cstformer.models.reader import AttentionMaps, Reader
from cstformer.network.architecture import Architecture, parameter_count
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.kind import Corruption
from cstformer.taylor.derivatives import check_multi_index
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import (
    AUTOMATIC,
    PRESETS,
    NetworkSettings,
    Settings,
    UserSettings,
    check_names,
    resolve,
    setting_fields,
)

MAX_TOKENS = 2**15  # points of one sample that attention can still hold


@dataclass(kw_only=True, eq=False, repr=False)
class CST(UserSettings, NeuralModel, BaseEstimator):
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
        samples: Samples | LazyFrames,
        y: None = None,
        *,
        state: str | os.PathLike[str] | None = None,
        progress: bool = False,
        given: Corruption | None = None,
    ) -> Self:
        """Train on samples.

        Parameters
        ----------
        samples : Samples, or LazyFrames: a movie that stays on disk
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
        """
        self._check_settings()
        if launching.must_launch(self):
            launching.fit_on_processes(self, self._check_samples(samples, given), state, progress)
            return self
        return super().fit(samples, state=state, progress=progress, given=given)  # type: ignore[arg-type]

    # Answers

    def derivative(self, context: Samples, at: Any, index: Sequence[int]) -> Float[np.ndarray, "N m c"]:
        """Partial derivative at any coordinates, in the user's units.

        Parameters
        ----------
        context, at : as in `predict`
        index : tuple of int
            Order along each coordinate axis, e.g. ``(2,)``, or ``(1, 0, 1)`` for ∂²/∂t∂col. In pattern
            ``joint`` it is the derivative along a simultaneous shift of all queries.
        """
        wanted = [check_multi_index(index, self._fitted()[0])]
        return reader.derivatives(self, *self._inputs(context, at), wanted)[0]

    def derivatives(self, context: Samples, at: Any, indices: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Several partial derivatives in one pass; order 0 is the value."""
        wanted = [check_multi_index(index, self._fitted()[0]) for index in indices]
        return reader.derivatives(self, *self._inputs(context, at), wanted)

    def attention(self, context: Samples, at: Any, values: Any = None) -> AttentionMaps:
        """Attention maps of every layer and head for these context points and queries.

        Parameters
        ----------
        context, at : as in `predict`
        values : array (N, m, c), optional
            What is known at the queries, in the user's units; it then takes the place of their initial values.
        """
        context, queries = self._inputs(context, at)
        return reader.attention_maps(self, context, queries, values)

    def reader(self, context: Samples) -> Reader:
        """Encode a context once, to ask it again and again; answers equal `derivatives` and `attention`."""
        self._fitted()
        return reader.make_reader(self, context)

    # scikit-learn

    def set_params(self, **settings: Any) -> Self:
        """Change settings; an unknown one is refused by name, with the nearest valid one."""
        check_names(settings)
        return super().set_params(**settings)

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
        super()._restore(tensors, about, d, c)
        self.noise_, self.mu_ = about["noise"], about["mu"]
        self.cells_ = about.get("cells", 0.0)  # version 0.1.0 hid whole points alone
        self.kind_.check_prior(self.run_.start)

    def _check_sizes(self, tensors: dict[str, Tensor], d: int, c: int) -> None:
        found = sum(v.numel() for v in tensors.values())
        with torch.device("meta"):  # which takes no memory
            shallow = parameter_count(ContinuousTransformer(dataclasses.replace(self._architecture(d, c), layers=1)))
        if shallow > 1_000_000 + 10 * found or self.layers > len(tensors):
            raise ValueError(f"its settings need far more weights than the {found:,} that it has")

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        return reader.derivatives(self, context, queries, [(0,) * context.d])[0]
