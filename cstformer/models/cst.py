"""CST: the front desk. Fit on samples, ask for values, derivatives and attention anywhere."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from cstformer.data.arrays import as_floats
from cstformer.data.batch import Batch, Context, fingerprint, split_samples
from cstformer.data.checks import check_queries, check_training, warn_outside
from cstformer.data.layout import PatchLayout
from cstformer.data.lazy import LazyFrames
from cstformer.data.lazy_batch import LazyBatch, as_data, in_memory, most
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling, as_batches
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.model_files import load_model, save_model
from cstformer.network.encoding import FourierEncoding, Nearness
from cstformer.network.transformer import Architecture, ContinuousTransformer, parameter_count
from cstformer.starts.curves import Start, make_start
from cstformer.starts.frames import (
    HALO,
    change_frames,
    frame_noise,
    frame_series,
    frame_start,
    frame_waves,
    loud_patches,
    move_patches,
    whole_frames,
)
from cstformer.starts.gaussian_process import Kernel, fit_kernel
from cstformer.starts.trust import Trust, fit_trust
from cstformer.starts.waves import Waves
from cstformer.system import processes as system_processes
from cstformer.system.devices import choose_device, device_or_cpu, is_out_of_memory, storage_dtype
from cstformer.system.memory import keep_freed_memory
from cstformer.system.threads import thread_limit
from cstformer.system.workers import watch_parent
from cstformer.taylor import series
from cstformer.taylor.derivatives import DerivativePlan, MultiIndex, check_multi_index, plan, up_to
from cstformer.taylor.series import Series
from cstformer.training import sampling
from cstformer.training.loop import TrainingReport, train
from cstformer.training.objective import TOKENS_PER_STEP, SobolevObjective, Validation
from cstformer.training.settings import Settings, check_settings, preset, setting_fields

TOKENS_PER_PASS = 2**16  # queries × coefficients of one pass when predicting: bounds the memory
MAX_TOKENS = 2**15  # points of one sample that attention can still hold
MU_SHARE = 0.05  # auto μ over (noise / roughness)^p; found on spirals of another seed, flat between 0 and 0.1
ROUGHNESS_SAMPLES = 64  # from which the roughness for auto μ is estimated
MU_TRIALS = (0.01, 0.1, 1.0)  # shares tried by mu="search"
FRAME_NOISE = 0.7  # auto noise on frames over that of the data: less than theirs, which the smooth start is fitted to
TRUST_SAMPLES = 32  # from which the trust of the median start is fitted
COMPILE_FROM = 4e9  # numbers through the Taylor GELU of a training run from which compiling it pays
COMPILE_MINUTES = 3.0  # a cap below which training never compiles by itself
COMPILE_ANSWERS_FROM = 1e9  # the same when predicting, which needs fewer kernels


Given = Callable[[Tensor, torch.Generator], Tensor]
"""What is given of the truth: from values (B, n, c), or frames (B, T, H, W, C), in the user's units to such ones."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention of every layer and head.

    Attributes
    ----------
    maps : array (N, layers, heads, rows, columns)
        ``maps[i, l, h, r]`` says how token r of sample i shares its attention; rows sum to one with exact
        attention.
    rows, columns : arrays (N, ·, d)
        Coordinates of the readers and of what they read, in the user's units. In ``context`` queries read
        observed points; in ``joint`` observed points and queries (in this order) read each other.
    exists : array (N, columns) of bool
        False where a column is padding of a ragged sample.
    """

    maps: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    exists: np.ndarray


@dataclass(kw_only=True, eq=False, repr=False)
class CST(Settings, BaseEstimator):
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

    def __new__(cls, *args: Any, **settings: Any) -> CST:
        """Refuse unknown settings by name before the generated ``__init__`` would."""
        if args:
            raise CSTError(f"CST takes keyword settings only, got {args!r}; e.g. CST(order=2, seed=0)")
        for name in settings:
            if name not in setting_fields():
                check_settings({name: None})
        return super().__new__(cls)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> CST:
        """Make an estimator with the settings of a preset (default, frames, paper, smoke) and your changes to them."""
        return cls(**{**preset(name), **changes})

    def set_params(self, **settings: Any) -> CST:
        """Change settings; an unknown one is refused by name, with the nearest valid one."""
        for name in settings:
            if name not in setting_fields():
                check_settings({name: None})
        return super().set_params(**settings)

    # Fitting

    def fit(
        self,
        samples: Samples | LazyFrames,
        y: None = None,
        *,
        state: str | os.PathLike | None = None,
        progress: bool = False,
        given: Given | None = None,
    ) -> CST:
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
            From values (B, n, c), or frames (B, T, H, W, C), and a generator to what will be given of them, e.g. with
            half of the pixels corrupted: drawn anew in every step, in the place of noise. ``samples`` are then the
            truth that is asked for.
        """
        check_settings(self.get_params())
        samples = self._training_samples(samples)
        processes = self._processes()
        self._check_given(samples, given, processes)
        if processes > 1 and not system_processes.is_started():
            return self._fit_on_processes(samples, state, progress)
        self.layout_: PatchLayout | None = samples.layout
        self.names_: dict[str, Any] = {
            "coord_names": list(samples.coord_names),
            "value_names": list(samples.value_names),
            "units": dict(samples.units),
        }
        self.scaling_ = Scaling.of(in_memory(samples, self.seed))
        self.device_ = choose_device(self.device)
        data = as_data(self.scaling_, samples, self._dtype(), self.device_)
        training, held_out = split_samples(len(data), self.validation, self.seed)
        held_out, some = held_out[: most(samples)], data[training[: most(samples)]]
        self.kernel_ = self._fit_kernel(some)
        self.waves_ = None if self.layout_ is None else frame_waves(some, self.layout_, self._pixels())
        self._given = given
        self.trust_ = self._fit_trust(some) if self.start == "median" else None
        self.network_ = self._network(samples.d, samples.c).to(self.device_)
        for module in self.network_.modules():
            if isinstance(module, Nearness):
                module.spread(self._spacing(some))
        share = 1.0 if self.layout_ is None else FRAME_NOISE
        self.noise_ = share * self.kernel_.noise if self.noise == "auto" else float(self.noise)
        batch = min(self.batch, max(processes, TOKENS_PER_STEP // samples.n))
        run = dataclasses.replace(_plain(self), batch=batch, optimiser=self._optimiser())
        try:
            began = time.monotonic()
            self.mu_ = self._choose_mu(data, training, held_out, run)
            if run.max_minutes is not None:  # trials count as training
                left = run.max_minutes - (time.monotonic() - began) / 60
                run = dataclasses.replace(run, max_minutes=max(0.0, left))
            self.report_ = self._train(self.mu_, data, training, held_out, run, state, progress)
        except BaseException:
            del self.network_  # a network that was not trained must not answer
            raise
        finally:
            del self._given  # it may be any function, which nobody could save
        if self.report_.ended == "cap":
            warnings.warn(self.report_.sentence(self), CSTWarning, stacklevel=2)
        return self

    def _processes(self) -> int:
        """How many processes share a batch; each of them takes its own GPU, if there are any."""
        processes = self.devices * self.nodes
        if self.batch < processes:
            raise CSTError(f"batch={self.batch} cannot be shared by {processes} processes; raise batch, or use fewer")
        found = system_processes.started_processes()
        if found not in (None, processes):
            raise CSTError(
                f"{found} processes were started, but devices={self.devices} × nodes={self.nodes}; make them agree"
            )
        if self.nodes > 1 and not system_processes.is_started():
            raise CSTError(f"nodes={self.nodes}: start the command by torchrun or srun on each of them (docs: Scale)")
        if processes > 1:
            system_processes.take_device()
        return processes

    def _optimiser(self) -> str:
        """Choose Muon for frames; it needs whole matrices, which fsdp does not have."""
        spreads = self.strategy == "fsdp" and self.devices * self.nodes > 1
        if self.optimiser == "muon" and spreads:
            raise CSTError("optimiser='muon' cannot be used with strategy='fsdp'; choose 'adamw' or strategy='ddp'")
        if self.optimiser != "auto":
            return self.optimiser
        return "muon" if self.layout_ is not None and not spreads else "adamw"

    def _fit_on_processes(self, samples: Samples | LazyFrames, state: str | os.PathLike | None, progress: bool) -> CST:
        """Start the processes, which call `fit` as well, and take over what the first of them has learned."""
        state = None if state is None else os.path.abspath(state)
        with tempfile.TemporaryDirectory(prefix="cst-fit-") as folder:
            job = {"settings": dataclasses.asdict(_plain(self)), "state": state, "progress": progress}
            if isinstance(samples, LazyFrames):
                job["frames"] = samples.describe()
            else:
                samples.save(Path(folder, "samples.npz"))
            Path(folder, "job.json").write_text(json.dumps(job))
            saved = f"{state} keeps what was done, fit again to go on" if state else "nothing was saved, give state="
            code = "import sys; from cstformer.models.cst import work; work(sys.argv[1])"
            system_processes.run_processes(self.devices, code, Path(folder), progress, saved)
            fitted = CST.load(Path(folder, "model"))
        self.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
        if self.report_.ended in ("cap", "not finite"):
            warnings.warn(self.report_.sentence(self), CSTWarning, stacklevel=3)
        return self

    def _train(
        self,
        mu: float,
        data: Batch | LazyBatch,
        training: Tensor,
        held_out: Tensor,
        run: Settings,
        state: str | os.PathLike | None = None,
        progress: bool = False,
    ) -> TrainingReport:
        """Train the network with this μ."""
        validation = self._validation(mu, data[held_out], run, min(0.5, self.hide))
        terms, tokens = validation.objective.plan, self.dummies
        if self.pattern == "joint":
            tokens += validation.batch.points.coords.shape[1]
        compiles = self._compiles(terms, run.steps * run.batch * tokens, COMPILE_FROM)
        if self.compile == "auto" and run.max_minutes is not None and run.max_minutes < COMPILE_MINUTES:
            compiles = False  # the warm-up would take most of the time
        with self._arithmetic(compiles):
            return train(
                self.network_,
                lambda index, generator: validation.objective.loss(data[training[index]], generator),
                validation.score,
                len(training),
                run,
                state=None if state is None else Path(state),
                progress="CST" if progress else None,
                fingerprint="" if state is None else self._fingerprint(data),
                shuffle=data.shuffle(training) if isinstance(data, LazyBatch) else None,
                labels=training.tolist(),
            )

    def _validation(self, mu: float, held_out: Batch, run: Settings, hide: float) -> Validation:
        """Make the loss with this μ and its fixed validation set."""
        mover = self._move if self.layout_ is not None and self.pattern == "context" else None
        pairs = getattr(self, "_given", None) is not None
        cleaner = self._clean if self.layout_ is not None and not pairs else None
        noises = self.noise_, self.kernel_.noise
        giver = self._give if pairs else None
        objective = SobolevObjective(self.network_, self._start, run, *noises, mu, mover, cleaner, giver)
        n = held_out.points.coords.shape[1]
        patterns = max(1, min(16, 128 // len(held_out), TOKENS_PER_STEP // (len(held_out) * n)))
        return Validation(objective, held_out, self.seed, patterns, hide)

    def _compiles(self, terms: DerivativePlan, tokens: int, threshold: float) -> bool:
        """Whether compiling pays: decided by sizes, not by the clock, so that every run decides alike."""
        if self.compile != "auto":
            return self.compile == "always"
        if terms.order == 0 or not any(map(shutil.which, ("g++", "clang++", "c++"))):
            return False
        coefficients = 1 + terms.order * len(terms.directions)
        return tokens * coefficients * self.feedforward * self.layers > threshold

    def _fingerprint(self, data: Batch | LazyBatch) -> str:
        return data.frames.fingerprint(self.seed) if isinstance(data, LazyBatch) else fingerprint(data)

    def _choose_mu(self, data: Batch | LazyBatch, training: Tensor, held_out: Tensor, run: Settings) -> float:
        """μ as set, from the data, or by short trainings judged at held-out real points."""
        if self.order == 0 or self.dummies == 0:
            return 0.0
        if not isinstance(self.mu, str):
            return float(self.mu)
        balance = self._balanced_mu(data[training[:ROUGHNESS_SAMPLES]])
        if self.mu == "auto":
            return MU_SHARE * balance
        cap = None if run.max_minutes is None else run.max_minutes / 20
        short = dataclasses.replace(run, steps=max(1, run.steps // 20), max_minutes=cap)
        untrained = {k: v.clone() for k, v in self.network_.state_dict().items()}
        judge = self._validation(0.0, data[held_out], run, hide=0.2)
        scores = {}
        for share in MU_TRIALS:
            self.network_.load_state_dict(untrained)
            report = self._train(share * balance, data, training, held_out, short)
            if report.ended == "interrupted":
                raise KeyboardInterrupt
            scores[share * balance] = judge.score()
        self.network_.load_state_dict(untrained)
        return min(scores, key=lambda mu: scores[mu])

    def _training_samples(self, samples: Samples | LazyFrames) -> Samples | LazyFrames:
        samples = samples if isinstance(samples, LazyFrames) else check_training(samples)
        if samples.n > MAX_TOKENS:
            raise CSTError(
                f"a sample has {samples.n:,} points, more than the {MAX_TOKENS:,} that attention can hold; "
                "cut it by samples.windows(length, stride) (--window), or frames into patches (--patch)"
            )
        if samples.layout is not None and self.coord_noise > 0:
            raise CSTError("coord_noise cannot be used with frames, whose patches lie on a grid; set it to 0")
        return samples

    def _check_given(self, samples: Samples | LazyFrames, given: Given | None, processes: int) -> None:
        if given is not None and processes > 1:
            raise CSTError(f"given= is a function, which {processes} processes cannot share; use devices=1, nodes=1")
        if self.start == "median" and (samples.layout is None or given is None or self.pattern == "joint"):
            raise CSTError(
                "start='median' is for frames (patches.frames_to_samples), fit(frames, given=corruption) and "
                "pattern='context'; choose another start"
            )
        if self.start == "motion" and (samples.layout is None or self.pattern == "joint"):
            raise CSTError(
                "start='motion' is for frames (patches.frames_to_samples) and pattern='context'; choose another start"
            )

    def _fit_trust(self, data: Batch) -> Trust:
        """Fit which pixels to believe, to a few samples and what is given of them."""
        assert self.layout_ is not None
        points = data[torch.arange(min(TRUST_SAMPLES, len(data)))].points
        given = self._give(points, torch.Generator().manual_seed(self.seed))
        both = (points, dataclasses.replace(points, values=given))
        return fit_trust(*(whole_frames(p, self.layout_, self._pixels())[2] for p in both))

    def _give(self, points: Context, generator: torch.Generator) -> Tensor:
        """Draw what is given of these points, in the model's units."""
        given = self._given
        assert given is not None

        def in_model_units(x: Tensor) -> Tensor:
            mean, sd = (torch.as_tensor(a[: x.shape[-1]]).to(x) for a in (self.scaling_.mean, self.scaling_.sd))
            y = given(x * sd + mean, generator)
            if not isinstance(y, Tensor) or y.shape != x.shape:
                what = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
                raise CSTError(f"given must return a tensor of the shape that it gets, {tuple(x.shape)}, got {what}")
            return (y - mean) / sd

        if self.layout_ is None:
            return in_model_units(points.values)
        return change_frames(points, self.layout_, self._pixels(), in_model_units)

    def _spacing(self, data: Batch) -> Tensor:
        """Distance between neighbouring tokens along each axis, in the model's units."""
        p, layout = data.points, self._layout()
        d = p.coords.shape[-1]
        if layout is None or data.groups is None:
            return p.coords.new_full((d,), float(p.tokens.sum(1).double().mean()) ** (-1 / d))
        frames = 1 + float(data.groups.amax(1).double().mean())
        return 1 / (p.coords.new_tensor([frames, *layout.grid]) - 1).clamp_min(1)

    def _fit_kernel(self, data: Batch) -> Kernel:
        """Fit the Gaussian process of the training data: its noise, and the smooth start."""
        p, max_noise = data.points, 3.0
        if self.layout_ is not None:
            coords, values, mask = frame_series(data, self.layout_, self._pixels())
            max_noise = min(max_noise, frame_noise(data, self.layout_, self._pixels()))
        elif bool((p.observed == p.observed[..., :1]).all()):
            coords, values, mask = p.coords, p.values, p.tokens
        else:
            coords = p.coords.repeat_interleave(p.values.shape[-1], 0)
            values = p.values.transpose(1, 2).flatten(0, 1)[..., None]
            mask = p.observed.transpose(1, 2).flatten(0, 1)
            some = mask.any(1)
            coords, values, mask = coords[some], values[some], mask[some]
        return fit_kernel(coords, values, mask, self.seed, max_noise)

    def _network(self, d: int, c: int) -> ContinuousTransformer:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = ContinuousTransformer(self._architecture(d, c)).to(self._dtype())
        layout = self._layout()
        if layout is not None and layout.periodic:
            for module in network.modules():
                if isinstance(module, FourierEncoding | Nearness):
                    for axis in (0, 1):
                        module.wrap(1 + axis, layout.frame[axis] / self.scaling_.span[1 + axis])
        return network

    def _layout(self) -> PatchLayout | None:
        return getattr(self, "layout_", None)

    def _check_sizes(self, d: int, c: int, tensors: dict[str, Tensor]) -> None:
        """Refuse settings of a network far larger than the weights in its file, before it takes memory."""
        found = sum(v.numel() for v in tensors.values())
        with torch.device("meta"):  # which takes none
            shallow = parameter_count(ContinuousTransformer(dataclasses.replace(self._architecture(d, c), layers=1)))
        if shallow > 1_000_000 + 10 * found or self.layers > len(tensors):
            raise ValueError(f"its settings need far more weights than the {found:,} that it has")

    def _architecture(self, d: int, c: int) -> Architecture:
        names = {f.name for f in dataclasses.fields(Architecture)} & set(setting_fields())
        frames = self._layout() is not None
        near = self.nearness == "always" or (self.nearness == "auto" and frames)
        # Other starts pass through the data: nothing would be left of a context's values.
        guess = frames and self.start == "smooth" and self.pattern == "context"
        layout = self._layout()
        sight = None
        if layout is not None and self.start in ("median", "motion"):
            sight = (*layout.patch, HALO, layout.channels)
        settings = {name: getattr(self, name) for name in names}
        return Architecture(d=d, c=c, near=near, guess=guess, sight=sight, **settings)

    def _balanced_mu(self, data: Batch) -> float:
        """(noise / roughness)^p: where a prior of the data's own roughness balances its noise."""
        d = data.points.coords.shape[-1]
        terms = plan(d, up_to(d, self.order))
        low, high = sampling.box(data.points.coords, data.points.tokens)
        at = sampling.dummy_coords("regular", low, high, 64)
        smooth = self._start_of(data.points, "smooth")(series.straight_line(at, terms.directions, terms.order))
        rough = sum(float(terms.partial(smooth, q).square().mean()) for q in terms.weights)
        exponent = 1.0 if math.isinf(self.p) else self.p
        return (self.kernel_.noise / math.sqrt(max(rough, 1e-12))) ** exponent

    # Answers

    def predict(self, context: Samples, at: Any) -> Float[np.ndarray, "N m c"]:
        """Values at any coordinates, in the user's units.

        Parameters
        ----------
        context : Samples
            The observed points of each function.
        at : array (N, m, d), or (m, d) for all samples alike; (m,) where d = 1
        """
        d = self._fitted().architecture.d
        return self.derivative(context, at, (0,) * d)

    def derivative(self, context: Samples, at: Any, index: Sequence[int]) -> Float[np.ndarray, "N m c"]:
        """Partial derivative at any coordinates, in the user's units.

        Parameters
        ----------
        context, at : as in `predict`
        index : tuple of int
            Order along each coordinate axis, e.g. ``(2,)``, or ``(1, 0, 1)`` for ∂²/∂t∂col. In pattern
            ``joint`` it is the derivative along a simultaneous shift of all queries.
        """
        index = check_multi_index(index, self._fitted().architecture.d)
        return self.derivatives(context, at, [index])[0]

    def derivatives(self, context: Samples, at: Any, indices: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Several partial derivatives in one pass; order 0 is the value."""
        network = self._fitted()
        wanted: list[MultiIndex] = [check_multi_index(i, network.architecture.d) for i in indices]
        keep_freed_memory()
        context, queries = self._inputs(context, at)
        terms = plan(network.architecture.d, wanted)
        compiles = self._compiles(terms, queries.shape[0] * queries.shape[1], COMPILE_ANSWERS_FROM)
        with self._arithmetic(compiles), thread_limit(self.threads, parameter_count(network)):
            parts = list(self._answers(context, queries, terms, wanted))
        shape = (*queries.shape[:2], network.architecture.c)
        out = []
        try:
            for k, q in enumerate(wanted):
                y = np.concatenate([part[k].reshape(-1, part[k].shape[-1]) for part in parts]).reshape(shape)
                out.append(self.scaling_.derivative(y, q))
        except MemoryError:
            size = len(wanted) * math.prod(shape)
            raise CSTError(f"there is not enough memory for {size:,} answers; ask for fewer at a time") from None
        return out

    def attention(self, context: Samples, at: Any, values: Any = None) -> AttentionMaps:
        """Attention maps of every layer and head for these context points and queries.

        Parameters
        ----------
        context, at : as in `predict`
        values : array (N, m, c), optional
            What is known at the queries, in the user's units; it then takes the place of their start.
        """
        network = self._fitted()
        context, queries = self._inputs(context, at)
        known = None if values is None else self._known(values, queries)
        data = self.scaling_.batch(context, self._dtype(), self.device_)
        collected = []
        with torch.no_grad():
            for index in as_batches(len(data), 16):
                points = data[index].points
                maps: list[Tensor] = []
                x = series.constant(self._tensor(queries[index.numpy()]))
                begin = self._start(points)
                start = begin(x) if known is None else series.constant(known[index.to(known.device)])
                network(network.prepare(points, begin), x, start, maps)
                collected.append(torch.stack(maps, 1).cpu().double().numpy())
        tokens = context.point_observed
        if network.architecture.pattern == "joint":
            rows = columns = np.concatenate([context.coords, self._user(queries)], 1)
            tokens = np.concatenate([tokens, np.ones(queries.shape[:2], dtype=bool)], 1)
        else:
            rows, columns = self._user(queries), context.coords
        return AttentionMaps(np.concatenate(collected), rows, columns, tokens)

    def _known(self, values: Any, queries: np.ndarray) -> Tensor:
        """Check the values of queries; in the model's units."""
        if self._fitted().architecture.sight is not None:
            raise CSTError(f"values cannot take the place of start={self.start!r}, which is more; leave them out")
        y = as_floats("values", values)
        shape = (*queries.shape[:2], self._fitted().architecture.c)
        if y.shape != shape or not np.isfinite(y).all():
            raise CSTError(f"values has shape {y.shape}; give finite numbers of shape {shape}, one row a query")
        return self._tensor((y - self.scaling_.mean) / self.scaling_.sd)

    def _answers(
        self, context: Samples, queries: np.ndarray, terms: DerivativePlan, wanted: list[MultiIndex]
    ) -> Iterator[list[np.ndarray]]:
        """Wanted derivatives at the queries, batch by batch and chunk by chunk; smaller ones where memory runs out."""
        data = self.scaling_.batch(context, self._dtype(), self.device_)
        joint = self._fitted().architecture.pattern == "joint"
        m = queries.shape[1]
        size = max(1, TOKENS_PER_PASS // (1 + terms.order * len(terms.directions)))
        sample = query = 0
        while sample < len(data):
            per_batch = max(1, min(64, size // m, size // context.n))
            chunk = m if joint or per_batch > 1 else size
            rows = torch.arange(sample, min(sample + per_batch, len(data)))
            try:
                for y in self._stream(data[rows].points, queries[rows.numpy(), query:], terms, chunk):
                    yield [terms.partial(y, q).cpu().double().numpy() for q in wanted]
                    query += chunk
                sample, query = sample + per_batch, 0
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if per_batch == 1 and (joint or chunk == 1):
                    raise CSTError(
                        f"there is not enough memory to answer {m if joint else 1:,} queries from a context of "
                        f"{context.n:,} points; give a shorter context (samples.windows), or fewer queries in `joint`"
                    ) from None
                size = max(1, min(size, m * per_batch) // 2)

    def _stream(self, points: Context, queries: np.ndarray, terms: DerivativePlan, chunk: int) -> Iterator[Series]:
        """Series at the queries of a few samples, of which the context is encoded once."""
        network = self._fitted()
        with torch.no_grad():
            start = self._start(points)
            points = network.prepare(points, start)
            encoded = None if network.architecture.pattern == "joint" else network.encode(points)
            for first in range(0, queries.shape[1], chunk):
                at = series.straight_line(
                    self._tensor(queries[:, first : first + chunk]), terms.directions, terms.order
                )
                if encoded is None:
                    yield network(points, at, start(at))[1]
                else:
                    yield network.read(encoded, at, start(at))

    def _inputs(self, context: Samples, at: Any) -> tuple[Samples, np.ndarray]:
        """Check both; the context, and the queries (N, m, d) in the model's units."""
        a = self._fitted().architecture
        queries = check_queries(context, at, a.d, a.c)
        warn_outside(queries, self.scaling_, self.names_["coord_names"], self.layout_, stacklevel=6)
        return context.merged().sorted(), self.scaling_.coords(queries)

    def _start(self, points: Context) -> Start:
        return self._start_of(points, self.start)

    def _start_of(self, points: Context, kind: str) -> Start:
        with torch.no_grad():
            if self.layout_ is not None:
                smoother = self.trust_ if kind == "median" else self.waves_
                return frame_start(kind, points, self.layout_, self._pixels(), smoother)
            return make_start(kind, points.coords, points.values, points.observed, self.kernel_)

    def _move(self, points: Context, target: Tensor, generator: torch.Generator) -> tuple[Context, Tensor]:
        """Patches of the same frames between those of the grid, so that their places are learned too."""
        assert self.layout_ is not None
        tiling = zip(self.layout_.grid, self.layout_.patch, strict=True)
        sizes = [size if count > 1 or self.layout_.periodic else 1 for count, size in tiling]
        row, col = (int(torch.randint(size, (), generator=generator)) for size in sizes)
        return move_patches(points, target, self.layout_, self._pixels(), (row, col))

    def _clean(self, points: Context, target: Tensor) -> Tensor:
        """Targets without the waves that are noise alone, which would only disturb the gradient."""
        assert self.layout_ is not None and self.waves_ is not None
        if not bool((points.observed | ~points.tokens[..., None]).all()):
            return target
        return loud_patches(points, target, self.layout_, self._pixels(), self.waves_)

    def _pixels(self) -> tuple[np.ndarray, np.ndarray]:
        """Origin and extent, in pixels, of the row and column axes."""
        return self.scaling_.low[1:], self.scaling_.span[1:]

    def _user(self, queries: np.ndarray) -> np.ndarray:
        return queries * self.scaling_.span + self.scaling_.low

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(x), dtype=self._dtype(), device=self.device_)

    def _dtype(self) -> torch.dtype:
        return storage_dtype(self.precision)

    @contextmanager
    def _arithmetic(self, compiles: bool) -> Iterator[None]:
        """Compiled kernels and the format of matrix products, as set."""
        low = torch.bfloat16 if self.precision == "bfloat16" else None
        with series.compiled_kernels(compiles), series.matrix_products(low):
            yield

    def _fitted(self) -> ContinuousTransformer:
        if not hasattr(self, "network_"):
            raise NotFittedError("this CST is not fitted yet; call fit(samples) or CST.load(folder) first")
        return self.network_

    @property
    def n_parameters_(self) -> int:
        """Trainable numbers of the fitted network."""
        return parameter_count(self._fitted())

    # Keeping

    def save(self, folder: str | os.PathLike) -> None:
        """Write a model directory (safetensors + JSON), atomically."""
        network = self._fitted()
        description = {
            "kind": "CST",
            "settings": dataclasses.asdict(_plain(self)),
            "d": network.architecture.d,
            "c": network.architecture.c,
            "scaling": self.scaling_.describe(),
            "kernel": dataclasses.asdict(self.kernel_),
            "waves": None if self.waves_ is None else self.waves_.describe(),
            "trust": None if self.trust_ is None else dataclasses.asdict(self.trust_),
            "noise": self.noise_,
            "mu": self.mu_,
            "names": self.names_,
            "layout": None if self.layout_ is None else self.layout_.to_dict(),
            "training": dataclasses.asdict(self.report_),
        }
        save_model(folder, dict(network.state_dict()), description)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> CST:
        """Read a model directory; never runs code from it."""
        tensors, about = load_model(folder, "CST")
        try:
            model = cls(**about["settings"])
            check_settings(model.get_params())
            model.device_ = device_or_cpu(model.device)
            model.scaling_ = Scaling.from_description(about["scaling"])
            kernel = about["kernel"]
            model.kernel_ = Kernel(tuple(kernel.pop("lengthscales")), **kernel)
            model.waves_ = None if about["waves"] is None else Waves.from_description(about["waves"])
            odds = about.get("trust")
            model.trust_ = None if odds is None else Trust.from_description(odds)
            model.noise_, model.mu_, model.names_ = about["noise"], about["mu"], about["names"]
            model.layout_ = None if about["layout"] is None else PatchLayout.from_dict(about["layout"])
            model.report_ = TrainingReport(**about["training"])
            model.report_.history = [(int(step), float(score)) for step, score in model.report_.history]
            sizes = [len(x) for x in (model.scaling_.low, model.scaling_.span, model.scaling_.mean, model.scaling_.sd)]
            if sizes != [about["d"]] * 2 + [about["c"]] * 2:
                raise ValueError(f"scaling has {sizes} entries for d={about['d']} and c={about['c']}")
            model._check_sizes(about["d"], about["c"], tensors)
            network = model._network(about["d"], about["c"])
            network.load_state_dict(tensors)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else (str(error).splitlines() or ["?"])[0]
            raise CSTError(f"{folder} cannot be read: {reason}; save the model again") from None
        model.network_ = network.to(model.device_).eval()
        return model


def work(folder: str) -> None:
    """Be one of the processes that `CST.fit` started: fit, and let the first one save the model."""
    watch_parent(os.getppid())
    warnings.simplefilter("ignore")
    job = json.loads(Path(folder, "job.json").read_text())
    first = system_processes.is_first()
    try:
        samples = LazyFrames(**job["frames"]) if "frames" in job else Samples.load(Path(folder, "samples.npz"))
        model = CST(**job["settings"]).fit(samples, state=job["state"], progress=job["progress"] and first)
        if first:
            model.save(Path(folder, "model"))
    except CSTError as error:
        Path(folder, f"{os.environ['RANK']}.error").write_text(str(error))
        raise SystemExit(2) from error


def _plain(model: CST) -> Settings:
    """Take the settings alone, NumPy's numbers as Python's."""
    return Settings(**{k: getattr(v, "item", lambda v=v: v)() for k, v in model.get_params().items()})
