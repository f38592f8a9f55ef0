"""The report of a training: plain data, and one readable line."""

import dataclasses
import json

import pytest

from cstformer.training.report import TrainingReport
from cstformer.training.settings import Settings

REPORT = TrainingReport(10, 4, 0.125, 30.2, history=[(0, 1.0), (4, 0.125)])


def test_a_report_comes_back_from_json():
    text = json.dumps(dataclasses.asdict(REPORT))
    assert TrainingReport.from_description(json.loads(text)) == REPORT


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ("finished", "all steps done"),
        ("patience", "no improvement for 25% of the steps"),
        ("cap", "max_minutes=0.5 reached, best weights kept; allow more time"),
        ("interrupted", "interrupted, best weights kept"),
        ("not finite", "the loss was not finite, best weights before that kept"),
    ],
)
def test_the_sentence_says_how_far_and_why(ended, words):
    sentence = dataclasses.replace(REPORT, ended=ended).sentence(Settings(steps=40, patience=0.25, max_minutes=0.5))
    assert sentence.startswith(f"10 of 40 steps in 30 s ({words}")
    assert sentence.endswith("; best validation loss 0.125 at step 4")


def test_the_sentence_says_that_training_was_of_no_use():
    useless = dataclasses.replace(REPORT, best_step=0)
    assert useless.sentence(Settings()).endswith("training never improved on the start, so the model answers with it")
    assert not TrainingReport().useless  # no step was taken
