"""Imputation data sets: their protocols on small hand-made files, and the motion of the oscillators."""

import numpy as np
import pandas as pd
import pytest

from cstformer.datasets import physionet
from cstformer.datasets.era5 import era5_task, field_task
from cstformer.datasets.ett import ett_task
from cstformer.datasets.gaps import error_sums
from cstformer.datasets.oscillators import oscillator_task, ring_motion
from cstformer.datasets.physionet import physionet_task
from cstformer.errors import CSTError

HOURS = pd.date_range("2016-07-01", "2018-06-26 19:00", freq="h")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CST_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def ett(folder):
    """Two channels: hours since the start, and the number of the calendar month."""
    number = np.arange(len(HOURS), dtype=float)
    month = (HOURS.year - 2016) * 12 + HOURS.month - 7
    (folder / "ett").mkdir()
    pd.DataFrame({"date": HOURS, "HUFL": number, "OT": month}).to_csv(folder / "ett" / "ETTh1.csv", index=False)
    return number


def test_ett_splits_by_calendar_month_and_standardises_by_the_first_14(ett):
    for part, first, months, count in (
        ("validation", "2017-09-01", (14, 18), 76),
        ("test", "2018-02-01", (19, 23), 72),
    ):
        task = ett_task(0.0, part)
        assert (len(task.train), len(task.context)) == (213, count)  # as TSI-Bench counts them
        assert task.context.sample_ids[0] == f"{first}T00" and not task.asked.any()
        training = ett[HOURS < "2017-09-01"]
        back = task.truth[..., 0] * training.std() + training.mean()
        assert back[0, 0] == pytest.approx(ett[first == HOURS.strftime("%Y-%m-%d")][0])
        assert np.allclose(np.diff(back.ravel()), 1)  # windows lie side by side
        month = (HOURS.year - 2016) * 12 + HOURS.month - 7
        of_training = month[HOURS < "2017-09-01"].to_numpy()
        found = task.truth[..., 1] * of_training.std() + of_training.mean()
        assert (round(found.min()), round(found.max())) == months


def test_ett_deals_all_windows_at_random(ett):
    """Each window is in one part, and the parts have windows of the whole two years."""
    parts = [ett_task(0.0, part, seed=1, mixed=True) for part in ("validation", "test")]
    assert [(len(task.train), len(task.context)) for task in parts] == [(213, 76), (213, 72)]
    assert np.array_equal(parts[0].train.values, parts[1].train.values)
    first = np.concatenate([parts[0].train.values[:, 0, 0], *(task.truth[:, 0, 0] for task in parts)])
    assert len(np.unique(first.round(6))) == 213 + 76 + 72
    days = [day for task in parts for day in task.context.sample_ids]
    assert min(days) < "2016-09" and max(days) > "2018-04"
    training = ett[HOURS < "2017-09-01"]
    hour = parts[1].truth[3, 0, 0] * training.std() + training.mean()
    assert HOURS[round(hour)].strftime("%Y-%m-%dT%H") == parts[1].context.sample_ids[3]
    other = ett_task(0.0, "test", seed=2, mixed=True)
    assert other.context.sample_ids != parts[1].context.sample_ids


def test_ett_removes_cells_by_seed_and_never_gives_what_it_asks(ett):
    task, same, other = ett_task(0.5, seed=1), ett_task(0.5, seed=1), ett_task(0.5, seed=2)
    assert task.asked.mean() == pytest.approx(0.5, abs=0.02)
    assert task.train.observed.mean() == pytest.approx(0.5, abs=0.02)
    assert (task.asked == same.asked).all() and (task.asked != other.asked).any()
    assert (task.asked == ~task.context.observed).all()
    assert (task.context.values[task.asked] == 0).all()


def test_parts_and_missing_files_are_named(folder):
    with pytest.raises(
        CSTError, match=r"ETTh1 needs ett/ETTh1\.csv in the folder that CST_DATA names; get it from http"
    ):
        ett_task(0.1)
    with pytest.raises(CSTError, match=r"PhysioNet 2012 needs physionet2012/set_a\.parquet"):
        physionet_task()
    with pytest.raises(CSTError, match=r"ERA5 needs era5_uk/"):
        era5_task()
    with pytest.raises(CSTError, match="unknown part 'tset'; did you mean 'test'"):
        oscillator_task(part="tset")


def test_an_ett_file_with_a_gap_is_refused(folder):
    (folder / "ett").mkdir()
    table = pd.DataFrame({"date": HOURS[[0, 1, 3]], "OT": [1.0, 2.0, 3.0]})
    table.to_csv(folder / "ett" / "ETTh1.csv", index=False)
    with pytest.raises(CSTError, match="one hour apart"):
        ett_task(0.1)


