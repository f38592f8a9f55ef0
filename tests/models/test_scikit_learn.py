"""Models in the hands of scikit-learn: its estimator checks, cross-validation, grid search and clones."""

import pickle

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, UnsetMetadataPassedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, train_test_split
from sklearn.utils import estimator_checks
from small_models import blob, fit_quickly, patched_kernel, refused, wave_model, waves

from cstformer import CST, Samples, frames_to_samples
from cstformer.baselines import BASELINES, CubicSpline, LinearInterpolation, Mean
from cstformer.models.scoring import hide_part, r_squared

# The checks of scikit-learn that take any estimator; the others fit matrices, which these models refuse.
CHECKS = [
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_mixin_order,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_set_params,
    estimator_checks.check_valid_tag_types,
]
MODELS = {"cst": CST, **BASELINES}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_estimator_checks(name, check):
    check(name, MODELS[name]())


def lines(count=8, points=6):
    """Sample i is i + (i + 1) t: every value is known, and no two samples are alike."""
    t, i = np.linspace(0, 1, points), np.arange(count)[:, None]
    return Samples(t, i + (i + 1) * t, sample_ids=[f"line {k}" for k in range(count)])


def test_score_is_the_r2_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, answer = rng.normal(size=(2, 3, 5, 2))
    observed = rng.random((3, 5, 2)) < 0.7
    by_channel = [r2_score(truth[..., c][observed[..., c]], answer[..., c][observed[..., c]]) for c in range(2)]
    assert r_squared(answer, truth, observed) == pytest.approx(np.mean(by_channel))


def test_score_by_hand():
    # Context 0 and 2 at times 0 and 2: a line says 1 and 1.5 at times 1 and 1.5, where the truth is 2 and 0.
    context = Samples([0.0, 2.0], [[0.0, 2.0]])
    truth = Samples([[1.0, 1.5, 99.0]], [[2.0, 0.0, np.nan]])  # the padding asks for nothing, and warns of nothing
    model = LinearInterpolation().fit(context)
    assert model.score(context, truth) == pytest.approx(1 - (1 + 1.5**2) / 2)


def test_constant_and_unobserved_channels_score_as_in_scikit_learn():
    truth = np.stack([np.full((1, 3), 2.0), np.arange(3.0)[None], np.zeros((1, 3))], -1)
    observed = np.ones(truth.shape, dtype=bool)
    observed[..., 2] = [[True, False, False]]
    assert r_squared(truth, truth, observed) == 1
    assert r_squared(truth + np.array([1.0, 0.0, 5.0]), truth, observed) == 0.5  # the constant channel scores 0
    refused(lambda: r_squared(truth[:, :1], truth[:, :1], observed[:, :1]), "at least two observed cells")


def test_without_truth_the_score_asks_for_points_that_the_context_lacks():
    samples = lines()
    context, truth = hide_part(samples)
    assert not (context.observed & truth.observed).any()
    assert ((context.observed | truth.observed) == samples.observed).all()
    model = LinearInterpolation().fit(samples)
    assert model.score(samples) == model.score(context, truth) < 1  # the ends of some lines are hidden
    # A sample that repeats its coordinates would give the hidden value away.
    twice = Samples(np.repeat(np.arange(4.0), 2), np.repeat(np.random.default_rng(0).normal(size=(6, 4)), 2, axis=1))
    with pytest.warns(UserWarning, match="averaged"):
        context, truth = hide_part(twice)
    for i in range(len(twice)):
        assert not {*context.coords[i][context.point_observed[i], 0]} & {*truth.coords[i][truth.point_observed[i], 0]}


def test_cells_are_hidden_where_the_data_miss_cells():
    values = np.random.default_rng(1).normal(size=(20, 8, 3))
    values[:, ::2, 0] = np.nan
    context, truth = hide_part(Samples(np.arange(8.0), values))
    split = context.observed.any(-1) & truth.observed.any(-1)  # points of which some cells were hidden, not all
    assert 0 < split.any(1).mean() < 1


def test_whole_frames_of_a_movie_are_hidden():
    movie = frames_to_samples(blob(), (5, 5), window=9, stride=9)
    context, truth = hide_part(movie)
    times = movie.coords[0, :, 0]
    hidden = {t for t in np.unique(times) if truth.point_observed[0, times == t].all()}
    assert hidden and not hidden & set(times[context.point_observed[0]])
    assert {times.min(), times.max()}.isdisjoint(hidden)


def test_score_refuses_other_samples():
    samples = lines()
    model = Mean().fit(samples)
    refused(lambda: model.score(samples, samples[::-1]), "truth must have the samples")
    refused(lambda: model.score(samples, samples.values), "truth must be Samples, got ndarray")
    refused(lambda: model.score(Samples([0.0, 1.0], [[1.0, 2.0]])), "three or more")
    with pytest.raises(NotFittedError):
        CST().score(samples, samples)


