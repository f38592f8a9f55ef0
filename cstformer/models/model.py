"""What every model can do, CST and each rival alike: settings, fit, predict, save, load.

A model is a dataclass of settings. Fitted attributes end in ``_``. `Model` is for anything; `NeuralModel`, in
`neural.py`, for what the training loop trains.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from sklearn.exceptions import NotFittedError
from torch import Tensor

from cstformer.data.checks import check_queries, check_training, date_queries, from_model_epoch, warn_outside
from cstformer.data.layout import PatchLayout
from cstformer.data.lazy_batch import in_memory
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError, unknown
from cstformer.models.model_files import load_model, save_model
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kind import Corruption
from cstformer.starts.kinds import kind_from, kind_of
from cstformer.training.settings import check_names, check_settings, setting, setting_fields

PRIOR = "prior."  # what the names of tensors of the prior begin with, in a model file


class NotFitted(CSTError, NotFittedError):
    """A model was asked before it was fitted."""


@dataclass(kw_only=True, eq=False, repr=False)
class Model(ABC):
    """A model of functions that were sampled at points or as frames.

    Subclasses are dataclasses too. They set ``name`` and ``label`` and write `_fit` and `_predict`; what they learned
    goes through `_tensors`, `_description` and `_restore`.

    Attributes
    ----------
    kind_ : DataKind
        Points or frames: units, prior and start of the training data.
    names_ : dict
        Names and units of coordinates and values; ``relative`` says whether times count from the beginning of each
        sample.
    shape_ : (d, c)
        Coordinate axes and channels.
    """

    name: ClassVar[str]
    """Key in a registry, and on the command line."""
    label: ClassVar[str]
    """Name in tables and figures."""
    frames_only: ClassVar[bool] = False
    """Whether only movies, cut into patch tokens, make sense."""
    curves_only: ClassVar[bool] = False
    """Whether only functions of one coordinate make sense."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "smoke": {}, "paper": {}}

    seed: int = setting(0, "seed of everything random", low=0, high=2**32 - 1)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse unknown settings by name before the generated ``__init__`` would."""
        if args:
            raise CSTError(f"{cls.__name__} takes keyword settings only, got {args!r}; e.g. {cls.__name__}(seed=0)")
        check_names(settings, cls, cls._owner())
        return super().__new__(cls)

    def __repr__(self) -> str:
        known = setting_fields(type(self))
        changed = [f"{name}={v!r}" for name, v in self.settings().items() if v != known[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def _owner(cls) -> str:
        """How messages about settings name this model."""
        return f" of {cls.__name__}"

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Make a model with the settings of a preset and your changes to them."""
        if name not in cls.presets:
            raise unknown("preset", name, cls.presets)
        return cls(**{**cls.presets[name], **changes})

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as JSON has them: NumPy's numbers as Python's, arrays and tuples as lists."""
        return {name: _plain(getattr(self, name)) for name in setting_fields(type(self))}

    # Fitting

    def fit(
        self,
        samples: Samples,
        y: None = None,
        *,
        state: str | os.PathLike[str] | None = None,
        progress: bool = False,
        given: Corruption | None = None,
    ) -> Self:
        """Learn from samples.

        Parameters
        ----------
        samples : Samples
        y : ignored
            Present for scikit-learn's sake.
        state : path, optional
            File that makes the training resumable: call ``fit`` again with it after an interruption.
        progress : bool
            Show a progress bar, if there is anything to wait for.
        given : callable, optional
            A corruption: maps clean values (B, n, c), or frames (B, T, H, W, C), and a generator to what the model is
            given, of the same shape; e.g. with half of the pixels replaced by noise. It is drawn anew in every step, in
            the place of noise; ``samples`` are the clean truth. Only models that are trained can learn from it.
        """
        began = time.monotonic()
        self._check_settings()
        samples = self._check_samples(samples, given)
        self.__dict__.pop("shape_", None)  # a fit that fails leaves a model that is not fitted
        some = in_memory(samples, self.seed)
        self.kind_ = kind_of(some, self._scaling())
        if self.reads_covariates:
            self.kind_.fit_known(some)
        self._check_kind(given)
        self.names_: dict[str, Any] = {
            "coord_names": list(samples.coord_names),
            "value_names": list(samples.value_names),
            "units": {k: v for k, v in samples.units.items() if k not in some.covariate_names},
            "relative": bool(some.origin.any()),
        }
        self._corruption, self._began = given, began
        try:
            self._fit(samples, None if state is None else Path(state), progress)
        finally:
            del self._corruption, self._began  # the first may be any function, which nobody could save
        self.shape_ = (samples.d, samples.c)
        return self

    learns_corruption: ClassVar[bool] = False
    """Whether `fit` takes ``given=``."""
    reads_covariates: ClassVar[bool] = False
    """Whether covariates and the calendar are read; other models ignore them."""

    # Answers

    def predict(self, context: Samples, at: Any) -> Float[np.ndarray, "N m c"]:
        """Values at any coordinates, in the user's units.

        Parameters
        ----------
        context : Samples
            The observed points of each function.
        at : array (N, m, d), or (m, d) for all samples alike; (m,) where d = 1
            Of a dated time axis also dates, (m,) or (N, m) of datetime64.
        """
        context, queries = self._inputs(context, at)
        return self._predict(context, queries)

    def latent(self, context: Samples) -> Float[np.ndarray, "N features"]:
        """Describe each sample by the model's own state, where it has one."""
        raise CSTError(f"{type(self).__name__} has no latent state; use predict")

    def _inputs(self, context: Samples, at: Any) -> tuple[Samples, np.ndarray]:
        """Check both; the context sorted, the queries as (N, m, d), in the user's units and from the model's epoch."""
        shape = self._fitted()
        queries = check_queries(context, date_queries(context, at), *shape)
        context, queries = from_model_epoch(context, queries, self.names_)
        warn_outside(self.kind_.outside(queries), self.names_["coord_names"], stacklevel=4)
        return context.merged().sorted(), queries

    @property
    def n_parameters_(self) -> int:
        """Trainable numbers of a fitted network; models without a network have none."""
        self._fitted()
        return 0

    @property
    def scaling_(self) -> Scaling:
        """Between the user's units and the model's."""
        return self.kind_.scaling

    @property
    def kernel_(self) -> Kernel | None:
        """Gaussian process of the training data, where one was fitted."""
        return self.kind_.kernel

    @property
    def layout_(self) -> PatchLayout | None:
        """How patches tile a frame, of a model of movies."""
        return self.kind_.layout

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "shape_")

    # Keeping

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model directory (safetensors + JSON), atomically."""
        d, c = self._fitted()
        about = {
            "kind": type(self).__name__,
            "settings": self.settings(),
            "d": d,
            "c": c,
            "names": self.names_,
            **self.kind_.describe(),
            **self.kind_.describe_known(),
        }
        prior = {PRIOR + name: x for name, x in self.kind_.tensors().items()}
        save_model(folder, self._tensors() | prior, about | self._description())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a model directory; never runs code from it."""
        tensors, about = load_model(folder, cls.__name__)
        try:
            model = cls(**about["settings"])
            model._check_settings()
            model.kind_ = kind_from(about)
            prior = {name: tensors.pop(name) for name in list(tensors) if name.startswith(PRIOR)}
            model.kind_.restore_tensors({name.removeprefix(PRIOR): x for name, x in prior.items()}, about)
            if cls.reads_covariates:
                model.kind_.restore_known(about)
            model.names_ = about["names"]
            shape = (int(about["d"]), int(about["c"]))
            sizes = [len(getattr(model.scaling_, name)) for name in ("low", "span", "mean", "sd")]
            if sizes != [shape[0]] * 2 + [shape[1]] * 2:
                raise ValueError(f"scaling has {sizes} entries for d={shape[0]} and c={shape[1]}")
            model._restore(tensors, about, *shape)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = f"{error} is missing" if isinstance(error, KeyError) else lines[0]
            raise CSTError(f"{folder} cannot be read: {reason}; save the model again") from None
        model.shape_ = shape
        return model

    # What a model writes

    @abstractmethod
    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        """Learn from checked samples; ``kind_`` and ``names_`` are set already."""

    @abstractmethod
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        """Answer at queries (N, m, d), all in the user's units; points are sorted and not repeated."""

    def _tensors(self) -> dict[str, Tensor]:
        """Give what was learned, as tensors."""
        return {}

    def _description(self) -> dict[str, Any]:
        """Give what else was learned, as JSON."""
        return {}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:  # noqa: B027
        """Take back what `_tensors` and `_description` gave."""

    # Checks

    def _check_settings(self) -> None:
        check_settings(self.settings(), type(self), self._owner())

    def _check_samples(self, samples: Samples, given: Corruption | None) -> Samples:
        """Refuse samples that this model cannot learn from; sort the others."""
        samples, name = check_training(samples), type(self).__name__
        if given is not None and not self.learns_corruption:
            raise CSTError(f"{name} cannot learn from given=: no training adapts it to a corruption; leave it out")
        if self.frames_only and samples.layout is None:
            raise CSTError(f"{name} needs the patches of a movie (frames_to_samples), got {samples}")
        if self.curves_only and samples.d > 1:
            raise CSTError(f"{name} needs curves (d = 1), got {samples}; choose another model")
        return samples

    def _scaling(self) -> str:
        """Say which channels are scaled robustly, see `Scaling.of`."""
        return "linear"

    def _check_kind(self, given: Corruption | None) -> None:  # noqa: B027
        """Refuse settings that do not go with this kind of data."""

    def _fitted(self) -> tuple[int, int]:
        """Return d and c of the training samples."""
        if not hasattr(self, "shape_"):
            name = type(self).__name__
            raise NotFitted(f"this {name} is not fitted yet; call fit(samples) or {name}.load(folder) first")
        return self.shape_


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
