"""Between the user's units and the model's."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cstformer import Samples, frames_to_samples
from cstformer.data.units import Scaling, heavy_tails

nan = np.nan


def hand_made() -> Samples:
    """Two samples, one padded; channel 1 misses a value, channel 2 never changes."""
    coords = np.array([[2.0, 4.0, 6.0], [3.0, 5.0, 99.0]])
    values = np.array([[[1, 10, 7], [3, nan, 7], [5, 30, 7]], [[7, 50, 7], [9, 70, 7], [nan, nan, nan]]], dtype=float)
    return Samples(coords, values)


def test_numbers_by_hand():
    s = Scaling.of(hand_made())
    assert s.low.tolist() == [2.0]
    assert s.span.tolist() == [4.0]  # the padded 99 does not count
    assert s.mean.tolist() == [5.0, 40.0, 7.0]
    assert s.sd.tolist() == pytest.approx([np.sqrt(8), np.sqrt(500), 1.0])  # a constant channel keeps its unit


def test_batch_is_standardised_and_what_is_absent_is_zero():
    samples = hand_made()
    batch = Scaling.of(samples).batch(samples, torch.float64, torch.device("cpu"))
    assert batch.coords[..., 0].tolist() == [[0.0, 0.5, 1.0], [0.25, 0.75, 0.0]]
    assert batch.exists.tolist() == [[True, True, True], [True, True, False]]
    assert (batch.values[~batch.observed] == 0).all()
    for channel, sd in ((0, 1.0), (1, 1.0), (2, 0.0)):
        seen = batch.values[..., channel][batch.observed[..., channel]]
        assert float(seen.mean()) == pytest.approx(0, abs=1e-12)
        assert float(seen.std(correction=0)) == pytest.approx(sd, abs=1e-12)


def test_an_axis_or_channel_that_never_changes_keeps_its_unit():
    s = Scaling.of(Samples([[[0.0, 3.3], [1.0, 3.3]]], [[0.1, 0.1]]))
    assert s.span.tolist() == [1.0, 1.0]
    assert s.sd.tolist() == [1.0]


def test_a_channel_never_observed_keeps_its_unit():
    s = Scaling.of(Samples([0.0, 1.0], [[[1.0, nan], [3.0, nan]]]))
    assert s.mean.tolist() == [2.0, 0.0]
    assert s.sd.tolist() == [1.0, 1.0]


def test_a_constant_far_from_zero_is_constant_despite_rounding():
    s = Scaling.of(Samples(np.arange(30.0), np.full((1, 30), 0.1)))
    assert s.sd.tolist() == [1.0]


def test_derivative_is_the_chain_rule():
    s = Scaling(np.array([1.0, 0.0]), np.array([4.0, 0.5]), np.array([10.0]), np.array([3.0]))
    y = np.array([[[2.0]]])
    assert s.derivative(y, (0, 0)).item() == 2 * 3 + 10
    assert s.derivative(y, (1, 0)).item() == 2 * 3 / 4
    assert s.derivative(y, (0, 2)).item() == 2 * 3 / 0.25
    assert s.derivative(y, (2, 1)).item() == 2 * 3 / (16 * 0.5)


def test_there_and_back():
    s = Scaling.of(hand_made())
    x, y = np.random.default_rng(0).normal(size=(2, 4, 5, 1)) * 10, np.random.default_rng(1).normal(size=(4, 5, 3)) * 10
    np.testing.assert_allclose(s.user_coords(s.coords(x)), x)
    np.testing.assert_allclose(s.values(s.standardised(y)), y)
    assert (
        s.coords(np.array([[4.0]])).tolist() == [[0.5]]
        and s.standardised(np.array([5.0, 40.0, 7.0])).tolist() == [0] * 3
    )


def test_a_function_of_values_in_the_units_of_the_user():
    """Of all channels, or of the first ones: pixels of a frame have the channels of the first pixel of a patch."""
    s = Scaling(np.zeros(1), np.ones(1), np.array([10.0, 20.0, 10.0, 20.0]), np.array([2.0, 4.0, 2.0, 4.0]))
    seen = []
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float32)
    y = s.in_user_units(lambda values: seen.append(values) or values + 8, x)
    assert seen[0].tolist() == [[12.0, 16.0]] and y.tolist() == [[5.0, 1.0]]
    assert y.dtype == seen[0].dtype == torch.float32
    assert s.in_user_units(lambda values: values, torch.ones(3, 5, 4)).tolist() == torch.ones(3, 5, 4).tolist()


def test_pixels_of_a_patch_share_mean_and_sd_per_image_channel():
    movie = np.random.default_rng(0).normal(size=(5, 4, 6, 2)) * [1.0, 20.0] + [3.0, -7.0]
    movie[2, 1, 1] = nan
    s = Scaling.of(frames_to_samples(movie, (2, 3)), pooled=2)
    assert s.mean.shape == (2 * 3 * 2,)
    assert s.mean.reshape(6, 2).tolist() == pytest.approx([pytest.approx(np.nanmean(movie, (0, 1, 2)))] * 6)
    assert s.sd.reshape(6, 2).tolist() == pytest.approx([pytest.approx(np.nanstd(movie, (0, 1, 2)))] * 6)


def test_padding_of_frames_does_not_change_mean_and_sd():
    movie = np.random.default_rng(0).normal(size=(3, 5, 5)) + 100
    s = Scaling.of(frames_to_samples(movie, (4, 4)), pooled=1)
    assert s.mean == pytest.approx(np.full(16, movie.mean()))
    assert s.sd == pytest.approx(np.full(16, movie.std()))


def test_description_goes_through_json_unchanged():
    s = Scaling.of(hand_made())
    back = Scaling.from_description(json.loads(json.dumps(s.describe())))
    for name in ("low", "span", "mean", "sd"):
        assert (getattr(s, name) == getattr(back, name)).all()


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_model_units_do_not_depend_on_the_users(shift, stretch, offset, gain):
    samples = hand_made()
    moved = Samples(samples.coords * stretch + shift, samples.values * gain + offset, observed=samples.observed)
    a, b = (Scaling.of(s).batch(s, torch.float64, torch.device("cpu")) for s in (samples, moved))
    loss = 1e-9 + 4e-16 * max(abs(shift) / stretch, abs(offset) / gain)
    assert float((a.coords - b.coords).abs().max()) < 10 * loss
    varying = [0, 1]  # the constant channel has no unit to compare
    assert float((a.values - b.values)[..., varying].abs().max()) < 10 * loss


# Robust channels


def tailed() -> Samples:
    """Four channels: heavy tails, a sine, an indicator with equal quartiles, and one that was never observed."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 50)
    y = np.zeros((40, 50, 4))
    y[..., 0] = 100 * np.exp(1.2 * rng.normal(size=(40, 50)))
    y[..., 1] = np.sin(7 * t + rng.uniform(0, 7, (40, 1)))
    y[..., 2] = rng.random((40, 50)) < 0.02
    y[..., 3] = nan
    y[::3, ::2, 0] = nan
    return Samples(t, y)


