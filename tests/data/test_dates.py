"""Dates as a time axis, and the calendar."""

import math

import numpy as np
import pandas as pd
import pytest

from cstformer.data.calendar import Calendar
from cstformer.data.checks import date_queries, from_model_epoch
from cstformer.data.dates import Clock
from cstformer.data.queries import load_queries
from cstformer.data.samples import Samples
from cstformer.errors import CSTError

DAY = ["2024-05-01T06:00", "2024-05-01T07:30", "2024-05-02T06:00"]


def one_day(times=DAY, **options) -> Samples:
    return Samples.from_frame(pd.DataFrame({"time": times, "y": np.arange(len(times)) * 1.0}), **options)


@pytest.mark.parametrize("convert", [list, pd.to_datetime, lambda x: [pd.Timestamp(t) for t in x]])
def test_dates_become_hours_since_the_first(convert):
    s = one_day(convert(DAY))
    assert s.coords[0, :, 0].tolist() == [0.0, 1.5, 24.0]
    assert s.units == {"time": "hours since 2024-05-01T06:00:00"}
    assert "dates: 2024-05-01T06:00:00 to 2024-05-02T06:00:00" in s.describe()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz", "nc", "zarr"])
@pytest.mark.parametrize("zone", ["", "+02:00", "Z"])
def test_files_keep_dates(tmp_path, suffix, zone):
    s = one_day([t + zone for t in DAY])
    s.save(tmp_path / f"x.{suffix}")
    back = Samples.load(tmp_path / f"x.{suffix}")
    assert back.equals(s, tolerance=1e-9)
    assert back.units["time"].endswith("06:00:00" + {"Z": "+00:00"}.get(zone, zone))


