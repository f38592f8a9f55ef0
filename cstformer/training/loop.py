"""The training loop of CST and of every neural rival: schedule, validation, patience, cap, interruption, resume."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from cstformer.errors import CSTError, CSTWarning
from cstformer.system.memory import keep_freed_memory
from cstformer.system.threads import thread_limit
from cstformer.training.interruption import Interruption
from cstformer.training.optimiser import make_optimiser
from cstformer.training.progress import ProgressBar
from cstformer.training.report import TrainingReport
from cstformer.training.schedule import Shuffle, batch_indices, generator_for, learning_rate_factor
from cstformer.training.settings import ScaleSettings, TrainingSettings
from cstformer.training.state import TrainingState, signature
from cstformer.training.team import Alone, make_team

VALIDATIONS = 25  # how often a run looks at its validation set
SAVE_SECONDS = 30.0  # how often a resumable run writes its state
COOL_FROM = 0.7  # share of max_minutes after which a run that cannot finish starts to anneal


def train(
    network: nn.Module,
    loss: Callable[[Tensor, Generator], Tensor],
    score: Callable[[], float],
    count: int,
    settings: TrainingSettings,
    *,
    optimiser: str = "adamw",
    scale: ScaleSettings | None = None,
    state: Path | None = None,
    progress: str | None = None,
    fingerprint: str = "",
    labels: Sequence[object] | None = None,
    shuffle: Shuffle | None = None,
    report: TrainingReport | None = None,
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
    settings : TrainingSettings
    optimiser : ``adamw`` or ``muon``
    scale : ScaleSettings, optional
        Processes that share each batch; one by default.
    state : Path, optional
        File for resuming: written every half minute, read if it is there; the caller removes it.
    progress : str, optional
        Show a progress bar with this title.
    fingerprint : str, optional
        Of the data: a state file that was written with another one is refused.
    labels : sequence, optional
        Numbers or names of the training samples, by which a loss that is not finite says where it happened.
    shuffle : callable, optional
        How the samples of an epoch are ordered; any order is as likely as another by default.
    report : TrainingReport, optional
        Of what came before the training; it is continued.
    """
    keep_freed_memory()
    kept = TrainingState(network, state, signature(network, settings, count, fingerprint))
    kept.report = report or kept.report
    kept.resume()
    run = Run(kept, loss, score, count, settings, make_team(scale, settings.device), optimiser)
    run.labels, run.shuffle = labels, shuffle
    if kept.report.steps < settings.steps and kept.report.ended == "finished":
        limit = thread_limit(settings.threads, sum(p.numel() for p in network.parameters()))
        with limit, torch.random.fork_rng(devices=[]):
            run.go(progress)
    run.finish()
    return kept.report


