"""``cst fit --modes``: a movie becomes a series of spatial modes, and answers are frames again."""

import numpy as np
import pytest
from small_models import patched_kernel

from cstformer import CST, Modes, load_movie

SMOKE = ["--preset", "smoke", "--steps", "5", "--quiet"]
ROWS = np.arange(9.0)
MAPS = np.stack([np.outer(np.sin(0.4 * ROWS), np.cos(0.3 * ROWS)), np.outer(1 + 0 * ROWS, np.sin(0.8 * ROWS))])
TIMES = 0.5 * np.arange(80)


def movie(times, order=0):
    """Two maps with sines of time, or a derivative of them; the mean is 3."""
    rate = np.array([0.5, 0.9])
    courses = rate**order * np.sin(rate * np.asarray(times)[:, None] + np.array([0.0, 1.0]) + order * np.pi / 2)
    return 3.0 * (order == 0) + np.tensordot(courses, MAPS, 1)


@pytest.fixture
def file(tmp_path):
    frames = movie(TIMES)
    frames[:, 0, 0] = np.nan  # outside the cortex
    np.savez(tmp_path / "movie.npz", movie=frames, times=TIMES)
    return tmp_path / "movie.npz"


def test_a_movie_through_modes_and_back(cst, file, tmp_path):
    fit = ["fit", file, "--out", tmp_path / "m", "--modes", "auto", "--window", "16", *SMOKE]
    assert cst(*fit) == (0, "", "")
    assert {f.name for f in (tmp_path / "m").iterdir()} == {"model.json", "model.safetensors", "modes"}
    model, modes = CST.load(tmp_path / "m"), Modes.load(tmp_path / "m" / "modes")
    assert modes.rank_ == 2 and model.names_["value_names"] == ["mode_1", "mode_2"]
    assert model.scaling_.span[0] == 7.5  # windows of 16 frames
    at = [0.0, 3.3, 20.2, 39.5]
    ask = ["predict", tmp_path / "m", file, "--at", ",".join(map(str, at)), "--out", tmp_path / "o.npz", "--quiet"]
    for options, order in (([], 0), (["--derivative", "1"], 1)):
        assert cst(*ask, *options) == (0, "", "")
        with np.load(tmp_path / "o.npz") as answer:
            frames, times = answer["values"], answer["times"]
        assert times.tolist() == at and frames.shape == (4, 9, 9) and np.isnan(frames[:, 0, 0]).all()
        inside = np.s_[1:3] if order else np.s_[:]  # at the ends a slope is one-sided
        error = (frames - movie(at, order))[inside].reshape(-1, 81)[:, 1:]
        assert np.sqrt(np.square(error).mean()) < 0.1 * movie(TIMES, order).std()
    assert cst(*fit) == (0, "", "")  # the old model and its modes are replaced


def test_components_in_and_out(cst, file, tmp_path):
    assert cst("fit", file, "--out", tmp_path / "m", "--modes", "2", "--window", "16", *SMOKE)[0] == 0
    for order in ("0", "1"):
        ask = ["predict", tmp_path / "m", file, "--at", "0:39:0.3", "--derivative", order, "--quiet", "--out"]
        assert cst(*ask, tmp_path / "o.npz")[0] == cst(*ask, tmp_path / f"o{order}")[0] == 0
        (frames, times), (back, clock) = load_movie(tmp_path / "o.npz"), load_movie(tmp_path / f"o{order}")
        assert clock.tolist() == times.tolist()
        np.testing.assert_allclose(back[:, 1:], frames[:, 1:], atol=1e-5)
    assert np.load(tmp_path / "o0" / "SVT.npy").shape == (2, len(times))


def test_intervals_are_two_more_movies(cst, refused, file, tmp_path):
    ask = ["predict", tmp_path / "m", file, "--at", "5.2,20.2", "--quiet", "--interval", "0.8", "--out"]
    with patched_kernel():
        fit = ["fit", file, "--out", tmp_path / "m", "--modes", "2", "--window", "8", *SMOKE, "--validation", "0.3"]
        assert cst(*fit)[0] == 0
    assert cst(*ask, tmp_path / "o.npz") == (0, "", "")
    values, low, high = (load_movie(tmp_path / f"o{end}.npz")[0] for end in ("", "_low", "_high"))
    assert values.shape == (2, 9, 9) and np.isnan(low[:, 0, 0]).all()
    moves = np.abs(MAPS).sum(0) > 0.1  # the other pixels are constant
    assert ((low < values) & (values < high))[:, moves].all()
    refused([*ask, tmp_path / "folder"], "bounds are not sums of modes")
    refused([*ask[:-2], "0.99", "--out", tmp_path / "p.npz"], "needs 99 held-out windows")


def test_the_number_of_modes_is_told(cst, file, tmp_path):
    with patched_kernel():
        code, out, _ = cst("fit", file, "--out", tmp_path / "m", "--modes", "1", *SMOKE[:-1])
    assert code == 0 and out.startswith("1 spatial modes explain ")
    assert Modes.load(tmp_path / "m" / "modes").rank_ == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--modes", "some"], "--modes some: give a number of modes, or auto"),
        (["--modes", "100"], "rank=100 is more than the 80"),
        (["--modes", "2", "--patch", "4,4"], "--patch and --modes are two ways to read a movie"),
        (["--modes", "2", "--window", "1.5"], "--window 1.5: give a whole number of frames"),
        (["--modes", "2", "--calendar", "hour"], "--covariates, --calendar and --relative are for samples"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_refusals(refused, file, tmp_path, options, words):
    refused(["fit", file, "--out", tmp_path / "m", *SMOKE, *options], words)


def test_refusals_of_predict(refused, cst, file, tmp_path):
    assert cst("fit", file, "--out", tmp_path / "m", "--modes", "2", *SMOKE)[0] == 0
    ask = ["predict", tmp_path / "m"]
    refused([*ask, file, "--at", "0", "--out", tmp_path / "o.csv"], "frames are written as .npz")
    refused([*ask, file, "--at", "0", "--out", tmp_path / "o.npz", "--derivative", "1,0,0"], "1 coordinate axes")
    np.savez(tmp_path / "small.npz", movie=np.zeros((9, 4, 4)))
    refused([*ask, tmp_path / "small.npz", "--at", "0", "--out", tmp_path / "o.npz"], "frames have shape (4, 4)")
