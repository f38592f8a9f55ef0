"""Numerical health: losses that are not finite, both precisions, and sizes of batches and chunks that do not matter."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import fit_quickly, wave_model, waves

from cstformer import CST, CSTWarning
from cstformer.data.holding_out import split_samples
from cstformer.models import reader
from cstformer.training.objective import SobolevObjective
from cstformer.training.schedule import batch_indices

AT = np.linspace(2.2, 4.8, 9)


def disturb(monkeypatch, change, step: int) -> None:
    """Change the loss of one step of the training that follows."""
    calls, loss = [], SobolevObjective.loss

    def disturbed(self, batch, generator):
        value = loss(self, batch, generator)
        calls.append(0)
        return change(self, value) if len(calls) == step + 1 else value

    monkeypatch.setattr(SobolevObjective, "loss", disturbed)


def is_finite(model: CST) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in model.network_.parameters())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_names_its_batch_and_keeps_the_best_weights(monkeypatch, tmp_path, bad):
    samples = waves(20)
    model = CST.preset("smoke", steps=8, batch=3, seed=4)
    disturb(monkeypatch, lambda objective, value: value * 0 + bad, step=5)
    training, _ = split_samples(20, 0.1, seed=4)
    numbers = ", ".join(str(i) for i in training[batch_indices(5, 3, len(training), seed=4)].tolist())
    with pytest.warns(CSTWarning, match=rf"not finite at step 5 \(samples number {numbers}\); training stopped there"):
        fit_quickly(model, samples, state=tmp_path / "state")
    assert (model.report_.ended, model.report_.steps) == ("not finite", 5)
    assert model.report_.best_score == min(score for _, score in model.report_.history)
    assert is_finite(model)
    assert np.isfinite(model.predict(samples, AT)).all()
    # The same weights as those of an undisturbed training up to there.
    monkeypatch.undo()
    again = fit_quickly(CST.preset("smoke", steps=8, batch=3, seed=4), samples)
    early = [score for step, score in again.report_.history if step <= 5]
    assert early == [score for _, score in model.report_.history]


def test_gradients_that_are_not_finite_stop_the_next_step(monkeypatch):
    """√x at 0 is finite and its slope is not: the weights are lost, but not the best ones."""

    def poison(objective, value):
        return value + sum((0 * p).sum().sqrt() for p in objective.network.parameters())

    model = CST.preset("smoke", steps=8)
    disturb(monkeypatch, poison, step=3)
    with pytest.warns(CSTWarning, match="not finite at step 4 "):
        fit_quickly(model, waves())
    assert model.report_.ended == "not finite"
    assert is_finite(model)
    assert np.isfinite(model.predict(waves(), AT)).all()


@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_float64_from_end_to_end_agrees_with_float32(tmp_path, pattern):
    models = {}
    for precision, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        settings = {"steps": 6, "precision": precision, "pattern": pattern, "learning_rate": 1e-3}
        model = fit_quickly(CST.preset("smoke", **settings), waves())
        model.save(tmp_path / precision)
        model = models[precision] = CST.load(tmp_path / precision)
        assert {v.dtype for v in model.network_.state_dict().values() if v.is_floating_point()} == {dtype}
    single, double = models.values()
    scale = double.scaling_.sd.max()
    for index, tolerance in (((0,), 1e-4), ((1,), 1e-3)):
        a, b = single.derivative(waves(), AT, index), double.derivative(waves(), AT, index)
        assert np.abs(a - b).max() < tolerance * scale
        assert np.abs(a - b).max() > 1e-12 * scale  # float32 is not float64 in disguise, or the other way round
    maps = [model.attention(waves(), AT).maps for model in (single, double)]
    assert np.abs(maps[0] - maps[1]).max() < 1e-4
    assert np.abs(maps[1].sum(-1) - 1).max() < 1e-12


@functools.cache
def in_one_pass(precision: str) -> list[np.ndarray]:
    return wave_model(precision=precision).derivatives(waves(66), AT, [(0,), (1,)])


@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(20, 400), st.integers(1, 66), st.sampled_from(["float32", "float64"]))
def test_sizes_of_batches_and_chunks_do_not_matter(tokens, count, precision):
    """All samples and queries at once, or in pieces of any size: the same answers to 1e-5, or to rounding."""
    whole = in_one_pass(precision)
    usual = reader.TOKENS_PER_PASS
    reader.TOKENS_PER_PASS = tokens
    try:
        pieces = wave_model(precision=precision).derivatives(waves(66)[:count], AT, [(0,), (1,)])
    finally:
        reader.TOKENS_PER_PASS = usual
    for a, b in zip(whole, pieces, strict=True):
        assert np.abs(a[:count] - b).max() < (1e-5 if precision == "float32" else 1e-12) * np.abs(a).max()