def test_a_text_file_has_timestamps(tmp_path):
    one_day().save(tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text().splitlines()[:2] == ["sample,time,y", "0,2024-05-01 06:00:00,0.0"]


TIMES = {
    "zones": (["2024-05-01T06:00+02:00", "2024-05-01T07:00Z"], r"mixes time zones \(UTC, UTC\+02:00\)"),
    "zone and none": (["2024-05-01T06:00+02:00", "2024-05-01T07:00"], r"mixes time zones \(UTC\+02:00, none\)"),
    "no date": (["2024-05-01T06:00", "noon"], "column 'time' has 'noon' in row 2, which is no date of the form"),
    "no such day": (["2024-05-01", "2024-02-31"], "'2024-02-31' in row 2"),
    "summer time": (
        pd.to_datetime(["2024-03-30", "2024-04-01"]).tz_localize("Europe/Berlin"),
        "changes its offset from UTC",
    ),
}


@pytest.mark.parametrize(("times", "message"), TIMES.values(), ids=TIMES.keys())
def test_times_refused(times, message):
    with pytest.raises(CSTError, match=message) as caught:
        one_day(times)
    assert "\n" not in str(caught.value)


def stays() -> pd.DataFrame:
    """Two short stays, a year apart."""
    times = ["2023-05-01T06:00", "2023-05-01T08:00", "2024-05-01T18:00", "2024-05-01T21:00"]
    return pd.DataFrame({"sample": ["a", "a", "b", "b"], "time": times, "y": [1.0, 2.0, 3.0, 4.0]})


def test_short_samples_count_from_their_own_beginning():
    s = Samples.from_frame(stays())
    assert s.coords[..., 0].tolist() == [[0, 2], [0, 3]]
    assert s.origin[:, 0].tolist() == [0, 366 * 24 + 12]  # 2024 is a leap year
    absolute = Samples.from_frame(stays(), relative=False)
    assert absolute.coords[1, 0, 0] == 366 * 24 + 12 and not absolute.origin.any()
    assert [str(t) for t in s.to_frame()["time"]] == [str(pd.Timestamp(t)) for t in stays()["time"]]


def test_concatenation_counts_from_one_date():
    a, b = one_day(DAY[:2]), one_day(DAY[1:]).replace(sample_ids=["b"])
    both = Samples.concatenate([a, b])
    assert both.coords[..., 0].tolist() == [[0, 1.5], [1.5, 24]] and both.units == a.units


def test_the_epoch_of_a_model_is_kept():
    names = {"coord_names": ["time"], "units": one_day().units, "relative": False}
    later = one_day(["2024-05-02T06:00", "2024-05-02T07:00"])
    context, queries = from_model_epoch(later, np.array([[[0.5]]]), names)
    assert context.coords[0, :, 0].tolist() == [24, 25] and queries.tolist() == [[[24.5]]]
    context, queries = from_model_epoch(later, np.array([[[0.5]]]), names | {"relative": True})
    assert context.coords[0, :, 0].tolist() == [0, 1] and queries.tolist() == [[[0.5]]]
    assert context.origin.tolist() == [[24]]
    zoned = one_day(["2024-05-02T06:00Z"])
    with pytest.raises(CSTError, match="with and without a time zone"):
        from_model_epoch(zoned, np.zeros((1, 1, 1)), names)


def test_queries_that_are_dates(tmp_path):
    context = Samples.from_frame(stays())
    dates = np.array(["2024-05-01T19:30"], dtype="datetime64[m]")
    assert date_queries(context, dates)[1].tolist() == [[1.5]]
    pd.DataFrame({"sample": ["b"], "time": ["2024-05-01T19:30"]}).to_csv(tmp_path / "q.csv", index=False)
    coords, exists = load_queries(tmp_path / "q.csv", context)
    assert coords[1, 0, 0] == 1.5 and exists.tolist() == [[False], [True]]


def test_units_of_other_lengths():
    assert Clock.parse("days since 2024-05-01").coords(np.array(["2024-05-02T12"], "datetime64")).tolist() == [1.5]
    assert Clock.parse("hours since yesterday") is None and Clock.parse("s") is None


# The calendar


def angles(samples: Samples, name: str) -> np.ndarray:
    """θ at every point (N, n) in turns, by the formula of a fitted model."""
    low, span = np.array([samples.coords.min()]), np.array([np.ptp(samples.coords)])
    calendar = Calendar.of(samples.replace(calendar=[name]), span)
    x = (samples.coords[..., 0] - low) / span
    return (calendar.rates[0] * x + calendar.phases(samples, low)) / (2 * math.pi) % 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hour", [[0.25, 8 / 24], [0.75, 21 / 24]]),
        ("weekday", [[0.25 / 7, 1 / 21], [2.75 / 7, 2.875 / 7]]),  # 1 May: a Monday in 2023, a Wednesday in 2024
        ("day", [[0.3293, 0.3295], [0.3322, 0.3325]]),  # the 120th and the 121st day, and the hours
    ],
)
def test_the_calendar_is_that_of_absolute_times(name, expected):
    stay = Samples.from_frame(stays())
    tolerance = 3e-3 if name == "day" else 1e-9  # a mean year drifts by up to a day from the civil one
    for samples in (stay, Samples.from_frame(stays(), relative=False), stay.windows(length=10, stride=10)):
        assert angles(samples, name) == pytest.approx(np.array(expected), abs=tolerance)


def test_hours_are_local():
    late = angles(one_day(["2024-05-01T06:00+02:00", "2024-05-01T12:00+02:00"]), "hour")
    assert late == pytest.approx(np.array([[0.25, 0.5]]))


def test_a_calendar_needs_dates_and_known_names():
    with pytest.raises(CSTError, match="unknown calendar feature 'hours'; did you mean 'hour'"):
        one_day(calendar=["hours"])
    with pytest.raises(CSTError, match=r"calendar \['hour'\] needs dates as a time axis"):
        Samples([0.0, 1.0], [[1.0, 2.0]], calendar="hour")
    s = one_day(calendar=["weekday", "hour"])
    assert s.calendar == ("hour", "weekday") and repr(s).endswith("calendar hour, weekday)")
    with pytest.raises(CSTError, match="fitted with the calendar hour, weekday; these samples have no dates"):
        Calendar.of(s, np.ones(1)).phases(Samples([0.0], [[1.0]]), np.zeros(1))


def test_grids_keep_the_calendar(tmp_path):
    s = one_day(calendar="hour")
    for suffix in ("npz", "nc"):
        s.save(tmp_path / f"x.{suffix}")
        assert Samples.load(tmp_path / f"x.{suffix}").calendar == ("hour",)
