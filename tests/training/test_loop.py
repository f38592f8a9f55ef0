"""The training loop: steps, validation, the best weights, patience, cap, and losses that are not finite."""

import math
import random
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from toy_training import COUNT, STEPS, Toy, ctrl_c, same, ticking

from cstformer.errors import CSTWarning
from cstformer.training.schedule import batch_indices, generator_for, learning_rate_factor

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
    assert toy.report.steps == STEPS
    assert toy.report.ended == "finished"
    assert [step for step, _ in toy.report.history] == list(range(STEPS + 1))
    assert [score for _, score in toy.report.history] == pytest.approx([score for _, score in history], rel=1e-5)
    assert toy.report.best_score == min(score for _, score in toy.report.history)
    for k, v in toy.weights().items():
        assert torch.allclose(v, best[k], rtol=1e-5, atol=1e-6)
    assert not toy.network.training
    assert toy.score() == toy.report.best_score


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


def test_a_run_prints_nothing_and_warns_of_nothing(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Toy().train()
    assert capfd.readouterr() == ("", "")


def test_training_in_one_process_imports_no_lightning():
    """Which takes seconds, and only several processes need it."""
    code = """
import sys
import numpy as np
from cstformer import CST, Samples
t = np.linspace(0, 1, 5)
waves = Samples(t, np.sin(t + np.arange(6)[:, None]))
CST.preset("smoke", steps=2).fit(waves).predict(waves, [0.5])
print(sorted(name for name in sys.modules if "lightning" in name))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# When a run ends


def test_patience_stops_and_keeps_the_best():
    toy = Toy(steps=40, patience=0.25)
    scores = iter([9.0, 5.0, 3.0, 1.0] + [2.0] * 100)
    toy.score = lambda: next(scores)
    toy.train()
    assert toy.report.ended == "patience"
    assert toy.report.best_step == 3
    assert toy.report.steps == 3 + 10 + 1


def test_weights_that_training_only_worsens_are_left_as_they_were():
    toy = Toy(steps=40, patience=0.25)
    before, scores = toy.weights(), iter([1.0] + [2.0] * 100)
    toy.score = lambda: next(scores)
    toy.train()
    assert (toy.report.ended, toy.report.best_step, toy.report.steps) == ("patience", 0, 11)
    assert same(toy.weights(), before)


def test_cap_ends_early_with_the_best_weights(clock):
    toy = ticking(Toy(steps=40, max_minutes=0.5), clock, seconds=3.0).train()
    assert toy.report.ended == "cap"
    assert toy.report.steps == 10
    assert toy.report.seconds == 30.0
    assert toy.report.history[-1][0] == 10
    assert toy.score() == toy.report.best_score == min(score for _, score in toy.report.history)


def test_a_run_that_cannot_finish_anneals_before_the_cap(clock):
    run, rates = Toy(steps=40, warmup=0.0, learning_rate=1.0, max_minutes=0.5).run(), []
    run._begin()
    for step in range(10):
        run.step(step)
        rates.append(run.optimiser.param_groups[0]["lr"] / learning_rate_factor(step, 40, 0.0))
        clock.now += 3.0
        run._after_step(step + 1)
    assert rates[:9] == [1.0] * 9  # the eighth step ends at 24 of 30 seconds, beyond 70 % of them
    assert rates[9] == pytest.approx(0.5)  # then down to zero at 30
    assert run.report.ended == "cap"


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
    assert toy.report.steps == STEPS
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
    short.at_step[6] = ctrl_c
    history = short.train().report.history
    assert toy.report.history == history[:7]
    assert toy.score() == toy.report.best_score == min(score for _, score in history[:7])


def test_a_loss_that_is_not_finite_names_its_samples():
    toy = Toy(batch=10)
    toy.at_step[0] = lambda value: value * math.inf
    with pytest.warns(CSTWarning, match=r"at step 0 \(samples number ([a-g], ){7}[a-g] and 2 more\); training stopped"):
        toy.train(labels="abcdefg")
