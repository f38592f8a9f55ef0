"""Covariates and calendar in a trained model: what they are worth, what is refused, and files."""

import numpy as np
import pandas as pd
import pytest
from small_models import fit_quickly, shaken

from cstformer import CST, CSTError, CSTWarning, Samples
from cstformer.baselines import BASELINES
from cstformer.models.answers import read_context

ENDS = [True, False, False, True]


def responses(count: int, seed: int, missing: float = 0.0) -> Samples:
    """Four observations of a curve around its own level whose shape is a dose times a cosine."""
    rng = np.random.default_rng(seed)
    t, dose = np.sort(rng.random((count, 4)), axis=1), rng.uniform(-2, 2, (count, 1))
    y = rng.normal(0, 1.5, (count, 1)) + dose * np.cos(2 * np.pi * t)
    return Samples(t, y, covariates=np.where(rng.random((count, 1)) < missing, np.nan, dose), covariate_names=["dose"])


def rhythm(count: int, seed: int) -> Samples:
    """Four observations of a window of 12 h, which begins at any hour, of a daily rhythm around a level."""
    rng = np.random.default_rng(seed)
    t, begin = np.sort(rng.uniform(0, 12, (count, 4)), axis=1), rng.uniform(0, 2000, (count, 1))
    y = rng.normal(0, 0.3, (count, 1)) + np.sin(2 * np.pi * (t + begin) / 24)
    return Samples(t, y, units={"t": "hours since 2024-05-01T00:00:00"}, origin=begin, calendar="hour")


def trained(samples: Samples) -> CST:
    settings = dict(steps=300, batch=128, order=0, noise=0.05, learning_rate=1e-2, patience=1.0, start="linear")
    return fit_quickly(CST.preset("smoke", **settings), samples)


def inner_error(model: CST, test: Samples) -> float:
    """Root mean square error at the two inner points, from the first and the last."""
    context = test.subset_points(np.tile(ENDS, (len(test), 1)))
    inner = (model.predict(context, test.coords) - test.values)[:, 1:3]
    return float(np.sqrt(np.mean(inner**2)))


def test_a_covariate_explains_what_was_not_observed():
    train, test = responses(300, 0, missing=0.2), responses(80, 1)
    without = inner_error(trained(train.replace(covariates=None)), test.replace(covariates=None))
    model = trained(train)
    error = inner_error(model, test)
    assert error < 0.5 * without, (error, without)
    unknown = inner_error(model, test.replace(covariates=np.full((80, 1), np.nan)))
    assert 1.5 * error < unknown < 1.3 * without, unknown  # missing everywhere: about as if it had never been known


def test_the_calendar_knows_the_phase_of_a_daily_rhythm():
    """The first and the last observation of a window tell its level, not the phase."""
    train, test = rhythm(250, 0), rhythm(80, 1)
    without = inner_error(trained(train.replace(calendar=None)), test)
    error = inner_error(trained(train), test)
    assert error < 0.5 * without, (error, without)


def dated(begin: str = "2024-05-01T00:00") -> Samples:
    """Six samples of ten hours with dates, a label and a calendar."""
    rng = np.random.default_rng(0)
    times = pd.Timestamp(begin) + pd.to_timedelta(np.linspace(0, 10, 6), unit="h")
    frame = pd.DataFrame({"sample": np.repeat(np.arange(6), 6), "time": np.tile(times, 6), "y": rng.normal(size=36)})
    frame["site"] = np.repeat(["N", "S", "N", "S", "N", None], 6)
    return Samples.from_frame(frame, covariates=["site"], calendar=["hour", "weekday"])


@pytest.fixture(scope="module")
def model() -> CST:
    return shaken(fit_quickly(CST.preset("smoke", steps=2, precision="float64"), dated()))


def test_files_keep_covariates_and_calendar(model, tmp_path):
    model.save(tmp_path / "m")
    back, at = CST.load(tmp_path / "m"), [1.0, 2.0]
    assert np.array_equal(back.predict(dated(), at), model.predict(dated(), at))
    dated().to_frame().to_csv(tmp_path / "x.csv", index=False)
    assert read_context(back, tmp_path / "x.csv", calendar=["hour", "weekday"]).equals(dated())


def test_labels_are_mapped_by_name(model):
    """A context with fewer labels, or labels in another order, gets the answers of the training's labels."""
    south = dated()[[1]]
    alone = south.replace(covariates={"site": ["S"]})
    assert alone.covariates.tolist() == [[0]] and south.covariates.tolist() == [[1]]
    assert np.array_equal(model.predict(alone, [3.3]), model.predict(south, [3.3]))
    missing = model.predict(south.replace(covariates={"site": [None]}), [3.3])
    with pytest.warns(CSTWarning, match="unknown label 'W'"):
        assert np.array_equal(model.predict(south.replace(covariates={"site": ["W"]}), [3.3]), missing)
    assert not np.allclose(model.predict(south, [3.3]), missing)


def test_dates_count_from_the_epoch_of_the_training(model):
    """The same dates written from another epoch, and queries as dates, give the same answers."""
    late = dated().replace(coords=dated().coords - 5.0, units={"time": "hours since 2024-05-01T05:00:00"})
    expected = model.predict(dated(), [7.5])
    assert model.predict(late, [2.5]) == pytest.approx(expected, abs=1e-12)
    assert model.predict(late, np.array(["2024-05-01T07:30"], "datetime64")) == pytest.approx(expected, abs=1e-12)
    assert model.reader(late).partials(np.array([[7.5]]), [(0,)])[0] == pytest.approx(expected, abs=1e-12)


def test_derivatives_are_those_of_the_answers(model):
    """Central differences of the answers; the calendar turns within a day, so the slope depends on it."""
    h = 1e-4
    ends = model.predict(dated(), [4.0 - h, 4.0 + h])
    slope = (ends[:, 1] - ends[:, 0]) / (2 * h)
    assert model.derivative(dated(), [4.0], (1,))[:, 0] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_what_the_model_did_not_learn_is_refused(model):
    bare = dated().replace(covariates=None)
    with pytest.raises(CSTError, match="fitted with covariates: site; these samples have: none"):
        model.predict(bare, [1.0])
    plain = Samples(dated().coords, dated().values, covariates={"site": ["N"] * 6})
    with pytest.raises(CSTError, match="fitted with the calendar hour, weekday; these samples have no dates"):
        model.predict(plain, [1.0])
    with pytest.raises(CSTError, match="fitted with covariates: none; these samples have: site"):
        fit_quickly(CST.preset("smoke", steps=1), bare).predict(dated(), [1.0])


@pytest.mark.parametrize("name", ["linear", "transformer"])
def test_rivals_ignore_them(name):
    """They are trained and answer as if the covariates were not there."""
    settings = dict(steps=3) if name == "transformer" else {}
    answers = []
    for samples in (dated(), dated().replace(covariates=None, calendar=None)):
        answers.append(fit_quickly(BASELINES[name].preset("smoke", **settings), samples).predict(samples, [3.3]))
    assert np.array_equal(*answers)
