"""Times of frames from files."""

import numpy as np
import pytest
from small_models import refused

from cstformer.data.clocks import describe_clock, load_times

TIMES = [0.0, 0.1, 0.3, 0.41]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "0.0\n0.1\n0.3\n0.41\n"),
        ("a.csv", "0.0\n0.1\n0.3\n0.41\n"),
        ("a.csv", "frame,time [ms]\n0,0\n1,100\n3,300\n4,410\n"),
        ("a.tsv", "Timestamp [s]\tlamp\n0\tblue\n0.1\tviolet\n0.3\tblue\n0.41\tviolet\n"),
        ("a.csv", "onset of the pulse\n0\n0.1\n0.3\n0.41\n"),
    ],
)
def test_text_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    np.testing.assert_allclose(load_times(tmp_path / name), TIMES)


def test_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.array(TIMES)[:, None])
    np.savez(tmp_path / "a.npz", times=TIMES)
    assert load_times(tmp_path / "a.npy").tolist() == load_times(tmp_path / "a.npz").tolist() == TIMES


def test_a_counter_has_gaps_where_frames_were_dropped(tmp_path):
    (tmp_path / "a.csv").write_text("counter\n7\n8\n11\n")
    np.testing.assert_allclose(load_times(tmp_path / "a.csv", rate=20.0), [0.35, 0.4, 0.55])
    refused(lambda: load_times(tmp_path / "a.csv"), "counts frames (column 'counter')", "rate in Hz too")


def test_refusals(tmp_path):
    for text, words in [
        ("a,b\n1,2\n", "no column 'time' or 'frame' but a, b"),
        ("time\n0\n\n0.2\nx\n", "real numbers"),
        ("time\n0\nnan\n", "time 2 of 2 is nan"),
        ("0\n0.2\n0.1\n", "0.1 follows 0.2 (row 3)"),
        ("time [hours]\n0\n", "unit of the column 'time [hours]'"),
    ]:
        (tmp_path / "a.csv").write_text(text)
        refused(lambda: load_times(tmp_path / "a.csv"), words)
    refused(lambda: load_times(tmp_path / "a.doc"), "kind of file for times")
    refused(lambda: load_times(tmp_path / "b.npy"), "no such file")
    np.save(tmp_path / "b.npy", np.zeros((2, 2)))
    refused(lambda: load_times(tmp_path / "b.npy"), "shape (2, 2)")
    np.save(tmp_path / "c.npy", np.array([{}], dtype=object))
    refused(lambda: load_times(tmp_path / "c.npy"), "Python objects")


def test_description():
    assert describe_clock(None) == "no times"
    assert describe_clock(np.array([1.0])) == "times 1 to 1"
    assert describe_clock(np.arange(4) / 10) == "times 0 to 0.3, step 0.1"
    jittered = np.array([0.0, 0.11, 0.2, 0.3, 0.6, 0.7])
    assert describe_clock(jittered) == "times 0 to 0.7, step 0.1, 2 missing, jitter 7.1 % of a step"
