"""How CST is fitted: the same seed, the noise and μ from the data, a cap, a resume, and that it learns."""

import dataclasses
import os
import signal

import numpy as np
import pytest
import torch
from small_models import fit_quickly, known_kernel, patched_kernel, waves
from toy_training import same

from cstformer import CST, CSTError, CSTWarning, Samples
from cstformer.data.holding_out import split_samples
from cstformer.models import fitting
from cstformer.models.fitting import MU_SHARE, balanced_mu, check_memory
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import Settings, resolve

AT = np.linspace(2.3, 4.4, 7)


def tiny(**changes) -> CST:
    return CST.preset("smoke", **{"steps": 2, **changes})


# Same seed, same numbers


def test_same_seed_same_numbers():
    a, b, c = (fit_quickly(tiny(seed=seed, dropout=0.1), waves()) for seed in (5, 5, 6))
    assert np.array_equal(a.predict(waves(), AT), b.predict(waves(), AT))
    assert a.report_.history == b.report_.history
    assert not np.array_equal(a.predict(waves(), AT), c.predict(waves(), AT))


def test_fit_again_starts_afresh():
    model = fit_quickly(tiny(), waves(seed=3))
    assert np.array_equal(
        fit_quickly(model, waves()).predict(waves(), AT), fit_quickly(tiny(), waves()).predict(waves(), AT)
    )


def test_fit_and_predict_do_not_disturb_the_global_generators():
    def draw():
        # Not Python's own: the type checks of the tests draw from it.
        return torch.rand(2).tolist(), np.random.random(2).tolist()

    def seed():
        torch.manual_seed(1), np.random.seed(1)

    seed()
    expected = draw()
    seed()
    tiny(mu="search", dropout=0.1).fit(waves()).predict(waves(), AT)
    assert draw() == expected


def test_the_global_seed_does_not_matter():
    torch.manual_seed(1)
    a = fit_quickly(tiny(dropout=0.1), waves()).predict(waves(), AT)
    torch.manual_seed(2), np.random.seed(2)
    assert np.array_equal(fit_quickly(tiny(dropout=0.1), waves()).predict(waves(), AT), a)


def test_a_cap_that_does_not_bind_changes_nothing():
    a = fit_quickly(tiny(steps=4, patience=1.0), waves())
    b = fit_quickly(tiny(steps=4, patience=1.0, max_minutes=60), waves())
    assert b.report_.ended == "finished"
    assert np.array_equal(a.predict(waves(), AT), b.predict(waves(), AT))


def test_a_cap_that_binds_says_so():
    with pytest.warns(CSTWarning, match="max_minutes=.* reached, best weights kept"):
        model = fit_quickly(tiny(steps=1000, max_minutes=0.2 / 60), waves())
    assert model.report_.ended == "cap"
    assert 0 < model.report_.steps < 1000
    assert "max_minutes" in model.report_.sentence(model)
    assert np.isfinite(model.predict(waves(), AT)).all()


# Choices made from the data


def test_noise_and_mu_as_set_or_from_the_data():
    model = fit_quickly(tiny(), waves())
    assert model.kernel_ == known_kernel(torch.zeros(1, 1, 1))
    assert model.noise_ == 0.1
    assert model.mu_ > 0
    assert fit_quickly(tiny(noise=0.25, mu=1e-3), waves()).noise_ == 0.25
    assert fit_quickly(tiny(noise=0.25, mu=1e-3), waves()).mu_ == 1e-3
    assert fit_quickly(tiny(order=0), waves()).mu_ == 0.0
    assert fit_quickly(tiny(dummies=0), waves()).mu_ == 0.0


def test_noise_of_tokens_is_in_scaled_units():
    """As in the published code: a share of the 0.98 quantile of the absolute values, here in standard deviations."""
    samples = waves()
    model = fit_quickly(tiny(noise=0.1, noise_on="tokens"), samples)
    unit = np.quantile(np.abs(samples.values[samples.observed]), 0.98)
    assert model.noises_[0] == pytest.approx(0.1 * unit / model.scaling_.sd, rel=0.1)  # held-out samples do not count


