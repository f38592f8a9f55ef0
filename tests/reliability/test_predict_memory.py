"""Memory runs out in predict: pieces shrink until they fit, answers stay the same, and at last there is an error."""

import numpy as np
import pytest
import torch
from processes import starved
from small_models import wave_model, waves

from cstformer import CST, CSTError, Samples
from cstformer.models import reader
from cstformer.network.transformer import ContinuousTransformer

FAILURES = {
    "NumPy": MemoryError("Unable to allocate 8 GiB for an array"),
    "GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"),
    "CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
    "Windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8589934592 bytes."),
}
AT = np.random.default_rng(0).uniform(2.3, 4.4, (6, 23, 1))
INDICES = [(0,), (1,), (2,)]


def shrink(monkeypatch, error: Exception, most: int, name: str = "read") -> list[int]:
    """From now on a pass over more than so many queries of so many samples fails; the sizes of those that do not."""
    passes, read = [], getattr(ContinuousTransformer, name)

    def limited(self, context, at, start, *rest):
        size = at.coefs.shape[1] * at.coefs.shape[2]
        if size > most:
            raise error
        passes.append(size)
        return read(self, context, at, start, *rest)

    monkeypatch.setattr(ContinuousTransformer, name, limited)
    return passes


@pytest.mark.parametrize(("kind", "most"), [*((kind, 5) for kind in FAILURES), ("GPU", 1), ("GPU", 23), ("GPU", 60)])
def test_smaller_pieces_give_the_same_answers(monkeypatch, kind, most):
    model, samples = wave_model(), waves()
    whole = model.derivatives(samples, AT, INDICES)
    passes = shrink(monkeypatch, FAILURES[kind], most)
    for a, b in zip(whole, model.derivatives(samples, AT, INDICES), strict=True):
        assert np.abs(a - b).max() < 1e-10 * np.abs(a).max()
    assert max(passes) <= most
    assert sum(passes) == 6 * 23  # nothing was answered twice


def test_long_samples_are_read_a_few_at_a_time(monkeypatch):
    model, samples = wave_model(), waves()
    whole = model.predict(samples, AT)
    passes = shrink(monkeypatch, FAILURES["CPU"], 10**9)
    monkeypatch.setattr(reader, "PAIRS_PER_PASS", 2 * 7**2)
    assert np.abs(model.predict(samples, AT) - whole).max() < 1e-9
    assert passes == [2 * 23] * 3


def test_joint_shrinks_to_single_samples_and_no_further(monkeypatch):
    model, samples = wave_model(pattern="joint"), waves()
    whole = model.predict(samples, AT)
    passes = shrink(monkeypatch, FAILURES["CPU"], 23, "forward")
    assert np.abs(model.predict(samples, AT) - whole).max() < 1e-9
    assert passes == [23] * 6
    shrink(monkeypatch, FAILURES["CPU"], 22, "forward")
    with pytest.raises(CSTError, match=r"not enough memory to answer 23 queries from a context of 7 points; give a"):
        model.predict(samples, AT)


def test_when_nothing_smaller_is_left_the_error_says_what_to_do(monkeypatch):
    shrink(monkeypatch, FAILURES["GPU"], 0)
    with pytest.raises(
        CSTError, match=r"memory to answer 1 queries from a context of 7 points; give a shorter context"
    ):
        wave_model().predict(waves(), AT)


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    passes = shrink(monkeypatch, RuntimeError("shapes cannot be multiplied"), 5)
    with pytest.raises(RuntimeError, match="multiplied"):
        wave_model().predict(waves(), AT)
    assert passes == []


def predict(folder, count: int) -> tuple[np.ndarray, int]:
    """Answers, and how often memory ran out on the way."""
    asked = []
    honest = reader.is_out_of_memory
    reader.is_out_of_memory = lambda error: asked.append(str(error)) or honest(error)
    answer = CST.load(folder).predict(waves(1), np.linspace(2.1, 4.9, count))
    reader.is_out_of_memory = honest
    return answer, len(asked)


def test_with_little_memory_there_are_answers(tmp_path):
    """60 000 queries at once need more than the 40 MB that there are."""
    wave_model().save(tmp_path / "model")
    whole, never = predict(tmp_path / "model", 60_000)
    outcome, answer, taken = starved(40 * 2**20, predict, tmp_path / "model", 60_000)
    assert outcome == "done", answer
    assert answer[1] > never == 0
    assert np.abs(answer[0] - whole).max() < 1e-9
    assert taken < 200 * 2**20


def attend(n: int) -> None:
    samples = Samples(np.linspace(2, 5, n), np.zeros((1, n, 2)))
    wave_model().predict(samples, [3.0])


def test_a_context_that_cannot_be_encoded_is_an_error_of_ours():
    """Attention among 20 000 points needs gigabytes."""
    outcome, why, _ = starved(2**29, attend, 20_000)
    assert outcome == "CSTError", why
    assert "not enough memory to answer 1 queries from a context of 20,000 points" in why
