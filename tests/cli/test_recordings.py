"""One long recording in a table: ``cst fit --window``, then ``cst predict`` and ``cst explore`` on the whole of it."""

import numpy as np
import pandas as pd
import pytest
from small_models import patched_kernel

from cstformer import CST, Samples
from cstformer.cli import main


def signal(t: np.ndarray) -> np.ndarray:
    return np.sin(2 * np.pi * t / 9) * (1 + 0.5 * np.sin(2 * np.pi * t / 47))


def fit(path, out):
    with patched_kernel():
        options = ["--window", "15", "--preset", "smoke", "--steps", "20", "--quiet"]
        assert main(["fit", str(path), "--out", str(out), *options]) == 0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A recording of 200 time units that begins at 1000, in r.csv; queries at other times in q.csv; a model in m."""
    folder, rng = tmp_path_factory.mktemp("recording"), np.random.default_rng(0)
    t = 1000 + np.sort(rng.uniform(0, 200, 700))
    pd.DataFrame({"t": t, "u": signal(t) + 0.05 * rng.normal(size=t.shape)}).to_csv(folder / "r.csv", index=False)
    pd.DataFrame({"t": np.linspace(t[0], t[-1], 401)}).to_csv(folder / "q.csv", index=False)
    fit(folder / "r.csv", folder / "m")
    return folder


def test_predict_cuts_the_windows_of_the_training(cst, files, tmp_path):
    r, q, m = (files / name for name in ("r.csv", "q.csv", "m"))
    assert cst("predict", m, r, "--at", q, "--out", tmp_path / "a.csv", "--quiet") == (0, "", "")
    answer = pd.read_csv(tmp_path / "a.csv")
    at = pd.read_csv(q)["t"].to_numpy()
    assert answer["t"].to_numpy() == pytest.approx(at)
    error = np.sqrt(np.mean((answer["u"] - signal(at)) ** 2))
    # by hand: each time from the window in whose middle it lies
    model, windows = CST.load(m), Samples.load(r).windows(15, 7.5)
    begin = windows.origin[:, 0]
    inner = (at > begin[0] + 3) & (at < begin[-1] + 12)
    nearest = np.abs(at[:, None] - begin - 7.5).argmin(1)
    by_hand = np.concatenate(
        [
            model.predict(windows[int(k)], at[inner & (nearest == k)] - begin[k])[0, :, 0]
            for k in np.unique(nearest[inner])
        ]
    )
    assert error < 1.05 * np.sqrt(np.mean((by_hand - signal(at[inner])) ** 2))
    assert np.sqrt(np.mean((answer["u"][inner] - by_hand) ** 2)) < error


def test_derivatives_of_a_recording(cst, files, tmp_path):
    ask = ["predict", files / "m", files / "r.csv", "--quiet"]
    h = 0.01
    assert cst(*ask, "--at", "1050,1077.7", "--derivative", "1", "--out", tmp_path / "d.csv") == (0, "", "")
    at = [1050 - h, 1050 + h, 1077.7 - h, 1077.7 + h]
    assert cst(*ask, "--at", ",".join(map(str, at)), "--out", tmp_path / "v.csv") == (0, "", "")
    low, high = pd.read_csv(tmp_path / "v.csv")["u"].to_numpy().reshape(2, 2).T
    assert pd.read_csv(tmp_path / "d.csv")["u"].to_numpy() == pytest.approx((high - low) / (2 * h), abs=0.01)


def test_explore_shows_the_whole_recording(files):
    pytest.importorskip("panel")
    from cstformer.explorer.curves import curves, time_range
    from cstformer.explorer.exhibits import Exhibit

    exhibit = Exhibit.from_file(files / "m", files / "r.csv")
    assert exhibit.samples is not None and len(exhibit.samples) == 1
    reader = exhibit.model.reader(exhibit.samples)
    low, high = time_range(reader)
    assert 1000 < low < 1001 and 1199 < high < 1200
    at = np.linspace(low, high, 50)
    assert np.allclose(curves(reader, at)["CST"][0], exhibit.model.predict(exhibit.samples, at)[0])


def test_dated_recordings(cst, tmp_path):
    hours = np.arange(0.0, 120.0, 0.5)
    dates = pd.Timestamp("2024-05-01") + pd.to_timedelta(hours, unit="h")
    pd.DataFrame({"time": dates, "u": signal(hours)}).to_csv(tmp_path / "r.csv", index=False)
    fit(tmp_path / "r.csv", tmp_path / "m")
    at = "2024-05-02T13:15,2024-05-04T06:45"
    assert cst("predict", tmp_path / "m", tmp_path / "r.csv", "--at", at, "--out", tmp_path / "a.csv")[0] == 0
    answer = pd.read_csv(tmp_path / "a.csv")
    assert [str(pd.Timestamp(text)) for text in answer["time"]] == ["2024-05-02 13:15:00", "2024-05-04 06:45:00"]
    assert answer["u"].to_numpy() == pytest.approx(signal(np.array([37.25, 78.75])), abs=0.3)
