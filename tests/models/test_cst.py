"""CST, the front desk: scikit-learn's conventions, bad input, the user's units."""

import copy
import inspect
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from small_models import blob, fit_quickly, patched_kernel, wave_model, waves

import cstformer.models.cst
from cstformer import CST, CSTError, CSTWarning, Samples, frames_to_samples
from cstformer.training.objective import SobolevObjective
from cstformer.training.settings import setting_fields

nan = np.nan
AT = np.linspace(2.3, 4.4, 7)
PATTERNS = ("context", "joint")


def one_line(call, *words: str) -> None:
    """The call raises a CSTError of one line with these words in it."""
    with pytest.raises(CSTError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def tiny(**changes) -> CST:
    return CST.preset("smoke", **{"steps": 2, **changes})


# Conventions


def test_init_stores_and_does_nothing():
    odd = object()
    model = CST(width=odd, mu="nonsense")
    assert model.width is odd
    assert set(vars(model)) == set(setting_fields())
    assert not [k for k in vars(model) if k.endswith("_")]


def test_clone_and_params():
    model = CST(order=1, seed=3, p=np.inf)
    twin = clone(model)
    assert twin is not model
    assert twin.get_params() == model.get_params()
    assert set(model.get_params()) == set(setting_fields())
    assert model.set_params(order=2, mu=0.5) is model
    assert (model.order, model.mu, model.seed) == (2, 0.5, 3)
    assert repr(CST(order=1)) == "CST(order=1)"


def test_clone_of_a_fitted_model_is_unfitted():
    model = wave_model()
    check_is_fitted(model)
    with pytest.raises(NotFittedError):
        clone(model).predict(waves(), AT)


def test_fitted_attributes_end_in_an_underscore_and_fit_returns_self():
    model = tiny()
    assert fit_quickly(model, waves()) is model
    new = set(vars(model)) - set(setting_fields())
    assert new == {"kind_", "names_", "shape_", "device_", "network_", "noise_", "noises_", "mu_"} | {
        "report_",
        "calibration_",
        "cells_",
        "run_",
    }
    assert model.get_params() == tiny().get_params()
    assert list(inspect.signature(model.fit).parameters)[:2] == ["samples", "y"]


def test_deep_copy_is_independent():
    model = wave_model()
    twin = copy.deepcopy(model)
    expected = model.predict(waves(), AT)
    with torch.no_grad():
        for p in model.network_.parameters():
            p.zero_()
    assert np.array_equal(twin.predict(waves(), AT), expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CST(learning_rat=1.0),
        lambda: CST().set_params(learning_rat=1.0),
        lambda: CST.preset("smoke", learning_rat=1.0),
    ],
    ids=["constructor", "set_params", "preset"],
)
def test_unknown_setting_names_the_nearest(call):
    one_line(call, "unknown setting 'learning_rat'; did you mean 'learning_rate'?")


def test_positional_settings_are_refused():
    one_line(lambda: CST(64), "keyword settings only", "CST(seed=0)")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": "64"}, ["width='64'", "int"]),
        ({"heads": 3}, ["width=16 is not a multiple of heads=3"]),
        ({"p": 0.5}, ["p=0.5", "at least 1"]),
        ({"device": "abacus"}, ["device='abacus' cannot be used here"]),
        ({"device": "cuda:63"}, ["device='cuda:63' cannot be used here"]),
    ],
)
def test_fit_checks_the_settings_first(change, words):
    one_line(lambda: fit_quickly(tiny(**change), waves()), *words)


# A fit that fails


def broken(*_):
    raise ZeroDivisionError("broken")


