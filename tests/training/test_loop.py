"""The training loop: schedule, batches, averaging, cap, patience, interruption and resume."""

import dataclasses
import math
import os
import random
import signal
import threading
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import fit_quickly, waves
from torch import nn

from cstformer import CST, CSTError
from cstformer.errors import CSTWarning
from cstformer.system import tensor_files
from cstformer.training import loop as training
from cstformer.training.loop import batch_indices, generator_for, learning_rate_factor, train
from cstformer.training.settings import Settings

COUNT = 7


class Toy:
    """Linear regression of 7 samples with a noisy loss; everything that `train` needs."""

    def __init__(self, **settings):
        self.settings = Settings(**{"steps": 12, "batch": 3, "learning_rate": 0.05, "device": "cpu"} | settings)
        torch.manual_seed(5)
        self.network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1))
        self.x = torch.randn(COUNT, 2)
        self.y = self.x.sum(1, keepdim=True)
        self.seen: list[list[int]] = []
        self.at_step = {}  # step → what to do there

    def loss(self, index, generator):
        step = len(self.seen)
        self.seen.append(index.tolist())
        noise = 0.1 * torch.randn(len(index), 1, generator=generator)
        value = (self.network(self.x[index]) - self.y[index] + noise).square().mean()
        return self.at_step[step](value) if step in self.at_step else value

    def score(self):
        assert not self.network.training
        with torch.no_grad():
            return float((self.network(self.x) - self.y).square().mean())

    def train(self, state=None, **options):
        self.seen = []
        self.report = train(self.network, self.loss, self.score, COUNT, self.settings, state=state, **options)
        return self

    def weights(self):
        return {k: v.clone() for k, v in self.network.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# The schedule and the stream of batches


def test_learning_rate_schedule_by_hand():
    assert [learning_rate_factor(s, 100, 0.1) for s in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert learning_rate_factor(10, 100, 0.1) == 1.0
    assert learning_rate_factor(55, 100, 0.1) == pytest.approx(0.5)
    assert learning_rate_factor(100, 100, 0.1) == 0.0
    assert learning_rate_factor(40, 100, 0.1) == pytest.approx(0.5 * (1 + math.cos(math.pi / 3)))


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_learning_rate_schedule_at_its_limits(warmup):
    factors = [learning_rate_factor(s, 10, warmup) for s in range(10)]
    assert max(factors) == 1.0
    assert min(factors) > 0
    assert factors == sorted(factors, reverse=warmup == 0.0)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 3))
def test_every_epoch_visits_every_sample_once(batch, count, seed):
    stream = torch.cat([batch_indices(step, batch, count, seed) for step in range(3 * count)])
    assert len(stream) == 3 * count * batch
    for epoch in stream.split(count):
        assert sorted(epoch.tolist()) == list(range(count))


def test_epochs_are_shuffled_and_depend_on_the_seed():
    epochs = {tuple(batch_indices(e, 20, 20, 0).tolist()) for e in range(5)}
    assert len(epochs) == 5
    assert batch_indices(0, 20, 20, 0).tolist() != batch_indices(0, 20, 20, 1).tolist()


def test_generators_of_steps_seeds_and_epochs_differ():
    draws = {float(torch.rand((), generator=generator_for(seed, step))) for seed in (0, 1, 2) for step in range(-5, 5)}
    assert len(draws) == 30


# What a run computes


def reference_run(toy: Toy):
    """The same training written down plainly; the best average of the weights and its score."""
    s, network = toy.settings, toy.network
    optimiser = torch.optim.AdamW(network.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay, fused=True)
    average, best, history = toy.weights(), toy.weights(), []
    network.eval()
    history.append((0, toy.score()))
    network.train()
    for step in range(s.steps):
        for group in optimiser.param_groups:
            group["lr"] = s.learning_rate * learning_rate_factor(step, s.steps, s.warmup)
        torch.manual_seed(s.seed * 1_000_003 + step)
        optimiser.zero_grad()
        toy.loss(batch_indices(step, s.batch, COUNT, s.seed), generator_for(s.seed, step)).backward()
        nn.utils.clip_grad_norm_(network.parameters(), s.clip)
        optimiser.step()
        decay = min(0.995, (step + 1) / (step + 10))
        for k, v in network.state_dict().items():
            average[k] = decay * average[k] + (1 - decay) * v
        now = toy.weights()
        network.load_state_dict(average)
        network.eval()
        history.append((step + 1, toy.score()))
        network.train()
        network.load_state_dict(now)
        if history[-1][1] <= min(score for _, score in history):
            best = {k: v.clone() for k, v in average.items()}
    return best, history


