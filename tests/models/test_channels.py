"""Robust scaling and weights of channels, from the training to the answers."""

import json

import numpy as np
import pytest
import torch
from problems import nested_derivatives, relative_error
from sklearn.base import clone
from small_models import blob, fit_quickly, refused, shaken, waves

from cstformer import CST, Samples, frames_to_samples
from cstformer.baselines import BASELINES
from cstformer.taylor import series

AT = np.linspace(2.4, 4.3, 5)


def tailed() -> Samples:
    """Waves whose second channel is exp of a wave, with one value far above all others."""
    s = waves(count=24)
    values = s.values.copy()
    values[..., 1] = np.exp((values[..., 1] - 40) / 4)
    values[3, 2, 1] = 1000.0
    return s.replace(values=values)


def robust_model(**settings) -> CST:
    """A model whose second channel is robust and whose first one is linear, with all weights at work."""
    model = CST.preset("smoke", **{"steps": 1, "precision": "float64", "scaling": "auto"} | settings)
    model = shaken(fit_quickly(model, tailed()))
    assert model.scaling_.robust.tolist() == [False, True]
    return model


# Answers


@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_derivatives_of_robust_channels_are_those_of_nested_autograd(pattern):
    """To order 3, of y(x) = m + s·sinh(a + b·z((x − low) / span)), with z the plain pass of the network."""
    model, s = robust_model(pattern=pattern), tailed()[:2]
    scaling, reader = model.scaling_, model.reader(s)
    low, span, mean, sd = (torch.as_tensor(a) for a in (scaling.low, scaling.span, scaling.mean, scaling.sd))
    a, b = torch.as_tensor(scaling.asinh)
    at = torch.as_tensor(AT)[None, :, None].expand(2, -1, -1)

    def answer(shift: torch.Tensor) -> torch.Tensor:
        x = series.constant((at + shift - low) / span)
        z = reader.read(x, reader.start(x)).value
        return torch.stack([mean[0] + sd[0] * z[..., 0], mean[1] + sd[1] * torch.sinh(a[1] + b[1] * z[..., 1])], -1)

    want = nested_derivatives(answer, 1, 3)
    found = model.derivatives(s, AT, [(0,), (1,), (2,), (3,)])
    for j, y in enumerate(found):
        expected = want[j].reshape(y.shape)
        for k in range(2):
            assert relative_error(torch.as_tensor(y[..., k]), expected[..., k]) < 1e-9, (j, k)


def test_the_reader_answers_as_predict_does():
    model, s = robust_model(), tailed()
    value, slope = model.reader(s).partials(AT[:, None], [(0,), (1,)])
    np.testing.assert_allclose(value, model.predict(s, AT), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(slope, model.derivative(s, AT, (1,)), rtol=1e-9, atol=1e-9)


def test_known_values_at_queries_are_bent():
    """With the initial values as ``values=`` the maps are those without; they pass through the user's units."""
    model, s = robust_model(), tailed()[:2]
    reader = model.reader(s)
    x = series.constant(reader._queries(AT[:, None]))
    known = model.scaling_.values(reader.start(x).value.numpy())
    plain, given = model.attention(s, AT), model.attention(s, AT, values=known)
    np.testing.assert_allclose(given.maps, plain.maps, atol=1e-10)


def test_a_corruption_sees_values_of_the_user():
    seen = []

    def corruption(values, generator):
        seen.append(values)
        return values

    samples = tailed()
    fit_quickly(CST.preset("smoke", steps=1, batch=24, precision="float64"), samples, given=corruption)
    assert max(float(v.max()) for v in seen) == pytest.approx(samples.values.max(), rel=1e-12)


def test_a_robust_model_loads_with_the_same_answers(tmp_path):
    model, s = robust_model(channel_weights=np.array([1.0, 2.0])), tailed()
    model.save(tmp_path / "model")
    loaded = CST.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(s, AT), model.predict(s, AT))
    assert np.array_equal(loaded.derivative(s, AT, (2,)), model.derivative(s, AT, (2,)))
    assert loaded.channel_weights == [1.0, 2.0]
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert np.array(about["scaling"]["asinh"]).shape == (2, 2)


# The setting `scaling`


