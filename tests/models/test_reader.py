"""Answers: what they depend on, and the attention behind them."""

import dataclasses

import numpy as np
import pytest
import torch
from small_models import fit_quickly, wave_model, waves

from cstformer import CST, CSTError, Samples
from cstformer.models import reader
from cstformer.taylor import series

AT = np.linspace(2.3, 4.4, 7)
PATTERNS = ("context", "joint")


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


@pytest.mark.parametrize("tokens", [8, 64])
def test_chunks_do_not_matter(monkeypatch, tokens):
    model, s = wave_model(), waves()
    at = np.random.default_rng(0).uniform(2.3, 4.4, (6, 23, 1))
    whole = model.derivatives(s, at, [(0,), (1,), (2,)])
    monkeypatch.setattr(reader, "TOKENS_PER_PASS", tokens)
    for a, b in zip(whole, model.derivatives(s, at, [(0,), (1,), (2,)]), strict=True):
        assert np.abs(a - b).max() < 1e-10 * np.abs(a).max()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_landmarks_do_not_see_padding(pattern):
    model, s = wave_model(pattern=pattern, attention_kind="nystrom", landmarks=3), waves(2)
    long = waves(1, points=12, seed=9)
    ragged = Samples.from_list(
        [(s.coords[0], s.values[0]), (long.coords[0], long.values[0]), (s.coords[1, :3], s.values[1, :3])]
    )
    answer = model.predict(ragged, AT)
    assert np.abs(answer[0] - model.predict(s[0], AT)[0]).max() < 1e-8
    assert np.abs(answer[1] - model.predict(long, AT)[0]).max() < 1e-8
    assert np.abs(answer[2] - model.predict(Samples(s.coords[1:, :3], s.values[1:, :3]), AT)[0]).max() < 1e-8


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
    model, s = fit_quickly(CST.preset("smoke", steps=1, start="linear", precision="float64"), waves()), waves()
    with torch.no_grad():
        model.network_.readout.skip.weight.copy_(torch.eye(2))
        model.network_.readout.decode.weight.zero_()
        model.network_.readout.decode.bias.zero_()
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
    network, points = model.network_, model.scaling_.batch(s, torch.float64, torch.device("cpu"))
    with torch.no_grad():
        x = series.constant(torch.tensor((AT[None, :, None] - model.scaling_.low) / model.scaling_.span))
        initial = model.kind_.start(model.start, points)(x)
        query = series.shift(network._tokens(initial, x, points), network.query_token)
        places = series.constant(points.coords)
        tokens = network._tokens(series.constant(points.values), places, points, points.observed)
        block = network.blocks[0]
        q = block.attention.query(block.norm1(query)).value.unflatten(-1, (2, 8)).transpose(1, 2)
        k = block.attention.key_value(block.norm1(tokens)).value[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)
        by_hand = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    assert np.allclose(result.maps[0, 0], by_hand[0], atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_known_values_take_the_place_of_the_initial_ones(pattern):
    """The start's own answer, given back as known values, changes no map; other values do."""
    model, s = wave_model(pattern=pattern, start="linear"), waves(2)
    with torch.no_grad():
        batch = model.scaling_.batch(s, torch.float64, torch.device("cpu"))
        at = torch.tensor(model.scaling_.coords(AT[None, :, None])).expand(2, -1, -1)
        initial = model.kind_.start("linear", batch)(series.constant(at)).value.numpy()
    values = initial * model.scaling_.sd + model.scaling_.mean
    maps = model.attention(s, AT).maps
    assert np.allclose(model.attention(s, AT, values).maps, maps, atol=1e-10)
    assert np.abs(model.attention(s, AT, values + 20).maps - maps).max() > 1e-3
    for bad in (values[:, :-1], values * np.nan):
        with pytest.raises(CSTError, match=r"values has shape .*; give finite numbers of shape \(2, 7, 2\)"):
            model.attention(s, AT, bad)