def test_a_run_is_adamw_with_schedule_clipping_averaging_and_the_best_weights():
    toy, plain = Toy(clip=0.1), Toy(clip=0.1)
    best, history = reference_run(plain)
    toy.train()
    assert toy.seen == plain.seen
    assert toy.report.steps == 12
    assert toy.report.ended == "finished"
    assert [step for step, _ in toy.report.history] == list(range(13))
    assert [score for _, score in toy.report.history] == pytest.approx([score for _, score in history], rel=1e-5)
    assert toy.report.best_score == min(score for _, score in toy.report.history)
    for k, v in toy.weights().items():
        assert torch.allclose(v, best[k], rtol=1e-5, atol=1e-6)
    assert not toy.network.training
    assert toy.score() == toy.report.best_score


def test_averaging_is_slow_to_forget():
    decays = [min(0.995, step / (step + 9)) for step in (1, 9, 10_000)]
    assert decays == [0.1, 0.5, 0.995]
    toy = Toy(steps=1, warmup=0.0, weight_decay=0.0)
    before = toy.weights()
    run = training._Run(toy.network, toy.loss, toy.score, COUNT, toy.settings, None)
    with torch.no_grad():
        for p in toy.network.parameters():
            p.add_(1.0)
    run._average(9)
    for k, v in run.average.items():
        assert torch.allclose(v, before[k] + 0.5)


def test_no_limit_on_the_gradient():
    a, b = Toy(clip=0.0).train(), Toy(clip=1e9).train()
    assert same(a.weights(), b.weights())
    assert not same(a.weights(), Toy(clip=0.01).train().weights())


def test_same_seed_same_numbers_other_seed_other_numbers():
    assert same(Toy().train().weights(), Toy().train().weights())
    assert not same(Toy().train().weights(), Toy(seed=1).train().weights())


def test_long_runs_validate_about_25_times():
    report = Toy(steps=60, patience=1).train().report
    assert [step for step, _ in report.history] == list(range(0, 61, 2))
    assert [step for step, _ in Toy(steps=1).train().report.history] == [0, 1]