@pytest.mark.parametrize("where", ["prior", "training", "Ctrl-C", "kind"])
def test_a_fit_that_fails_leaves_a_model_that_is_not_fitted(monkeypatch, tmp_path, where):
    model = fit_quickly(tiny(), waves())
    if where == "prior":
        with pytest.raises(ZeroDivisionError), patched_kernel(broken):
            model.fit(waves(seed=1))
    elif where == "kind":
        one_line(lambda: model.set_params(coord_noise=0.1).fit(frames_to_samples(blob(), (4, 4))), "coord_noise")
    else:
        error = ZeroDivisionError if where == "training" else KeyboardInterrupt
        monkeypatch.setattr(SobolevObjective, "loss", lambda *_: (_ for _ in ()).throw(error))
        with pytest.raises(error):
            fit_quickly(model, waves(seed=1))
    for ask in (lambda: model.predict(waves(), AT), lambda: model.n_parameters_, lambda: model.save(tmp_path / "m")):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            ask()
    assert where == "kind" or not hasattr(model, "network_")
    monkeypatch.undo()
    again = fit_quickly(model.set_params(coord_noise=0.0), waves())
    assert np.array_equal(again.predict(waves(), AT), fit_quickly(tiny(), waves()).predict(waves(), AT))


def test_a_fit_that_is_refused_leaves_the_model_as_it_was():
    model = fit_quickly(tiny(), waves())
    before = model.predict(waves(), AT)
    one_line(lambda: model.fit(np.zeros((3, 4, 1))), "fit takes Samples")
    assert np.array_equal(model.predict(waves(), AT), before)


# Bad input


def test_fit_takes_samples_only():
    one_line(lambda: tiny().fit(np.zeros((3, 4, 1))), "fit takes Samples, got ndarray", "Samples(coords, values)")


def test_a_sample_with_one_point_is_left_out_by_name():
    values = waves().values.copy()
    values[[1, 4], 1:] = nan
    with pytest.warns(CSTWarning, match="left out samples 'b', 'e' with fewer than two observed points"):
        model = fit_quickly(tiny(steps=1), Samples(waves().coords, values, sample_ids=list("abcdef")))
    rest = fit_quickly(tiny(steps=1), Samples(waves().coords, values, sample_ids=list("abcdef"))[[0, 2, 3, 5]])
    assert np.array_equal(model.predict(waves(), AT), rest.predict(waves(), AT))


def test_samples_whose_points_are_all_one_place_are_refused():
    coords = np.full_like(waves().coords, 3.0)
    with pytest.warns(CSTWarning, match="averaged"):
        one_line(lambda: tiny().fit(Samples(coords, waves().values)), "all samples have fewer than two")


def test_more_points_than_attention_holds(monkeypatch):
    monkeypatch.setattr(cstformer.models.cst, "MAX_TOKENS", 5)
    one_line(lambda: tiny().fit(waves()), "a sample has 7 points, more than the 5", "windows(length, stride)")


def test_frames_and_coordinate_noise_exclude_each_other():
    one_line(lambda: tiny(coord_noise=0.1).fit(frames_to_samples(blob(), (4, 4))), "coord_noise", "set it to 0")


def test_duplicates_are_averaged_with_a_warning():
    model, s = wave_model(), waves(1)
    twice = Samples(
        np.concatenate([s.coords, s.coords[:, 2:3]], 1), np.concatenate([s.values, s.values[:, 2:3] + 4], 1)
    )
    mean = s.values.copy()
    mean[:, 2] += 2
    with pytest.warns(CSTWarning, match="1 points in 1 samples repeat the coordinates .* averaged"):
        answer = model.predict(twice, AT)
    assert np.allclose(answer, model.predict(Samples(s.coords, mean), AT), atol=1e-10)


def test_duplicates_are_averaged_in_fit_too():
    s = waves()
    order = [*range(7), 3]
    with pytest.warns(CSTWarning, match="6 points in 6 samples repeat"):
        twice = fit_quickly(tiny(), Samples(s.coords[:, order], s.values[:, order]))
    once = fit_quickly(tiny(), s)
    assert np.array_equal(twice.predict(s, AT), once.predict(s, AT))


