"""Checks of samples and queries that every model shares."""

import warnings

import numpy as np
import pytest

from cstformer import CSTError, Samples
from cstformer.data.checks import check_outside, check_queries, check_training, extrapolation
from cstformer.errors import CSTWarning

nan = np.nan


def test_training_samples_are_sorted_and_repeated_points_are_averaged():
    samples = Samples([[3.0, 1.0, 3.0, 2.0]], [[5.0, 1.0, 7.0, nan]])
    with pytest.warns(CSTWarning, match="1 points in 1 samples repeat"):
        checked = check_training(samples)
    assert checked.coords[0, :, 0].tolist() == [1.0, 3.0] and checked.values[0, :, 0].tolist() == [1.0, 6.0]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((3, 4)), "fit takes Samples, got ndarray; wrap arrays as Samples"),
        (None, "fit takes Samples, got NoneType"),
        (
            Samples([0.0, 1.0], [[nan, 1.0], [nan, 2.0]]),
            r"all samples have fewer than two observed points",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_refused(samples, message):
    with pytest.raises(CSTError, match=message):
        check_training(samples)


def test_samples_of_one_point_are_left_out_by_name():
    samples = Samples([0.0, 1.0], [[1.0, 2.0], [nan, 1.0], [nan, 2.0]], sample_ids=["a", "b", 7])
    with pytest.warns(CSTWarning, match="left out samples 'b', 7 with fewer than two observed points"):
        assert check_training(samples).sample_ids == ("a",)


def test_a_point_repeated_is_one_point():
    with pytest.warns(CSTWarning), pytest.raises(CSTError, match="all samples have fewer than two"):
        check_training(Samples([[1.0, 1.0]], [[2.0, 3.0]]))


CURVES = Samples(np.arange(4.0), np.zeros((3, 4)))
FIELD = Samples(np.zeros((3, 4, 2)), np.zeros((3, 4, 5)))


@pytest.mark.parametrize(
    ("context", "at"),
    [
        (CURVES, [0.5, 1.5]),
        (CURVES, [[0.5], [1.5]]),
        (CURVES, [[[0.5], [1.5]]] * 3),
        (CURVES, Samples([0.5, 1.5], np.zeros((3, 2)))),
        (FIELD, [[0.5, 1.5]]),
    ],
)
def test_queries_are_those_of_every_sample(context, at):
    x = check_queries(context, at, context.d, context.c)
    assert x.shape == (3, 3 - context.d, context.d)
    assert x.reshape(3, -1).tolist() == [[0.5, 1.5]] * 3


@pytest.mark.parametrize(
    ("context", "at", "message"),
    [
        (np.zeros((3, 4)), [0.5], "context must be Samples, got ndarray; wrap arrays"),
        (FIELD, [0.5], "context has 2 coordinate axes and 5 channels; the model was fitted with 1 and 1"),
        (CURVES, [], r"at has shape \(0,\); give \(m, 1\) or \(3, m, 1\) with m ≥ 1"),
        (CURVES, 0.5, r"at has shape \(\); give"),
        (CURVES, np.zeros((2, 5, 1)), r"at has shape \(2, 5, 1\); give"),
        (CURVES, np.zeros((5, 2)), r"at has shape \(5, 2\); give"),
        (CURVES, np.zeros((3, 0, 1)), r"at has shape \(3, 0, 1\); give"),
        (CURVES, [0.5, nan], "at contains NaN or infinite coordinates; remove those queries"),
        (CURVES, [0.5, np.inf], "at contains NaN or infinite"),
        (CURVES, ["a"], "at"),
    ],
)
def test_what_cannot_be_asked_is_refused(context, at, message):
    with pytest.raises(CSTError, match=message):
        check_queries(context, at, 1, 1)


def test_queries_outside_the_training_domain_are_named_by_the_farthest_axis():
    scaled = np.array([[[0.5, 1.1], [-0.3, 0.2]], [[1.0, 0.0], [0.9, 1.2]]])
    told = r"by up to 30.0% of its extent along 't'; "
    with extrapolation(), pytest.warns(CSTWarning, match=told + "answers there are extrapolated: the start holds"):
        check_outside(scaled, ["t", "row"])
    with pytest.raises(CSTError, match=told + "extrapolate=True answers them all the same, but the start holds"):
        check_outside(scaled, ["t", "row"])
    with pytest.warns(CSTWarning, match=r"by up to 20.0% of its extent along 'row'"):  # only time is strict
        check_outside(np.maximum(scaled, 0), ["t", "row"], strict=1)
    with pytest.raises(CSTError, match=r"by up to 20.0% of its extent along 'row'"):
        check_outside(np.maximum(scaled, 0), ["t", "row"])
    with pytest.warns(CSTWarning, match="by up to 9.0%"):  # a small margin
        check_outside(np.full((1, 1, 1), 1.09), ["t"])
    with pytest.warns(CSTWarning, match="by less than 0.1% of"):  # never "by up to 0.0%"
        check_outside(np.full((1, 1, 1), 1.0004), ["t"])
    with warnings.catch_warnings():  # inside, to rounding; axes that have no outside were left out by the caller
        warnings.simplefilter("error")
        check_outside(np.clip(scaled, -1e-7, 1 + 1e-7), ["t", "row"])
        check_outside(np.clip(scaled[..., :1], 0, 1), ["t", "row"])
