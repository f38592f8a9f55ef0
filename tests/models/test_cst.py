"""CST, the front desk: scikit-learn's conventions, bad input, and what an answer depends on."""

import copy
import dataclasses
import inspect
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from small_models import blob, fit_quickly, known_kernel, wave_model, waves

import cstformer.models.cst
from cstformer import CST, CSTError, CSTWarning, Samples, frames_to_samples
from cstformer.data.batch import split_samples
from cstformer.training.settings import Settings, setting_fields

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
    assert new == {
        "layout_",
        "names_",
        "scaling_",
        "device_",
        "kernel_",
        "waves_",
        "trust_",
        "network_",
        "noise_",
        "mu_",
        "report_",
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
    one_line(lambda: CST(64), "keyword settings only", "CST(order=2, seed=0)")


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


# Bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Samples(np.zeros((2, 3, 4, 5)), np.zeros((2, 3))), ["coords", "(2, 3, 4, 5)"]),
        (lambda: Samples(np.zeros(3), np.zeros(3)), ["values must have shape (N, n, c)"]),
        (lambda: Samples(np.zeros((3, 5, 1)), np.zeros((2, 5, 1))), ["differ in the number of samples"]),
        (lambda: Samples(np.zeros((2, 4, 1)), np.zeros((2, 5, 1))), ["differ in the number of points"]),
        (lambda: Samples(np.zeros((0, 5, 1)), np.zeros((0, 5, 1))), ["must not be empty"]),
        (lambda: Samples.from_list([]), ["no samples"]),
        (lambda: Samples([0.0, nan], [[1.0, 2.0]]), ["coords are not finite", "sample 0, point 1"]),
        (lambda: Samples([0.0, np.inf], [[1.0, 2.0]]), ["coords are not finite"]),
        (lambda: Samples([0.0, 1.0], [[1.0, 2.0], [nan, nan]]), ["no value is observed in sample 1"]),
    ],
    ids=["rank", "rank1", "N", "n", "empty", "nothing", "nan", "inf", "all-missing"],
)
def test_bad_samples_never_reach_fit(make, words):
    one_line(make, *words)


def test_fit_takes_samples_only():
    one_line(lambda: tiny().fit(np.zeros((3, 4, 1))), "fit takes Samples, got ndarray", "Samples(coords, values)")


def test_a_sample_with_one_point_is_refused_by_index():
    values = waves().values.copy()
    values[[1, 4], 1:] = nan
    one_line(
        lambda: tiny().fit(Samples(waves().coords, values)),
        "samples [1, 4] have fewer than two observed points",
    )


def test_a_sample_whose_points_are_all_one_place_is_refused_by_index():
    coords = waves().coords.copy()
    coords[2] = 3.0
    with pytest.warns(CSTWarning, match="averaged"):
        one_line(lambda: tiny().fit(Samples(coords, waves().values)), "samples [2] have fewer than two")


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


def test_unsorted_coordinates_are_the_same_as_sorted_ones():
    s, shuffle = waves(), np.random.default_rng(0).permuted(np.tile(np.arange(7), (6, 1)), axis=1)[..., None]
    mixed = Samples(np.take_along_axis(s.coords, shuffle, 1), np.take_along_axis(s.values, shuffle, 1))
    a, b = fit_quickly(tiny(), s), fit_quickly(tiny(), mixed)
    assert np.array_equal(a.predict(s, AT), b.predict(mixed, AT))


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
        ([3.0, np.inf], ["at contains NaN or infinite"]),
        ([], ["at has shape (0,)", "m ≥ 1"]),
        (3.0, ["at has shape ()"]),
        (np.zeros((5, 2)), ["at has shape (5, 2)", "(m, 1) or (6, m, 1)"]),
        (np.zeros((5, 3, 1)), ["at has shape (5, 3, 1)"]),
        (np.zeros((6, 3, 1, 1)), ["at has shape (6, 3, 1, 1)"]),
        (["a"], ["at must be real numbers"]),
        ([[1.0], [1.0, 2.0]], ["at is not one rectangular array"]),
        (None, ["at must be real numbers"]),
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
    with pytest.warns(CSTWarning, match=r"outside the training domain by up to 25.0% of its extent along 't'"):
        answer = model.predict(waves(), [low, high + 0.25 * (high - low)])
    assert np.isfinite(answer).all()
    with pytest.warns(CSTWarning, match="by up to 300.0%"):
        model.attention(waves(), [low - 3 * (high - low), high])
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


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.floats(-100, 100), st.floats(0.01, 100), st.floats(-100, 100), st.floats(0.01, 100))
def test_units_do_not_matter(shift, stretch, offset, gain):
    if not hasattr(test_units_do_not_matter, "plain"):
        test_units_do_not_matter.plain = fit_moved(0.0, 1.0, 0.0, 1.0)
    value, curvature = test_units_do_not_matter.plain
    moved_value, moved_curvature = fit_moved(shift, stretch, offset, gain)
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


