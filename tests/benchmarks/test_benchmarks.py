"""What is compared is the same computation; the stopwatch measures what it says."""

import importlib
import time

import numpy as np
import pytest
import torch

from cstformer.benchmarks import BENCHMARKS, MODULES, chosen, growth, pipeline, quality, step, stopwatch, users
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST
from cstformer.training.settings import Settings

TINY = {"width": 8, "layers": 2, "heads": 2, "feedforward": 16, "dummies": 4, "batch": 3, "noise": 0.0, "mu": step.MU}
TINY |= {"sobolev_every": 1}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("pattern, norm, hide", [("context", "pre", 0.5), ("joint", "post", 0.0)])
def test_nested_autograd_computes_the_same_loss(pattern, norm, hide, order, monkeypatch):
    monkeypatch.setattr(step, "MU", 1e-2)  # so that the derivatives matter
    settings = Settings(**TINY, pattern=pattern, norm=norm, hide=hide, order=order, readout="plain")
    assert step.taylor_step(settings)() == pytest.approx(float(step._nested_step(settings)()), rel=1e-4)
    other = Settings(**TINY, pattern=pattern, norm=norm, hide=hide, order=order - 1, readout="plain")
    assert step.taylor_step(other)() != pytest.approx(float(step._nested_step(settings)()), rel=1e-4)


def test_nested_autograd_in_pieces_is_the_same_step():
    settings = Settings(**TINY | {"batch": 4}, order=2)
    whole, pieces = step._nested_step(settings)(), step._nested_step(settings, pieces=4)()
    assert float(pieces) == pytest.approx(float(whole), rel=1e-5)


def test_the_stopwatch_tells_slow_from_fast(monkeypatch):
    calls = []
    works = {"slow": lambda: time.sleep(0.02), "fast": lambda: calls.append(1)}
    seconds = stopwatch.best_seconds(works, rounds=2)
    assert seconds["slow"] >= 0.02 > seconds["fast"] and len(calls) == 3
    monkeypatch.setattr(stopwatch, "LONG", -1.0)  # everything takes long: one turn, which counts
    assert stopwatch.best_seconds(works, rounds=2)["slow"] >= 0.02 and len(calls) == 4
    stopwatch.best_seconds(works, rounds=2, compiled=works)
    assert len(calls) == 7


def test_peak_memory_counts_what_was_held_at_once():
    def work() -> torch.Tensor:
        a = torch.ones(10 * 2**18)  # 10 MB
        b = a + 1
        del a
        return (b + 1).sum()

    assert stopwatch.peak_megabytes(work) == pytest.approx(20, abs=0.1)
    assert stopwatch.peak_megabytes(lambda: None) == 0


def test_the_clock_charges_time_to_the_innermost_part_and_validation_as_a_whole():
    clock = pipeline.Clock()

    def inner() -> None:
        time.sleep(0.02)

    def outer() -> None:
        time.sleep(0.01)
        clock.around("inner", inner)()

    clock.around("outer", outer)()
    assert clock.seconds["inner"] >= 0.02 and 0.01 <= clock.seconds["outer"] < 0.02 + clock.seconds["inner"]
    before = dict(clock.seconds)
    clock.around("validation", outer)()
    assert clock.seconds["inner"] == before["inner"] and clock.seconds["validation"] >= 0.03


def test_the_profile_of_a_training_covers_all_of_it():
    t = np.linspace(0, 1, 8)
    samples = Samples(t, np.sin(t + np.arange(12)[:, None]))
    model = CST.preset("smoke", steps=6, sobolev_every=1)
    seconds = pipeline.profile(model, samples)
    assert set(seconds) == {*pipeline.PARTS, "start of the queries", "everything else"} - {"validation"}
    assert all(spent > 0 for spent in seconds.values())
    assert sum(seconds.values()) <= model.report_.seconds + 5


def test_slopes_are_fitted_to_large_sizes_only():
    rows = [{"size": n, "seconds": 3 + n**2 / 1e6, "peak MB": 2.0 * n} for n in (10, 100)]
    rows += [{"size": n, "seconds": n**2 / 1e6, "peak MB": 2.0 * n} for n in (500, 1000, 5000)]
    (row,) = growth.fitted_slopes("dummies", "joint, exact", rows)
    assert row["slope of seconds"] == pytest.approx(2) and row["slope of peak MB"] == pytest.approx(1)
    assert (
        growth.fitted_slopes("order", "context", rows) == []
        and growth.fitted_slopes("dummies", "context", rows[:3]) == []
    )


def test_users_leaves_out_what_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CST_DATA", str(tmp_path))
    monkeypatch.setattr(users, "_spirals", lambda quick: [])
    cases = [row["case"] for row in users.measure(quick=True)]
    assert [case[:15] for case in cases] == ["left out: ETTh1", "left out: ERA5 "]
    assert all("CST_DATA" in case for case in cases)


def test_quality_trains_longer_until_the_goal_is_reached(monkeypatch):
    """Errors of a model that halve with the steps: the goal of 0.3 needs four; a rival gets the time that took."""
    t = np.linspace(0, 1, 6)
    samples = Samples(t, np.sin(t + np.arange(8)[:, None]))
    problem = quality.Problem("sines", 0.3, samples, samples, t, float, ("linear", "transformer"), (1, 2, 4, 8))
    asked = []

    def measured(model, problem):
        asked.append((type(model).__name__, getattr(model, "steps", None), getattr(model, "max_minutes", None)))
        return (60.0, 1 / model.steps) if isinstance(model, CST) else (1.0, 0.5)

    monkeypatch.setattr(quality, "_measured", measured)
    first, *rivals = quality.compare(problem, problem.steps)
    assert (first["steps"], first["error"], first["reached"]) == (4, 0.25, True) and first["CPU seconds"] == 60
    assert [row["case"][:6] for row in rivals] == ["sines:"] * 2
    assert [a[1] for a in asked[:-2]] == [1, 2, 4] and asked[-1][2] == 1.0
    assert not next(iter(quality.compare(problem, (1, 2))))["reached"]


def test_the_problems_of_quality_are_what_they_say(monkeypatch, tmp_path):
    """The given frames are the true ones with noise; a problem without its data is left out."""
    flows = quality._flows(quick=True)
    assert flows.context.n == 5 * 4 and flows.at.shape == (2, 20 * 4, 3) and flows.at[..., 0].max() == 19
    video = quality._video(quick=True)
    copied = video.error(video.context.values)
    assert copied == pytest.approx(0.125, rel=0.1)  # half of the pixels have noise of variance 0.25
    cortex = quality._cortex(quick=True)
    assert cortex.context.n == 9 * 4 and cortex.at.shape == (17, 17 * 4, 3) and cortex.at[..., 0].max() == 16
    true = cortex.context.coords[..., 0].astype(int)  # the given frames are those of the truth, in patches of four
    exact = cortex.at[..., 0] % 2 == 0
    assert (cortex.at[..., 0][exact].reshape(true.shape) == true).all()
    monkeypatch.setenv("CST_DATA", str(tmp_path))
    with pytest.raises(CSTError, match="CST_DATA"):
        quality._ett(quick=True)


def test_unknown_benchmark():
    with pytest.raises(CSTError, match="did you mean 'queries'"):
        chosen(["querys"])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_module(name):
    assert callable(importlib.import_module(f"cstformer.benchmarks.{MODULES.get(name, name)}").measure)
