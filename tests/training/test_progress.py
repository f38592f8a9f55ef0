"""Progress: a bar on a terminal, lines elsewhere, on stderr and without effect on the run; the time left."""

import io

import pytest
from rich.console import Console
from toy_training import Toy, same

from cstformer.training import progress
from cstformer.training.report import TrainingReport


def test_the_bar_goes_to_stderr_and_changes_nothing(capsys):
    toy = Toy().train(progress="toy")
    assert capsys.readouterr().out == ""
    assert same(toy.weights(), Toy().train().weights())


@pytest.mark.parametrize("title", ["toy", None])
def test_the_bar_shows_loss_best_score_and_steps(monkeypatch, title):
    shown = io.StringIO()
    console = lambda **_: Console(file=shown, force_terminal=True, width=120)  # noqa: E731
    monkeypatch.setattr(progress, "Console", console)
    with progress.ProgressBar(title, 40, done=10) as bar:
        bar.show(0.5, TrainingReport(steps=12, best_score=0.25))
        bar.bar.refresh()
    if title is None:
        assert shown.getvalue() == ""
    else:
        for words in ("toy", "12/40", "loss 0.5", "best 0.25", "steps/s", "left"):
            assert words in shown.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.ProgressBar("toy", 400, done=0) as bar:
        for step in range(1, 101):  # a step a second
            clock[0] += 1
            bar.show(0.5, TrainingReport(steps=step, best_score=0.25, seconds=step))
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "toy: step 30 of 400  loss 0.5  best 0.25  1.0 steps/s  6:10 min left",
        "toy: step 60 of 400  loss 0.5  best 0.25  1.0 steps/s  5:40 min left",
        "toy: step 90 of 400  loss 0.5  best 0.25  1.0 steps/s  5:10 min left",
    ]


def test_the_time_left_knows_the_cap():
    # 10 of 400 steps, one a second: 390 s are left, but the cap of 2 minutes comes after 110 s.
    report = TrainingReport(steps=10, seconds=10.0)
    assert progress.ProgressBar(None, 400, 0).seconds_left(1.0, report) == 390
    assert progress.ProgressBar(None, 400, 0, max_minutes=2).seconds_left(1.0, report) == 110
    assert progress.ProgressBar(None, 400, 0, max_minutes=20).seconds_left(1.0, report) == 390
    assert progress.ProgressBar(None, 400, 0, max_minutes=0.1).seconds_left(1.0, report) == 0