# What an answer depends on


@pytest.mark.parametrize("attention_kind", ["exact", "nystrom"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_answer_does_not_depend_on_the_other_queries(precision, attention_kind):
    model, s = wave_model(precision=precision, attention_kind=attention_kind, landmarks=3), waves()
    scale = model.scaling_.sd.max()
    together = model.predict(s, AT)
    alone = np.concatenate([model.predict(s, AT[i : i + 1]) for i in range(7)], 1)
    other = model.predict(s, np.concatenate([np.linspace(2.2, 4.5, 300), AT]))[:, -7:]
    assert np.abs(together - alone).max() < 1e-6 * scale
    assert np.abs(together - other).max() < 1e-6 * scale


def test_in_joint_an_answer_does_depend_on_the_other_queries():
    model = wave_model(pattern="joint")
    assert np.abs(model.predict(waves(), AT)[:, :1] - model.predict(waves(), AT[:1])).max() > 1e-3


@pytest.mark.parametrize("tokens", [8, 20, 64])
def test_chunks_do_not_matter(monkeypatch, tokens):
    model, s = wave_model(), waves()
    at = np.random.default_rng(0).uniform(2.3, 4.4, (6, 23, 1))
    whole = model.derivatives(s, at, [(0,), (1,), (2,)])
    monkeypatch.setattr(cstformer.models.cst, "TOKENS_PER_PASS", tokens)
    for a, b in zip(whole, model.derivatives(s, at, [(0,), (1,), (2,)]), strict=True):
        assert np.abs(a - b).max() < 1e-10 * np.abs(a).max()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_samples_do_not_see_each_other(pattern):
    model, s = wave_model(pattern=pattern), waves()
    together = model.predict(s, AT)
    for i in range(len(s)):
        assert np.abs(model.predict(s[i], AT)[0] - together[i]).max() < 1e-9


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("start", ["linear", "cubic", "smooth"])
def test_missing_points_are_removed_points(pattern, start):
    model, s = wave_model(pattern=pattern, start=start), waves()
    keep = np.array([True, True, False, True, True, False, True])
    values = s.values.copy()
    values[:, ~keep] = nan
    removed = Samples(s.coords[:, keep], s.values[:, keep])
    masked = s.subset_points(np.tile(keep, (6, 1)))
    expected = model.predict(removed, AT)
    assert np.allclose(model.predict(Samples(s.coords, values), AT), expected, atol=1e-10)
    assert np.allclose(model.predict(masked, AT), expected, atol=1e-10)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("attention_kind", ["exact", "nystrom"])
def test_padding_is_irrelevant(pattern, attention_kind):
    model, s = wave_model(pattern=pattern, attention_kind=attention_kind, landmarks=3), waves(2)
    long = waves(1, points=12, seed=9)
    ragged = Samples.from_list(
        [(s.coords[0], s.values[0]), (long.coords[0], long.values[0]), (s.coords[1, :3], s.values[1, :3])]
    )
    answer = model.predict(ragged, AT)
    assert np.abs(answer[0] - model.predict(s[0], AT)[0]).max() < 1e-8
    assert np.abs(answer[1] - model.predict(long, AT)[0]).max() < 1e-8
    assert np.abs(answer[2] - model.predict(Samples(s.coords[1:, :3], s.values[1:, :3]), AT)[0]).max() < 1e-8


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_order_of_context_points_is_irrelevant(pattern):
    model, s = wave_model(pattern=pattern), waves()
    order = [3, 0, 6, 1, 5, 2, 4]
    mixed = Samples(s.coords[:, order], s.values[:, order])
    assert np.array_equal(model.predict(mixed, AT), model.predict(s, AT))


def test_all_forms_of_at_are_one():
    model, s = wave_model(), waves()
    expected = model.predict(s, AT)
    assert expected.shape == (6, 7, 2)
    grid = np.tile(AT[:, None], (6, 1, 1))
    for at in (list(AT), AT[:, None], grid, torch.tensor(AT), Samples(grid, np.zeros((6, 7, 1)))):
        assert np.array_equal(model.predict(s, at), expected)
    own = np.stack([np.roll(AT, i)[:, None] for i in range(6)])
    answer = model.predict(s, own)
    for i in range(6):
        assert np.allclose(answer[i], np.roll(expected[i], i, axis=0), atol=1e-10)


def test_a_skip_readout_at_zero_steps_is_its_start():
    """With the decoder at zero and A = 1 the answer is the start itself: lines between the points."""
    model, s = fit_quickly(tiny(start="linear", precision="float64"), waves()), waves()
    with torch.no_grad():
        model.network_.skip.weight.copy_(torch.eye(2))
        model.network_.decode.weight.zero_()
        model.network_.decode.bias.zero_()
    for i in range(6):
        for channel in range(2):
            straight = np.interp(AT, s.coords[i, :, 0], s.values[i, :, channel])
            inside = (s.coords[i, 0, 0] <= AT) & (s.coords[i, -1, 0] >= AT)
            assert inside.sum() > 3
            assert np.allclose(model.predict(s, AT)[i, inside, channel], straight[inside], atol=1e-9)


# Attention


def test_attention_in_context():
    model, s = wave_model(), waves()
    order = [3, 0, 6, 1, 5, 2, 4]
    ragged = Samples(s.coords[:, order], s.values[:, order]).subset_points(np.arange(7) != np.arange(6)[:, None])
    result = model.attention(ragged, AT)
    assert [f.name for f in dataclasses.fields(result)] == ["maps", "rows", "columns", "exists"]
    assert result.maps.shape == (6, 2, 2, 7, 6)  # samples, layers, heads, queries, points
    assert np.allclose(result.maps.sum(-1), 1)
    assert (result.maps >= 0).all()
    assert np.allclose(result.rows, np.tile(AT[:, None], (6, 1, 1)))
    for i in range(6):
        real = np.sort(np.delete(s.coords[i, order, 0], i))
        assert np.allclose(result.columns[i, :, 0], real)
    assert result.exists.all()


def test_attention_to_padding_is_nothing():
    s = waves(2)
    ragged = Samples.from_list([(s.coords[0], s.values[0]), (s.coords[1, :4], s.values[1, :4])])
    result = wave_model().attention(ragged, AT)
    assert result.exists.tolist() == [[True] * 7, [True] * 4 + [False] * 3]
    assert (result.maps[1, ..., 4:] == 0).all()
    assert np.allclose(result.maps.sum(-1), 1)


def test_attention_in_joint():
    model, s = wave_model(pattern="joint"), waves()
    result = model.attention(s, AT)
    assert result.maps.shape == (6, 2, 2, 14, 14)
    assert np.allclose(result.maps.sum(-1), 1)
    for sides in (result.rows, result.columns):
        assert np.allclose(sides[:, :7], s.coords)
        assert np.allclose(sides[:, 7:, 0], AT)
    assert result.exists.shape == (6, 14)


def test_attention_maps_are_those_of_the_answer():
    """The first layer's map, worked out by hand from the tokens of the network."""
    model, s = wave_model(), waves(1)
    result = model.attention(s, AT)
    network, points = model.network_, model.scaling_.batch(s, torch.float64, torch.device("cpu")).points
    from cstformer.taylor import series

    with torch.no_grad():
        x = series.constant(torch.tensor((AT[None, :, None] - model.scaling_.low) / model.scaling_.span))
        query = series.shift(network._tokens(model._start(points)(x), x), network.query_token)
        tokens = network._tokens(series.constant(points.values), series.constant(points.coords), points.observed)
        block = network.blocks[0]
        q = block.attention.query(block.norm1(query)).value.unflatten(-1, (2, 8)).transpose(1, 2)
        k = block.attention.key_value(block.norm1(tokens)).value[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)
        by_hand = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    assert np.allclose(result.maps[0, 0], by_hand[0], atol=1e-12)


# Same seed, same numbers


def test_same_seed_same_numbers():
    a, b, c = (fit_quickly(tiny(seed=seed, dropout=0.1), waves()) for seed in (5, 5, 6))
    assert np.array_equal(a.predict(waves(), AT), b.predict(waves(), AT))
    assert a.report_.history == b.report_.history
    assert not np.array_equal(a.predict(waves(), AT), c.predict(waves(), AT))


def test_fit_again_starts_afresh():
    model = fit_quickly(tiny(), waves(seed=3))
    assert np.array_equal(
        fit_quickly(model, waves()).predict(waves(), AT), fit_quickly(tiny(), waves()).predict(waves(), AT)
    )


def test_fit_and_predict_do_not_disturb_the_global_generators():
    def draw():
        # Not Python's own: the type checks of the tests draw from it.
        return torch.rand(2).tolist(), np.random.random(2).tolist()

    def seed():
        torch.manual_seed(1), np.random.seed(1)

    seed()
    expected = draw()
    seed()
    tiny(mu="search", dropout=0.1).fit(waves()).predict(waves(), AT)
    assert draw() == expected


def test_the_global_seed_does_not_matter():
    torch.manual_seed(1)
    a = fit_quickly(tiny(dropout=0.1), waves()).predict(waves(), AT)
    torch.manual_seed(2), np.random.seed(2)
    assert np.array_equal(fit_quickly(tiny(dropout=0.1), waves()).predict(waves(), AT), a)


def test_a_cap_that_does_not_bind_changes_nothing():
    a = fit_quickly(tiny(steps=4, patience=1.0), waves())
    b = fit_quickly(tiny(steps=4, patience=1.0, max_minutes=60), waves())
    assert b.report_.ended == "finished"
    assert np.array_equal(a.predict(waves(), AT), b.predict(waves(), AT))


def test_a_cap_that_binds_says_so():
    with pytest.warns(CSTWarning, match="max_minutes=.* reached, best weights kept"):
        model = fit_quickly(tiny(steps=1000, max_minutes=0.2 / 60), waves())
    assert model.report_.ended == "cap"
    assert 0 < model.report_.steps < 1000
    assert "max_minutes" in model.report_.sentence(model)
    assert np.isfinite(model.predict(waves(), AT)).all()


# Choices made from the data


def test_noise_and_mu_as_set_or_from_the_data():
    model = fit_quickly(tiny(), waves())
    assert model.kernel_ == known_kernel(torch.zeros(1, 1, 1))
    assert model.noise_ == 0.1
    assert model.mu_ > 0
    assert fit_quickly(tiny(noise=0.25, mu=1e-3), waves()).noise_ == 0.25
    assert fit_quickly(tiny(noise=0.25, mu=1e-3), waves()).mu_ == 1e-3
    assert fit_quickly(tiny(order=0), waves()).mu_ == 0.0
    assert fit_quickly(tiny(dummies=0), waves()).mu_ == 0.0


def test_the_split_is_disjoint_and_fixed():
    training, held_out = split_samples(20, 0.25, seed=0)
    assert (len(training), len(held_out)) == (15, 5)
    assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(20))
    assert torch.equal(split_samples(20, 0.25, seed=0)[1], held_out)
    assert split_samples(4, 0.25, seed=0)[0].tolist() == split_samples(4, 0.25, seed=0)[1].tolist()  # too few


def test_settings_alone_are_what_training_sees():
    assert cstformer.models.cst._plain(tiny(order=1)).order == 1
    assert type(cstformer.models.cst._plain(tiny())) is Settings


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": "joint", "hide": 0.0},
        {
            "pattern": "joint",
            "norm": "post",
            "readout": "plain",
            "encoding": "linear",
            "root": True,
            "p": 3.0,
        },
        {"attention_kind": "nystrom", "landmarks": 3, "p": np.inf},
        {"coord_noise": 0.01, "dummy_law": "uniform", "order": 3, "noise": 0.3},
        {"dummies": 0, "hide": 0.0, "noise": 0.0, "clip": 0.0, "warmup": 0.0, "validation": 0.0},
        {"mu": "search", "p": 1.0, "dummy_law": "regular", "start": "hermite"},
    ],
    ids=str,
)
def test_all_kinds_of_settings_train(changes):
    samples = waves()
    model = fit_quickly(tiny(**changes), samples)
    assert model.report_.ended in ("finished", "patience")
    assert np.isfinite(model.report_.best_score)
    assert np.isfinite(model.predict(samples, AT)).all()


def test_training_makes_it_better():
    """A sine of random height at 6 points of its own: the trained model beats its linear start in between."""
    rng = np.random.default_rng(0)
    t = np.concatenate([np.zeros((60, 1)), np.sort(rng.random((60, 4)), 1), np.ones((60, 1))], 1)
    height, at = rng.uniform(1, 2, (60, 1)), np.linspace(0, 1, 31)
    truth = height * np.sin(2 * np.pi * at)
    samples = Samples(t, height * np.sin(2 * np.pi * t))
    model = CST.preset("smoke", steps=60, start="linear", noise=0.0, order=0, learning_rate=1e-2, width=32)
    error = np.abs(fit_quickly(model, samples).predict(samples, at)[..., 0] - truth).mean()
    lines = [np.interp(at, x, y) for x, y in zip(t, samples.values[..., 0], strict=True)]
    assert error < 0.4 * np.abs(lines - truth).mean()
