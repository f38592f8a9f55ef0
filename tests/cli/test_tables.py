"""Tables as people have them: ids in any column, other separators, words for missing values, short samples."""

import gzip
import json
import warnings

import numpy as np
import pandas as pd
import pytest

from cstformer import CST, CSTError, CSTWarning, Samples

TINY = ["--preset", "smoke", "--steps", "2", "--quiet"]


def people(count: int = 6, ids=None) -> pd.DataFrame:
    """Six people, eight visits each."""
    rng = np.random.default_rng(0)
    names = [f"p{i:02d}" for i in range(count)] if ids is None else ids
    frame = pd.DataFrame({"subject": np.repeat(names, 8), "t": np.tile(np.arange(8.0), count)})
    return frame.assign(glucose=rng.normal(5, 1, len(frame)), insulin=rng.normal(80, 9, len(frame)))


@pytest.fixture
def table(tmp_path):
    people().to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


# Samples


def test_the_column_of_samples_is_remembered_and_comes_back(cst, table, tmp_path):
    assert cst("fit", table, "--out", tmp_path / "m", "--sample", "subject", *TINY) == (0, "", "")
    pd.DataFrame({"subject": ["p03", "p01"], "t": [2.5, 3.5]}).to_csv(tmp_path / "q.csv", index=False)
    ask = ["predict", tmp_path / "m", table, "--at", tmp_path / "q.csv", "--out", tmp_path / "a.csv", "--quiet"]
    assert cst(*ask) == (0, "", "")
    answer = pd.read_csv(tmp_path / "a.csv")
    assert list(answer.columns) == ["subject", "t", "glucose", "insulin"]
    assert sorted(zip(answer["subject"], answer["t"], strict=True)) == [("p01", 3.5), ("p03", 2.5)]
    samples = Samples.from_frame(people(), group="subject")
    assert len(samples) == 6 and samples.group == "subject" and samples.c == 2
    expected = CST.load(tmp_path / "m").predict(samples, [2.5])[3, 0, 0]
    assert answer.set_index("subject")["glucose"]["p03"] == pytest.approx(expected)


def test_ids_with_leading_zeros_stay_text(cst, tmp_path):
    people(ids=[f"00{i}" for i in range(6)]).to_csv(tmp_path / "x.csv", index=False)
    code, out, _ = cst("data", "show", tmp_path / "x.csv", "--sample", "subject")
    assert code == 0 and "6 samples" in out
    assert Samples.load(tmp_path / "x.csv", group="subject").sample_ids[1] == "001"


@pytest.mark.parametrize("options", [[], ["--values", "glucose"]])
@pytest.mark.parametrize("ids", [None, range(101, 107)])
def test_a_column_of_ids_is_asked_about(refused, tmp_path, options, ids):
    people(ids=ids).to_csv(tmp_path / "x.csv", index=False)
    for command in (["fit", tmp_path / "x.csv", "--out", tmp_path / "m"], ["data", "show", tmp_path / "x.csv"]):
        refused(
            [*command, *options], "column 'subject' looks like the name of samples (6 different entries", "--sample"
        )
    assert not (tmp_path / "m").exists()


def test_a_column_of_ids_is_recognised_by_its_runs(refused, tmp_path):
    people(ids=range(6)).rename(columns={"subject": "who"}).to_csv(tmp_path / "x.csv", index=False)
    refused(["data", "show", tmp_path / "x.csv"], "column 'who' looks like the name of samples", "--sample who")


def test_repeated_times_are_asked_about(refused, cst, tmp_path):
    people().drop(columns="subject").to_csv(tmp_path / "x.csv", index=False)
    words = "40 of 48 rows have the same coordinates as another row"
    refused(["data", "show", tmp_path / "x.csv"], words, "by --sample", "--sample none")
    code, out, _ = cst("data", "show", tmp_path / "x.csv", "--sample", "none")
    assert code == 0 and "1 samples" in out and "repeated coordinates: 40" in out


def test_one_sample_is_remembered_too(cst, tmp_path):
    people().drop(columns="subject").to_csv(tmp_path / "x.csv", index=False)
    code, _, err = cst("fit", tmp_path / "x.csv", "--out", tmp_path / "m", "--sample", "none", *TINY)
    assert code == 0 and "averaged" in err
    ask = ["predict", tmp_path / "m", tmp_path / "x.csv", "--at", "2.5", "--out", tmp_path / "a.csv"]
    assert cst(*ask)[0] == 0


@pytest.mark.parametrize("steps", [[0, 0, 0, 1, 1, 1, 2, 2], [1, 2, 1, 2, 1, 2, 1, 2]])
def test_a_dose_is_no_id(steps):
    frame = pd.DataFrame({"t": np.arange(8.0), "dose": steps, "u": np.arange(8) / 3})
    assert Samples.from_frame(frame).value_names == ("dose", "u")


