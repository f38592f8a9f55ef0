"""Timestamps through the command line: CSV and Parquet in, dates in queries and answers, time zones, repeated times."""

import numpy as np
import pandas as pd
import pytest

TINY = ["--preset", "smoke", "--steps", "2", "--quiet"]


def stations(zone: str = "") -> pd.DataFrame:
    """Four stations, a value every three hours over two days."""
    times = pd.date_range("2024-05-01", periods=16, freq="3h").strftime("%Y-%m-%dT%H:%M:%S") + zone
    frame = pd.DataFrame({"station": np.repeat([*"abcd"], 16), "timestamp": np.tile(times, 4)})
    return frame.assign(temp=np.random.default_rng(0).normal(15, 5, len(frame)))


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_dates_in_and_out(cst, tmp_path, suffix, zone):
    table, frame = tmp_path / f"x.{suffix}", stations(zone)
    if suffix == "csv":
        frame.to_csv(table, index=False)
    else:
        frame.assign(timestamp=pd.to_datetime(frame["timestamp"])).to_parquet(table)
    assert cst("fit", table, "--out", tmp_path / "m", "--sample", "station", *TINY) == (0, "", "")
    asked = f"2024-05-01T10:30:00{zone}"
    pd.DataFrame({"station": ["c"], "timestamp": [asked]}).to_csv(tmp_path / "q.csv", index=False)
    for at in (tmp_path / "q.csv", asked):
        ask = ["predict", tmp_path / "m", table, "--at", at, "--out", tmp_path / f"a.{suffix}", "--quiet"]
        assert cst(*ask) == (0, "", "")
        answer = pd.read_csv(tmp_path / "a.csv") if suffix == "csv" else pd.read_parquet(tmp_path / "a.parquet")
        assert set(pd.to_datetime(answer["timestamp"])) == {pd.Timestamp(asked)}
        assert answer["station"].tolist() == (["c"] if at != asked else [*"abcd"])


def test_mixed_time_zones_and_repeated_dates_get_a_word(cst, refused, tmp_path):
    frame = stations("Z")
    frame.loc[3, "timestamp"] = "2024-05-01T09:00:00+02:00"
    frame.to_csv(tmp_path / "x.csv", index=False)
    fit = ["fit", tmp_path / "x.csv", "--out", tmp_path / "m", "--sample", "station", *TINY]
    refused(fit, "column 'timestamp' mixes time zones (UTC, UTC+02:00); convert all its dates to one of them")
    frame = stations()
    frame.loc[3, "timestamp"] = frame.loc[2, "timestamp"]
    frame.to_csv(tmp_path / "x.csv", index=False)
    code, _, err = cst(*fit)
    assert code == 0 and "1 points in 1 samples repeat the coordinates of another point" in err
    fit[3] = tmp_path / "n"
    refused([*fit, "--strict"], "repeat the coordinates of another point")


def test_a_column_of_dates_is_the_time_whatever_its_name(cst, refused, tmp_path):
    stations().rename(columns={"timestamp": "when"}).to_csv(tmp_path / "x.csv", index=False)
    code, out, _ = cst("data", "show", tmp_path / "x.csv", "--sample", "station")
    assert code == 0 and "coordinate when [hours since 2024-05-01T00:00:00]" in out
    stations().rename(columns={"timestamp": "when"}).assign(end="2024-06-01").to_csv(tmp_path / "x.csv", index=False)
    refused(["data", "show", tmp_path / "x.csv", "--sample", "station"], "could all be the time; name the right one")


@pytest.mark.parametrize("text", ["01.05.2024 13:30", "5/1/24", "2024/05/01"])
def test_dates_in_which_day_and_month_could_be_confused(refused, tmp_path, text):
    (tmp_path / "x.csv").write_text(f"time;u\n{text};1\n{text};2\n")
    words = f"column 'time' has '{text}' in row 1, where day and month could be confused; write dates as 2024-05-01T13"
    refused(["data", "show", tmp_path / "x.csv"], words)


@pytest.mark.parametrize("zone", ["", "+02:00"])
def test_ranges_of_dates(cst, refused, tmp_path, zone):
    stations(zone).to_csv(tmp_path / "x.csv", index=False)
    assert cst("fit", tmp_path / "x.csv", "--out", tmp_path / "m", "--sample", "station", *TINY)[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "x.csv", "--out", tmp_path / "a.csv", "--quiet", "--at"]
    for step in ("90min", "1.5"):  # a number counts hours
        assert cst(*ask, f"2024-05-01T06:00{zone}:2024-05-01T12:00:00{zone}:{step}") == (0, "", "")
        times = pd.to_datetime(pd.read_csv(tmp_path / "a.csv")["timestamp"]).unique()
        expected = pd.date_range(f"2024-05-01T06:00{zone}", periods=5, freq="90min")
        assert times.tolist() == expected.tolist()
    for step in ("soon", "9d"):
        refused([*ask, f"2024-05-01:2024-05-02:{step}"], "a step such as 6h or 30min that fits between them")
