"""The contract of every rival: fit on samples, predict anywhere, save and load. One file a family.

A new rival subclasses `Baseline` (or, if `training.train` trains it, `NeuralBaseline`), fills in the few
methods marked abstract, and gets one line in `cstformer.baselines.BASELINES`; ``tests/test_contract.py`` then
tests it.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from cstformer.data.batch import Batch, fingerprint, split_samples
from cstformer.data.checks import check_queries, check_training, warn_outside
from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError, unknown
from cstformer.models.model_files import load_model, save_model
from cstformer.network.transformer import parameter_count
from cstformer.system.devices import choose_device, device_or_cpu, storage_dtype
from cstformer.training.loop import TrainingReport, train
from cstformer.training.objective import TOKENS_PER_STEP
from cstformer.training.settings import Settings, check_one, check_settings, setting, setting_fields


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
    frames_only: ClassVar[bool] = False
    """Whether only movies, cut into patch tokens, make sense."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "smoke": {}, "paper": {}}
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Inherited settings that mean nothing to this model; changing one is refused."""

    seed: int = setting(0, "seed of everything random", low=0)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse unknown settings by name before the generated ``__init__`` would."""
        if args:
            raise CSTError(f"{cls.__name__} takes keyword settings only, got {args!r}; e.g. {cls.__name__}(seed=0)")
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

    def fit(self, samples: Samples, *, state: str | os.PathLike[str] | None = None, progress: bool = False) -> Self:
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
        self._check_axes(samples)
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
        warn_outside(queries, self.scaling_, self.names_["coord_names"], self.layout_)
        return self._predict(context, queries)

    def latent(self, context: Samples) -> Float[np.ndarray, "N features"]:
        """Describe each sample by the model's own state, where it has one."""
        raise CSTError(f"{type(self).__name__} has no latent state; use predict")

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
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
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
                check_one(f, value)

    def _check_axes(self, samples: Samples) -> None:
        kind = type(self).__name__
        if self.curves_only and samples.d != 1:
            raise CSTError(f"{kind} needs d = 1, got samples with {samples.d} coordinate axes")
        if self.frames_only and samples.layout is None:
            raise CSTError(f"{kind} needs the patch tokens of a movie (patches.frames_to_samples), got {samples}")

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
        self.device_ = choose_device(self.device)
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
            fingerprint="" if state is None else fingerprint(data),
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
        self.device_ = device_or_cpu(self.device)
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
        if self.devices * self.nodes > 1:
            raise CSTError(f"devices and nodes are for CST alone; {type(self).__name__} trains in one process")
        if self.precision == "bfloat16":
            raise CSTError(f"precision='bfloat16' is for CST alone; {type(self).__name__} takes float32 or float64")

    def _dtype(self) -> torch.dtype:
        return storage_dtype(self.precision)
