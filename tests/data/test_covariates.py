"""Covariates of `Samples`, their files, and the features that a network reads."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from cstformer.data.covariates import CovariateEncoder
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning

NAN = float("nan")


def patients() -> Samples:
    """Three short series with an age, a site and a unit; one age and one site are missing."""
    return Samples(
        [0.0, 1.0, 2.5],
        np.arange(9.0).reshape(3, 3),
        sample_ids=["ann", "bob", "cy"],
        covariates={"age": [61.0, NAN, 40.0], "site": ["Oslo", "Bern", None]},
        units={"age": "years", "t": "h"},
    )


def test_text_becomes_categories_and_missing_becomes_nan():
    s = patients()
    assert s.covariate_names == ("age", "site") and s.categories == {"site": ("Bern", "Oslo")}
    assert np.array_equal(s.covariates, [[61, 1], [NAN, 0], [40, NAN]], equal_nan=True)
    assert repr(s).endswith("values value, covariates age, site)")


def test_a_choice_of_samples_keeps_their_covariates():
    s = patients()
    assert np.array_equal(s[[2, 0]].covariates, [[40, NAN], [61, 1]], equal_nan=True)
    first, second = s.split(0.4, seed=1)
    assert Samples.concatenate([first, second])[[1, 0, 2]].categories == s.categories
    assert s.sorted().covariates[0].tolist() == [61, 1]


def test_windows_inherit_the_covariates_of_their_recording():
    cut = patients().windows(length=1.5, stride=1.0)
    assert cut.sample_ids[:4] == ("ann@0", "ann@1", "ann@2", "bob@0")
    assert cut.covariates[:3].tolist() == [[61, 1]] * 3 and cut.covariates[3, 1] == 0


def test_concatenation_unites_labels():
    other = patients().replace(covariates={"age": [1, 2, 3], "site": ["Rome", "Oslo", "Rome"]}, sample_ids=list("xyz"))
    both = Samples.concatenate([patients(), other])
    assert both.categories == {"site": ("Bern", "Oslo", "Rome")}
    assert np.array_equal(both.covariates[:, 1], [1, 0, NAN, 2, 1, 2], equal_nan=True)
    with pytest.raises(CSTError, match=r"part 1 has covariates \(\), but part 0 has \('age', 'site'\)"):
        Samples.concatenate([patients(), patients().replace(covariates=None)])


@pytest.mark.parametrize("suffix", ["npz", "csv", "tsv", "parquet", "nc", "zarr"])
def test_files_keep_covariates(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    patients().save(path)
    assert Samples.load(path).equals(patients())
    chosen = Samples.load(path, covariates=["age"])
    assert chosen.covariate_names == ("age",) and chosen.value_names == ("value",)
    with pytest.raises(CSTError, match="'agee'; did you mean 'age'"):
        Samples.load(path, covariates=["agee"])


def test_replace_forgets_old_names():
    s = patients().replace(covariates=None)
    assert s.covariates.shape == (3, 0) and s.covariate_names == () and s.units == {"t": "h"}
    assert not s.equals(patients()) and s.equals(patients().replace(covariates=None))


def test_variables_over_samples_of_a_grid():
    data = xr.Dataset({"u": (("sample", "t"), np.ones((2, 3))), "dose": ("sample", [1.0, 5.0])})
    s = Samples.from_xarray(data, covariates=["dose"])
    assert s.value_names == ("u",) and s.covariates.tolist() == [[1], [5]]
    with pytest.raises(CSTError, match="'u' must have the dim 'sample' alone"):
        Samples.from_xarray(data, covariates=["u"])


def long_table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"sample": ["a", "a", "b"], "t": [0, 1, 0], "y": [1.0, 2.0, 3.0], **columns})


def test_columns_that_are_constant_within_a_sample():
    frame = long_table(age=[50, np.nan, 30], site=["N", "N", "S"], smoker=[True, True, False])
    s = Samples.from_frame(frame, covariates=["age", "site", "smoker"])
    assert s.value_names == ("y",)
    assert s.covariates.tolist() == [[50, 0, 1], [30, 1, 0]]
    assert "covariate site: N (1), S (1)" in s.describe() and "covariate age: mean 40" in s.describe()


REFUSED = {
    "varies": (dict(age=[50, 51, 30]), ["age"], r"column 'age' changes within sample 'a' \(50.0, 51.0\)"),
    "varies in text": (dict(site=["N", "S", "S"]), ["site"], r"column 'site' changes within sample 'a' \('N', 'S'\)"),
    "unknown": (dict(age=[1, 1, 1]), ["agee"], "unknown column in covariates= 'agee'; did you mean 'age'"),
    "typing error": (dict(age=["50", "50", "3o"]), ["age"], "column 'age' has '3o' among numbers in row 3"),
    "dates": (dict(born=pd.to_datetime(["2000-01-01"] * 3)), ["born"], "column 'born' holds dates"),
}


@pytest.mark.parametrize(("columns", "covariates", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_columns_refused(columns, covariates, message):
    with pytest.raises(CSTError, match=message):
        Samples.from_frame(long_table(**columns), covariates=covariates)


ARRAYS = {
    "shape": (dict(covariates=np.ones((2, 1))), r"shape \(N, e\) with N = 3 samples, got \(2, 1\)"),
    "infinite": (dict(covariates=[1.0, np.inf, 2.0]), "infinite at sample 1, covariate 0"),
    "names": (dict(covariates=np.ones((3, 2)), covariate_names=["age"]), "covariate_names must have 2 names"),
    "no covariates": (dict(covariate_names=["age"]), "came without covariates"),
    "clash": (dict(covariates=np.ones((3, 1)), covariate_names=["t"]), r"share \['t'\]"),
    "codes": (
        dict(covariates=[0.0, 1.0, 2.0], covariate_names=["site"], categories={"site": ["N", "S"]}),
        "numbers 0 to 1 of its different categories",
    ),
    "column": (dict(covariates={"age": [1.0, 2.0]}), "'age' must have one entry for each of the 3 samples"),
}


@pytest.mark.parametrize(("options", "message"), ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_refused(options, message):
    with pytest.raises(CSTError, match=message):
        Samples([0.0, 1.0], np.ones((3, 2)), **options)


# Features


def test_features_are_standardised_one_hot_and_flag_what_is_missing():
    encoder = CovariateEncoder.of(patients())  # ages 61 and 40: mean 50.5, sd 10.5
    assert encoder.size == 5
    assert encoder.encode(patients()).tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [-1, 0, 0, 0, 1]]


def test_new_data_are_encoded_by_name_with_the_categories_of_the_training():
    encoder = CovariateEncoder.from_description(CovariateEncoder.of(patients()).describe())
    new = Samples([0.0], [[1.0], [2.0]], covariates={"site": ["Oslo", "Wien"], "age": [50.5, 71.5]})
    with pytest.warns(CSTWarning, match="covariate 'site' has the unknown label 'Wien'; treated as missing"):
        features = encoder.encode(new)
    assert features.tolist() == [[0, 0, 1, 0, 0], [2, 0, 0, 0, 1]]


def test_labels_that_look_like_numbers_survive_a_text_file(tmp_path):
    s = Samples([0.0], [[1.0], [2.0]], covariates={"ward": ["12", "7"]})
    s.save(tmp_path / "x.csv")
    back = Samples.load(tmp_path / "x.csv")
    encoder = CovariateEncoder.of(s)
    assert np.array_equal(encoder.encode(back), encoder.encode(s)) and encoder.size == 3


def test_a_constant_covariate_gives_zeros():
    s = Samples([0.0], [[1.0], [2.0]], covariates={"age": [0.1, 0.1]})
    assert CovariateEncoder.of(s).encode(s).tolist() == [[0, 0], [0, 0]]


def test_other_covariates_than_in_the_training_are_refused():
    encoder, bare = CovariateEncoder.of(patients()), patients().replace(covariates=None)
    with pytest.raises(CSTError, match="fitted with covariates: age, site; these samples have: none"):
        encoder.encode(bare)
    with pytest.raises(CSTError, match=r"fitted with covariates: none; .*replace\(covariates=None\)"):
        CovariateEncoder.of(bare).encode(patients())
    with pytest.raises(CSTError, match="'age' was numbers in the training, now it has labels"):
        encoder.encode(patients().replace(covariates={"age": list("abc"), "site": ["Oslo"] * 3}))