@pytest.mark.parametrize("start", ["linear", "hermite", "cubic", "smooth"])
def test_a_channel_never_observed_in_a_sample_is_accepted(start):
    values = waves().values.copy()
    values[3, :, 1] = nan
    values[0, 2:, 0] = nan
    samples = Samples(waves().coords, values)
    model = fit_quickly(tiny(start=start), samples)
    assert np.isfinite(model.predict(samples, AT)).all()
    assert np.isfinite(model.derivative(samples, AT, (2,))).all()


def test_a_channel_never_observed_anywhere_is_accepted():
    values = waves().values.copy()
    values[..., 1] = nan
    samples = Samples(waves().coords, values)
    assert np.isfinite(tiny().fit(samples).predict(samples, AT)).all()


def test_constant_channels_are_accepted():
    values = waves().values.copy()
    values[..., 1] = 12.5
    samples = Samples(waves().coords, values)
    answer = tiny().fit(samples).predict(samples, AT)
    assert np.abs(answer[..., 1] - 12.5).max() < 0.5


def test_data_that_never_change_are_accepted():
    samples = Samples(waves().coords, np.full((6, 7, 1), -3.0))
    model = tiny().fit(samples)
    assert np.isfinite(model.mu_)
    assert np.abs(model.predict(samples, AT) + 3).max() < 0.5


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_handful_of_samples_is_enough(count):
    model = fit_quickly(tiny(), waves(count))
    assert model.predict(waves(count), AT).shape == (count, 7, 2)


def test_samples_of_two_points():
    samples = Samples([0.0, 1.0], [[1.0, 2.0], [3.0, 5.0]])
    assert np.isfinite(fit_quickly(tiny(), samples).predict(samples, [0.5])).all()


@pytest.mark.parametrize("start", ["linear", "cubic", "smooth"])
def test_a_context_of_one_point_gets_an_answer(start):
    model, s = wave_model(start=start), waves(2)
    keep = np.zeros((2, 7), dtype=bool)
    keep[0, 3] = keep[1] = True
    assert np.isfinite(model.predict(s.subset_points(keep), AT)).all()
    assert np.isfinite(model.predict(s.subset_points(keep)[0], AT)).all()


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ([3.0, nan], ["at contains NaN or infinite"]),
        ([], ["at has shape (0,)", "m ≥ 1"]),
        (3.0, ["at has shape ()"]),
        (np.zeros((5, 2)), ["at has shape (5, 2)", "(m, 1) or (6, m, 1)"]),
        (np.zeros((5, 3, 1)), ["at has shape (5, 3, 1)"]),
        (["a"], ["at must be real numbers"]),
        ([[1.0], [1.0, 2.0]], ["at is not one rectangular array"]),
    ],
    ids=str,
)
def test_bad_queries(at, words):
    for ask in (wave_model().predict, wave_model().attention):
        one_line(lambda ask=ask: ask(waves(), at), *words)


def test_bad_context():
    model = wave_model()
    one_line(lambda: model.predict(np.zeros((2, 3)), AT), "context must be Samples, got ndarray")
    one_line(
        lambda: model.predict(waves(channels=3), AT),
        "1 coordinate axes and 3 channels; the model was fitted with 1 and 2",
    )


@pytest.mark.parametrize("index", [(1, 1), (-1,), (0.5,), ()])
def test_bad_derivative(index):
    one_line(lambda: wave_model().derivative(waves(), AT, index), "does not fit 1 coordinate axes")


def test_an_unfitted_model_says_so():
    for ask in (CST().predict, CST().attention):
        with pytest.raises(NotFittedError, match=r"not fitted yet; call fit\(samples\) or CST.load"):
            ask(waves(), AT)
    with pytest.raises(NotFittedError):
        CST().n_parameters_  # noqa: B018