def test_text_that_is_no_id(refused, tmp_path):
    (tmp_path / "x.csv").write_text("t,u,note\n0,1,good\n1,2,bad\n2,3,odd\n")
    refused(
        ["data", "show", tmp_path / "x.csv"], "column 'note' holds text, such as 'good'", "--sample note", "--values"
    )
    assert Samples.load(tmp_path / "x.csv", values=["u"]).value_names == ("u",)


# Text formats


FORMATS = {
    "semicolons and decimal commas": ("x.csv", "t;u\n0,5;1,25\n1,5;-2e1\n2;3\n", {}),
    "tabs in a csv": ("x.csv", "t\tu\n0.5\t1.25\n1.5\t-20\n2\t3\n", {}),
    "spaces": ("x.csv", "t u\n0.5 1.25\n1.5   -20\n2 3\n", {}),
    "bars": ("x.csv", "t|u\n0.5|1.25\n1.5|-20\n2|3\n", {}),
    "windows": ("x.csv", "\ufefft;u\r\n0,5;1,25\r\n1,5;-20\r\n2;3\r\n", {}),
    "spaces behind commas": ("x.csv", "t, u\n0.5, 1.25\n1.5, -20\n2, 3\n", {}),
    "a tsv": ("x.tsv", "t\tu\n0,5\t1,25\n1,5\t-20\n2\t3\n", {}),
}


@pytest.mark.parametrize(("name", "text", "options"), FORMATS.values(), ids=FORMATS.keys())
def test_formats_are_found(tmp_path, name, text, options):
    (tmp_path / name).write_bytes(text.encode())
    samples = Samples.load(tmp_path / name)
    assert (samples.coord_names, samples.value_names) == (("t",), ("u",))
    assert samples.coords[0, :, 0].tolist() == [0.5, 1.5, 2] and samples.values[0, :, 0].tolist() == [1.25, -20, 3]


def test_options_insist(cst, refused, tmp_path):
    (tmp_path / "x.csv").write_text("t;u,v\n0,5;1,25\n1,5;-999\n2;gone\n3;4\n")
    read = ["data", "show", tmp_path / "x.csv", "--separator", ";", "--decimal", ",", "--missing=-999,gone"]
    code, out, err = cst(*read)
    assert (code, err) == (0, "") and "value u,v: mean 2.625" in out and "t: 0.5 to 3" in out
    refused([*read[:-1], "--missing=-999"], "column 'u,v' has 'gone' in row 3, which is no number", "--missing")
    refused([*read[:4], "::"], "--separator ::: give one character")


@pytest.mark.parametrize("word", ["--", "NA", "?", "n/a", "."])
def test_words_for_missing_values(tmp_path, word):
    (tmp_path / "x.csv").write_text(f"t,u\n0,1\n1,{word}\n2,3\n")
    assert Samples.load(tmp_path / "x.csv").observed[0, :, 0].tolist() == [True, False, True]


def test_a_compressed_table(cst, tmp_path):
    with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
        file.write("sample,t,u\n" + "".join(f"{i},{t},{i + t}\n" for i in range(4) for t in range(4)))
    assert cst("fit", tmp_path / "x.csv.gz", "--out", tmp_path / "m", *TINY)[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "x.csv.gz", "--at", "1.5", "--out", tmp_path / "a.csv.gz", "--quiet"]
    assert cst(*ask) == (0, "", "")
    assert len(pd.read_csv(tmp_path / "a.csv.gz")) == 4


def test_latin_letters(tmp_path):
    (tmp_path / "x.csv").write_bytes("t,Stärke [µV]\n0,1\n1,2\n".encode("cp1252"))
    assert Samples.load(tmp_path / "x.csv").units == {"Stärke": "µV"}


@pytest.mark.parametrize("name", ["time_h", "Time (s)", "t_ms", "elapsed_seconds", "days", "Time_UTC"])
def test_names_of_times_with_a_unit(tmp_path, name):
    (tmp_path / "x.csv").write_text(f"{name},u\n0,1\n1,2\n")
    assert Samples.load(tmp_path / "x.csv").coord_names == (name,)


def test_decimal_commas_between_commas(refused, tmp_path):
    (tmp_path / "x.csv").write_text("t,u\n0,5,1,25\n1,5,2,5\n")
    refused(["data", "show", tmp_path / "x.csv"], "row 1 has 4 cells, but the heading has 2", "another separator")


def test_excel(cst, refused, tmp_path):
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        (tmp_path / "x.xlsx").write_bytes(b"PK")
        refused(["data", "show", tmp_path / "x.xlsx"], "needs openpyxl; pip install cstformer[files]")
        return
    people().to_excel(tmp_path / "x.xlsx", index=False)
    code, out, _ = cst("data", "show", tmp_path / "x.xlsx", "--sample", "subject")
    assert code == 0 and "6 samples" in out


# Short samples


