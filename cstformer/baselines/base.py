"""The contract of every rival: fit on samples, predict anywhere, save and load. One file a family.

A new rival subclasses `Baseline` (or, if `training.train` trains it, `NeuralBaseline`), fills in the few
methods marked abstract, and gets one line in `cstformer.baselines.BASELINES`; ``tests/test_contract.py`` then
tests it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from cstformer.checkpoint import load_model, save_model
from cstformer.errors import CSTError, CSTWarning, unknown
from cstformer.objective import Batch
from cstformer.patches import PatchLayout
from cstformer.samples import Samples, as_floats
from cstformer.scaling import Scaling
from cstformer.settings import Settings, _check_one, _setting, check_settings, setting_fields
from cstformer.training import TrainingReport, train
from cstformer.transformer import parameter_count

TOKENS_PER_STEP = 2**13  # context tokens of one training step: large samples come in smaller batches


def check_queries(context: Samples, at: Any, d: int, c: int) -> Float[np.ndarray, "N m d"]:
    """Refuse a context or queries that a model of d axes and c channels cannot use; queries as (N, m, d).

    >>> curve = Samples([0.0, 1.0], [[2.0, 3.0]])
    >>> check_queries(curve, [0.5], d=1, c=1).tolist()
    [[[0.5]]]
    """
    if not isinstance(context, Samples):
        raise CSTError(
            f"context must be Samples, got {type(context).__name__}; wrap arrays as Samples(coords, values)"
        )
    if (context.d, context.c) != (d, c):
        raise CSTError(
            f"context has {context.d} coordinate axes and {context.c} channels; "
            f"the model was fitted with {d} and {c}"
        )
    x = as_floats("at", at.coords if isinstance(at, Samples) else at)
    given = x.shape
    if x.ndim == 1 and d == 1:
        x = x[:, None]
    if x.ndim == 2:
        x = np.broadcast_to(x, (len(context), *x.shape))
    if x.ndim != 3 or x.shape[0] != len(context) or x.shape[2] != d or x.shape[1] == 0:
        raise CSTError(
            f"at has shape {given}; give (m, {d}) or ({len(context)}, m, {d}) with m ≥ 1, "
            f"one row of coordinates per query"
        )
    if not np.isfinite(x).all():
        raise CSTError("at contains NaN or infinite coordinates; remove those queries")
    return x


def warn_outside(queries: np.ndarray, scaling: Scaling, coord_names: list[str]) -> None:
    """Say so when queries lie outside the training domain."""
    scaled = scaling.coords(queries)
    outside = np.maximum(-scaled, scaled - 1).max((0, 1))
    if (outside > 1e-6).any():
        axis = int(outside.argmax())
        warnings.warn(
            f"coordinates lie outside the training domain by up to {outside[axis]:.1%} of its extent along "
            f"{coord_names[axis]!r}; answers there are extrapolated",
            CSTWarning,
            stacklevel=3,
        )


def check_training(samples: Samples) -> Samples:
    """Average repeated coordinates and sort the points; refuse samples of fewer than two."""
    if not isinstance(samples, Samples):
        raise CSTError(
            f"fit takes Samples, got {type(samples).__name__}; wrap arrays as Samples(coords, values)"
        )
    samples = samples.merged().sorted()
    few = np.flatnonzero(samples.point_observed.sum(1) < 2)
    if len(few):
        raise CSTError(
            f"samples {few[:5].tolist()} have fewer than two observed points; remove them or give them more"
        )
    return samples


def split_samples(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation samples by CST's rule; with fewer than five samples the same ones serve both.

    >>> training, held_out = split_samples(10, 0.2, seed=0)
    >>> len(training), len(held_out), sorted(torch.cat([training, held_out]).tolist()) == list(range(10))
    (8, 2, True)
    """
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * count)) if count >= 5 and fraction > 0 else 0
    return (shuffled[held:], shuffled[:held]) if held else (shuffled, shuffled)


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(ABC):
    """A rival of CST. Settings are dataclass fields, fitted attributes end in ``_``.

    Subclasses are dataclasses too; they set ``name`` and ``label`` and write `_fit` and `_predict`, and what
    they learned goes through `_tensors`, `_description` and `_restore`.
    """

    name: ClassVar[str]
    """Key in `BASELINES`, and on the command line."""
    label: ClassVar[str]
    """Name in tables and figures."""
    curves_only: ClassVar[bool] = False
    """Whether only d = 1 makes sense."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "smoke": {}, "paper": {}}
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Inherited settings that mean nothing to this model; changing one is refused."""

    seed: int = _setting(0, "seed of everything random", low=0)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse unknown settings by name before the generated ``__init__`` would."""
        if args:
            raise CSTError(
                f"{cls.__name__} takes keyword settings only, got {args!r}; e.g. {cls.__name__}(seed=0)"
            )
        known = {f.name for f in dataclasses.fields(cls)} - cls.ignored
        for name in settings:
            if name not in known:
                raise unknown(f"setting of {cls.__name__}", name, known)
        return super().__new__(cls)

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        changed = [f"{f.name}={v!r}" for f in fields if (v := getattr(self, f.name)) != f.default]
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Take the settings of a preset (``default``, ``paper``, ``smoke``) and your changes to them."""
        if name not in cls.presets:
            raise unknown("preset", name, cls.presets)
        return cls(**{**cls.presets[name], **changes})

    def settings(self) -> dict[str, Any]:
        """Return the settings by name."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in self.ignored]
        return {name: getattr(self, name) for name in names}

    def fit(
        self, samples: Samples, *, state: str | os.PathLike[str] | None = None, progress: bool = False
    ) -> Self:
        """Learn from samples.

        Parameters
        ----------
        samples : Samples
        state : path, optional
            File that makes a long training resumable; models that fit at once leave it alone.
        progress : bool
            Show a progress bar, if there is anything to wait for.
        """
        self._check_settings()
        samples = check_training(samples)
        self._check_axes(samples.d)
        self.layout_: PatchLayout | None = samples.layout
        self.names_: dict[str, Any] = {
            "coord_names": list(samples.coord_names),
            "value_names": list(samples.value_names),
            "units": dict(samples.units),
        }
        self.scaling_ = Scaling.of(samples)
        self._fit(samples, None if state is None else Path(state), progress)
        self.shape_ = (samples.d, samples.c)
        return self

    def predict(self, context: Samples, at: Any) -> Float[np.ndarray, "N m c"]:
        """Values at any coordinates, in the user's units.

        Parameters
        ----------
        context : Samples
            The observed points of each function.
        at : array (N, m, d), or (m, d) for all samples alike; (m,) where d = 1
        """
        context, queries = self._inputs(context, at)
        warn_outside(queries, self.scaling_, self.names_["coord_names"])
        return self._predict(context, queries)

    def _inputs(self, context: Samples, at: Any) -> tuple[Samples, np.ndarray]:
        """Check both; the context sorted, the queries as (N, m, d), in the user's units."""
        queries = check_queries(context, at, *self._fitted())
        return context.merged().sorted(), queries

    @property
    def n_parameters_(self) -> int:
        """Trainable numbers of a fitted network; interpolators have none."""
        self._fitted()
        return 0

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model directory (safetensors + JSON), atomically."""
        d, c = self._fitted()
        about = {
            "kind": type(self).__name__,
            "settings": {k: v.item() if isinstance(v, np.generic) else v for k, v in self.settings().items()},
            "d": d,
            "c": c,
            "scaling": self.scaling_.describe(),
            "names": self.names_,
            "layout": None if self.layout_ is None else self.layout_.to_dict(),
        }
        save_model(folder, self._tensors(), about | self._description())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a model directory; never runs code from it."""
        tensors, about = load_model(folder, cls.__name__)
        try:
            model = cls(**about["settings"])
            model._check_settings()
            model.scaling_ = Scaling.from_description(about["scaling"])
            model.names_ = about["names"]
            model.layout_ = None if about["layout"] is None else PatchLayout.from_dict(about["layout"])
            shape = (int(about["d"]), int(about["c"]))
            model._restore(tensors, about)
        except CSTError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = f"{error} is missing" if isinstance(error, KeyError) else lines[0]
            raise CSTError(f"{folder} cannot be read: {reason}; save the model again") from None
        model.shape_ = shape
        return model

    # What a rival writes

    @abstractmethod
    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        """Learn from checked samples; ``scaling_``, ``layout_`` and ``names_`` are set already."""

    @abstractmethod
    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        """Answer at queries (N, m, d), all in the user's units; points are sorted and not repeated."""

    def _tensors(self) -> dict[str, Tensor]:
        """Give what was learned, as tensors."""
        return {}

    def _description(self) -> dict[str, Any]:
        """Give what else was learned, as JSON."""
        return {}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:  # noqa: B027
        """Take back what `_tensors` and `_description` gave."""

    # Checks

    def _check_settings(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in self.ignored:
                if value != f.default:
                    raise CSTError(f"{type(self).__name__} has no {f.name}; leave that setting alone")
            elif f.metadata:
                _check_one(f, value)

    def _check_axes(self, d: int) -> None:
        if self.curves_only and d != 1:
            raise CSTError(f"{type(self).__name__} needs d = 1, got samples with {d} coordinate axes")

    def _fitted(self) -> tuple[int, int]:
        """Return d and c of the training samples."""
        if not hasattr(self, "shape_"):
            kind = type(self).__name__
            raise CSTError(f"this {kind} is not fitted yet; call fit(samples) or {kind}.load(folder) first")
        return self.shape_


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralBaseline(Settings, Baseline):
    """A rival with a network, trained by the same loop, schedule, cap and early stopping as CST.

    Subclasses write `_network`, `_loss`, `_validation` and `_predict`, and name in ``ignored`` the settings
    of CST that mean nothing to them.
    """

    @abstractmethod
    def _network(self, d: int, c: int) -> nn.Module:
        """Make a fresh network; the global random generator is seeded already."""

    @abstractmethod
    def _loss(self, batch: Batch, generator: Generator) -> Tensor:
        """Loss of a training step; everything random comes from ``generator``."""

    @abstractmethod
    def _validation(self, held_out: Batch) -> Callable[[], float]:
        """Make a function that scores the network as it is now on fixed data; lower is better."""

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        self.device_ = self._device()
        data = self._batch(samples)
        training, held_out = split_samples(len(data), self.validation, self.seed)
        self.network_ = self._fresh_network(samples.d, samples.c)
        batch = min(self.batch, max(1, TOKENS_PER_STEP // samples.n))
        run = type(self)(**self.settings() | {"batch": batch})
        self.report_: TrainingReport = train(
            self.network_,
            lambda index, generator: self._loss(data[training[index]], generator),
            self._validation(data[held_out]),
            len(training),
            run,
            state=state,
            progress=self.label if progress else None,
            fingerprint="" if state is None else _fingerprint(data),
        )

    @property
    def n_parameters_(self) -> int:
        """Trainable numbers of the fitted network."""
        self._fitted()
        return parameter_count(self.network_)

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self.network_.state_dict())

    def _description(self) -> dict[str, Any]:
        return {"training": dataclasses.asdict(self.report_)}

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        try:
            self.device_ = self._device()
        except CSTError as error:
            warnings.warn(f"{error}; the model was loaded on the CPU", CSTWarning, stacklevel=3)
            self.device_ = torch.device("cpu")
        self.report_ = TrainingReport(**about["training"])
        self.report_.history = [(int(step), float(score)) for step, score in self.report_.history]
        network = self._fresh_network(about["d"], about["c"])
        network.load_state_dict(tensors)
        self.network_ = network.eval()

    def _fresh_network(self, d: int, c: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._network(d, c).to(self._dtype()).to(self.device_)

    def _batch(self, samples: Samples) -> Batch:
        return self.scaling_.batch(samples, self._dtype(), self.device_)

    def _check_settings(self) -> None:
        super()._check_settings()
        own = self.settings()
        check_settings({name: own[name] for name in setting_fields() if name in own})

    def _dtype(self) -> torch.dtype:
        return getattr(torch, self.precision)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.zeros(1, device=self.device).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise CSTError(
                f"device={self.device!r} cannot be used here ({reason}); auto or cpu always can"
            ) from None


def _fingerprint(data: Batch) -> str:
    """Hash all numbers of a data set."""
    digest = hashlib.sha256()
    for x in (data.points.coords, data.points.values, data.points.observed):
        digest.update(np.ascontiguousarray(x.cpu().numpy()).tobytes())
    return digest.hexdigest()
