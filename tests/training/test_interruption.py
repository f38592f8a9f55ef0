"""Ctrl-C and SIGTERM: a run stops after its step with everything saved, and goes on to the same numbers."""

import os
import signal
import threading

import pytest
from toy_training import STEPS, Toy, ctrl_c, same

from cstformer.training.interruption import Interruption


@pytest.mark.parametrize("step", [0, 5, 11])
def test_resumed_after_ctrl_c_is_bit_identical(tmp_path, step):
    whole = Toy().train()
    first = Toy()
    first.at_step[step] = ctrl_c
    first.train(tmp_path / "state")
    assert first.report.ended == "interrupted"
    assert first.report.steps == step + 1
    second = Toy().train(tmp_path / "state")
    assert len(second.seen) == STEPS - step - 1
    assert same(second.weights(), whole.weights())
    assert second.report.history == whole.report.history
    assert second.report.ended == "finished"


def test_an_interrupted_run_ends_with_its_best_weights():
    toy = Toy()
    toy.at_step[5] = ctrl_c
    toy.train()
    assert toy.score() == toy.report.best_score == min(score for _, score in toy.report.history)
    assert toy.report.history[-1][0] == 6


def test_sigterm_is_as_good_as_ctrl_c():
    toy = Toy()
    toy.at_step[3] = lambda value: os.kill(os.getpid(), signal.SIGTERM) or value
    try:
        toy.train()
    except KeyboardInterrupt:
        pytest.fail("SIGTERM ended the process instead of the run")
    assert (toy.report.ended, toy.report.steps) == ("interrupted", 4)


def test_a_second_ctrl_c_ends_at_once():
    toy, before = Toy(), signal.getsignal(signal.SIGINT)
    toy.at_step[3] = lambda value: ctrl_c(ctrl_c(value))
    with pytest.raises(KeyboardInterrupt):
        toy.train()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_the_signals_alone():
    handler, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with Interruption() as interruption:
            seen.append((signal.getsignal(signal.SIGINT) is handler, interruption.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(True, False)]