@pytest.fixture
def patients(folder):
    """20 patients of 10 points and one of 7; HR is the number of the record, plus the hour; pH is measured at times."""
    pytest.importorskip("pyarrow")
    rows = [
        {"record": r, "minutes": 60 * h, "Weight": 80.0, "HR": 100.0 * r + h, "pH": 7.0 if h % 3 == 0 else np.nan}
        for r in range(21)
        for h in range(7 if r == 20 else 10)
    ]
    (folder / "physionet2012").mkdir()
    pd.DataFrame(rows).sample(frac=1, random_state=0).to_parquet(folder / "physionet2012" / "set_a.parquet")
    physionet._read.cache_clear()


def test_physionet_gives_half_of_the_points_and_asks_for_the_others(patients):
    task = physionet_task()
    assert (len(task.train), len(task.context)) == (16, 4) and task.context.value_names == ("HR", "pH")
    assert (task.context.point_observed.sum(1) == 5).all() and (task.asked.any(-1).sum(1) == 5).all()
    for i in range(4):
        given = set(task.context.coords[i, task.context.point_observed[i], 0])
        asked = set(task.at[i, task.asked[i].any(-1), 0])
        assert given | asked == set(range(10)) and not given & asked
    measured = task.at[..., 0] % 3 == 0
    assert (task.asked[..., 0]).all() and (task.asked[..., 1] == measured).all()
    assert (physionet_task(seed=1).at != task.at).any()


def test_physionet_scales_by_training_patients_and_validates_on_some_of_them(patients):
    test, validation = physionet_task(), physionet_task("validation")
    assert test.train.values[..., 0].min() == 0 and test.train.values[..., 0].max() == 1
    assert (len(validation.train), len(validation.context)) == (13, 3)

    def ids(samples):  # patients are 100 apart, hours at most 9
        width = 1 / np.diff(np.unique(test.train.values[..., 0])).min()
        return {int(np.floor(y)) for y in (samples.values[..., 0].max(1) * width / 100)}

    assert not ids(validation.train) & ids(validation.context)
    assert ids(validation.train) | ids(validation.context) == ids(test.train)
    assert len(physionet_task(records=10).train) == 8


def test_fields_between_given_hours():
    movie = np.arange(170.0)[:, None, None] + np.zeros((1, 8, 8))
    task = field_task(movie)  # learns from hours 0 to 113, scores 114 to 169
    assert task.hours[:3].tolist() == [114, 120, 126] and task.hours[-1] == 168
    assert task.asked[:8].tolist() == [115, 116, 117, 118, 119, 121, 122, 123] and task.asked[-1] == 167
    scaled = (movie - movie[:114].mean()) / movie[:114].std()
    assert np.allclose(task.truth, scaled[task.asked.astype(int)])
    assert (task.given - scaled[114::6]).std() == pytest.approx(0.1, rel=0.2)
    assert task.flat.values.shape == (1, 10, 64) and task.learned.values.shape == (1, 19, 64)
    assert task.learned.coords.max() == 108  # the last given hour before those that are scored
    earlier = field_task(movie, "validation")  # learns from hours 0 to 77, scores 78 to 113
    assert earlier.hours[0] == 78 and earlier.asked.max() < 114


def test_ring_motion_solves_its_equation():
    rng = np.random.default_rng(0)
    frequency, coupling = rng.uniform(0.2, 0.5, (2, 4)), np.array([1.0, 5.0])
    position, velocity = rng.normal(size=(2, 4)), rng.normal(size=(2, 4))
    h = 1e-4
    t = np.array([0.0, h, 1.0 - h, 1.0, 1.0 + h])
    x = ring_motion(t, frequency, coupling, position, velocity)
    assert np.allclose(x[:, 0], position) and np.allclose((x[:, 1] - x[:, 0]) / h, velocity, atol=1e-2)
    acceleration = (x[:, 4] - 2 * x[:, 3] + x[:, 2]) / h**2
    now = x[:, 3]
    pull = np.roll(now, 1, axis=1) + np.roll(now, -1, axis=1) - 2 * now
    assert np.allclose(acceleration, -((2 * np.pi * frequency) ** 2) * now + coupling[:, None] * pull, atol=1e-5)


def test_oscillators_have_a_known_truth():
    task = oscillator_task(share=0.25, train=50, scored=200)
    noise = (task.context.values - task.truth)[task.context.observed]
    assert noise.std() == pytest.approx(0.05, rel=0.03) and task.asked.mean() == pytest.approx(0.25, abs=0.01)
    other = oscillator_task(share=0.25, train=50, scored=200, part="validation")
    assert (other.train.values == task.train.values).all() and (other.truth != task.truth).all()


def test_errors_count_asked_cells_only():
    truth, asked = np.zeros((2, 2, 2)), np.array([[[True, False], [True, True]], [[False, False], [False, True]]])
    sums = error_sums(np.full((2, 2, 2), -2.0), truth, asked)
    assert [x.tolist() for x in sums.values()] == [[6.0, 2.0], [12.0, 4.0], [3.0, 1.0]]
