"""Query files."""

import numpy as np
import pandas as pd
import pytest
from small_models import named_waves, refused

from cstformer import Samples
from cstformer.data.queries import load_queries


@pytest.fixture(scope="module")
def context():
    return named_waves()


@pytest.mark.parametrize(
    "coords", [np.array([3.0, 4.0]), np.array([[3.0], [4.0]]), np.tile([[[3.0], [4.0]]], (3, 1, 1))]
)
def test_npz_of_every_form(tmp_path, context, coords):
    np.savez(tmp_path / "q.npz", coords=coords)
    at, real = load_queries(tmp_path / "q.npz", context)
    assert at.tolist() == [[[3.0], [4.0]]] * 3
    assert real.all()
    assert real.shape == (3, 2)


def test_npz_of_samples_does_not_ask_for_their_padding(tmp_path, context):
    Samples.from_list([([3.0], [0.0]), ([3.0, 4.0], [0.0, 0.0]), ([2.5, 3.5], [0.0, 0.0])]).save(tmp_path / "q.npz")
    at, real = load_queries(tmp_path / "q.npz", context)
    assert real.tolist() == [[True, False], [True, True], [True, True]]
    assert at[2].tolist() == [[2.5], [3.5]]


def test_bad_npz(tmp_path, context):
    path = tmp_path / "q.npz"
    np.savez(path, times=[1.0])
    refused(lambda: load_queries(path, context), "has no key 'coords' but times")
    np.savez(path, coords=np.zeros((2, 5, 1)))
    refused(lambda: load_queries(path, context), "coords has shape (2, 5, 1); give (m, 1) or (3, m, 1)")
    np.savez(path, coords=np.array(["x"]))
    refused(lambda: load_queries(path, context), "must be real numbers")
    np.savez(path, coords=np.zeros((3, 5, 1)), observed=np.ones((3, 4)))
    refused(lambda: load_queries(path, context), "observed has shape (3, 4), coords (3, 5, 1)")
    path.write_text("nonsense")
    refused(lambda: load_queries(path, context), "cannot read")
    refused(lambda: load_queries(tmp_path / "none.npz", context), "there is no such file")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_join_by_sample(tmp_path, context, suffix):
    table = pd.DataFrame({"t [s]": [3.0, 4.0, 2.5], "sample": ["7", "a", "7"]})
    path = tmp_path / f"q{suffix}"
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    at, real = load_queries(path, context)
    assert real.tolist() == [[True, False], [False, False], [True, True]]
    assert at[0, 0].tolist() == [4.0]
    assert at[2].tolist() == [[3.0], [2.5]]


def test_integer_ids_join_text_ids(tmp_path, context):
    pd.DataFrame({"sample": [7], "t": [3.0]}).to_parquet(tmp_path / "q.parquet")
    assert load_queries(tmp_path / "q.parquet", context)[1][:, 0].tolist() == [False, False, True]


def test_a_table_without_samples_asks_all_alike(tmp_path, context):
    (tmp_path / "q.csv").write_text("t\n3\n4\n")
    at, real = load_queries(tmp_path / "q.csv", context)
    assert at.tolist() == [[[3.0], [4.0]]] * 3
    assert real.all()


def test_netcdf_joins_by_sample(tmp_path, context):
    asked = Samples([[3.0, 4.0], [2.5, 3.5]], np.zeros((2, 2)), sample_ids=["b", "a"])
    asked.save(tmp_path / "q.nc")
    at, real = load_queries(tmp_path / "q.nc", context)
    assert real.any(1).tolist() == [True, True, False]
    assert at[1, :, 0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sample,t\nzebra,3\n", ["asks for sample 'zebra', which the context does not have"]),
        ("sample,x\na,3\n", ["has no column 't', a coordinate of the context, but ['sample', 'x']"]),
        ("t\nearly\n", ["which is no number"]),
        ("t\n", ["no rows"]),
        ("", ["q.csv is empty"]),
    ],
)
def test_bad_tables(tmp_path, context, text, words):
    path = tmp_path / "q.csv"
    path.write_text(text)
    refused(lambda: load_queries(path, context), *words)


def test_wrong_kind_of_file(tmp_path, context):
    (tmp_path / "q.txt").write_text("3")
    refused(lambda: load_queries(tmp_path / "q.txt", context), "unknown kind of file", ".txt")


def test_wrong_number_of_axes(tmp_path, context):
    Samples(np.zeros((1, 2, 3)) + np.arange(2)[:, None], np.zeros((1, 2))).save(tmp_path / "q.nc")
    refused(lambda: load_queries(tmp_path / "q.nc", context), "has 3 coordinate axes, the context has 1")
