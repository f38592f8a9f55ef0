"""Covariates, calendar and dates on the command line: fit remembers them, predict and explore read the same way."""

import numpy as np
import pandas as pd
import pytest

from cstformer import CST
from cstformer.explorer.files import read_samples

TINY = ["--preset", "smoke", "--steps", "2", "--precision", "float64", "--quiet"]


def patients(count: int = 8, begin: str = "2024-05-01T06:00") -> pd.DataFrame:
    """Stays of six hours in the same week, with an age and a site."""
    rng = np.random.default_rng(0)
    hours = np.tile(np.linspace(0, 6, 5), count)
    frame = pd.DataFrame({"sample": np.repeat([f"p{i}" for i in range(count)], 5)})
    frame["time"] = pd.Timestamp(begin) + pd.to_timedelta(hours + 21 * np.repeat(np.arange(count), 5), unit="h")
    frame["age"] = np.repeat(rng.integers(20, 80, count), 5)
    frame["site"] = np.repeat(rng.permutation(["Oslo", "Bern"] * (count // 2)), 5)
    return frame.assign(pulse=rng.normal(70, 5, len(frame)))


@pytest.fixture
def files(tmp_path, cst):
    """A table, and a model fitted to it."""
    table, model = tmp_path / "patients.csv", tmp_path / "model"
    patients().to_csv(table, index=False)
    code, out, err = cst("fit", table, "--out", model, "--covariates", "age,site", "--calendar", "hour", *TINY)
    assert (code, out, err) == (0, "", "")
    return table, model


def test_answers_have_the_dates_of_the_context(cst, files, tmp_path):
    table, model = files
    queries = pd.DataFrame({"sample": ["p3"], "time": ["2024-05-04T00:30:00"]})  # p3 begins on 3 May, 21 h
    queries.to_csv(tmp_path / "q.csv", index=False)
    assert cst("predict", model, table, "--at", tmp_path / "q.csv", "--out", tmp_path / "a.csv", "--quiet")[0] == 0
    answer = pd.read_csv(tmp_path / "a.csv")
    assert answer[["sample", "time"]].to_numpy().tolist() == [["p3", "2024-05-04 00:30:00"]]
    loaded = CST.load(model)
    assert loaded.names_["relative"] is True and loaded.scaling_.span.tolist() == [6.0]
    expected = loaded.predict(read_samples(table, loaded)[[3]], [3.5])
    assert answer["pulse"][0] == pytest.approx(expected[0, 0, 0], rel=1e-9)


def test_one_new_patient_is_read_as_the_training_was(cst, files, tmp_path):
    """A file of one patient: its dates count from its beginning, and its only site is one of two."""
    _, model = files
    patients(2, "2025-01-01T03:00").query("sample == 'p1'").to_csv(tmp_path / "new.csv", index=False)
    arguments = ["predict", model, tmp_path / "new.csv", "--at", "2025-01-02T02:00,2025-01-02T03:00"]
    code, _, err = cst(*arguments, "--out", tmp_path / "a.csv", "--quiet")
    assert (code, err) == (0, "")
    assert pd.read_csv(tmp_path / "a.csv")["time"].tolist() == ["2025-01-02 02:00:00", "2025-01-02 03:00:00"]


def test_what_is_missing_is_named(cst, refused, files, tmp_path):
    table, model = files
    patients().drop(columns="age").to_csv(tmp_path / "x.csv", index=False)
    ask = ["--at", "1", "--out", tmp_path / "a.csv"]
    refused(["predict", model, tmp_path / "x.csv", *ask], "unknown column 'age'")
    fit = ["fit", table, "--out", tmp_path / "m", "--values", "pulse"]
    refused([*fit, "--calendar", "hours"], "'hours'; did you mean 'hour'?")
    words = "in --covariates; else leave it out by --values"
    refused([*fit[:-2], "--covariates", "pulse"], "column 'site' holds text, such as", words)
    refused([*fit[:-1], "age", "--covariates", "pulse"], "'pulse' changes within sample 'p0'")


def test_show_names_covariates_and_dates(cst, files):
    code, out, _ = cst("data", "show", files[0], "--covariates", "age,site", "--calendar", "hour")
    assert code == 0
    for line in ("covariate site: Bern (4), Oslo (4)", "dates: 2024-05-01T06:00:00 to", "calendar: hour"):
        assert line in out