def test_robust_numbers_by_hand():
    """Values 0, 2, 4, 6, 96: median 4, quartiles 2 and 6, so (y − 4) / s with s = 4 / 1.349."""
    s = Scaling.of(Samples(np.arange(5.0), [[0.0, 2.0, 4.0, 6.0, 96.0]]), how="robust")
    assert s.mean.tolist() == [4.0]
    assert s.sd.tolist() == pytest.approx([4 / 1.3489795])
    bent = np.arcsinh(np.array([-4, -2, 0, 2, 92]) / s.sd)
    assert s.asinh[:, 0].tolist() == pytest.approx([bent.mean(), bent.std()])
    want = (bent - bent.mean()) / bent.std()
    assert s.standardised(np.array([[0.0], [2.0], [4.0], [6.0], [96.0]]))[:, 0] == pytest.approx(want)


def test_auto_is_robust_where_tails_are_heavy_and_linear_elsewhere():
    auto, linear, robust = (Scaling.of(tailed(), how=how) for how in ("auto", "linear", "robust"))
    assert auto.robust.tolist() == [True, False, False, False]
    assert robust.robust.tolist() == [True, True, False, False]
    assert not linear.robust.any() and linear.asinh is None
    assert auto.mean[1:].tolist() == linear.mean[1:].tolist() and auto.sd[1:].tolist() == linear.sd[1:].tolist()