def test_outside_the_training_domain_warns_and_says_by_how_much():
    model = wave_model()
    low, high = float(model.scaling_.low[0]), float(model.scaling_.low[0] + model.scaling_.span[0])
    far = [low, high + 0.25 * (high - low)]
    for ask in (model.predict, model.interval, model.attention):
        one_line(lambda ask=ask: ask(waves(), far), "by up to 25.0%", "extrapolate=True")
    with pytest.warns(CSTWarning, match=r"outside the training domain by up to 25.0% of its extent along 't'"):
        answer = model.predict(waves(), far, extrapolate=True)
    assert np.isfinite(answer).all()
    with pytest.warns(CSTWarning, match=r"by up to 25.0%"):
        assert model.derivative(waves(), far, (1,), extrapolate=True).shape == answer.shape
    with pytest.warns(CSTWarning, match="by up to 8.0%"):
        model.attention(waves(), [low - 0.08 * (high - low), high])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(waves(), [low, high])


# The user's units


def fit_moved(shift: float, stretch: float, offset: float, gain: float):
    """Fit, with the real kernel search, on waves in other units; predictions brought back to the first."""
    s = waves(5, 5, 1)
    moved = Samples(s.coords * stretch + shift, s.values * gain + offset)
    model = CST.preset("smoke", steps=2, precision="float64", start="cubic").fit(moved)
    at = AT * stretch + shift
    return (model.predict(moved, at) - offset) / gain, model.derivative(moved, at, (2,)) / gain * stretch**2


def test_units_do_not_matter():
    """With the real search for the kernel; `test_properties` tries many units without it."""
    value, curvature = fit_moved(0.0, 1.0, 0.0, 1.0)
    moved_value, moved_curvature = fit_moved(-70.0, 0.02, 90.0, 30.0)
    assert np.abs(moved_value - value).max() < 1e-5 * np.abs(value).max()
    assert np.abs(moved_curvature - curvature).max() < 1e-4 * np.abs(curvature).max()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("start", ["cubic", "smooth"])
def test_derivatives_in_the_users_units_agree_with_differences(pattern, start):
    model, s = wave_model(pattern=pattern, start=start), waves(2)
    h = 1e-4 * 3
    f = {k: model.predict(s, AT + k * h) for k in (-2, -1, 0, 1, 2)}
    first = (f[-2] - 8 * f[-1] + 8 * f[1] - f[2]) / (12 * h)
    second = (-f[-2] + 16 * f[-1] - 30 * f[0] + 16 * f[1] - f[2]) / (12 * h * h)
    d1, d2 = model.derivatives(s, AT, [(1,), (2,)])
    assert np.abs(first).max() > 1  # the units are far from the model's
    assert np.abs(d1 - first).max() < 1e-6 * np.abs(first).max()
    assert np.abs(d2 - second).max() < 1e-4 * np.abs(second).max()
    assert np.array_equal(d1, model.derivative(s, AT, (1,))) or np.allclose(
        d1, model.derivative(s, AT, (1,)), rtol=1e-9
    )
    assert np.allclose(model.derivatives(s, AT, [(0,)])[0], f[0], rtol=1e-12)


def test_mixed_derivatives_in_two_dimensions():
    rng = np.random.default_rng(1)
    coords = rng.random((4, 9, 2)) * [10.0, 0.2] + [0.0, 5.0]
    values = np.sin(coords[..., :1]) + 30 * coords[..., 1:]
    samples = Samples(coords, values)
    model = fit_quickly(tiny(precision="float64", start="smooth"), samples)
    at = np.array([[4.0, 5.1], [6.0, 5.07]])
    h = np.array([1e-3, 2e-5])

    def f(a, b):
        return model.predict(samples, at + np.array([a, b]) * h)

    mixed = (f(1, 1) - f(1, -1) - f(-1, 1) + f(-1, -1)) / (4 * h[0] * h[1])
    answer = model.derivative(samples, at, (1, 1))
    assert np.abs(answer - mixed).max() < 1e-4 * np.abs(mixed).max()
    assert np.abs(model.derivative(samples, at, (0, 1)) - (f(0, 1) - f(0, -1)) / (2 * h[1])).max() < 1e-4 * 30