def test_a_search_that_gains_nothing_ends_at_zero(monkeypatch):
    scores = {}

    def trial(self, mu, steps, minutes, progress=None, judged=None):
        assert judged == 0.0
        scores[mu] = 1.0 if mu == 0 else 0.995 if len(scores) < 3 else 2.0
        return scores[mu]

    monkeypatch.setattr(fitting.Fitting, "_try", trial)
    assert fit_quickly(tiny(mu="search"), waves()).mu_ == 0.0
    decades = np.log10(sorted(scores)[1:])
    assert 0.0 in scores and np.allclose(np.diff(decades), 1)
    scores.clear()
    monkeypatch.setattr(fitting, "MU_GAIN", 0.001)
    assert fit_quickly(tiny(mu="search"), waves()).mu_ == sorted(scores)[1]


def test_mu_balances_noise_and_roughness():
    """(noise / roughness)^p: with p twice as large, the square; more derivatives are rougher; p = ∞ counts as 1."""
    model = fit_quickly(tiny(p=2.0), waves(4))  # too few to hold any out
    batch = model.scaling_.batch(waves(4), torch.float32, torch.device("cpu"))
    two = balanced_mu(model, batch)
    assert model.mu_ == pytest.approx(MU_SHARE * two)
    assert balanced_mu(model.set_params(p=4.0), batch) == pytest.approx(two**2)
    assert balanced_mu(model.set_params(p=np.inf), batch) == pytest.approx(two**0.5)
    model.run_ = dataclasses.replace(model.run_, order=1)
    assert balanced_mu(model.set_params(p=2.0), batch) > two


def test_the_split_is_disjoint_and_fixed():
    training, held_out = split_samples(20, 0.25, seed=0)
    assert (len(training), len(held_out)) == (15, 5)
    assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(20))
    assert torch.equal(split_samples(20, 0.25, seed=0)[1], held_out)
    assert split_samples(4, 0.25, seed=0)[0].tolist() == split_samples(4, 0.25, seed=0)[1].tolist()  # too few


def test_what_is_automatic_depends_on_the_kind_of_data():
    given = CST(width=np.int64(16)).settings()
    points, frames = resolve(given, "default"), resolve(given, "frames")
    assert type(points) is Settings and type(points.width) is int
    assert (points.width, points.steps, points.batch, points.order) == (16, 1200, 32, 2)
    assert (frames.width, frames.steps, frames.batch, frames.order) == (16, 3000, 4, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": "joint", "hide": 0.0},
        {"pattern": "joint", "norm": "post", "readout": "plain", "encoding": "linear", "root": True, "p": 3.0},
        {"attention_kind": "nystrom", "landmarks": 3, "p": np.inf},
        {"coord_noise": 0.01, "dummy_law": "uniform", "order": 3, "noise": 0.3},
        {"dummies": 0, "hide": 0.0, "noise": 0.0, "clip": 0.0, "warmup": 0.0, "validation": 0.0},
        {"mu": "search", "p": 1.0, "dummy_law": "regular", "start": "hermite"},
    ],
    ids=str,
)
def test_all_kinds_of_settings_train(changes):
    samples = waves()
    model = fit_quickly(tiny(**changes), samples)
    assert model.report_.ended in ("finished", "patience")
    assert np.isfinite(model.report_.best_score)
    assert np.isfinite(model.predict(samples, AT)).all()


def test_training_makes_it_better():
    """A sine of random height at 6 points of its own: the trained model beats its linear start in between."""
    rng = np.random.default_rng(0)
    t = np.concatenate([np.zeros((60, 1)), np.sort(rng.random((60, 4)), 1), np.ones((60, 1))], 1)
    height, at = rng.uniform(1, 2, (60, 1)), np.linspace(0, 1, 31)
    truth = height * np.sin(2 * np.pi * at)
    samples = Samples(t, height * np.sin(2 * np.pi * t))
    model = CST.preset("smoke", steps=60, start="linear", noise=0.0, order=0, learning_rate=1e-2, width=32)
    error = np.abs(fit_quickly(model, samples).predict(samples, at)[..., 0] - truth).mean()
    lines = [np.interp(at, x, y) for x, y in zip(t, samples.values[..., 0], strict=True)]
    assert error < 0.4 * np.abs(lines - truth).mean()


