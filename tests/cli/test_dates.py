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
