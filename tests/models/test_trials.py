"""Short trials: what is proposed, how it is compared, what is kept."""

import math

import numpy as np
import pytest
from small_models import fit_quickly, waves

from cstformer import CST, Samples
from cstformer.models import trials
from cstformer.starts.gaussian_process import Kernel
from cstformer.training.settings import UserSettings

SMOOTH, ROUGH = Kernel((0.1,), 1.0, 0.5, 0.1), Kernel((0.1,), 1.0, 0.5, 0.1, smoothness=1.5)

PROPOSAL = {"frequency": 8.3, "nearness": "always", "noise": trials.LESS_NOISE}


def search(scores: dict[str, float], steps: int = 240) -> tuple[trials.Changes, list]:
    """Run trials whose scores are known by the first key that differs from the proposal."""
    found = trials.candidates(UserSettings(), ROUGH, spacing=0.02)

    def judge(changes, steps, title):
        if changes["nearness"] == "never":
            return scores.get("smooth", 1.0)
        if changes["noise"] == 1.0:
            return scores.get("noise", 1.0)
        return scores.get("hide", 1.0) if "hide" in changes else 1.0

    run = trials.Trials(steps, judge)
    return run.choose(found), run.tried


def test_the_proposal_follows_smoothness_length_and_spacing():
    smooth, rough = (trials.candidates(UserSettings(), kernel, spacing=0.02) for kernel in (SMOOTH, ROUGH))
    assert smooth[0] == {"frequency": 1.6, "nearness": "never"}  # 1 / (2π 0.1) cycles
    assert rough[0] == PROPOSAL  # six points to a cycle
    assert smooth[1] | {"noise": trials.LESS_NOISE} == rough[0] and rough[1] == smooth[0] | {"noise": trials.LESS_NOISE}
    assert smooth[2] == smooth[0] | {"noise": trials.LESS_NOISE} and rough[2] == rough[0] | {"noise": 1.0}
    assert smooth[3] == smooth[0] | {"hide": trials.MORE_HIDDEN} and rough[3] == rough[0] | {"hide": trials.MORE_HIDDEN}


def test_what_the_user_sets_is_not_tried():
    settings = UserSettings(frequency=3.0, nearness="never", hide=0.4, noise=0.1)
    assert trials.candidates(settings, ROUGH, spacing=0.02) == [{}]
    some = trials.candidates(UserSettings(frequency=3.0, hide=0.4, noise=0.1), ROUGH, spacing=0.02)
    assert some == [{"nearness": "always"}, {"nearness": "never"}]
    assert all("frequency" not in x for x in trials.candidates(UserSettings(encoding="linear"), ROUGH, spacing=0.02))


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ({}, {}),
        ({"noise": 0.9}, {}),  # better, but not by enough
        ({"noise": 0.7}, {"noise": 1.0}),
        ({"noise": 0.7, "hide": 0.6}, {"hide": trials.MORE_HIDDEN}),
        ({"smooth": 0.5, "hide": 0.6}, {"frequency": 1.6, "nearness": "never"}),
        ({"hide": math.nan}, {}),
    ],
)
def test_a_candidate_must_be_clearly_better(scores, winner):
    assert search(scores)[0] == PROPOSAL | winner


@pytest.mark.parametrize("steps", [128, 240, 1000])
def test_trials_stay_within_their_steps_and_halve(steps):
    tried = search({"hide": 0.5}, steps)[1]
    assert sum(t["steps"] for t in tried) <= steps
    assert [t["steps"] for t in tried] == [steps // 8] * 4 + [steps // 8 * 2] * 2
    assert tried[-1]["settings"]["hide"] == trials.MORE_HIDDEN


def test_a_short_training_has_no_trials():
    assert search({"hide": 0.1}, steps=100) == (PROPOSAL, [])
    assert fit_quickly(CST.preset("smoke"), waves()).report_.trials == []


@pytest.mark.parametrize(("lighter", "wins"), [(0.99, True), (1.0, False), (math.nan, False)])
@pytest.mark.parametrize("alone", [True, False])
def test_less_weight_on_visible_cells_needs_to_be_better_only(lighter, wins, alone):
    found = [PROPOSAL] if alone else trials.candidates(UserSettings(), ROUGH, spacing=0.02)
    run = trials.Trials(240, lambda changes, steps, title: lighter if "visible" in changes else 1.0, visible=True)
    assert run.choose(found) == PROPOSAL | ({"visible": trials.LESS_VISIBLE} if wins else {})
    assert sum(t["steps"] for t in run.tried) <= 240
    assert run.tried[-1]["settings"] == PROPOSAL | {"visible": trials.LESS_VISIBLE}


def test_visible_cells_are_weighed_where_noise_and_roughness_look_alike():
    assert trials.weighs_visible(UserSettings(), ROUGH) and not trials.weighs_visible(UserSettings(), SMOOTH)
    assert not trials.weighs_visible(UserSettings(visible=0.5), ROUGH)
    assert not trials.weighs_visible(UserSettings(hide=0.0), ROUGH)


def test_minutes_are_shared_as_the_steps_are():
    assert trials.minutes(None, 10, 100) is None
    assert trials.minutes(5.0, 25, 100) == pytest.approx(5.0 * trials.SHARE / 4)


def test_a_fit_tries_and_remembers(tmp_path):
    """A rough series: the proposal is nearness, all trials are in the report, and the same fit chooses the same."""
    rng = np.random.default_rng(0)
    walk = Samples(np.arange(12.0), np.cumsum(rng.normal(size=(12, 12, 1)), axis=1))
    settings = {"width": 8, "layers": 1, "heads": 2, "feedforward": 8, "steps": 640, "batch": 4, "order": 0}
    model = CST(**settings, patience=0.01).fit(walk)
    assert model.kernel_.smoothness is not None
    assert sum(t["steps"] for t in model.report_.trials) <= 0.2 * 640
    assert model.run_.nearness == model.report_.chosen["nearness"]
    assert model.run_.hide == model.report_.chosen.get("hide", 0.5)  # not what the last trial had
    model.save(tmp_path / "model")
    loaded = CST.load(tmp_path / "model")
    assert (loaded.report_.trials, loaded.run_.frequency) == (model.report_.trials, model.run_.frequency)
    assert loaded.frequency == "auto"
    np.testing.assert_array_equal(loaded.predict(walk, [3.3]), model.predict(walk, [3.3]))
    again = CST(**settings, patience=0.01).fit(walk)
    assert again.report_.trials == model.report_.trials