def test_cross_validation_by_sample():
    samples = lines()
    scores = cross_val_score(CubicSpline(), samples, cv=4)
    assert len(scores) == 4
    for score, (_, test) in zip(scores, KFold(4).split(samples), strict=True):
        assert score == pytest.approx(CubicSpline().fit(samples).score(samples[test]))
    context, truth = hide_part(samples)
    assert len(cross_val_score(LinearInterpolation(), context, truth, cv=2)) == 2


def test_windows_of_a_recording_stay_together():
    recordings = Samples(np.arange(20.0), np.random.default_rng(0).normal(size=(4, 20))).windows(6, 3)
    groups = [name.split("@")[0] for name in recordings.sample_ids]
    assert len(cross_val_score(LinearInterpolation(), recordings, groups=groups, cv=GroupKFold(4))) == 4


def test_grid_search_trains_and_chooses():
    with patched_kernel():
        search = GridSearchCV(CST.preset("smoke", steps=3), {"order": [0, 1], "width": [8]}, cv=2)
        search.fit(lines())
    assert search.best_params_["width"] == 8 and search.best_estimator_.width == 8
    assert len(search.cv_results_["mean_test_score"]) == 2 and np.isfinite(search.best_score_)
    assert search.score(lines()) == search.best_estimator_.score(lines())


def test_train_test_split_takes_whole_samples():
    train, test = train_test_split(lines(), test_size=0.25, random_state=0)
    assert isinstance(train, Samples) and len(train) == 6
    assert {*train.sample_ids, *test.sample_ids} == {*lines().sample_ids}


def test_a_clone_is_not_fitted_and_has_the_same_settings():
    model = fit_quickly(CST.preset("smoke", steps=1, seed=3), waves())
    copy = clone(model)
    assert copy.get_params() == model.get_params() and not hasattr(copy, "network_")


def test_fitting_follows_the_conventions():
    # What scikit-learn's own checks test on matrices: settings stay, fit returns self, asking changes nothing.
    model, samples = CST.preset("smoke", steps=2), waves()
    before = model.get_params()
    assert fit_quickly(model, samples) is model and model.get_params() == before
    fitted = {name for name in vars(model) if name not in before}
    assert fitted and all(name.endswith("_") for name in fitted)
    first = model.predict(samples, [3.0])
    assert {name for name in vars(model) if name not in before} == fitted
    np.testing.assert_array_equal(fit_quickly(model, samples).predict(samples, [3.0]), first)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(samples, [3.0]), first)
    np.testing.assert_array_equal(model.predict(samples[[2, 0]], [3.0])[1], model.predict(samples[[0]], [3.0])[0])


def test_unknown_settings_of_a_rival_are_refused_by_name():
    refused(lambda: BASELINES["lstm"]().set_params(hiden=3), "hiden", "did you mean 'hidden'")
    refused(lambda: wave_model().set_params(widht=3), "did you mean 'width'")


def test_a_notebook_shows_the_diagram_of_scikit_learn():
    model = CST(seed=3)
    shown = model._repr_mimebundle_()
    assert shown["text/plain"] == "CST(seed=3)" and "sk-top-container" in shown["text/html"]
    assert "sk-top-container" in model._repr_html_()
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_") and [*model._repr_mimebundle_()] == ["text/plain"]


def test_metadata_is_routed_to_a_model():
    samples = lines()
    with config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="progress"):
            cross_val_score(LinearInterpolation(), samples, params={"progress": False}, cv=2)
        model = LinearInterpolation()
        assert model.set_fit_request(progress=True) is model
        for asked in (model, clone(model), pickle.loads(pickle.dumps(model))):
            assert asked.get_metadata_routing().fit.requests["progress"] is True
            assert len(cross_val_score(asked, samples, params={"progress": False}, cv=2)) == 2
        with pytest.raises(TypeError, match="Unexpected args"):
            model.set_fit_request(nonsense=True)
    with pytest.raises(AttributeError, match="set_transform_request"):  # there is no method `transform`
        model.set_transform_request()


def test_a_missing_attribute_says_what_is_missing():
    model = CST()
    with pytest.raises(AttributeError, match=r"'CST' object has no attribute 'network_'"):
        model.network_  # noqa: B018
    with pytest.raises(AttributeError, match=r"'CST' object has no attribute '_nonsense'"):
        model._nonsense  # noqa: B018
    with pytest.raises(NotFittedError, match="not fitted yet"):  # raised by the property, and not lost on the way
        model.n_parameters_  # noqa: B018
    assert "n_parameters_" not in dir(model) and "fit" in dir(model)