def test_a_run_disturbs_nothing_global(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = (torch.rand(1), np.random.random(), random.random())
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    toy = Toy()
    torch.manual_seed(3)
    toy.train()
    assert (torch.rand(1), np.random.random(), random.random()) == expected
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert list(tmp_path.iterdir()) == []
    assert torch.is_grad_enabled()


def test_a_run_outside_the_main_thread():
    toy, reports = Toy(), []
    thread = threading.Thread(target=lambda: reports.append(toy.train().report))
    thread.start()
    thread.join()
    assert reports[0].ended == "finished"
    assert same(toy.weights(), Toy().train().weights())


def test_progress_bar_goes_to_stderr_and_changes_nothing(capsys):
    toy = Toy().train(progress="toy")
    assert capsys.readouterr().out == ""
    assert same(toy.weights(), Toy().train().weights())


# When a run ends


def test_patience_stops_and_keeps_the_best():
    toy = Toy(steps=40, patience=0.25)
    scores = iter([9.0, 5.0, 3.0, 1.0] + [2.0] * 100)
    toy.score = lambda: next(scores)
    toy.train()
    assert toy.report.ended == "patience"
    assert toy.report.best_step == 3
    assert toy.report.steps == 3 + 10 + 1
    assert "no improvement for 25% of the steps" in toy.report.sentence(toy.settings)


def test_weights_that_training_only_worsens_are_left_as_they_were():
    toy = Toy(steps=40, patience=0.25)
    before, scores = toy.weights(), iter([1.0] + [2.0] * 100)
    toy.score = lambda: next(scores)
    toy.train()
    assert (toy.report.ended, toy.report.best_step, toy.report.steps) == ("patience", 0, 11)
    assert same(toy.weights(), before)


class Clock:
    """A clock that only the test moves, in the place of the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(training, "time", fake)
    return fake


def ticking(toy, clock, seconds):
    """Every step of the toy takes so many seconds."""
    inner = toy.loss

    def loss(index, generator):
        clock.now += seconds
        return inner(index, generator)

    toy.loss = loss
    return toy


def test_cap_ends_early_with_the_best_weights_and_says_so(clock):
    toy = ticking(Toy(steps=40, max_minutes=0.5), clock, seconds=3.0).train()
    assert toy.report.ended == "cap"
    assert toy.report.steps == 10
    assert toy.report.seconds == 30.0
    assert toy.report.history[-1][0] == 10
    assert toy.score() == toy.report.best_score == min(score for _, score in toy.report.history)
    sentence = toy.report.sentence(toy.settings)
    assert "10 of 40 steps in 30 s" in sentence
    assert "max_minutes=0.5 reached, best weights kept" in sentence


def test_a_run_that_cannot_finish_anneals_before_the_cap(clock):
    rates = []
    toy = ticking(Toy(steps=40, warmup=0.0, max_minutes=0.5), clock, seconds=3.0)
    run = training._Run(toy.network, toy.loss, toy.score, COUNT, toy.settings, None)
    run.started = clock.now
    run._trainer = types.SimpleNamespace(should_stop=False)
    for step in range(1, 10):
        clock.now += 3.0
        run._decide(step)
        rates.append(run._cooling())
    assert rates[:7] == [1.0] * 7  # up to 21 of 30 seconds
    assert rates[7:] == [1.0, 0.5]  # then down to zero at 30


def test_a_cap_that_does_not_bind_changes_nothing(clock):
    free = Toy().train()
    capped = ticking(Toy(max_minutes=1.0), clock, seconds=4.9).train()  # 58.8 of 60 seconds
    assert capped.report.ended == "finished"
    assert same(capped.weights(), free.weights())


def test_a_run_that_was_annealed_by_the_clock_does_not_claim_to_be_undisturbed(clock):
    toy = Toy(max_minutes=1.0)
    inner = toy.loss

    def loss(index, generator):
        clock.now += 6.0 if len(toy.seen) < 8 else 1.0  # slow at first: 12 steps seem to need 72 seconds
        return inner(index, generator)

    toy.loss = loss
    toy.train()
    assert toy.report.steps == 12
    assert toy.report.seconds == 52.0
    assert toy.report.ended == "cap"


def test_zero_minutes_is_one_step():
    report = Toy(max_minutes=0.0).train().report
    assert (report.ended, report.steps, report.best_step) == ("cap", 1, 1)


def test_a_loss_that_is_not_finite_stops_with_the_best_weights():
    toy, short = Toy(), Toy()
    toy.at_step[6] = lambda value: value * math.nan
    with pytest.warns(CSTWarning, match=r"not finite at step 6; training stopped there and the best weights"):
        toy.train()
    assert toy.report.ended == "not finite"
    assert toy.report.steps == 6
    assert "the loss was not finite" in toy.report.sentence(toy.settings)
    short.at_step[6] = lambda value: os.kill(os.getpid(), signal.SIGINT) or value
    history = short.train().report.history
    assert toy.report.history == history[:7]
    assert toy.score() == toy.report.best_score == min(score for _, score in history[:7])


def test_a_run_that_met_nan_is_not_resumed_into_it_again(tmp_path):
    toy = Toy()
    toy.at_step[6] = lambda value: value * math.inf
    with pytest.warns(CSTWarning, match="not finite"):
        toy.train(tmp_path / "state")
    again = Toy().train(tmp_path / "state")
    assert again.seen == []
    assert again.report.ended == "not finite"
    assert same(again.weights(), toy.weights())


# Interruption and resume


def crash(value):
    raise RuntimeError("power cut")


def ctrl_c(value):
    os.kill(os.getpid(), signal.SIGINT)
    return value


@pytest.mark.parametrize("step", [0, 5, 11])
def test_resumed_after_ctrl_c_is_bit_identical(tmp_path, step):
    whole = Toy().train()
    first = Toy()
    first.at_step[step] = ctrl_c
    first.train(tmp_path / "state")
    assert first.report.ended == "interrupted"
    assert first.report.steps == step + 1
    assert "interrupted, best weights kept" in first.report.sentence(first.settings)
    second = Toy().train(tmp_path / "state")
    assert len(second.seen) == 12 - step - 1
    assert same(second.weights(), whole.weights())
    assert second.report.history == whole.report.history
    assert second.report.ended == "finished"


def test_sigterm_is_as_good_as_ctrl_c():
    toy = Toy()
    toy.at_step[3] = lambda value: os.kill(os.getpid(), signal.SIGTERM) or value
    try:
        toy.train()
    except KeyboardInterrupt:
        pytest.fail("SIGTERM ended the process instead of the run")
    assert (toy.report.ended, toy.report.steps) == ("interrupted", 4)


def test_resumed_after_a_crash_is_bit_identical(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)
    whole = Toy().train()
    first = Toy()
    first.at_step[7] = crash
    with pytest.raises(RuntimeError, match="power cut"):
        first.train(tmp_path / "state")
    second = Toy().train(tmp_path / "state")
    assert len(second.seen) == 12 - 7
    assert same(second.weights(), whole.weights())


def test_a_second_ctrl_c_ends_at_once():
    toy, before = Toy(), signal.getsignal(signal.SIGINT)
    toy.at_step[3] = lambda value: ctrl_c(ctrl_c(value))
    with pytest.raises(KeyboardInterrupt):
        toy.train()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_state_does_nothing_more(tmp_path):
    first = Toy().train(tmp_path / "state")
    again = Toy().train(tmp_path / "state")
    assert again.seen == []
    assert same(first.weights(), again.weights())
    assert again.report.history == first.report.history


def test_a_capped_run_goes_on_with_more_minutes(tmp_path, clock):
    ticking(Toy(max_minutes=0.1), clock, seconds=2.0).train(tmp_path / "state")
    more = ticking(Toy(max_minutes=10), clock, seconds=2.0).train(tmp_path / "state")
    assert len(more.seen) == 12 - 3
    assert more.report.seconds == 24.0  # both parts together
    assert more.report.ended == "finished"


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 13},
        {"learning_rate": 0.04},
        {"seed": 1},
        {"heads": 2},
        {"dropout": 0.5},
        {"mu": 1.0},
        {"patience": 0.4},
    ],
    ids=str,
)
def test_resume_with_other_settings_is_refused(tmp_path, change):
    Toy().train(tmp_path / "state")
    with pytest.raises(CSTError, match="belongs to a run with other settings or data; remove it") as caught:
        Toy(**change).train(tmp_path / "state")
    assert "\n" not in str(caught.value)


def test_resume_on_another_device_or_cap_is_welcome(tmp_path):
    Toy().train(tmp_path / "state")
    assert Toy(device="auto", max_minutes=3).train(tmp_path / "state").seen == []


def test_resume_with_other_data_is_refused(tmp_path):
    Toy().train(tmp_path / "state", fingerprint="a")
    with pytest.raises(CSTError, match="other settings or data"):
        Toy().train(tmp_path / "state", fingerprint="b")


def test_a_damaged_state_is_refused_in_one_line(tmp_path):
    state = tmp_path / "state"
    Toy().train(state)
    state.write_bytes(state.read_bytes()[:-50])
    with pytest.raises(CSTError, match="state is damaged or not a safetensors file") as caught:
        Toy().train(state)
    assert "\n" not in str(caught.value)


def test_the_state_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    state = tmp_path / "state"
    first = Toy()
    first.at_step[4] = ctrl_c
    first.train(state)
    before = state.read_bytes()

    def full_disk(tensors, path, meta):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full_disk)
    with pytest.raises(CSTError, match="No space left on device"):
        Toy().train(state)
    assert state.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["state"]


# The whole of CST through the loop


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_cst_resumed_is_bit_identical_and_refuses_other_data(tmp_path, monkeypatch, optimiser):
    samples, model = waves(), CST.preset("smoke", steps=8, optimiser=optimiser)
    whole = fit_quickly(CST.preset("smoke", steps=8, optimiser=optimiser), samples).network_.state_dict()
    with monkeypatch.context() as patch:
        from cstformer.training.objective import SobolevObjective

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
        fit_quickly(CST.preset("smoke", steps=8, optimiser=optimiser), waves(seed=1), state=tmp_path / "state")
    fit_quickly(model, samples, state=tmp_path / "state")
    assert same(model.network_.state_dict(), whole)


def test_ctrl_c_during_the_search_for_mu_ends_the_fit(monkeypatch):
    from cstformer.training.objective import SobolevObjective

    loss = SobolevObjective.loss
    monkeypatch.setattr(SobolevObjective, "loss", lambda *a: os.kill(os.getpid(), signal.SIGINT) or loss(*a))
    with pytest.raises(KeyboardInterrupt):
        fit_quickly(CST.preset("smoke", steps=40, mu="search"), waves())


def test_validation_is_fixed():
    from cstformer.training.objective import SobolevObjective, Validation

    model = fit_quickly(CST.preset("smoke", steps=1), waves())
    data = model.scaling_.batch(waves().sorted(), torch.float32, torch.device("cpu"))
    objective = SobolevObjective(model.network_, model._start, Settings(), 0.1, 0.1, mu=1e-3)
    one, two = (Validation(objective, data, seed=4, patterns=3) for _ in range(2))
    first = one.score()
    objective.loss(data, torch.Generator().manual_seed(0))
    torch.rand(3)
    assert one.score() == first == two.score()
    assert torch.equal(one.dummies, two.dummies)
    assert torch.equal(one.keep, two.keep)
    assert bool((one.keep != one.batch.points.tokens).any(1).all())  # every sample hides something
    assert Validation(objective, data, seed=5, patterns=3).score() != first


def test_report_is_plain_data():
    report = Toy().train().report
    assert training.TrainingReport(**dataclasses.asdict(report)) == report


def test_lightning_says_nothing(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Toy().train()
    assert capfd.readouterr() == ("", "")
