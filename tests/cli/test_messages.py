"""What the command says: in the words of the command line, once, and before the work."""

import pandas as pd
import pytest
from small_models import waves

TINY = ["--preset", "smoke", "--steps", "2", "--quiet"]


@pytest.fixture
def few(cst, tmp_path):
    """A model of thirty samples, three of them held out, and its table with a repeated time."""
    table = waves(30).to_frame().rename(columns={"sample": "Patient ID"})
    pd.concat([table, table[:1]]).to_csv(tmp_path / "few.csv", index=False)
    assert cst("fit", tmp_path / "few.csv", "--sample", "Patient ID", "--out", tmp_path / "m", *TINY)[0] == 0
    return tmp_path / "few.csv"


def test_intervals_of_few_samples(refused, few, tmp_path):
    ask = ["predict", tmp_path / "m", few, "--at", "3.5", "--out", tmp_path / "a.csv", "--interval", "0.9"]
    few.write_text("\n".join(few.read_text().splitlines()[:-1]))
    refused(ask, "needs 9 held-out samples", "choose a level up to 0.75, fit with a larger --validation")


def test_names_with_spaces_are_quoted(refused, few):
    refused(["data", "show", few], "say so by --sample 'Patient ID', or --sample none")


def test_a_warning_is_told_once_and_strict_says_why(cst, refused, few, tmp_path):
    code, _, err = cst("evaluate", few, "--sample", "Patient ID", "--out", tmp_path / "e.png", *TINY)
    assert code == 0 and err.count("repeat the coordinates of another point") <= 1
    fit = ["fit", few, "--sample", "Patient ID", "--out", tmp_path / "n", *TINY, "--strict"]
    refused(fit, "1 points in 1 samples repeat the coordinates", "(--strict makes this warning an error)")


def test_excel_is_refused_before_the_context_is_read(refused, few, tmp_path):
    ask = ["predict", tmp_path / "m", tmp_path / "nothing.csv", "--at", "3.5", "--out", tmp_path / "a.xlsx"]
    refused(ask, "Excel files are only read; write one of .npz, .csv, .tsv")


def test_an_empty_table(refused, tmp_path):
    (tmp_path / "x.csv").write_text("")
    refused(["data", "show", tmp_path / "x.csv"], "x.csv is empty; give a table with a heading")


def test_the_summary_names_options(cst, few, tmp_path):
    table = pd.read_csv(few)[:-1]
    table.to_csv(few, index=False)
    fit = ["fit", few, "--sample", "Patient ID", "--out", tmp_path / "n", "--preset", "smoke"]
    code, out, _ = cst(*fit, "--max-minutes", "1e-9")
    assert code == 0 and "--max-minutes 1e-09 reached" in out and "max_minutes" not in out


@pytest.mark.parametrize("at", ["soon", "1,soon", "2024-05-01:2024-05-02"])
def test_queries_that_are_nothing(refused, few, tmp_path, at):
    few.write_text("\n".join(few.read_text().splitlines()[:-1]))
    ask = ["predict", tmp_path / "m", few, "--at", at, "--out", tmp_path / "a.csv"]
    refused(ask, f"--at {at}: there is no such file", "numbers or dates separated by commas, or START:STOP:STEP")