def test_linear_means_mean_and_sd():
    model = fit_quickly(CST.preset("smoke", steps=1, scaling="linear"), tailed())
    assert model.scaling_.asinh is None
    assert model.scaling_.mean[1] == pytest.approx(tailed().values[..., 1].mean())


@pytest.mark.parametrize("name", ["transformer", "lstm", "transformer-linear"])
def test_rivals_train_in_the_same_units(name):
    samples = tailed()
    model = fit_quickly(BASELINES[name].preset("smoke", steps=2, scaling="robust"), samples)
    ours = fit_quickly(CST.preset("smoke", steps=1, scaling="robust"), samples)
    assert np.array_equal(model.scaling_.asinh, ours.scaling_.asinh)
    assert np.isfinite(model.predict(samples, AT)).all()


def test_frames_stay_linear():
    frames = frames_to_samples(blob() ** 8, (5, 3), 4, 1)
    assert fit_quickly(CST.preset("smoke", steps=1), frames).scaling_.asinh is None
    model = CST.preset("smoke", steps=1, scaling="robust")
    refused(lambda: fit_quickly(model, frames), "scaling='robust' is for points")


# The setting `channel_weights`


def first_step(weights) -> tuple[float, list[torch.Tensor]]:
    """Loss of a training step, and its gradient with respect to the weights of the network."""
    settings = {"steps": 1, "learning_rate": 0.0, "precision": "float64", "channel_weights": weights}
    model = fit_quickly(CST.preset("smoke", **settings), waves())  # the same network for all weights
    loss = model._objective(0.0, model.run_).loss(model._batch(waves()), torch.Generator().manual_seed(0))
    gradient = torch.autograd.grad(loss, list(model.network_.readout.parameters()))
    return float(loss.detach()), list(gradient)


def test_a_step_of_cst_weighs_the_channels():
    """The losses L0 and L1 of the channels alone, which have as many cells each: (w0 L0 + w1 L1) / (w0 + w1)."""
    (first, a), (second, b) = first_step((1, 0)), first_step((0, 1))
    for weights, share in ((None, 0.5), ((7, 7), 0.5), ((3, 1), 0.75)):
        loss, gradient = first_step(weights)
        assert loss == pytest.approx(share * first + (1 - share) * second, rel=1e-12)
        for got, x, y in zip(gradient, a, b, strict=True):
            torch.testing.assert_close(got, share * x + (1 - share) * y, rtol=1e-9, atol=1e-12)
    assert first_step((7, 7))[0] == first_step(None)[0]


def test_validation_weighs_the_channels():
    def scores(weights):
        model = CST.preset("smoke", steps=2, channel_weights=weights)
        return fit_quickly(model, waves()).report_.history

    assert scores((3, 3)) == scores(None)
    assert scores((3, 1))[0] != scores(None)[0]


@pytest.mark.parametrize("name", ["transformer", "lstm", "lfads"])
def test_weights_reach_the_rivals(name):
    def answers(weights):
        model = BASELINES[name].preset("smoke", steps=6, validation=0.0, channel_weights=weights)
        return fit_quickly(model, waves()).predict(waves(), AT)

    assert np.array_equal(answers([2.0, 2.0]), answers(None))
    assert not np.array_equal(answers([2.0, 1.0]), answers(None))


def test_weights_of_frames_are_those_of_their_colours():
    frames = frames_to_samples(blob(channels=2), (5, 3), 4, 1)
    fit_quickly(CST.preset("smoke", steps=1, channel_weights=(1, 2)), frames)
    model = CST.preset("smoke", steps=1, channel_weights=[1, 2, 3])
    refused(lambda: fit_quickly(model, frames), "channel_weights has 3 numbers for 2 channel(s); give one for each")


def test_weights_of_another_length_are_refused():
    model = CST.preset("smoke", channel_weights=[1.0])
    refused(lambda: model.fit(waves()), "channel_weights has 1 numbers for 2 channel(s)")


def test_weights_as_an_array_are_a_setting_like_others():
    model = CST(channel_weights=np.array([1, 2]))
    assert repr(model) == "CST(channel_weights=[1, 2])"
    assert clone(model).settings()["channel_weights"] == [1, 2]
    assert CST(channel_weights=(np.float32(0.5), 1)).settings()["channel_weights"] == [0.5, 1]
