"""The state of a training: its running average, and resuming from its file."""

import dataclasses
import math

import pytest
import torch
from toy_training import STEPS, Toy, ctrl_c, same, ticking

from cstformer import CSTError
from cstformer.errors import CSTWarning
from cstformer.system import tensor_files
from cstformer.system.tensor_files import read_tensors, write_tensors
from cstformer.training import loop
from cstformer.training.state import TrainingState


@pytest.mark.parametrize(("step", "decay"), [(1, 0.1), (9, 0.5), (10_000, 0.995)])
def test_the_average_is_slower_and_slower_to_forget(step, decay):
    network = Toy().network
    state, before = TrainingState(network, None), {k: v.clone() for k, v in network.state_dict().items()}
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    state.update_average(step)
    for k, v in state.average.items():
        assert torch.allclose(v, before[k] + 1 - decay)
        assert torch.equal(state.best[k], before[k])
    state.keep_best()
    assert same(state.best, state.average)


def crash(value):
    raise RuntimeError("power cut")


def test_resumed_after_a_crash_is_bit_identical(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    whole = Toy().train()
    first = Toy()
    first.at_step[7] = crash
    with pytest.raises(RuntimeError, match="power cut"):
        first.train(tmp_path / "state")
    second = Toy().train(tmp_path / "state")
    assert len(second.seen) == STEPS - 7
    assert same(second.weights(), whole.weights())


def test_a_finished_state_does_nothing_more(tmp_path):
    first = Toy().train(tmp_path / "state")
    again = Toy().train(tmp_path / "state")
    assert again.seen == []
    assert same(first.weights(), again.weights())
    assert dataclasses.replace(again.report, seconds=0) == dataclasses.replace(first.report, seconds=0)


def test_a_run_that_met_nan_is_not_resumed_into_it_again(tmp_path):
    toy = Toy()
    toy.at_step[6] = lambda value: value * math.inf
    with pytest.warns(CSTWarning, match="not finite"):
        toy.train(tmp_path / "state")
    again = Toy().train(tmp_path / "state")
    assert again.seen == []
    assert again.report.ended == "not finite"
    assert same(again.weights(), toy.weights())


def test_a_capped_run_goes_on_with_more_minutes(tmp_path, clock):
    ticking(Toy(max_minutes=0.1), clock, seconds=2.0).train(tmp_path / "state")
    more = ticking(Toy(max_minutes=10), clock, seconds=2.0).train(tmp_path / "state")
    assert len(more.seen) == STEPS - 3
    assert more.report.seconds == 24.0  # both parts together
    assert more.report.ended == "finished"


def test_the_state_is_written_every_half_minute(tmp_path, clock):
    """Steps of 12 seconds: after three of them the state is older than 30 seconds."""
    saved, toy = [], ticking(Toy(steps=8), clock, seconds=12.0)
    for step in range(8):
        toy.at_step[step] = lambda value: saved.append((tmp_path / "state").exists() and steps(tmp_path)) or value
    toy.train(tmp_path / "state")
    assert saved == [False, False, False, 3, 3, 3, 6, 6]
    assert steps(tmp_path) == 8


def steps(folder) -> int:
    return read_tensors(folder / "state")[1]["report"]["steps"]


# What is refused


@pytest.mark.parametrize("change", [{"steps": 13}, {"seed": 1}, {"dropout": 0.5}, {"mu": 1.0}], ids=str)
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


@pytest.mark.parametrize("missing", ["best.0.weight", "report"])
def test_an_incomplete_state_is_refused_in_one_line(tmp_path, missing):
    state = tmp_path / "state"
    Toy().train(state)
    tensors, meta = read_tensors(state)
    for part in (tensors, meta):
        part.pop(missing, None)
    write_tensors(state, tensors, meta)
    with pytest.raises(CSTError, match=r"state is incomplete \(.*\); remove it to begin again") as caught:
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
