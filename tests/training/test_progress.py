"""The progress bar: on stderr, and without effect on the run."""

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
        for words in ("toy", "12/40", "loss 0.5", "best 0.25", "steps/s"):
            assert words in shown.getvalue()
