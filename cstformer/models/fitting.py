"""How CST is fitted: the prior of the data, the network, the weight μ of the Sobolev term, the training."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from cstformer.data.batch import Batch
from cstformer.data.holding_out import hold_out
from cstformer.data.lazy import LazyFrames
from cstformer.data.lazy_batch import memory_limit, open_data
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.models import trials
from cstformer.models.arithmetic import COMPILE_MINUTES, arithmetic, compiles
from cstformer.models.calibration import MAX_SAMPLES, Calibration
from cstformer.models.intervals import calibrated
from cstformer.network.architecture import parameter_count
from cstformer.system.devices import choose_device
from cstformer.system.memory import memory_left, peak_memory
from cstformer.system.threads import thread_limit
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.training import sampling
from cstformer.training.disturbance import noise_levels, root_mean_square, validation_patterns
from cstformer.training.loop import train
from cstformer.training.objective import TOKENS_PER_STEP, Validation
from cstformer.training.report import TrainingReport
from cstformer.training.settings import Settings, resolve
from cstformer.training.state import resumed_report

if TYPE_CHECKING:
    from cstformer.models.cst import CST

# auto μ over (noise / roughness)^p; found on spirals of another seed, flat between 0 and 0.1
MU_SHARE = 0.05
ROUGHNESS_SAMPLES = 64  # samples from which the roughness for auto μ is estimated
ROUGHNESS_PAIRS = 2**23  # pairs of points of these samples together, of each of which a covariance is computed
ROUGHNESS_POINTS = 64  # places of each sample at which it is measured
# Shares tried by mu="search": with 1 the Sobolev term of the data would be as large as their variance. On the spirals
# 1e-4 changes nothing yet and 0.1 flattens the curves (k = p = 3).
MU_TRIALS = (1e-4, 1e-3, 1e-2, 1e-1)
MU_GAIN = 0.02  # by how much a positive μ must improve the trial without the term; else μ is 0
SCALED = 0.98  # quantile of the absolute values that is the unit of noise_on="tokens", as in the published code
LONGEST = 4  # a batch of the longest samples may have this many times the tokens of a usual one
TRIAL = 20  # a trial takes this part of the steps and of the minutes
TRIAL_HIDE = 0.2  # largest share of points hidden when trials are judged


class Fitting:
    """One fit of a CST: its data, and the settings of its run.

    Parameters
    ----------
    model : CST, whose ``kind_`` is set
    samples : checked training samples
    """

    def __init__(self, model: CST, samples: Samples | LazyFrames):
        self.model = model
        model.device_ = choose_device(model.device)
        self.data = open_data(samples, model._batch)
        model.run_ = resolve(model.settings(), model.kind_.preset)
        check_memory(model.run_, samples.n, model.device_)
        training, held_out = hold_out(samples, model.run_.validation, model.seed)
        limit = memory_limit(samples)
        self.training, self.held_out = training, held_out[:limit]
        some = self.data[training[:limit]]
        start = model.kind_.fit_prior(some, model.start, model.seed, model._corruption)
        model.run_ = dataclasses.replace(model.run_, start=start)
        self.spacing = model.kind_.spacing(some)
        self.unit = _scaled_unit(model, some) if model.noise_on == "tokens" else None
        self.shape, self.points = (samples.d, samples.c), samples.n
        model.cells_ = model.kind_.cell_gaps(some) if model.hide_cells == "auto" else float(model.hide_cells)
        processes = model.devices * model.nodes
        # What one step can hold bounds the batch; where it is automatic, every process gets a sample.
        batch = max(model.run_.batch, processes) if model.batch == "auto" else model.run_.batch
        mean = float(some.exists.sum(1).double().mean())
        most = min(int(TOKENS_PER_STEP / mean), LONGEST * TOKENS_PER_STEP // samples.n)
        batch = min(batch, max(processes, most))
        self.proposal = dataclasses.replace(model.run_, batch=batch, optimiser=_optimiser(model))
        self._take({})

    def fit(self, state: Path | None, progress: bool) -> None:
        """Choose what is ``auto``, then train."""
        model = self.model
        model.mu_ = self._choose_mu()
        report = self._choose(state, progress)
        if progress:
            print(self._estimate(), file=sys.stderr)
        run = dataclasses.replace(self.run, max_minutes=model._minutes_left())  # the prior and trials count too
        model.report_ = self._train(model.mu_, run, state, "CST" if progress else None, report)
        self._doubt(model.report_)
        model.calibration_ = self._calibrate()
        if model.report_.ended == "cap":
            warnings.warn(model.report_.sentence(model.run_), CSTWarning, stacklevel=5)

    def _take(self, changes: trials.Changes) -> None:
        """Use these settings, and make the network and the noise that belong to them."""
        model = self.model
        settings = {name: value for name, value in changes.items() if name != "noise"}
        self.run = model.run_ = dataclasses.replace(self.proposal, **settings)
        found = tuple(changes.get("noise", 1.0) * s for s in model.kind_.noises)
        model.noises_ = noise_levels(model.noise, found, model.kind_.noise_share)
        if self.unit is not None:
            unit = self.unit if len(self.unit) == len(found) else (sum(self.unit) / len(self.unit),) * len(found)
            model.noises_ = tuple(s * u for s, u in zip(model.noises_[0], unit, strict=True)), model.noises_[1]
        model.noise_ = root_mean_square(model.noises_[0])
        model.network_ = model._fresh_network(*self.shape)
        model.network_.fit_axes({}, self.spacing)

    def _choose(self, state: Path | None, progress: bool) -> TrainingReport:
        """Choose what is still ``auto`` by short trials; returns a report that says what was tried."""
        model = self.model
        if not model.kind_.tries:
            return TrainingReport()
        assert model.kernel_ is not None
        found = trials.candidates(model, model.kernel_, float(self.spacing.min()))
        if (kept := resumed_report(state)) is not None:  # the trials are done
            self._take(kept.chosen)
            return kept
        budget = 0 if model.devices * model.nodes > 1 else int(trials.SHARE * self.run.steps)
        left = model._minutes_left()

        def judge(changes: trials.Changes, steps: int, title: str) -> float:
            self._take(changes)
            return self._try(model.mu_, steps, trials.minutes(left, steps, budget), title if progress else None)

        search = trials.Trials(budget, judge, trials.weighs_visible(model, model.kernel_))
        chosen = search.choose(found)
        self._take(chosen)
        return TrainingReport(trials=search.tried, chosen=chosen)

    def _try(
        self, mu: float, steps: int, minutes: float | None, progress: str | None = None, judged: float | None = None
    ) -> float:
        """Train the network as it is for a few steps; returns its loss at held-out real points."""
        short = dataclasses.replace(self.run, steps=steps, max_minutes=minutes)
        if self._train(mu, short, None, progress, judged=judged).ended == "interrupted":
            raise KeyboardInterrupt
        return self._validation(0.0, TRIAL_HIDE).score()

    def _train(
        self,
        mu: float,
        run: Settings,
        state: Path | None = None,
        progress: str | None = None,
        report: TrainingReport | None = None,
        judged: float | None = None,
    ) -> TrainingReport:
        """Train the network with this μ; ``judged`` is the μ of the validation, if it is another one."""
        hide = self.model.kind_.judging(run.start, run.hide)[0]
        validation = self._validation(mu if judged is None else judged, hide)
        objective, tokens = self.model._objective(mu, run), run.dummies
        if run.pattern == "joint":
            tokens += validation.batch.coords.shape[1]
        compiled = compiles(run, objective.plan, run.steps * run.batch * tokens)
        if run.compile == "auto" and run.max_minutes is not None and run.max_minutes < COMPILE_MINUTES:
            compiled = False
        data, training = self.data, self.training
        with arithmetic(run, compiled):
            return train(
                self.model.network_,
                lambda index, generator: objective.loss(data[training[index]], generator),
                validation.score,
                len(training),
                run,
                optimiser=run.optimiser,
                scale=run,
                state=state,
                progress=progress,
                fingerprint="" if state is None else data.fingerprint(run.seed),
                shuffle=data.shuffle(training, run.batch),
                labels=training.tolist(),
                report=report,
            )

    def _doubt(self, report: TrainingReport) -> None:
        """Return to the untrained network, which answers with its start, unless the training improved on it clearly."""
        model = self.model
        least = model.kind_.judging(self.run.start, self.run.hide)[1]
        first = report.history[0][1] if report.history else math.inf
        if report.best_step > 0 and report.best_score > (1 - least) * first:
            model.network_ = model._fresh_network(*self.shape).eval()
            model.network_.fit_axes({}, self.spacing)
            report.best_step, report.best_score = 0, first

    def _calibrate(self) -> Calibration | None:
        """Errors at hidden points of the validation samples; None if these trained the model."""
        if bool(torch.isin(self.held_out, self.training).any()):
            return None
        batch, corruption = self.data[self.held_out[:MAX_SAMPLES]], self.model._corruption
        given = None
        if corruption is not None:
            given = self.model.kind_.corrupt(batch, corruption, torch.Generator().manual_seed(self.run.seed))
        return calibrated(self.model, batch, given)

    def _estimate(self) -> str:
        """One sentence on the time and memory of the training, from a step that changes nothing."""
        model, run = self.model, self.run
        index = self.training[: run.batch]
        began = time.monotonic()
        with thread_limit(run.threads, parameter_count(model.network_)):
            model._objective(model.mu_, run).loss(self.data[index], torch.Generator().manual_seed(run.seed)).backward()
        seconds = time.monotonic() - began
        model.network_.zero_grad()
        minutes, left = seconds * run.steps / 60, model._minutes_left()
        allowed = run.steps if left is None else int(60 * left / seconds)
        cap = "" if allowed >= run.steps else f"; max_minutes allows about {allowed} of them"
        return (
            f"about {seconds:.2g} s a step: {run.steps} steps in about {minutes:.2g} minutes{cap}; "
            f"memory so far {peak_memory() / 2**30:.2g} GiB"
        )

    def _validation(self, mu: float, hide: float) -> Validation:
        """Make the loss with this μ and its fixed validation set."""
        held_out = self.data[self.held_out]
        patterns = validation_patterns(len(held_out), held_out.coords.shape[1], TOKENS_PER_STEP)
        return Validation(self.model._objective(mu, self.run), held_out, self.run.seed, patterns, hide)

    def _choose_mu(self) -> float:
        """μ as set, from the data, or by short trainings judged at held-out real points."""
        model, run = self.model, self.run
        if run.order == 0 or run.dummies == 0:
            return 0.0
        if not isinstance(run.mu, str):
            return float(run.mu)
        assert model.kernel_ is not None
        if run.mu == "auto" and model.kernel_.smoothness is not None:
            # Rough functions are not to be smoothed: on ETTh1, 10 % removed, the term raised the squared error of
            # validation cells from 0.031 to 0.041 (2400 steps).
            return 0.0
        few = max(1, min(ROUGHNESS_SAMPLES, ROUGHNESS_PAIRS // self.points**2))
        some = self.data[self.training[:few]]
        if run.mu == "auto":
            return MU_SHARE * balanced_mu(model, some)
        cap = None if run.max_minutes is None else run.max_minutes / TRIAL
        scores = {}
        for mu in (0.0, *(share * balanced_mu(model, some, 1.0) for share in MU_TRIALS)):
            self._take({})  # the same first weights for each
            # The term at many dummy points would take most of the time of a trial's validation.
            scores[mu] = self._try(mu, max(1, run.steps // TRIAL), cap, judged=0.0)
        self._take({})
        best = min(scores, key=lambda mu: scores[mu])
        return best if scores[best] < (1 - MU_GAIN) * scores[0.0] else 0.0


def check_memory(run: Settings, points: int, device: torch.device) -> None:
    """Refuse a training of which not even a step on one sample fits into memory, before any work.

    These are lower bounds, in float32: what exact attention keeps for the backward pass, heads · layers matrices
    (n, n), and the features of the dummy points, a number for each of width and each Taylor coefficient in every layer.
    """
    if device.type != "cpu":
        return
    maps = 4 * run.heads * run.layers * points**2 if run.attention_kind == "exact" else 0
    dummies = 4 * run.dummies * run.width * run.layers * (run.order + 1)
    left = memory_left()
    for needed, what, remedy in (
        (maps, f"a sample of {points:,} points", "cut it by samples.windows (--window), or use nystrom attention"),
        (dummies, f"dummies={run.dummies:,}", "choose fewer"),
    ):
        if needed > max(left, 2**20):
            raise CSTError(
                f"{what} needs more than {needed / 2**30:.0f} GiB in a training step, and {left / 2**30:.1f} GiB are "
                f"free; {remedy}"
            )


def balanced_mu(model: CST, batch: Batch, noise: float | None = None) -> float:
    """(noise / roughness)^p: where a prior of the data's own roughness balances its noise, or another one.

    The roughness is the root mean square of all derivatives up to the order of the Sobolev term, of the smooth start.
    """
    d = batch.coords.shape[-1]
    terms = plan(d, up_to(d, model.run_.order))
    low, high = sampling.box(batch.coords, batch.exists)
    at = sampling.dummy_coords("regular", low, high, ROUGHNESS_POINTS)
    with torch.no_grad():
        start = model.kind_.start("smooth", batch)
    smooth = start(series.straight_line(at, terms.directions, terms.order))
    rough = sum(float(terms.partial(smooth, q).square().mean()) for q in terms.weights)
    assert model.kernel_ is not None
    exponent = 1.0 if math.isinf(model.p) else model.p
    return ((model.kernel_.noise if noise is None else noise) / math.sqrt(max(rough, 1e-12))) ** exponent


def _scaled_unit(model: CST, batch: Batch) -> tuple[float, ...]:
    """The 0.98 quantile of the absolute values, in the standard deviation of each channel."""
    scaling = model.scaling_
    values = np.abs(scaling.values(batch.values.double().cpu().numpy()))[batch.observed.cpu().numpy()]
    return tuple(float(np.quantile(values, SCALED) / sd) for sd in scaling.sd)


def _optimiser(model: CST) -> str:
    """What ``auto`` means; Muon needs whole matrices, which fsdp does not have."""
    shards = model.strategy == "fsdp" and model.devices * model.nodes > 1
    if model.optimiser == "muon" and shards:
        raise CSTError("optimiser='muon' cannot be used with strategy='fsdp'; choose 'adamw' or strategy='ddp'")
    if model.optimiser != "auto":
        return model.optimiser
    return "adamw" if shards else model.kind_.optimiser
