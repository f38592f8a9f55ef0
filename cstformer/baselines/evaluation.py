"""Is a model any good on these data? It and simple rivals, asked for hidden points of samples they never saw."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float

from cstformer.baselines.interpolation import CubicSpline, GaussianProcess, LastValue, LinearInterpolation
from cstformer.data.holding_out import hold_out, share_points
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.models.model import Model
from cstformer.models.scoring import hide_part, queries, r_squared

RIVALS: dict[type[Model], str] = {
    LinearInterpolation: "linear interpolation",
    CubicSpline: "a cubic spline",
    GaussianProcess: "a Gaussian process",
    LastValue: "the last value",
}
"""Rivals, and what a sentence calls them."""
HELD_OUT = 0.25  # share of the samples that no model trains on
RESAMPLES = 2000  # of the bootstrap
LEVEL = 0.95  # of its intervals
COVERED = 0.9  # level of the models' own intervals whose coverage is measured
FEWEST = 6  # held-out samples: with fewer, no difference can be told from chance (2⁻⁵ > 0.03)


@dataclass
class Answers:
    """What one model made of the hidden cells.

    Attributes
    ----------
    error : (N,)
        Mean squared error over the hidden cells of each sample, in units of the training variance of each channel.
    r2 : float
        R² over all hidden cells, averaged over channels.
    coverage : float or None
        Share of the hidden cells inside intervals; None for a model without intervals.
    level : float
        Of these intervals: 0.9, or the highest for which enough samples were held out in the training.
    """

    model: Model
    error: Float[np.ndarray, " N"]
    r2: float
    coverage: float | None = None
    level: float = COVERED

    @property
    def rmse(self) -> float:
        """Root of the mean over samples of `error`, in standard deviations of the training values."""
        return float(np.sqrt(self.error.mean()))


@dataclass
class Evaluation:
    """A model and its rivals on the same hidden cells.

    Attributes
    ----------
    trained : number of training samples
    context, truth : held-out samples without their hidden cells, and these cells
    sd : (c,), standard deviation of the training values of each channel
    answers : by label; the model under test comes first
    """

    trained: int
    context: Samples
    truth: Samples
    sd: Float[np.ndarray, " c"]
    answers: dict[str, Answers] = field(default_factory=dict)

    def ask(self, model: Model, train: Samples, progress: bool = False) -> None:
        """Fit a model, and compare its answers with what was hidden."""
        model.fit(train, progress=progress)
        told = bool(self.answers)  # of what is outside the training domain, by the first model
        at, seen = queries(self.context, self.truth), self.truth.observed
        with warnings.catch_warnings(action="ignore", category=CSTWarning) if told else nullcontext():
            answer = model.predict(self.context, at, extrapolate=True)
        squared = np.square(np.where(seen, answer - self.truth.values, 0.0) / self.sd)
        error = squared.sum((1, 2)) / seen.sum((1, 2))
        r2 = r_squared(answer, self.truth.values, seen)
        self.answers[model.label] = Answers(model, error, r2, *self._coverage(model, at))

    def _coverage(self, model: Model, at: Float[np.ndarray, "N m d"]) -> tuple[float | None, float]:
        """Share of the hidden cells inside the intervals of a model, if it has them, and the level of these."""
        interval = getattr(model, "interval", None)  # of CST; rivals have none
        if interval is None:
            return None, COVERED
        calibration = getattr(model, "calibration_", None)
        level = COVERED if calibration is None else calibration.usual_level or COVERED
        with warnings.catch_warnings(action="ignore", category=CSTWarning):  # `predict` told it
            try:
                low, high = interval(self.context, at, level, extrapolate=True)
            except CSTError:  # too few samples were held out in the training
                return None, level
        seen, truth = self.truth.observed, self.truth.values
        return float(((low <= truth) & (truth <= high))[seen].mean()), level

    @property
    def first(self) -> str:
        """Label of the model under test."""
        return next(iter(self.answers))

    def difference(self, label: str) -> tuple[float, float, float]:
        """How much larger the mean error of a rival is, as a share of the model's, and its 95 % bootstrap interval.

        The bootstrap draws samples with replacement, the same ones for both: errors of a sample are of the same cells,
        so that its difficulty cancels.
        """
        rival, own = self.answers[label].error, self.answers[self.first].error
        index = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
        tiny = np.finfo(float).tiny  # a perfect model has no error
        drawn = rival[index].mean(1) / np.maximum(own[index].mean(1), tiny) - 1
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(rival.mean() / max(own.mean(), tiny) - 1), float(low), float(high)

    def closer(self, label: str) -> int:
        """In how many samples the model under test has a smaller error than a rival."""
        return int((self.answers[self.first].error < self.answers[label].error).sum())

    def best_rival(self) -> str:
        """Label of the rival with the smallest error."""
        return min((name for name in self.answers if name != self.first), key=lambda name: self.answers[name].rmse)

    def advice(self) -> str:
        """One sentence: whether the model is worth its training on these data."""
        name, best, count = self.first, self.best_rival(), len(self.truth)
        rival = RIVALS[type(self.answers[best].model)]
        if count < FEWEST:
            return f"Only {count} samples were held out: too few to tell {name} from {rival}."
        _, low, high = self.difference(best)
        ratio = float(self.answers[name].error.mean() / self.answers[best].error.mean())
        if low > 0:
            better = f"its squared error is {1 - ratio:.0%} smaller than that of {rival}, the best of the others"
            return f"On these data {name} is worth its training: {better}."
        if high < 0:
            return f"On these data {rival} is better than {name}, whose squared error is {ratio - 1:.0%} larger."
        return f"On these data {rival} does as well as {name}; the difference is within chance ({count} samples)."


def evaluate(
    model: Model, samples: Samples, *, held_out: float = HELD_OUT, seed: int = 0, progress: bool = False
) -> Evaluation:
    """Compare a model with linear interpolation, a cubic spline, a Gaussian process and the last value.

    Whole samples are held out: no model trains on any of their points. Of each, up to half of the points are hidden
    (`hide_part`), and every model predicts the same hidden cells from the same visible ones.

    Parameters
    ----------
    model : Model, not fitted
    samples : Samples; windows of a recording may overlap
    held_out : share of the samples that is held out
    seed : of the choice of samples and cells
    progress : show a progress bar while the model trains

    Examples
    --------
    >>> t = np.linspace(0, 1, 9)
    >>> lines = Samples(t, np.arange(24.0)[:, None] * t)
    >>> from cstformer.baselines.interpolation import Mean
    >>> result = evaluate(Mean(), lines)
    >>> result.trained, len(result.truth), result.best_rival()
    (18, 6, 'Linear interpolation')
    """
    train, held = _divide(samples, held_out, seed)
    context, truth = hide_part(held, seed=seed)
    sd = np.where(train.observed, train.values, np.nan).reshape(-1, train.c)
    sd = np.nanstd(sd, axis=0)
    result = Evaluation(len(train), context, truth, np.where(sd > 0, sd, 1.0))
    result.ask(model, train, progress)
    for rival in RIVALS:
        if train.d == 1 or not rival.curves_only:
            result.ask(rival(seed=seed), train)
    return result


def _divide(samples: Samples, held_out: float, seed: int) -> tuple[Samples, Samples]:
    """Training samples and held-out samples that share no point with them."""
    if not 0 < held_out < 1:
        raise CSTError(f"held_out={held_out} must lie between 0 and 1; 0.25 holds out a quarter of the samples")
    training, held = hold_out(samples, held_out, seed)
    if bool(torch.isin(training, held).any()):
        raise CSTError(
            f"{len(samples)} sample(s) are too few to hold some out: give at least 5, or cut a long recording into "
            "windows by samples.windows(length, stride) (--window)"
        )
    if share_points(samples, training, held):
        raise CSTError(
            "the windows overlap so much that held-out ones cannot be kept apart from the others; "
            "choose a stride as long as a window (--stride)"
        )
    order = training.sort().values, held.sort().values
    return samples[order[0].numpy()], samples[order[1].numpy()]
