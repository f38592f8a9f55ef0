"""Samples as frames, answers at any time and place, and the training that all sequence models share."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from small_models import blob, fit_quickly, waves
from torch import nn

from cstformer.baselines.sequences import Forecaster, Reconstructor, SequenceBaseline, TimeSeries, between, windows
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST
from cstformer.starts.kinds import kind_of, unfitted_kind
from cstformer.training.disturbance import Disturbance


class Scale(Reconstructor):
    """Gives back what it saw, times a factor that begins at one."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def reconstruct(self, frames):
        return self.factor * frames.values


class Last(Forecaster):
    """The last frame of the window plus a rate times the time since."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def forecast(self, past, ahead):
        return past.values[:, -1] + self.rate * ahead[:, -1].reshape(-1, *[1] * (past.values.ndim - 2))


@dataclass(kw_only=True, eq=False, repr=False)
class Echo(SequenceBaseline):
    name = "echo"
    label = "Echo"

    def _network(self, d, c):
        return Scale()


@dataclass(kw_only=True, eq=False, repr=False)
class Persist(SequenceBaseline):
    name = "persist"
    label = "Persist"

    def _network(self, d, c):
        return Last()


@dataclass(kw_only=True, eq=False, repr=False)
class Spy(Echo):
    """Remembers what a training step shows and asks."""

    def _error(self, shown, at, target, observed, generator):
        self.shown, self.target = shown, target
        return torch.zeros(())


def disturbed(frames: TimeSeries, disturbance: Disturbance, seed: int, layout: PatchLayout | None = None):
    """What a training step shows of these frames, and its targets."""
    spy = Spy()
    spy.kind_ = unfitted_kind(1, 1) if layout is None else unfitted_kind(3, layout.c, layout)
    spy._disturbance, spy._corruption = disturbance, None
    spy._frames = lambda batch: frames
    spy._loss(None, torch.Generator().manual_seed(seed))
    return spy.shown, spy.target


def ragged() -> TimeSeries:
    """Two curves of one channel with 3 and 2 existing frames."""
    times = torch.tensor([[0.0, 0.2, 1.0], [0.1, 0.6, 0.0]])
    exists = torch.tensor([[True, True, True], [True, True, False]])
    values = torch.tensor([[1.0, 2.0, 6.0], [3.0, 5.0, 0.0]])[..., None]
    return TimeSeries(times, values, exists[..., None], exists).only(exists)


def movie(count: int = 6, seed: int = 0) -> np.ndarray:
    """(N, 5, 7, 10, 2): frames that no patch of 4 × 4 divides, some pixels and a whole frame missing."""
    frames = np.random.default_rng(seed).normal(3.0, 2.0, (count, 5, 7, 10, 2))
    frames[0, 3] = np.nan
    frames[1, 2, :3, 4:] = np.nan
    frames[2, 1, :, :, 0] = np.nan
    return frames


def fit(cls, samples, **settings):
    return cls(**{"steps": 1, "noise": 0.0, "learning_rate": 0.0, "precision": "float64", **settings}).fit(samples)


def test_padding_comes_last_and_repeats_the_time():
    frames = ragged().only(torch.tensor([[False, True, True], [True, True, True]]))
    assert frames.times.tolist() == [pytest.approx([0.2, 1.0]), pytest.approx([0.1, 0.6])]
    one = ragged().only(torch.tensor([[True, False, False], [False, True, True]]))
    assert one.counts.tolist() == [1, 1] and one.values.flatten().tolist() == [1.0, 5.0]
    frames = ragged()
    assert frames.times[1].tolist() == pytest.approx([0.1, 0.6, 0.6])
    assert frames.gaps[1].tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert not frames.observed[1, 2].any() and frames.values[1, 2] == 0


def test_channels_are_values_mask_and_clock():
    frames = ragged()
    x = frames.channels(mask=True, clock=frames.gaps)
    assert x[1].tolist() == [[3.0, 1.0, 0.0], [5.0, 1.0, 0.5], [0.0, 0.0, 0.0]]
    assert frames.channels(mask=False).shape == (2, 3, 1)


def test_frames_of_a_movie_are_its_pixels():
    frames_given = movie()
    samples = frames_to_samples(frames_given, patch=(4, 4), times=[0.0, 1.0, 3.0, 4.0, 8.0]).sorted()
    kind = kind_of(samples)
    scaling = kind.scaling
    frames = TimeSeries.of(kind.batch(samples, torch.float64, torch.device("cpu")), kind)
    assert frames.counts.tolist() == [4, 5, 5, 5, 5, 5]
    np.testing.assert_allclose(frames.times[0].numpy() * 8, [0, 1, 3, 8, 8])
    mean, sd = scaling.mean[:2], scaling.sd[:2]
    back = np.where(frames.observed, frames.values * sd + mean, np.nan)
    np.testing.assert_allclose(back[1:], frames_given[1:], rtol=1e-12)
    np.testing.assert_allclose(back[0, :4], frames_given[0, [0, 1, 2, 4]], rtol=1e-12)


def test_between_is_linear_interpolation_held_at_the_ends():
    frames = ragged()
    y = between("linear", frames, frames.values, torch.tensor([[-1.0, 0.1, 0.6, 2.0], [0.0, 0.35, 0.6, 0.9]]))
    np.testing.assert_allclose(y[..., 0], [[1.0, 1.5, 4.0, 6.0], [3.0, 4.0, 5.0, 5.0]], rtol=1e-6)


def test_between_cubic_is_of_fourth_order_inside():
    """Error of the natural spline of sin in the middle of the interval, where the ends no longer matter."""
    errors = []
    for n in (17, 33, 65):
        t = torch.linspace(0, 6, n, dtype=torch.float64)[None]
        frames = TimeSeries(t, torch.sin(t)[..., None], t[..., None] >= 0, t >= 0)
        at = torch.linspace(2.5, 3.5, 101, dtype=torch.float64)[None]
        errors.append(float((between("cubic", frames, frames.values, at)[..., 0] - torch.sin(at)).abs().max()))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 3.5).all()


def test_windows_look_back():
    frames = ragged()
    past, ahead = windows(frames, torch.tensor([[0.2, 0.9], [0.0, 5.0]]), 2)
    np.testing.assert_allclose(past.times, [[0, 0.2], [0, 0.2], [0.1, 0.1], [0.1, 0.6]], rtol=1e-6)
    np.testing.assert_allclose(ahead, [[0.2, 0], [0.9, 0.7], [-0.1, -0.1], [4.9, 4.4]], rtol=1e-6, atol=1e-7)
    assert past.values[..., 0].tolist() == [[1, 2], [1, 2], [3, 3], [3, 5]]


@pytest.mark.filterwarnings("ignore:coordinates lie outside")
@pytest.mark.parametrize("pass_size", [2**24, 300])
def test_an_echo_gives_the_movie_back(pass_size, monkeypatch):
    """At the given times exactly, in between by straight lines, whatever the size of a pass."""
    monkeypatch.setattr("cstformer.baselines.sequences.NUMBERS_PER_PASS", pass_size)
    frames, times = movie(), np.array([0.0, 1.0, 3.0, 4.0, 8.0])
    samples = frames_to_samples(frames, patch=(4, 4), times=times)
    model = fit(Echo, samples)
    at = frame_queries(samples.layout, [3.0, 0.0, 2.0])
    y = stitch(model.predict(samples, at), samples.layout)
    np.testing.assert_allclose(y[3:, 0], frames[3:, 2], rtol=1e-9)
    np.testing.assert_allclose(y[3:, 1], frames[3:, 0], rtol=1e-9)
    np.testing.assert_allclose(y[3:, 2], (frames[3:, 1] + frames[3:, 2]) / 2, rtol=1e-9)


def test_a_forecaster_extrapolates_from_the_frame_before():
    t = np.array([0.0, 0.25, 0.5, 1.0])
    samples = Samples(t, np.random.default_rng(0).normal(size=(4, 4)))
    model = fit(Persist, samples)
    sd = model.scaling_.sd[0]
    y = model.predict(samples, [0.25, 0.4, 0.9])[..., 0]
    expected = samples.values[:, [1, 1, 2], 0] + sd * np.array([0, 0.15, 0.4])
    np.testing.assert_allclose(y, expected, rtol=1e-9)


def test_training_finds_the_factor_that_hidden_frames_ask_for():
    """The curves are constant, so hidden frames ask for what the others show: a factor of one."""
    t = np.linspace(0, 1, 9)
    samples = Samples(t, np.random.default_rng(1).normal(size=(40, 1)) * np.ones(9))
    model = Echo(steps=80, noise=0.0, hide=0.5, learning_rate=0.05, seed=1)
    model._network = lambda d, c: _begun_at_half()
    assert model.fit(samples).network_.factor.item() == pytest.approx(1.0, abs=0.01)


def _begun_at_half() -> Scale:
    network = Scale()
    network.factor.data.fill_(0.5)
    return network


def test_noise_is_on_the_input_and_its_opposite_on_the_target():
    """With noise as in the data, errors of input and target are independent: the loss is not smaller for copying.

    Data are pure noise of sd 1. Copying costs E(z + n − (z − n))² = 4, answering 0 costs E(z − n)² = 2, and the
    best factor a minimises E(a(z + n) − (z − n))², which is a = 0.
    """
    z = torch.randn(500, 40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    times = torch.linspace(0, 1, 40, dtype=torch.float64).expand(500, -1)
    frames = TimeSeries(times, z, torch.ones_like(z, dtype=torch.bool), torch.ones(500, 40, dtype=torch.bool))
    shown, target = disturbed(frames, Disturbance(noise=1.0, data_noise=1.0), seed=1)
    best = float((shown.values * target).sum() / shown.values.square().sum())
    assert abs(best) < 0.02
    assert float(shown.values.var()) == pytest.approx(2.0, rel=0.03)


def test_hidden_frames_are_neither_shown_nor_disturbed():
    frames = ragged()
    for seed in range(20):
        shown, target = disturbed(frames, Disturbance(hide=0.9, noise=0.5, data_noise=0.5), seed)
        if int(shown.counts[0]) == 2:
            kept = torch.isin(frames.times[0], shown.times[0])
            assert (target[0, ~kept] == frames.values[0, ~kept]).all()
            assert (target[0, kept] != frames.values[0, kept]).all()
            return
    raise AssertionError("no frame was ever hidden")


def test_of_a_movie_the_first_and_the_last_frame_are_never_hidden():
    times = torch.tensor([[0.0, 0.2, 0.5, 1.0], [0.1, 0.3, 0.6, 0.6]])
    exists = torch.tensor([[True] * 4, [True, True, True, False]])
    values = torch.ones(2, 4, 2, 2, 1) * exists[..., None, None, None]
    frames = TimeSeries(times, values, values > 0, exists)
    counts = set()
    for seed in range(30):
        shown, _ = disturbed(frames, Disturbance(hide=0.9), seed, PatchLayout((2, 2), (2, 2)))
        assert shown.times[:, 0].tolist() == pytest.approx([0.0, 0.1])
        assert shown.times[:, -1].tolist() == pytest.approx([1.0, 0.6])
        counts |= {tuple(shown.counts.tolist())}
    assert (2, 2) in counts and len(counts) > 1  # all that lie between, or fewer


def test_some_targets_are_chosen_among_existing_frames():
    model = Echo(targets=2)
    frames = ragged()
    at, target, observed = model._choose(frames, frames.values, torch.Generator().manual_seed(0))
    assert at.shape == (2, 2) and observed.all()
    assert sorted(at[1].tolist()) == pytest.approx([0.1, 0.6])
    assert [float(frames.values[0, frames.times[0] == t]) for t in at[0]] == target[0, :, 0].tolist()


def test_validation_is_deterministic_and_free_of_noise():
    samples = Samples(np.linspace(0, 1, 9), np.random.default_rng(0).normal(size=(8, 9)))
    model = fit(Echo, samples, hide=0.5)
    nothing_hidden = fit(Echo, samples, hide=0.0)
    model._disturbance = Disturbance(hide=0.5, noise=7.0)
    model._corruption = nothing_hidden._corruption = None  # only known during a fit
    held_out = model._batch(samples)
    scores = [model._validation(held_out)() for _ in range(2)]
    assert scores[0] == scores[1] < 10
    assert nothing_hidden._validation(held_out)() == pytest.approx(0.0, abs=1e-20)  # all given frames are echoed


def test_noise_is_estimated_as_cst_does():
    t = np.linspace(0, 1, 15)
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * (t + rng.uniform(size=(30, 1)))) + 0.1 * rng.normal(size=(30, 15))
    model = Echo(steps=1, learning_rate=0.0).fit(Samples(t, values))
    assert model.noise_ * model.scaling_.sd[0] == pytest.approx(0.1, rel=0.25)
    fixed = Echo(steps=1, noise=0.3).fit(Samples(t, values))
    assert fixed._disturbance == Disturbance(fixed.hide, (0.3,), model._disturbance.data_noise)


@pytest.mark.parametrize(("samples", "share"), [(waves(), 1.0), (frames_to_samples(blob(), (4, 4), 5, 1), 0.7)])
def test_automatic_noise_is_that_of_cst(samples, share):
    """The known kernel has noise 0.1; movies get a share of it, in CST and in its rivals alike."""
    rival = fit_quickly(Echo(steps=1), samples)
    assert rival.noise_ == pytest.approx(share * 0.1) and max(rival._disturbance.data_noise) == 0.1
    assert rival.noise_ == fit_quickly(CST.preset("smoke", steps=1), samples).noise_


def test_what_is_refused():
    field = Samples(np.random.default_rng(0).uniform(size=(3, 5, 2)), np.zeros((3, 5)))
    with pytest.raises(CSTError, match="needs curves"):
        Echo().fit(field)
    with pytest.raises(CSTError, match="Echo has no latent state"):
        fit(Echo, Samples([0.0, 1.0], np.eye(2))).latent(Samples([0.0, 1.0], np.eye(2)))
    with pytest.raises(CSTError, match="unknown setting of Echo 'order'"):
        Echo(order=1)
    with pytest.raises(CSTError, match="precision='bfloat16' is for CST alone"):
        Echo(precision="bfloat16").fit(waves())