class Run:
    """One training run; `go` is the loop."""

    def __init__(
        self,
        state: TrainingState,
        loss: Callable[[Tensor, Generator], Tensor],
        score: Callable[[], float],
        count: int,
        settings: TrainingSettings,
        team: Alone,
        optimiser: str,
    ):
        self.state, self.network, self.report = state, state.network, state.report
        self.loss, self.score, self.count, self.settings = loss, score, count, settings
        self.team, self.optimiser_name = team, optimiser
        self.labels: Sequence[object] | None = None
        self.shuffle: Shuffle | None = None
        self.every = max(1, settings.steps // VALIDATIONS)
        self.max_minutes = settings.max_minutes
        self.interruption = Interruption()
        self.cooling_from: float | None = None
        self.before = self.report.seconds  # spent before a resume
        self.started = time.monotonic()
        self.elapsed = self.saved = self.before  # seconds of training: now, and when the state was last written

    def go(self, progress: str | None) -> None:
        """Take the steps that are left."""
        steps, first = self.settings.steps, self.report.steps
        with self.interruption, ProgressBar(progress, steps, first, self.max_minutes) as bar:
            try:
                self._begin()
                for step in range(first, steps):
                    loss = self.step(step)
                    self._after_step(step + 1)
                    bar.show(loss, self.report)
                    if self.report.ended != "finished":
                        break
            except NotFinite as error:
                self.report.ended = "not finite"
                warnings.warn(
                    f"the loss was not finite at step {error}; training stopped there and the best weights so far "
                    "are kept",
                    CSTWarning,
                    stacklevel=4,
                )
            except RuntimeError as error:
                if self.team.count == 1:
                    raise
                # A step that failed has changed nothing yet, so what is there can be resumed from.
                if self.report.steps and not self.team.shards:
                    self.state.save(self.elapsed)
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise CSTError(f"a process of this training failed: {reason}") from error

    def _begin(self) -> None:
        """Join the other processes, make the optimiser, score the untrained network."""
        self.team.join(self.network, self.loss)
        if self.team.shards:
            self.state.shard()
        options = self.settings.learning_rate, self.settings.weight_decay
        self.optimiser = make_optimiser(self.network, self.optimiser_name, *options, fused=not self.team.shards)
        self.state.use_optimiser(self.optimiser)
        self.started = time.monotonic()
        if self.max_minutes is not None:
            self.max_minutes = self.team.from_first(self.max_minutes)
        self.network.train()
        if not self.report.steps:
            self.validate(0)  # the untrained network may already be good: CST begins at its start

    def step(self, step: int) -> float:
        """One step of the optimiser; its loss."""
        s = self.settings
        # All processes go by one clock, and stop together when one was asked to.
        self.elapsed, stop = self.team.agree([self._clock(), float(self.interruption.requested)])
        self.stop = bool(stop)
        factor = learning_rate_factor(step, s.steps, s.warmup) * self._cooling()
        for group in self.optimiser.param_groups:
            group["lr"] = s.learning_rate * factor
        generator = generator_for(s.seed, step)
        torch.manual_seed(s.seed * 1_000_003 + step + self.team.rank * 2**40)  # dropout
        index = batch_indices(step, s.batch, self.count, s.seed, self.shuffle)
        value = self.team.compute(index, generator)
        if not torch.isfinite(value):
            raise NotFinite(self._where(step, index))
        self.optimiser.zero_grad()
        self.team.backward(value)
        if s.clip:
            parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, s.clip)
        self.optimiser.step()
        return float(value.detach())

    def _where(self, step: int, index: Tensor) -> str:
        if self.labels is None:
            return str(step)
        names = [str(self.labels[i]) for i in index.tolist()]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return f"{step} (samples number {', '.join(names[:8])}{more})"

    def _after_step(self, step: int) -> None:
        self.state.update_average(step)
        if self.team.count == 1:
            self.elapsed, self.stop = self._clock(), self.interruption.requested
        self.report.steps, self.report.seconds = step, self.elapsed
        if step % self.every == 0 or step == self.settings.steps:
            self.validate(step)
        self._decide(step)
        if self.elapsed - self.saved > SAVE_SECONDS or self.report.ended != "finished":
            self.state.save(self.elapsed)
            self.saved = self.elapsed

    def _clock(self) -> float:
        return self.before + time.monotonic() - self.started

    def _cooling(self) -> float:
        """Anneal by the clock once it is clear that the cap will end the run before its schedule does."""
        if self.cooling_from is None or self.max_minutes is None:
            return 1.0
        return max(0.0, min(1.0, (self.max_minutes * 60 - self.elapsed) / self.cooling_from))

    def _decide(self, step: int) -> None:
        """Stop for patience, for the cap, or because somebody asked."""
        s, report = self.settings, self.report
        if step - report.best_step > max(self.every, s.patience * s.steps):
            report.ended = "patience"
        if self.max_minutes is not None:
            cap = self.max_minutes * 60
            if self.cooling_from is None and self.elapsed > COOL_FROM * cap and self.elapsed / step * s.steps > cap:
                self.cooling_from = cap - self.elapsed
            if self.elapsed >= cap and step < s.steps:
                self.validate(step)
                report.ended = "cap"
            elif step == s.steps and self.cooling_from is not None:
                report.ended = "cap"  # all steps done after all, but the last ones were annealed by the clock
        if self.stop:
            self.validate(step)
            report.ended = "interrupted"

    def validate(self, step: int) -> None:
        """Score the running average of the weights, and keep it if it is the best."""
        if self.report.history and self.report.history[-1][0] == step:
            return
        training = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict(self.state.average)
        self.network.eval()
        with self.team.whole_weights():
            value = self.score() if self.team.rank == 0 else math.nan
        self.network.train()
        self.network.load_state_dict(training)
        value = self.team.from_first(value)
        self.report.history.append((step, value))
        if value < self.report.best_score:
            self.report.best_score, self.report.best_step = value, step
            self.state.keep_best()

    def finish(self) -> None:
        """Leave the best weights in the network and the last state on disk."""
        self.state.save(self.elapsed)
        self.network.load_state_dict(self.state.best)
        self.team.leave(self.network)
        self.network.eval()


class NotFinite(Exception):
    """The loss became NaN or infinite at a step."""
