import time
import warnings

import numpy as np
import pytest
import torch

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning

NAN = np.nan


def pair() -> Samples:
    """Two curves of two channels with one missing channel and one missing point."""
    values = np.array([[[1.0, 10.0], [2.0, NAN], [3.0, 30.0]], [[4.0, 40.0], [NAN, NAN], [6.0, 60.0]]])
    return Samples([0.0, 1.0, 2.0], values, value_names=["a", "b"], units={"t": "s", "a": "mV"})


def test_missing_values_become_unobserved_and_zero():
    s = pair()
    assert s.observed.tolist() == [
        [[True, True], [True, False], [True, True]],
        [[True, True], [False, False], [True, True]],
    ]
    assert s.values[0].tolist() == [[1, 10], [2, 0], [3, 30]]
    assert s.point_observed.tolist() == [[True, True, True], [True, False, True]]
    assert s.coords[..., 0].tolist() == [[0, 1, 2], [0, 0, 2]]  # the padding point lost its coordinate
    assert (len(s), s.n, s.d, s.c) == (2, 3, 1, 2)
    assert s.values.dtype == s.coords.dtype == np.float64


def test_padding_cannot_leak():
    values = np.ones((1, 2, 1))
    first = Samples([[0.0, NAN]], values, [[True, False]])
    second = Samples([[0.0, 9e9]], values * [[[1.0], [np.inf]]], [[1, 0]])
    assert np.array_equal(first.coords, second.coords) and np.array_equal(first.values, second.values)


@pytest.mark.parametrize(
    "coords",
    [
        [0.0, 1.0, 2.0],
        [[0.0], [1.0], [2.0]],
        [[0.0, 1.0, 2.0]] * 4,
        np.broadcast_to(np.arange(3.0)[:, None], (4, 3, 1)),
        torch.arange(3.0, requires_grad=True),
        np.arange(3, dtype=np.int8),
    ],
)
def test_shapes_of_coords(coords):
    s = Samples(coords, torch.ones(4, 3))
    assert s.coords.shape == (4, 3, 1) and s.coords[3, :, 0].tolist() == [0, 1, 2]


def test_masked_arrays_keep_their_mask():
    s = Samples([0, 1], np.ma.array([[1, 2]], mask=[[False, True]]))
    assert s.point_observed.tolist() == [[True, False]]


def test_defaults_and_names():
    s = Samples(np.zeros((1, 2, 2)), np.ones((1, 2, 3)))
    assert s.coord_names == ("coord0", "coord1") and s.value_names == ("value0", "value1", "value2")
    assert s.sample_ids == (0,) and s.units == {} and not s.origin.any() and s.layout is None
    assert Samples([0], [[1]], coord_names="time", units={"time": ""}).coord_names == ("time",)


