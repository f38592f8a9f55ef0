"""The training loop of CST and of every neural rival: Lightning's Trainer with our schedule, cap and resume.

Everything random in step s is drawn from a generator seeded by (seed, s), and the batches are a fixed stream
of shuffled epochs. So a run is a function of its seed alone, and resuming at step s needs no generator state.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cstformer.errors import CSTError, CSTWarning
from cstformer.system.memory import keep_freed_memory
from cstformer.system.processes import is_first
from cstformer.system.tensor_files import read_tensors, write_tensors
from cstformer.system.threads import thread_limit
from cstformer.training.optimiser import make_optimiser
from cstformer.training.settings import Settings
from cstformer.training.sharing import Share, agree, from_first, sharing, spread_like, whole

VALIDATIONS = 25  # how often a run looks at its validation set
SAVE_SECONDS = 30.0  # how often a resumable run writes its state
FREE = ("max_minutes", "device", "devices", "nodes", "strategy")  # settings that may change when a run is resumed
COOL_FROM = 0.7  # share of max_minutes after which a run that cannot finish starts to anneal


@dataclass
class TrainingReport:
    """What happened: kept beside the model.

    ``ended`` is one of ``finished``, ``patience``, ``cap`` (max_minutes), ``interrupted`` and ``not finite``.
    """

    steps: int = 0
    best_step: int = 0
    best_score: float = math.inf
    seconds: float = 0.0
    ended: str = "finished"
    history: list[tuple[int, float]] = field(default_factory=list)

    def sentence(self, settings: Settings) -> str:
        """One readable line."""
        why = {
            "finished": "all steps done",
            "patience": f"no improvement for {settings.patience:.0%} of the steps",
            "cap": f"max_minutes={settings.max_minutes} reached, best weights kept; "
            "allow more time for the full schedule",
            "interrupted": "interrupted, best weights kept",
            "not finite": "the loss was not finite, best weights before that kept",
        }[self.ended]
        return (
            f"{self.steps} of {settings.steps} steps in {self.seconds:.0f} s ({why}); "
            f"best validation loss {self.best_score:.5g} at step {self.best_step}"
        )


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then a cosine to zero.

    >>> [round(learning_rate_factor(s, 10, 0.2), 3) for s in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rise = round(warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))


Shuffle = Callable[[Generator], Tensor]
"""A random order of all samples."""


def batch_indices(step: int, batch: int, count: int, seed: int, shuffle: Shuffle | None = None) -> Tensor:
    """Sample numbers of step ``step``: a fixed stream of shuffled epochs, cut into full batches.

    >>> sorted(torch.cat([batch_indices(s, 2, 4, seed=0) for s in (0, 1)]).tolist())
    [0, 1, 2, 3]
    """
    first, last = step * batch, (step + 1) * batch
    epochs = range(first // count, (last - 1) // count + 1)
    shuffle = shuffle or (lambda generator: torch.randperm(count, generator=generator))
    shuffled = [shuffle(generator_for(seed, -1 - epoch)) for epoch in epochs]
    offset = epochs[0] * count
    return torch.cat(shuffled)[first - offset : last - offset]


def generator_for(seed: int, step: int) -> Generator:
    """Make the generator of one step (or, with negative numbers, of one epoch)."""
    return Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def train(
    network: nn.Module,
    loss: Callable[[Tensor, Generator], Tensor],
    score: Callable[[], float],
    count: int,
    settings: Settings,
    *,
    state: Path | None = None,
    progress: str | None = None,
    fingerprint: str = "",
    labels: Sequence[object] | None = None,
    shuffle: Shuffle | None = None,
) -> TrainingReport:
    """Train ``network`` in place; it ends with the weights of the best validation score.

    Parameters
    ----------
    network : nn.Module
        Validation and the result use a running average of its weights.
    loss : callable
        From sample numbers (batch,) and a generator to a scalar.
    score : callable
        Validation score of the network as it is now; lower is better.
    count : int
        Number of training samples.
    settings : Settings
        The training part of it is used.
    state : Path, optional
        File for resuming: written every half minute, read if it is there, removed by nobody here.
    progress : str, optional
        Show a progress bar with this title.
    fingerprint : str, optional
        Of the data: a state file that was written with another one is refused.
    labels : sequence, optional
        Numbers or names of the training samples, by which a loss that is not finite says where it happened.
    shuffle : callable, optional
        How the samples of an epoch are ordered; any order is as likely as another by default.
    """
    keep_freed_memory()
    run = _Run(network, loss, score, count, settings, state, fingerprint)
    run.labels, run.shuffle = labels, shuffle
    done = run.resume()
    if done < settings.steps and run.report.ended == "finished":
        callbacks: list[Callback] = [_Bar(progress, settings.steps)] if progress is not None else []
        limit = thread_limit(settings.threads, sum(p.numel() for p in network.parameters()))
        with limit, _quiet(), torch.random.fork_rng(devices=[]), _signals(run):
            trainer = lightning.Trainer(
                accelerator="cpu" if settings.device == "cpu" else "auto",
                **_processes(settings),
                max_steps=settings.steps - done,
                max_epochs=-1,
                gradient_clip_val=settings.clip or None,
                callbacks=callbacks,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(run, DataLoader(_Steps(done, settings.steps), batch_size=None))
    run.finish()
    return run.report


def _processes(settings: Settings) -> dict[str, Any]:
    """Options of the Trainer for one or several processes, which have been started already."""
    count = settings.devices * settings.nodes
    if count == 1:
        return {"devices": 1}
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    ddp = settings.strategy == "ddp"
    return {
        "devices": settings.devices,
        "num_nodes": settings.nodes,
        "strategy": DDPStrategy(broadcast_buffers=False) if ddp else ModelParallelStrategy(count, 1),
        "use_distributed_sampler": False,  # every process is told the number of the step
    }


class _Steps(Dataset):
    """The numbers of the steps still to do; Lightning asks for one item a step."""

    def __init__(self, first: int, last: int):
        self.first, self.last = first, last

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, i: int) -> int:
        return self.first + i


class _Run(lightning.LightningModule):
    """One training run: the network, its running average, the best weights so far, the report."""

    def __init__(self, network, loss, score, count: int, settings: Settings, state: Path | None, fingerprint: str = ""):
        super().__init__()
        self.network, self.loss, self.score, self.count = network, loss, score, count
        self.settings, self.state_file, self.fingerprint = settings, state, fingerprint
        self.average = {k: v.detach().clone() for k, v in network.state_dict().items()}
        self.best = {k: v.clone() for k, v in self.average.items()}
        self.report = TrainingReport()
        self.every = max(1, settings.steps // VALIDATIONS)
        self.labels: Sequence[object] | None = None
        self.shuffle: Shuffle | None = None
        self.stop_requested = False
        self.cooling_from: float | None = None
        self.saved_optimiser: dict[str, Tensor] = {}
        self.before = 0.0  # seconds spent before a resume
        self.started = time.monotonic()
        self.saved = 0.0  # seconds of training when the state was last written
        self.processes, self.rank = settings.devices * settings.nodes, 0
        self.agreed, self.stop_agreed = 0.0, False  # seconds of training and a wish to stop, the same for all

    # Lightning's hooks

    def configure_model(self) -> None:
        if self._spreads():
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

            fully_shard(self, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]
            register_fsdp_forward_method(self, "training_step")
            parts = self.network.state_dict()
            self.average = {k: spread_like(v, parts[k]) for k, v in self.average.items()}
            self.best = {k: spread_like(v, parts[k]) for k, v in self.best.items()}

    def configure_optimizers(self):
        self.optimiser = make_optimiser(self.network, self.settings, fused=not self._spreads())
        if self.saved_optimiser:
            self._restore_optimiser()
        return self.optimiser

    def on_train_start(self) -> None:
        _listen(self)  # again: Lightning has put its own SIGTERM handler, which ends the process, before ours
        self.rank = self.trainer.global_rank
        self.started = time.monotonic()
        self.saved = self.agreed = self.before
        if self.processes > 1 and self.settings.max_minutes is not None:
            self.settings = replace(self.settings, max_minutes=from_first(self.settings.max_minutes, self.device))
        if not self.report.steps:
            self._validate(0)  # the untrained network may already be good: CST begins at its start

    def training_step(self, step: int, _) -> Tensor:
        s = self.settings
        if self.processes > 1:  # they go by one clock, and stop together when one was asked to
            self.agreed, stop = agree([self._clock(), float(self.stop_requested)], self.device)
            self.stop_agreed = bool(stop)
        factor = learning_rate_factor(step, s.steps, s.warmup) * self._cooling()
        for group in self.optimiser.param_groups:
            group["lr"] = s.learning_rate * factor
        generator = generator_for(s.seed, step)
        torch.manual_seed(s.seed * 1_000_003 + step + self.rank * 2**40)  # dropout
        index = batch_indices(step, s.batch, self.count, s.seed, self.shuffle)
        share = Share.of(self.rank, self.processes, len(index))
        with sharing(share if self.processes > 1 else None):
            value = self.loss(index[share.rows], generator)
        if not torch.isfinite(value):
            names = [] if self.labels is None else [str(self.labels[i]) for i in index.tolist()]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise _NotFinite(f"{step} (samples number {', '.join(names[:8])}{more})" if names else step)
        return value

    def on_train_batch_end(self, outputs, batch: int, batch_idx: int) -> None:
        step = batch + 1
        self._average(step)
        self.report.steps, self.report.seconds = step, self._elapsed()
        if step % self.every == 0 or step == self.settings.steps:
            self._validate(step)
        self._decide(step)
        if self.state_file and (self._elapsed() - self.saved > SAVE_SECONDS or self.trainer.should_stop):
            self.save()

    # What a run knows

    def _elapsed(self) -> float:
        return self.agreed if self.processes > 1 else self._clock()

    def _clock(self) -> float:
        return self.before + time.monotonic() - self.started

    def _spreads(self) -> bool:
        """Whether every process keeps a share of the weights only."""
        return self.processes > 1 and self.settings.strategy == "fsdp"

    def _cooling(self) -> float:
        """Anneal by the clock once it is clear that the cap will end the run before its schedule does."""
        if self.cooling_from is None:
            return 1.0
        left = self.settings.max_minutes * 60 - self._elapsed()  # type: ignore[operator]
        return max(0.0, min(1.0, left / self.cooling_from))

    def _decide(self, step: int) -> None:
        """Stop for patience, for the cap, or because somebody asked."""
        s, report = self.settings, self.report
        if step - report.best_step > max(self.every, s.patience * s.steps):
            self._stop("patience")
        if s.max_minutes is not None:
            cap, elapsed = s.max_minutes * 60, self._elapsed()
            if self.cooling_from is None and elapsed > COOL_FROM * cap and elapsed / step * s.steps > cap:
                self.cooling_from = cap - elapsed
            if elapsed >= cap and step < s.steps:
                self._validate(step)
                self._stop("cap")
            elif step == s.steps and self.cooling_from is not None:
                report.ended = "cap"  # all steps done after all, but the last ones were annealed by the clock
        if self.stop_agreed if self.processes > 1 else self.stop_requested:
            self._validate(step)
            self._stop("interrupted")

    def _stop(self, why: str) -> None:
        self.report.ended = why
        self.trainer.should_stop = True

    @torch.no_grad()
    def _average(self, step: int) -> None:
        decay = min(0.995, step / (step + 9))
        now = self.network.state_dict()
        floating = [k for k, v in now.items() if v.is_floating_point()]
        # Buffers are whole where weights are spread over processes, and one call takes one kind.
        for kind in {type(now[k]) for k in floating}:
            names = [k for k in floating if type(now[k]) is kind]
            torch._foreach_lerp_([self.average[k] for k in names], [now[k] for k in names], 1 - decay)

    def _validate(self, step: int) -> None:
        if self.report.history and self.report.history[-1][0] == step:
            return
        training = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict(self.average)
        self.network.eval()
        if self._spreads():
            self.unshard()  # type: ignore[operator]
        value = self.score() if self.rank == 0 else math.nan
        if self._spreads():
            self.reshard()  # type: ignore[operator]
        self.network.train()
        self.network.load_state_dict(training)
        if self.processes > 1:
            value = from_first(value, self.device)
        self.report.history.append((step, value))
        if value < self.report.best_score:
            self.report.best_score, self.report.best_step = value, step
            self.best = {k: v.clone() for k, v in self.average.items()}

    def finish(self) -> None:
        """Leave the best weights in the network and the last state on disk."""
        if self.state_file:
            self.save()
        self.network.load_state_dict(self.best)
        if self._spreads():
            _gather_parameters(self.network)
        self.network.eval()

    # Resume

    def save(self) -> None:
        """Write the whole state, atomically."""
        assert self.state_file is not None
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, parameter in enumerate(self.network.parameters()):
            for k, v in getattr(self, "optimiser", _NO_OPTIMISER).state.get(parameter, {}).items():
                tensors[f"optimiser.{i}.{k}"] = torch.as_tensor(v)
        report = asdict(self.report) | {"seconds": self._elapsed()}
        if report["ended"] in ("cap", "interrupted"):
            report["ended"] = "finished"  # such a run may go on
        tensors = {k: whole(v) for k, v in tensors.items()}
        if is_first():
            write_tensors(self.state_file, tensors, {"report": report, "signature": self._signature()})
        self.saved = self._elapsed()

    def resume(self) -> int:
        """Read the state if there is one; the number of steps already done."""
        if self.state_file is None or not self.state_file.exists():
            return 0
        tensors, meta = read_tensors(self.state_file)
        if meta.get("signature") != self._signature():
            raise CSTError(
                f"{self.state_file} belongs to a run with other settings or data; remove it or choose another directory"
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        try:
            for prefix in ("average.", "best.", "network."):  # the first two only to see that they fit
                self.network.load_state_dict(part(prefix))
            self.report = TrainingReport(**meta["report"])
            self.report.history = [(int(a), float(b)) for a, b in self.report.history]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CSTError(f"{self.state_file} is incomplete ({reason}); remove it to begin again") from None
        device = next(iter(self.average.values())).device
        self.average = {k: v.to(device) for k, v in part("average.").items()}
        self.best = {k: v.to(device) for k, v in part("best.").items()}
        self.saved_optimiser = part("optimiser.")
        self.before = self.report.seconds
        return self.report.steps

    def _restore_optimiser(self) -> None:
        for i, parameter in enumerate(self.network.parameters()):
            prefix = f"{i}."
            entries = {k.removeprefix(prefix): v for k, v in self.saved_optimiser.items() if k.startswith(prefix)}
            if entries:
                self.optimiser.state[parameter] = {
                    k: v if k == "step" else spread_like(v, parameter) for k, v in entries.items()
                }

    def _signature(self) -> str:
        """Say what must agree for a resume: the data, the sizes, and all settings but those of `FREE`."""
        names = [f.name for f in fields(self.settings) if f.name not in FREE]
        settings = {name: getattr(self.settings, name) for name in names}
        shapes = {k: list(v.shape) for k, v in self.average.items()}
        return json.dumps([settings, shapes, self.count, self.fingerprint], sort_keys=True, default=str)


def _gather_parameters(network: nn.Module) -> None:
    """Make a network that was spread over processes a plain one again."""
    for module in network.modules():
        module._load_state_dict_post_hooks.clear()  # of FSDP, for which every weight is spread
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(whole(parameter.detach()), parameter.requires_grad)


class _NoOptimiser:
    state: dict = {}  # noqa: RUF012


_NO_OPTIMISER = _NoOptimiser()


class _NotFinite(Exception):
    """The loss became NaN or infinite at a step."""


class _Bar(Callback):
    """Progress bar: loss, speed, time left."""

    def __init__(self, title: str, steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.task = self.bar.add_task(title, total=steps, note="")
        self.last = 0.0

    def on_train_start(self, trainer, module) -> None:
        self.bar.start()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if time.monotonic() - self.last < 0.2:
            return
        self.last = time.monotonic()
        loss = float(outputs["loss"] if isinstance(outputs, dict) else outputs)
        speed = (batch_idx + 1) / max(1e-9, self.last - module.started)
        note = f"loss {loss:.4g}  best {module.report.best_score:.4g}  {speed:.1f} steps/s"
        self.bar.update(self.task, completed=int(batch) + 1, note=note)

    def teardown(self, trainer, module, stage) -> None:
        self.bar.stop()


def _listen(run: _Run) -> dict[signal.Signals, Any]:
    """Send the signals to this run; the handlers they had before."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    def ask(number, frame):
        if run.stop_requested:
            raise KeyboardInterrupt
        run.stop_requested = True

    return {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}


@contextmanager
def _signals(run: _Run) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the run to stop after its step; a second one ends at once. NaN ends the run."""
    old = _listen(run)
    try:
        yield
    except _NotFinite as error:
        run.report.ended = "not finite"
        warnings.warn(
            f"the loss was not finite at step {error}; training stopped there and the best weights so far are kept",
            CSTWarning,
            stacklevel=3,
        )
    except RuntimeError as error:
        if run.processes == 1:
            raise
        # A step that failed has changed nothing yet, so what is there can be resumed from.
        if run.state_file and run.report.steps and not run._spreads():
            run.save()
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CSTError(f"a process of this training failed: {reason}") from error
    except SystemExit:  # how Lightning answers a KeyboardInterrupt
        if run.stop_requested:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's notices that our users cannot act upon."""
    loggers = [
        logging.getLogger(n) for n in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
