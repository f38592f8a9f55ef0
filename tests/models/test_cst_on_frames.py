"""CST on movies: the start, the torus, ragged windows, shifted patches and clean targets."""

import numpy as np
import pytest
import torch
from movies import ripples
from small_models import blob, fit_quickly

from cstformer import CST, Samples, frame_queries, frames_to_samples, samples_to_frames
from cstformer.models import fitting
from cstformer.starts.frames import Frames


def torus(width=8):
    return frames_to_samples(ripples(6, 8, width), (4, 4), window=4, stride=1, periodic=True)


@pytest.mark.parametrize("size", [(8, 8), (10, 7), (4, 4)])
def test_with_the_decoder_at_zero_a_model_answers_with_its_start(size):
    """Frames and averages of frames come back, whatever was trained before."""
    movie = blob(6, *size)
    samples = frames_to_samples(movie, (4, 4), window=4, stride=1)
    model = fit_quickly(CST.preset("smoke", steps=1, start="linear", precision="float64"), samples)
    readout = model.network_.readout
    with torch.no_grad():
        readout.skip.weight.copy_(torch.eye(16))
        readout.decode.weight.zero_()
        readout.decode.bias.zero_()
    queries = frame_queries(samples.layout, [0.0, 1.5, 3.0])
    answer = samples_to_frames(model.predict(samples, queries), samples.layout)
    assert np.allclose(answer[1, ..., 0], [movie[1], (movie[2] + movie[3]) / 2, movie[4]], atol=1e-8)
    at = frame_queries(samples.layout, [1.5])
    slope = samples_to_frames(model.derivative(samples, at, (1, 0, 0)), samples.layout)
    assert np.allclose(slope[1, 0, ..., 0], movie[3] - movie[2], atol=1e-8)


def test_an_untrained_model_answers_with_its_start():
    model = fit_quickly(CST.preset("smoke", steps=1, learning_rate=0.0, start="linear", precision="float64"), torus())
    answer = samples_to_frames(model.predict(torus(), frame_queries(torus().layout, [1.5])), torus().layout)
    assert np.allclose(answer[0, 0, ..., 0], ripples(6, 8, 8)[1:3].mean(0), atol=1e-9)


def test_a_torus_has_no_seam():
    """A whole period further the answer is the same, whatever the weights, and no warning speaks of extrapolation."""
    samples = torus()
    model = fit_quickly(
        CST.preset("smoke", start="linear", steps=5, learning_rate=0.02, hide=0.5, precision="float64"), samples
    )
    at = np.array([[0.7, 3.1, 6.9], [1.5, 1.5, 1.5]])
    here = model.predict(samples, at)
    for turn in ([0, 8, 0], [0, 0, 8], [0, -8, 16]):
        assert np.allclose(model.predict(samples, at + turn), here, atol=1e-8)
    assert not np.allclose(model.predict(samples, at + np.array([0, 4, 0])), here, atol=1e-2)


def test_ragged_windows():
    """Samples of different length: the padding of the short one is nobody's frame."""
    movie = blob(6, 8, 8)
    long, short = (frames_to_samples(movie[:k], (4, 4)) for k in (6, 3))
    both = Samples.concatenate([long, short])
    model = fit_quickly(CST.preset("smoke", steps=1, precision="float64"), both)
    at = frame_queries(both.layout, [0.7])
    assert np.abs(model.predict(both, at)[1] - model.predict(short, at)[0]).max() < 1e-8


def test_frames_have_heads_that_look_near_patches_and_muon_but_curves_do_not(tmp_path, monkeypatch):
    optimisers, train = [], fitting.train
    monkeypatch.setattr(fitting, "train", lambda *a, **k: optimisers.append(k["optimiser"]) or train(*a, **k))
    samples = torus(width=16)
    model = fit_quickly(CST.preset("smoke", steps=1, width=64, heads=32), samples)
    nearness = model.network_.blocks[1].attention.nearness
    # Four frames, two rows and four columns of patches; rows and columns go round the frame.
    spacing = torch.tensor([1 / 3, 1.0, 1 / 3])
    torch.testing.assert_close(nearness.log_width.detach().mean(0).exp(), 0.55 * spacing, rtol=0.3, atol=0)
    torch.testing.assert_close(nearness.period, torch.tensor([4.0, 2.0, 4 / 3]))
    assert model.network_.architecture.split_context
    model.save(tmp_path / "model")
    at = frame_queries(samples.layout, [0.5])
    assert np.array_equal(CST.load(tmp_path / "model").predict(samples, at), model.predict(samples, at))
    t = np.linspace(0, 1, 8)
    plain = fit_quickly(CST.preset("smoke", steps=1, nearness="never", start="linear", optimiser="adamw"), samples)
    curves = fit_quickly(CST.preset("smoke", steps=1), Samples(t, np.sin(t + np.arange(6)[:, None])))
    for other in (plain, curves):
        assert not (other.network_.architecture.near or other.network_.architecture.split_context)
    assert optimisers == ["muon", "adamw", "adamw"]


def test_training_asks_for_shifted_patches_every_second_step(monkeypatch):
    asked, shift = [], Frames.shift

    def spy(self, batch, target, generator):
        asked.append(shift(self, batch, target, generator))
        return asked[-1]

    monkeypatch.setattr(Frames, "shift", spy)
    fit_quickly(CST.preset("smoke", steps=20, patience=2.0), torus())
    assert 5 <= len(asked) <= 15
    assert len({tuple(batch.coords[0, 0, 1:].tolist()) for batch, _ in asked}) > 3


def test_training_cleans_targets_unless_it_learns_a_corruption(monkeypatch):
    cleaned, clean = [], Frames.clean
    monkeypatch.setattr(Frames, "clean", lambda self, *a: cleaned.append(clean(self, *a)) or cleaned[-1])
    fit_quickly(CST.preset("smoke", steps=3), torus())
    assert len(cleaned) >= 3
    count = len(cleaned)
    fit_quickly(CST.preset("smoke", steps=3), torus(), given=lambda frames, _: frames + 1.0)
    assert len(cleaned) == count


def test_movies_get_less_noise_than_they_have_and_targets_know_both():
    model = fit_quickly(CST.preset("smoke", steps=1), torus())
    found, used = model.kernel_.noise, model._objective(0.0, model.run_).disturbance
    assert (*used.noise, *used.data_noise) == pytest.approx((0.7 * found, found))
    low = fit_quickly(CST.preset("smoke", steps=1, noise=found / 4), torus())
    used = low._objective(0.0, low.run_).disturbance
    assert (*used.noise, *used.data_noise) == pytest.approx((found / 4, found / 4))  # the user knows better
