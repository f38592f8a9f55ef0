"""``cst data make``: the spirals; the flow and the recording are tested beside their simulators in tests/datasets."""

import pytest

from cstformer import Samples

SPIRALS = ["data", "make", "spirals", "--points", "20", "--observed", "6"]


def test_make_and_show_spirals(cst, tmp_path):
    path, again = tmp_path / "spirals.npz", tmp_path / "again.npz"
    code, out, err = cst(*SPIRALS, "--curves", "5", "--out", path)
    assert (code, err) == (0, "")
    assert out == f"wrote {path}: Samples(5 samples of 6 points, coordinates t, values y1, y2)\n"
    cst(*SPIRALS, "--curves", "5", "--out", again)
    assert Samples.load(path).equals(Samples.load(again))
    code, out, _ = cst("data", "show", path)
    assert code == 0
    assert "5 samples, 1 coordinates, 2 values" in out
    assert "points per sample: min 6, median 6, max 6" in out
    assert "grid: the same for all samples" in out


def test_irregular_spirals_in_a_table(cst, tmp_path):
    path = tmp_path / "s.csv"
    assert cst(*SPIRALS, "--curves", "3", "--irregular", "--noise", "0.1", "--out", path)[0] == 0
    assert "grid: each sample has its own" in cst("data", "show", path)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--observed", "99"], "--observed 99: keep between 2 and --points 20"),
        (["--observed", "1"], "--observed 1"),
        (["--curves", "0"], "curves"),
        (["--curves", "many"], "argument --curves: invalid int value: 'many'"),
        (["--noise", "-1"], "--noise -1: must be at least 0"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_refusals(refused, tmp_path, options, words):
    refused([*SPIRALS, "--curves", "2", "--out", tmp_path / "s.npz", *options], words)
    assert not (tmp_path / "s.npz").exists()
