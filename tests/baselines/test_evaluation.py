"""A model beside its rivals: held-out samples stay unseen, all answer the same cells, the advice fits the numbers."""

from dataclasses import dataclass

import numpy as np
import pytest
from small_models import patched_kernel, refused, waves

from cstformer import Samples
from cstformer.baselines import CubicSpline, LastValue, LinearInterpolation, Mean
from cstformer.baselines.evaluation import Answers, Evaluation, evaluate
from cstformer.data.holding_out import hold_out, share_points


@dataclass(kw_only=True, eq=False, repr=False)
class Watching(Mean):
    """A mean that remembers what it was shown."""

    def _fit(self, samples, state, progress):
        super()._fit(samples, state, progress)
        self.trained_on = samples.sample_ids

    def _predict(self, context, queries):
        self.context = context
        return super()._predict(context, queries)


def lines(count=24, points=9):
    t = np.linspace(0, 1, points)
    return Samples(t, np.arange(1.0, count + 1)[:, None] * t)


@pytest.fixture(autouse=True)
def fast_kernel():
    with patched_kernel():
        yield


def test_held_out_samples_are_never_seen():
    model, samples = Watching(), lines()
    result = evaluate(model, samples)
    assert set(model.trained_on).isdisjoint(result.truth.sample_ids)
    assert {*model.trained_on, *result.truth.sample_ids} == {*samples.sample_ids}
    hidden = {(i, t) for i, t in zip(*np.nonzero(result.truth.point_observed), strict=True)}
    shown = {(i, t) for i, t in zip(*np.nonzero(model.context.point_observed), strict=True)}
    assert hidden and len(hidden) + len(shown) == result.truth.n * len(result.truth)


def test_coverage_counts_hidden_cells_inside_the_intervals():
    class Bounded(Mean):
        def interval(self, context, at, level, extrapolate):
            assert level == 0.9 and extrapolate
            return np.zeros_like(at), np.full_like(at, 10.0)

    result = evaluate(Bounded(), lines())
    hidden = result.truth.values[result.truth.observed]
    assert 0 < np.mean(hidden <= 10) < 1
    assert result.answers["Mean"].coverage == pytest.approx(np.mean(hidden <= 10))
    assert result.answers["Linear interpolation"].coverage is None


def test_errors_by_hand():
    result = evaluate(Mean(), lines())
    train_sd = result.answers["Mean"].model.scaling_.sd
    assert result.sd == pytest.approx(train_sd)
    # A line interpolates a line exactly between the visible points, and is constant outside of them.
    context, truth = result.context, result.truth
    for i, error in enumerate(result.answers["Linear interpolation"].error):
        t, hidden = context.coords[i, context.point_observed[i], 0], truth.coords[i, truth.point_observed[i], 0]
        slope = context.values[i, :, 0].max() / t.max()
        miss = slope * (hidden - np.clip(hidden, t.min(), t.max()))
        assert error == pytest.approx(np.mean(miss**2) / result.sd.item() ** 2, abs=1e-12)


def made(own, rival, rival_type=CubicSpline):
    """An evaluation with these errors of each sample."""
    truth = lines(len(own))
    result = Evaluation(10, truth, truth, np.ones(1))
    result.answers = {"CST": Answers(Mean(), np.array(own), 0.5)}
    result.answers[rival_type.label] = Answers(rival_type(), np.array(rival), 0.5)
    return result


def test_differences_are_paired():
    # Samples of very different difficulty, on each of which the rival errs twice as much: no doubt about the ratio.
    result = made([1.0, 100.0, 3.0, 0.1, 8.0, 5.0], [2.0, 200.0, 6.0, 0.2, 16.0, 10.0])
    assert result.difference("Cubic spline") == pytest.approx((1.0, 1.0, 1.0))
    assert result.closer("Cubic spline") == 6


@pytest.mark.parametrize(
    "own, rival, words",
    [
        (
            [1.0] * 8,
            [2.0] * 8,
            "CST is worth its training: its squared error is 50% smaller than that of a cubic",
        ),
        ([3.0] * 8, [2.0] * 8, "a cubic spline is better than CST, whose squared error is 50% larger"),
        (
            [1.0, 2.0] * 4,
            [2.0, 1.0] * 4,
            "a cubic spline does as well as CST; the difference is within chance (8",
        ),
        ([1.0] * 3, [2.0] * 3, "Only 3 samples were held out: too few"),
    ],
)
def test_advice(own, rival, words):
    assert words in made(own, rival).advice()


def test_the_best_rival_is_named():
    result = made([1.0] * 8, [2.0] * 8)
    result.answers["Last value"] = Answers(LastValue(), np.full(8, 1.5), 0.5)
    assert result.best_rival() == "Last value" and "that of the last value" in result.advice()


def test_every_row_of_curves_and_of_points_in_the_plane():
    assert list(evaluate(Mean(), waves(12)).answers) == [
        "Mean",
        "Linear interpolation",
        "Cubic spline",
        "Gaussian process",
        "Last value",
    ]
    rng = np.random.default_rng(0)
    plane = Samples(rng.random((8, 12, 2)), rng.normal(size=(8, 12)))
    with pytest.warns(UserWarning, match="outside the training domain") as told:
        assert "Last value" not in evaluate(Mean(), plane).answers
    assert len(told) == 1


def test_windows_that_overlap_are_kept_apart():
    recording = Samples(np.arange(200.0), np.sin(np.arange(200.0) / 7)[None])
    windows = recording.windows(20, 10)
    model = Watching()
    result = evaluate(model, windows)
    end_of_training = max(float(name.split("@")[1]) for name in model.trained_on) + 20
    assert end_of_training <= min(float(name.split("@")[1]) for name in result.truth.sample_ids)
    training, held = hold_out(windows, 0.25, seed=0)
    assert not share_points(windows, training, held) and share_points(windows, training, training)
    refused(lambda: evaluate(Mean(), recording.windows(150, 10)), "overlap so much", "--stride")


def test_too_few_samples_and_odd_shares_are_refused():
    refused(lambda: evaluate(Mean(), lines(4)), "4 sample(s) are too few", "--window")
    refused(lambda: evaluate(Mean(), lines(), held_out=1.5), "held_out=1.5")


def test_linear_interpolation_wins_on_lines():
    result = evaluate(LastValue(), lines(40))
    assert result.answers["Linear interpolation"].r2 > result.answers["Last value"].r2
    assert type(result.answers[result.best_rival()].model) in (LinearInterpolation, CubicSpline)