grid = np.zeros((2, 3, 1))
ones = np.ones((2, 3, 1))
BAD = {
    "rank of values": (dict(coords=[0, 1], values=[1, 2]), r"values must have shape .* got \(2,\)"),
    "rank of coords": (dict(coords=np.zeros((1, 2, 3, 1)), values=ones), "coords must have shape"),
    "N": (dict(coords=np.zeros((4, 3, 1)), values=ones), "differ in the number of samples"),
    "n": (dict(coords=np.zeros((2, 4, 1)), values=ones), "differ in the number of points"),
    "shared n": (dict(coords=np.zeros(4), values=ones), r"points; pass coords \(2, 3, d\)"),
    "no samples": (dict(coords=np.zeros((0, 3, 1)), values=np.ones((0, 3, 1))), "must not be empty"),
    "no points": (dict(coords=np.zeros((2, 0, 1)), values=np.ones((2, 0, 1))), "must not be empty"),
    "no axis": (dict(coords=np.zeros((2, 3, 0)), values=ones), "at least one axis"),
    "text": (dict(coords=[0, 1], values=[["a", "b"]]), "values must be real numbers, got dtype <U1"),
    "complex": (dict(coords=grid, values=ones * 1j), "complex128; convert"),
    "objects": (dict(coords=grid, values=np.full((2, 3, 1), None)), "dtype object"),
    "ragged": (dict(coords=[0, 1], values=[[1, 2], [1]]), "ragged samples: Samples.from_list"),
    "infinite": (
        dict(coords=grid, values=[[1, 2, 3], [4, np.inf, -np.inf]]),
        "infinite at 2 places, first at sample 1, point 1, channel 0; use NaN",
    ),
    "lost coordinate": (
        dict(coords=[[0, 1, 2], [0, 1, NAN]], values=ones),
        "coords are not finite at 1 places, first at sample 1, point 2; drop",
    ),
    "observed": (
        dict(coords=grid, values=ones, observed=np.ones((3, 2))),
        r"observed must have shape \(2, 3\)",
    ),
    "not bool": (dict(coords=grid, values=ones, observed=np.full((2, 3), 0.5)), "only True and False"),
    "nothing seen": (
        dict(coords=np.zeros(1), values=np.where(np.arange(9) > 1, NAN, 1.0)[:, None]),
        "no value is observed in samples 2, 3, 4, 5, 6 and 2 more",
    ),
    "too many names": (
        dict(coords=grid, values=ones, coord_names=["t", "x"]),
        "coord_names must have 1 names",
    ),
    "same names": (
        dict(coords=grid, values=np.ones((2, 3, 2)), value_names=["a", "a"]),
        "value_names must differ",
    ),
    "shared names": (dict(coords=grid, values=ones, value_names=["t"]), r"share \['t'\]"),
    "reserved": (dict(coords=grid, values=ones, value_names=["sample"]), "may not use 'sample'"),
    "repeated ids": (
        dict(coords=grid, values=ones, sample_ids=["1", 1]),
        "must be unique, got '1' more than once",
    ),
    "few ids": (dict(coords=grid, values=ones, sample_ids=["a"]), "each of the 2 samples, got 1"),
    "kind of ids": (dict(coords=grid, values=ones, sample_ids=[0.5, 1.5]), "integers or strings"),
    "units": (dict(coords=grid, values=ones, units={"volt": "V"}), "units names .'volt'."),
    "origin": (dict(coords=grid, values=ones, origin=[0.0, 0.0]), "origin must be finite and"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_refused(arguments, message):
    with pytest.raises(CSTError, match=message) as caught:
        Samples(**arguments)
    assert "\n" not in str(caught.value)


def test_indexing():
    s = Samples([0, 1], [[1, 2], [3, 4], [5, 6]], sample_ids=["a", "b", "c"], origin=[[0], [7], [8]])
    assert s[1].sample_ids == ("b",) and s[1].values[0, :, 0].tolist() == [3, 4] and s[1].origin.tolist() == [[7]]
    assert s[-1].sample_ids == ("c",)
    assert s[::2].sample_ids == s[[0, 2]].sample_ids == s[np.array([True, False, True])].sample_ids == ("a", "c")
    assert s[[1, 1]].sample_ids == (0, 1)  # a bootstrap draws one sample twice
    assert [one.sample_ids[0] for one in s] == ["a", "b", "c"]
    for wrong in (3, "a", np.zeros(3, bool), slice(0, 0), [True]):
        with pytest.raises(CSTError, match="samples"):
            s[wrong]


def test_from_list_pads_ragged_samples():
    s = Samples.from_list([([0.0], [1.0]), ([[5.0], [6.0]], [[2.0], [NAN]])], value_names=["u"])
    assert s.coords[..., 0].tolist() == [[0, 0], [5, 0]]
    assert s.point_observed.tolist() == [[True, False], [True, False]]
    with pytest.raises(CSTError, match="sample 1 must have coords"):
        Samples.from_list([([0], [1]), ([0, 1], [1])])
    with pytest.raises(CSTError, match="sample 1 has d, c = 1, 2, but sample 0 has 1, 1"):
        Samples.from_list([([0], [1]), ([0], [[1, 2]])])
    with pytest.raises(CSTError, match="no samples"):
        Samples.from_list([])


def test_concatenate():
    s = pair()
    joined = Samples.concatenate([s, s[0].sorted()])
    assert joined.sample_ids == (0, 1, 2) and joined.units == s.units
    assert np.array_equal(joined.values[2], s.values[0])
    named = Samples([0], [[1]], sample_ids=["a"])
    assert Samples.concatenate([named, Samples([0, 1], [[2, 3]])]).sample_ids == ("a", 0)
    with pytest.raises(CSTError, match="part 1 has value_names"):
        Samples.concatenate([s, named])
    with pytest.raises(CSTError, match="must be unique"):
        Samples.concatenate([named, named])
    with pytest.raises(CSTError, match="no parts"):
        Samples.concatenate([])


def test_subset_points_and_split():
    s = Samples(np.arange(3), np.arange(30.0).reshape(10, 3))
    kept = s.subset_points(np.tile([True, False, True], (10, 1)))
    assert kept.point_observed.sum() == 20 and kept.values[0, 1, 0] == 0
    with pytest.raises(CSTError, match="mask must be bool of shape"):
        s.subset_points(np.ones((10, 3)))
    with pytest.raises(CSTError, match="no value is observed in sample 0"):
        s.subset_points(np.arange(30).reshape(10, 3) > 2)
    first, second = s.split(0.3, seed=1)
    assert (len(first), len(second)) == (3, 7)
    assert sorted(first.sample_ids + second.sample_ids) == list(range(10))
    assert s.split(0.3, seed=1)[0].sample_ids == first.sample_ids != s.split(0.3, seed=2)[0].sample_ids
    for fraction in (0, 1, 0.01, NAN):
        with pytest.raises(CSTError, match="leaves one side empty"):
            s.split(fraction)


def test_sorted_puts_padding_last_and_cuts_it():
    coords = np.array([[[2, 0], [1, 5], [9, 9], [1, 3]], [[0, 0], [9, 9], [9, 9], [-1, 0]]])
    values = [[1.0, 2.0, NAN, 3.0], [4.0, NAN, NAN, 5.0]]
    s = Samples(coords, values).sorted()
    assert s.coords.tolist() == [[[1, 3], [1, 5], [2, 0]], [[-1, 0], [0, 0], [0, 0]]]
    assert s.values[..., 0].tolist() == [[3, 2, 1], [5, 4, 0]]
    assert s.point_observed.tolist() == [[True, True, True], [True, True, False]]


def test_merged_averages_repeated_coordinates():
    values = [
        [[1.0, NAN], [5.0, 1.0], [3.0, 2.0], [5.0, 4.0]],
        [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [NAN, NAN]],
    ]
    s = Samples([[7, 2, 7, 7], [0, 1, 2, 0]], values)
    with pytest.warns(CSTWarning, match="2 points in 1 samples repeat"):
        m = s.merged()
    assert m.values[0].tolist() == [[3, 3], [5, 1], [0, 0], [0, 0]]
    assert m.point_observed.tolist() == [[True, True, False, False], [True, True, True, False]]
    assert np.array_equal(m.values[1], s.values[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert m.merged() is m


def test_merged_is_fast():
    rng = np.random.default_rng(0)
    s = Samples(rng.integers(0, 10**6, (1000, 1000, 1)), rng.normal(size=(1000, 1000, 1)))
    start = time.perf_counter()
    with pytest.warns(CSTWarning):
        s.merged()
    assert time.perf_counter() - start < 3


def test_windows_by_hand():
    s = Samples(
        [[10, 11, 12, 13, 14, 15], [0, 1, 0, 0, 0, 0]],
        [[0, 1, 2, 3, 4, 5], [8, 9, NAN, NAN, NAN, NAN]],
        sample_ids=["r", "s"],
        origin=[[100], [0]],
    )
    w = s.windows(length=3, stride=2)
    assert w.sample_ids == ("r@10", "r@12", "s@0")
    assert w.origin[:, 0].tolist() == [110, 112, 0]
    assert w.coords[..., 0].tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 0]]
    assert w.values[..., 0].tolist() == [[0, 1, 2], [2, 3, 4], [8, 9, 0]]
    assert w.point_observed.sum(axis=1).tolist() == [3, 3, 2]


def test_windows_are_safe_from_rounding():
    t = np.arange(101) * 0.1  # 0.1 * 3 > 0.3 and other classics
    w = Samples(t, t[None]).windows(length=0.3, stride=0.3)
    assert len(w) == 33 and (w.point_observed.sum(axis=1) == 3).all()
    assert np.allclose(w.coords[:, :, 0], [0, 0.1, 0.2], atol=1e-12) and (w.coords >= 0).all()
    assert np.allclose(w.values[..., 0], w.coords[..., 0] + w.origin, atol=1e-12)


def test_windows_along_another_axis_drop_empty_ones():
    coords = [[[5, 0.0], [6, 1.0], [7, 9.0], [8, 10.0]]]
    w = Samples(coords, [[1, 2, 3, 4]]).windows(length=2, stride=2, axis=1)
    assert w.sample_ids == ("0@0", "0@8") and w.origin.tolist() == [[0, 0], [0, 8]]
    assert w.coords[1, 0].tolist() == [7, 1]
    for bad in ({"length": 0, "stride": 1}, {"length": 1, "stride": NAN}):
        with pytest.raises(CSTError, match="must be a positive number"):
            w.windows(**bad)
    with pytest.raises(CSTError, match="axis must be 0 to 1, got 2"):
        w.windows(1, 1, axis=2)


def test_describe_and_repr():
    text = pair().describe()
    for line in (
        "2 samples, 1 coordinates, 2 values",
        "points per sample: min 2, median 2.5, max 3",
        "grid: each sample has its own",
        "observed: 90 % of the values at these points",
        "repeated coordinates: none",
        "coordinate t [s]: 0 to 2",
        "value a [mV]: mean 3.2, sd 1.72047, min 1, max 6",
        "value b: mean 35, sd 18.0278, min 10, max 60",
    ):
        assert line in text.splitlines()
    assert repr(pair()) == "Samples(2 samples of 2-3 points, coordinates t, values a, b)"
    wide = Samples([0, 1], np.full((2, 2, 9), 3.0), origin=[[5], [0]]).describe()
    assert "... and 1 more; all together: mean 3, sd 0, min 3, max 3" in wide and "origin:" in wide
    blind = Samples([[0, 0]], [[[1.0, NAN], [2.0, NAN]]]).describe()
    assert "value value1: never observed" in blind and "repeated coordinates: 1" in blind
    assert "the same for all" in blind


def test_equals_ignores_padding_only():
    s = pair()
    assert s.equals(pair())
    assert Samples.from_list([([0, 1], [1, 2])]).equals(Samples([[0, 9, 1]], [[1, NAN, 2]]))
    assert not s.equals(s[[1, 0]]) and not s.equals(s[0])
    assert not Samples([0], [[1]]).equals(Samples([0], [[1 + 1e-9]]))
    assert Samples([0], [[1]]).equals(Samples([0], [[1 + 1e-9]]), tolerance=1e-6)
