"""What every model can do, CST and each rival alike: settings, fit, predict, score, save, load.

A model is a dataclass of settings and an estimator of scikit-learn. Fitted attributes end in ``_``. `Model` is for
anything; `NeuralModel`, in `neural.py`, for what the training loop trains.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from torch import Tensor

from cstformer.data.checks import (
    check_outside,
    check_queries,
    check_training,
    date_queries,
    extrapolation,
    from_model_epoch,
)
from cstformer.data.layout import PatchLayout
from cstformer.data.lazy_batch import in_memory
from cstformer.data.plausible import check_numbers
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError, unknown
from cstformer.models import recordings, scoring
from cstformer.models.estimator import Estimator
from cstformer.models.labelled import as_context, as_samples, labelled
from cstformer.models.model_files import load_model, save_model
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kind import Corruption
from cstformer.starts.kinds import kind_from, kind_of
from cstformer.system.described import texts
from cstformer.system.devices import is_out_of_memory
from cstformer.system.extras import need
from cstformer.taylor.derivatives import MultiIndex
from cstformer.training.settings import check_names, check_settings, setting, setting_fields

if TYPE_CHECKING:
    from cstformer.report.sample_plots import Picture

PRIOR = "prior."  # what the names of tensors of the prior begin with, in a model file


@dataclass(kw_only=True, eq=False, repr=False)
class Model(Estimator, ABC):
    """A model of functions that were sampled at points or as frames.

    Attributes
    ----------
    kind_ : DataKind
        Points or frames: units, prior and start of the training data.
    names_ : dict
        Names and units of coordinates and values; ``relative`` says whether times count from the beginning of each
        sample; ``window`` is that of samples which are windows of recordings, ``group`` the column of samples.
    shape_ : (d, c)
        Coordinate axes and channels.
    """

    # Subclasses are dataclasses too. They set ``name`` and ``label`` and write `_fit` and `_predict`; what they learned
    # goes through `_tensors`, `_description` and `_restore`.
    name: ClassVar[str]
    """Key in a registry, and on the command line."""
    label: ClassVar[str]
    """Name in tables and figures."""
    frames_only: ClassVar[bool] = False
    """Whether only movies, cut into patch tokens, make sense."""
    curves_only: ClassVar[bool] = False
    """Whether only functions of one coordinate make sense."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "smoke": {}, "paper": {}}

    needs: ClassVar[tuple[str, ...]] = ()
    """Optional modules that fit and predict import."""

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
    def preset(cls, name: str, **changes: Any) -> Self:
        """Make a model with the settings of a preset and your changes to them.

        Parameters
        ----------
        name : str
            "default", "smoke" (seconds of training, to try things out), "paper" (as published), or another key of
            `presets`.
        changes : settings
            Arguments of the class, such as ``seed=1``; they override the preset.
        """
        if name not in cls.presets:
            raise unknown("preset", name, cls.presets)
        return cls(**{**cls.presets[name], **changes})

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as JSON has them: NumPy's numbers as Python's, arrays and tuples as lists."""
        return {name: _plain(getattr(self, name)) for name in setting_fields(type(self))}

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
        """Learn from samples.

        Parameters
        ----------
        samples : Samples, or a DataFrame or Dataset with them
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
        columns : dict, optional
            How to read a DataFrame or a Dataset: arguments of `Samples.from_frame` or `Samples.from_xarray`, such as
            ``{"group": "subject", "values": ["glucose"]}``. The model remembers them.
        """
        began = time.monotonic()
        need(*self.needs, for_what=self.label)
        self._check_settings()
        samples = self._check_samples(as_samples(samples, columns), given)
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
            "relative": bool(some.origin.any()) or some.window is not None,
        } | {name: _plain(known) for name in ("window", "group") if (known := getattr(some, name)) is not None}
        self._corruption, self._began = given, began
        try:
            self._fit(samples, None if state is None else Path(state), progress)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise CSTError(
                f"there is not enough memory to fit {samples}; cut long samples into windows, or lower batch, width or "
                "dummies"
            ) from None
        finally:
            del self._corruption, self._began  # the first may be any function, which nobody could save
        self.shape_ = (samples.d, samples.c)
        return self

    learns_corruption: ClassVar[bool] = False
    """Whether `fit` takes ``given=``."""
    reads_covariates: ClassVar[bool] = False
    """Whether covariates and the calendar are read; other models ignore them."""

    # Answers

    @labelled
    def predict(self, context: Any, at: Any, *, extrapolate: bool = False) -> Any:
        """Values at any coordinates, in the user's units.

        Parameters
        ----------
        context : Samples, DataFrame or Dataset
            The observed points of each function. A model that was fitted on windows (`Samples.windows`) also reads
            whole recordings: it cuts them into overlapping windows and blends their answers smoothly.
        at : array (N, m, d), or (m, d) for all samples alike; (m,) where d = 1
            Of a dated time axis also dates, (m,) or (N, m) of datetime64. For a DataFrame also a DataFrame of queries.
        extrapolate : bool
            Whether to answer queries beyond the training domain by more than a tenth of its extent.

        Returns
        -------
        array (N, m, c); for a DataFrame or a Dataset, one of these
        """
        with extrapolation(extrapolate):
            context, queries = self._inputs(context, at)
            return self._in_windows(context, queries, [(0,) * context.d], lambda c, x, _: [self._predict(c, x)])[0]

    def score(self, context: Any, truth: Any = None) -> float:
        """R², the coefficient of determination of `predict`; 1 is perfect, and a constant mean has 0.

        It is 1 − Σ(y − ŷ)² / Σ(y − ȳ)² over the observed cells of a channel, averaged over channels as scikit-learn
        does. ``cross_val_score`` and ``GridSearchCV`` maximise it.

        Parameters
        ----------
        context : Samples, DataFrame or Dataset
            The observed points of each function. ``cross_val_score`` splits `Samples` by sample; the rows of a
            DataFrame would be torn apart.
        truth : as the context, optional
            Other points of the same samples, in the same order. Without it, up to half of the points of each sample are
            hidden from the context, always the same ones, and serve as truth; where the data miss single cells, cells
            are hidden too.
        """
        context, truth = as_context(self, context), as_context(self, truth)
        if truth is None:
            context, truth = scoring.hide_part(context)
        answer = self.predict(context, scoring.queries(context, truth), extrapolate=True)
        return scoring.r_squared(answer, truth.values, truth.observed)

    def plot(
        self,
        context: Any,
        *,
        rivals: Sequence[Model] | None = None,
        level: float | None = None,
        hidden: Any = None,
        channels: Sequence[str] | None = None,
    ) -> Picture:
        """Draw the points of the first samples and the model's curves through them, in the user's units.

        Where the model has intervals, a band shows them. Notebooks show the figure; ``savefig(path)`` writes it.

        Parameters
        ----------
        context : Samples, DataFrame or Dataset of one coordinate axis
        rivals : fitted models, optional
            Their curves are drawn too; by default that of the Gaussian process which CST begins with.
        level : float, optional
            Probability that the interval covers a new observation; by default 0.9, or the highest for which enough
            samples were held out in the training.
        hidden : as the context, optional
            Points of the same samples that are not in the context; they are drawn, and the model does not see them.
        channels : names of the channels to draw; the first six by default
        """
        self._fitted()
        from cstformer.models.plotting import plot_model  # matplotlib: only pictures need it

        context, hidden = as_context(self, context), as_context(self, hidden)
        return plot_model(self, context, rivals, level, hidden, channels)

    def latent(self, context: Samples) -> Float[np.ndarray, "N features"]:
        """Describe each sample by the model's own state, where it has one."""
        raise CSTError(f"{type(self).__name__} has no latent state; use predict")

    def _inputs(self, context: Samples, at: Any) -> tuple[Samples, np.ndarray]:
        """Check both; the context sorted, the queries as (N, m, d), in the user's units and from the model's epoch."""
        shape = self._fitted()
        queries = check_queries(context, date_queries(context, at), *shape)
        context, queries = from_model_epoch(context, queries, self.names_)
        if not recordings.is_recording(self, context):
            self._check_outside(queries)
        return context.merged().sorted(), queries

    def _check_outside(self, queries: np.ndarray) -> None:
        kind = self.kind_
        check_outside(kind.outside(queries), self.names_["coord_names"], kind.bounded_axes, stacklevel=7)

    def _in_windows(
        self, context: Samples, queries: np.ndarray, wanted: Sequence[MultiIndex], ask: recordings.Ask
    ) -> list[np.ndarray]:
        """What ``ask`` answers to inputs that `_inputs` checked; in windows where the context is a recording."""
        if not recordings.is_recording(self, context):
            return ask(context, queries, list(wanted))

        def checked(windows: Samples, at: np.ndarray, indices: list[MultiIndex]) -> list[np.ndarray]:
            self._check_outside(at)
            return ask(windows, at, indices)

        return recordings.blended(self, context, queries, wanted, checked)

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
            shape = (int(about["d"]), int(about["c"]))
            model.names_ = _checked_names(about["names"], *shape)
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

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        """Take back what `_tensors` and `_description` gave."""

    # Checks

    def _check_settings(self) -> None:
        check_settings(self.settings(), type(self), self._owner())

    def _check_samples(self, samples: Samples, given: Corruption | None) -> Samples:
        """Refuse samples that this model cannot learn from; sort the others."""
        samples, name = check_training(samples), type(self).__name__
        check_numbers(samples, stacklevel=5)
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

    def _check_kind(self, given: Corruption | None) -> None:
        """Refuse settings that do not go with this kind of data."""

    def _fitted(self) -> tuple[int, int]:
        """Return d and c of the training samples."""
        if not hasattr(self, "shape_"):
            from cstformer.models.not_fitted import NotFitted  # scikit-learn: a fitted model does not wait for it

            name = type(self).__name__
            raise NotFitted(f"this {name} is not fitted yet; call fit(samples) or {name}.load(folder) first")
        return self.shape_


def _checked_names(names: dict[str, Any], d: int, c: int) -> dict[str, Any]:
    """Names and units as JSON has them, checked."""
    texts("coord_names", names["coord_names"], d)
    texts("value_names", names["value_names"], c)
    texts("units", list(names["units"].values()), len(names["units"]))
    if not isinstance(relative := names.get("relative", False), bool):  # version 0.1.0 had none
        raise ValueError(f"relative must be true or false, got {relative}")
    return names


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value