@pytest.mark.parametrize(
    ("values", "heavy"),
    [
        (lambda rng: rng.normal(size=20_000), False),
        (lambda rng: rng.laplace(size=20_000), False),
        (lambda rng: rng.exponential(size=20_000), False),
        (lambda rng: np.sin(rng.uniform(0, 7, 20_000)), False),
        (lambda rng: rng.normal(size=20_000).round(), False),  # few distinct values, as a score has
        (lambda rng: (rng.random(20_000) < 0.5) * 1.0, False),
        (lambda rng: np.full(20_000, 3.0), False),
        (lambda rng: np.array([0.0] * 50 + [1.0]), False),  # too few to tell
        (lambda rng: np.exp(rng.normal(size=20_000)), True),
        (lambda rng: rng.standard_t(3, size=20_000), True),
        (lambda rng: np.append(rng.normal(size=20_000), 300.0), True),  # one wrong number
    ],
)
def test_which_tails_are_heavy(values, heavy):
    assert heavy_tails(values(np.random.default_rng(1))) == heavy


def test_channels_of_a_robust_scaling_have_mean_0_and_sd_1():
    samples = tailed()
    batch = Scaling.of(samples, how="auto").batch(samples, torch.float64, torch.device("cpu"))
    assert (batch.values[~batch.observed] == 0).all()
    for k in (0, 1, 2):
        seen = batch.values[..., k][batch.observed[..., k]]
        assert float(seen.mean()) == pytest.approx(0, abs=1e-12)
        assert float(seen.std(correction=0)) == pytest.approx(1, abs=1e-12)
    assert float(batch.values[..., 0].abs().max()) < 5  # the linear scaling has 20 there


@given(
    st.floats(-1e15, 1e15),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(-3, 3),
    st.floats(0.1, 3),
)
def test_robust_there_and_back_far_outside_of_the_training_values(y, mean, sd, a, b):
    """To 1e-12 of the larger of |y|, the centre and the unit: what rounding leaves of their difference."""
    s = Scaling(np.zeros(1), np.ones(1), np.array([mean]), np.array([sd]), np.array([[a], [b]]))
    back = float(s.values(s.standardised(np.array([y])))[0])
    assert abs(back - y) <= 1e-12 * max(abs(y), abs(mean), sd)


def test_linear_and_robust_channels_side_by_side_there_and_back():
    s = Scaling.of(tailed(), how="auto")
    y = np.random.default_rng(0).normal(size=(3, 5, 4)) * 1e4
    np.testing.assert_allclose(s.values(s.standardised(y)), y, rtol=1e-12)
    z = s.standardised(y)
    assert (z[..., 1] == (y[..., 1] - s.mean[1]) / s.sd[1]).all()  # linear channels keep every digit


def test_a_function_of_values_in_the_units_of_the_user_sees_robust_channels_unbent():
    s = Scaling(*(np.array(x) for x in ([0.0], [1.0], [10.0, 20.0], [2.0, 4.0], [[0.3, 0.0], [1.5, 0.0]])))
    y = np.array([[100.0, 16.0], [9.0, 24.0]])
    seen = []
    x = torch.as_tensor(s.standardised(y))
    changed = s.in_user_units(lambda values: seen.append(values) or values + 8, x)
    np.testing.assert_allclose(seen[0].numpy(), y, rtol=1e-12)
    np.testing.assert_allclose(changed.numpy(), s.standardised(y + 8), rtol=1e-12)


def test_a_robust_description_goes_through_json_unchanged():
    s = Scaling.of(tailed(), how="auto")
    back = Scaling.from_description(json.loads(json.dumps(s.describe())))
    assert (back.asinh == s.asinh).all() and (back.sd == s.sd).all()
    about = s.describe()
    del about["asinh"]  # as version 0.1.0 wrote it
    assert Scaling.from_description(about).asinh is None
    with pytest.raises(ValueError, match=r"asinh has shape \(2, 1\) for 4 channels"):
        Scaling.from_description(s.describe() | {"asinh": [[0.0], [1.0]]})


def test_robust_units_do_not_depend_on_the_users():
    """Both the median and the quartiles move with the values."""
    samples = tailed()
    moved = samples.replace(values=np.where(samples.observed, -3 + 0.01 * samples.values, nan))
    a, b = (Scaling.of(x, how="auto").batch(x, torch.float64, torch.device("cpu")) for x in (samples, moved))
    assert float((a.values - b.values).abs().max()) < 1e-10