def test_a_subject_with_one_row_is_left_out_by_name(cst, refused, tmp_path):
    frame = pd.concat([people(), pd.DataFrame({"subject": ["zoe"], "t": [0.0], "glucose": [5.0]})])
    frame = pd.concat([frame, pd.DataFrame({"subject": ["max"], "t": [0.0]})])
    frame.to_csv(tmp_path / "x.csv", index=False)
    fit = ["fit", tmp_path / "x.csv", "--out", tmp_path / "m", "--sample", "subject", *TINY]
    code, _, err = cst(*fit)
    assert code == 0
    assert err.splitlines() == [
        "cst: warning: left out sample 'max' without any value",
        "cst: warning: left out sample 'zoe' with fewer than two observed points",
    ]
    fit[3] = tmp_path / "n"
    refused([*fit, "--strict"], "left out sample 'max' without any value")
    people().to_csv(tmp_path / "x.csv", index=False)
    assert cst(*fit, "--strict")[0] == 0


# The language of messages and the memory of the model


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n", [], "no coordinate column among ['a', 'b']; name it by --coords"),
        ("t,hours,u\n1,2,3\n", [], "could all be the time; name the right one by --coords"),
        ("t,u\n1,2\n", ["--values", "w"], "unknown column 'w'"),
        ("t,u\n1,2\n", ["--sample", "w"], "unknown column 'w'"),
        ("sample,t,u\na,0,1\na,1,inf\n", [], "values are infinite at 1 places, first at sample 'a', point 1, u;"),
    ],
)
def test_messages_speak_of_options(refused, tmp_path, text, options, words):
    (tmp_path / "x.csv").write_text(text)
    refused(["data", "show", tmp_path / "x.csv", *options], words)


def test_a_table_without_values_is_no_training_data(refused, tmp_path):
    (tmp_path / "x.csv").write_text("lat,lon\n1,2\n")
    words = "no value column among ['lat', 'lon']; name it by --values"
    refused(["fit", tmp_path / "x.csv", "--out", tmp_path / "m"], words)


def test_messages_about_queries(cst, refused, table, tmp_path):
    assert cst("fit", table, "--out", tmp_path / "m", "--sample", "subject", *TINY)[0] == 0
    (tmp_path / "q.csv").write_text("subject,hour\np01,3\n")
    ask = ["predict", tmp_path / "m", table, "--at", tmp_path / "q.csv", "--out", tmp_path / "a.csv"]
    refused(ask, "has no column 't', a coordinate of the context, but ['subject', 'hour']")
    (tmp_path / "q.csv").write_text("subject,t\np77,3\n")
    refused(ask, "asks for sample 'p77', which the context does not have")


def test_columns_are_remembered(cst, refused, table, tmp_path):
    fit = ["fit", table, "--out", tmp_path / "m", "--sample", "subject", "--values", "glucose", *TINY]
    assert cst(*fit) == (0, "", "")
    ask = ["predict", tmp_path / "m", table, "--at", "2.5", "--out", tmp_path / "a.csv", "--quiet"]
    assert cst(*ask) == (0, "", "")
    assert list(pd.read_csv(tmp_path / "a.csv").columns) == ["subject", "t", "glucose"]
    from cstformer.explorer.files import read_samples

    assert read_samples(table, CST.load(tmp_path / "m")).value_names == ("glucose",)
    people().rename(columns={"glucose": "sugar"}).to_csv(tmp_path / "other.csv", index=False)
    ask[2] = tmp_path / "other.csv"
    refused(ask, "looks like the name of samples")
    refused(
        [*ask, "--sample", "subject"],
        "the model was trained on coordinates t and values glucose",
        "by --coords and --values",
    )
    assert cst(*ask, "--sample", "subject", "--values", "sugar") == (0, "", "")


def test_a_model_of_arrays_reads_tables_with_other_names(cst, table, tmp_path):
    frame = people()
    np.savez(
        tmp_path / "x.npz",
        coords=frame["t"].to_numpy().reshape(6, 8),
        values=frame.iloc[:, 2:].to_numpy().reshape(6, 8, 2),
    )
    assert cst("fit", tmp_path / "x.npz", "--out", tmp_path / "m", *TINY)[0] == 0
    assert json.loads((tmp_path / "m" / "model.json").read_text())["names"]["value_names"] == ["value0", "value1"]
    ask = ["predict", tmp_path / "m", table, "--at", "2.5", "--out", tmp_path / "a.csv", "--sample", "subject"]
    assert cst(*ask)[0] == 0
    assert list(pd.read_csv(tmp_path / "a.csv").columns) == ["subject", "t", "glucose", "insulin"]


def test_samples_without_values_in_python():
    frame = people(3)
    frame.loc[frame["subject"] == "p01", ["glucose", "insulin"]] = np.nan
    with pytest.warns(CSTWarning, match="left out sample 'p01' without any value"):
        samples = Samples.from_frame(frame, group="subject")
    assert samples.sample_ids == ("p00", "p02")
    assert samples.values[1, :, 0].tolist() == frame["glucose"][16:].tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Samples.from_frame(samples.to_frame(), group="subject").equals(samples)
    with pytest.raises(CSTError, match="unknown column in group= 'subjekt'; did you mean 'subject'"):
        Samples.from_frame(frame, group="subjekt")