def test_long_samples_are_validated_a_few_at_a_time(monkeypatch):
    whole = fit_quickly(tiny(validation=0.5), waves()).report_.history
    sizes, answers = [], SobolevObjective.answers
    monkeypatch.setattr("cstformer.training.objective.PAIRS_PER_PASS", 2 * 7**2)
    monkeypatch.setattr(
        SobolevObjective,
        "answers",
        lambda self, context, *rest: (
            torch.is_grad_enabled() or sizes.append(len(context)),
            answers(self, context, *rest),
        )[1],
    )
    few = fit_quickly(tiny(validation=0.5), waves()).report_.history
    np.testing.assert_allclose(np.array(few), np.array(whole), rtol=1e-5)
    assert max(sizes) == 2


# Interruption


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_cst_resumed_is_bit_identical_and_refuses_other_data(tmp_path, monkeypatch, optimiser):
    samples, model = waves(), tiny(steps=8, optimiser=optimiser)
    whole = fit_quickly(tiny(steps=8, optimiser=optimiser), samples).network_.state_dict()
    with monkeypatch.context() as patch:
        calls, loss = [], SobolevObjective.loss

        def interrupted(self, batch, generator):
            calls.append(0)
            if len(calls) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return loss(self, batch, generator)

        patch.setattr(SobolevObjective, "loss", interrupted)
        fit_quickly(model, samples, state=tmp_path / "state")
    assert (model.report_.ended, model.report_.steps) == ("interrupted", 4)
    with pytest.raises(CSTError, match="other settings or data"):
        fit_quickly(tiny(steps=8, optimiser=optimiser), waves(seed=1), state=tmp_path / "state")
    fit_quickly(model, samples, state=tmp_path / "state")
    assert same(model.network_.state_dict(), whole)


def test_ctrl_c_during_the_search_for_mu_ends_the_fit(monkeypatch):
    loss = SobolevObjective.loss
    monkeypatch.setattr(SobolevObjective, "loss", lambda *a: os.kill(os.getpid(), signal.SIGINT) or loss(*a))
    with pytest.raises(KeyboardInterrupt):
        fit_quickly(tiny(steps=40, mu="search"), waves())


def test_the_cap_counts_everything_since_the_call(monkeypatch):
    """The time of the prior is taken from that of the training."""
    import cstformer.models.fitting as fitting

    left, clock = [], [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    honest = fitting.train

    def train(*args, **options):
        left.append(args[4].max_minutes)
        return honest(*args, **options)

    def slow_kernel(coords, *_):
        clock[0] += 30.0
        return known_kernel(coords)

    monkeypatch.setattr(fitting, "train", train)
    with patched_kernel(slow_kernel):
        tiny(max_minutes=2.0).fit(waves())
    assert left == [1.5]


@pytest.mark.parametrize(
    ("changes", "points", "words"),
    [
        ({}, 10**6, "a sample of 1,000,000 points needs more than 59605 GiB"),
        ({"dummies": 2**15, "width": 2**14, "layers": 2**10}, 10, "dummies=32,768 needs more than 6144 GiB"),
    ],
)
def test_a_training_that_cannot_fit_into_memory_is_refused_before_it_begins(changes, points, words):
    """4 heads · 4 layers · 4 bytes · n²; 4 bytes · dummies · width · layers · (order + 1)."""
    run = dataclasses.replace(Settings(), **changes)
    with pytest.raises(CSTError, match=words):
        check_memory(run, points, torch.device("cpu"))
    check_memory(dataclasses.replace(run, dummies=10, width=64, layers=4), 100, torch.device("cpu"))
