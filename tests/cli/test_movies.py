"""Commands on the files of the field: which array, which colour, when."""

import numpy as np
import pytest
import tifffile
import zarr
from recordings import FRAMES, TIMES, write_dat, write_nwb, write_svd

from cstformer import CST, load_movie

BLUE, VIOLET = FRAMES[:, 0], FRAMES[:, 1]
QUICK = ("--patch", "4,4", "--window", "4", "--preset", "smoke", "--steps", "1", "--quiet")


def write(folder, kind):
    """A file with one colour (``dat`` and ``hyperstack``: with two)."""
    if kind == "dat":
        return write_dat(folder)
    if kind == "svd":
        write_svd(folder)
        return folder
    path = folder / f"a.{'tif' if kind == 'hyperstack' else kind}"
    if kind == "nwb":
        write_nwb(path, ("blue", 470.0, BLUE, {"timestamps": TIMES[::2]}))
    elif kind == "tif":
        tifffile.imwrite(path, BLUE, imagej=True, metadata={"axes": "TYX", "finterval": 0.1})
    else:
        tifffile.imwrite(path, FRAMES, imagej=True, metadata={"axes": "TCYX"})
    return path


@pytest.mark.parametrize("kind", ["nwb", "tif", "svd", "dat", "hyperstack"])
def test_fit_and_predict(cst, tmp_path, kind):
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data", kind)
    clock = {"dat": ("--channel", "1", "--rate", "20"), "hyperstack": ("--channel", "1", "--rate", "20")}
    reading = clock.get(kind, ("--rate", "10") if kind == "svd" else ())
    assert cst("fit", path, "--out", tmp_path / "m", *QUICK, *reading)[0] == 0
    assert CST.load(tmp_path / "m").layout_.frame == (5, 4)
    code, _, err = cst("predict", tmp_path / "m", path, "--at", "0.1,0.12", "--out", tmp_path / "o.npz", *reading)
    assert (code, err) == (0, "")
    assert np.load(tmp_path / "o.npz")["values"].shape == (2, 5, 4)


@pytest.mark.parametrize(("kind", "out"), [("nwb", "o.nwb"), ("tif", "o.tif"), ("svd", "o")])
def test_answers_in_the_files_of_the_field(cst, refused, tmp_path, kind, out):
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data", kind)
    reading = ("--rate", "10") if kind == "svd" else ()
    assert cst("fit", path, "--out", tmp_path / "m", *QUICK, *reading)[0] == 0
    ask = ["predict", tmp_path / "m", path, "--at", "0:0.5:0.05", *reading, "--out"]
    assert cst(*ask, tmp_path / "o.npz")[0] == cst(*ask, tmp_path / out)[0] == 0
    expected, times = load_movie(tmp_path / "o.npz")
    answer, clock = load_movie(tmp_path / out)
    assert clock.tolist() == times.tolist() and len(times) == 11
    if kind == "svd":  # what the components can show of it
        U = np.load(path / "U.npy").reshape(20, 3)
        expected = (U @ np.linalg.pinv(U) @ expected.reshape(11, 20).T).T.reshape(11, 5, 4)
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    refused([*ask, path], "would change the input")


@pytest.mark.parametrize("suffix", ["npz", "zarr"])
def test_intervals_are_two_more_movies(cst, refused, tmp_path, suffix):
    frames = np.random.default_rng(0).normal(size=(80, 5, 4))
    np.savez(tmp_path / "movie.npz", values=frames, times=np.arange(80.0))
    training = ("--patch", "5,4", "--window", "4", "--stride", "4", "--preset", "smoke", "--steps", "2", "--quiet")
    assert cst("fit", tmp_path / "movie.npz", "--out", tmp_path / "m", *training, "--validation", "0.3")[0] == 0
    ask = ["predict", tmp_path / "m", tmp_path / "movie.npz", "--at", "5.5,9", "--interval", "0.8", "--out"]
    code, out, err = cst(*ask, tmp_path / f"o.{suffix}", *(["--quiet"] if suffix == "zarr" else []))
    assert (code, err) == (0, "") and (suffix == "zarr" or out.endswith("2 × 5 × 4 values\n"))
    low, middle, high = (load_movie(tmp_path / f"o{end}.{suffix}")[0] for end in ("_low", "", "_high"))
    assert middle.shape == (2, 5, 4) and (low < middle).all() and (middle < high).all()
    if suffix == "zarr":
        refused([*ask, tmp_path / "o.zarr"], "exists already; give --overwrite")
        assert cst(*ask, tmp_path / "o.zarr", "--quiet", "--overwrite")[0] == 0
    np.savez(tmp_path / "movie_low.npz", values=frames)
    ask[2] = tmp_path / "movie_low.npz"
    refused([*ask, tmp_path / "movie.npz"], "movie_low.npz would change the input")
    refused([*ask, tmp_path / "p.npz", "--scheduler", "tcp://127.0.0.1:1"], "a cluster writes .zarr, .tif, .tiff")


@pytest.mark.parametrize("kind", ["dat", "hyperstack"])
def test_two_colours_are_not_trained_on_unasked(cst, refused, tmp_path, kind):
    path = write(tmp_path, kind)
    command = f"cst data preprocess-calcium {path} --wavelengths 470,405 --signal 470 --control 405 --out clean.zarr"
    refused(["fit", path, "--out", tmp_path / "m", *QUICK], "has two colours", command, "--channel 0 or 1")
    refused(["fit", path, "--out", tmp_path / "m", *QUICK, "--channel", "2"], "channel 2 does not exist")
    refused(["fit", path, "--out", tmp_path / "m", *QUICK, "--channel", "blue"], "--channel blue: give a number")
    assert cst("fit", path, "--out", tmp_path / "m", *QUICK, "--channel", "all")[0] == 0
    assert CST.load(tmp_path / "m").layout_.channels == 2


def test_frames_are_trained_at_their_own_times(cst, refused, tmp_path):
    path = write_dat(tmp_path)
    (tmp_path / "pulses.csv").write_text("time [ms]\n" + "".join(f"{1000 * t}\n" for t in TIMES))
    options = ["--channel", "0", "--times", tmp_path / "pulses.csv"]
    assert cst("fit", path, "--out", tmp_path / "m", *QUICK, *options)[0] == 0
    # Windows of four frames at 0, 0.1, 0.2, 0.4, 0.5, 0.6 s: the longest lasts 0.4 s.
    assert CST.load(tmp_path / "m").scaling_.span[0] == pytest.approx(0.4)
    (tmp_path / "short.txt").write_text("0\n0.1\n")
    words = ("2 times for 6 frames of 2 colours each, 12 raw frames", "one time for each frame that was saved")
    refused(["fit", path, "--out", tmp_path / "n", *QUICK, "--channel", "0", "--times", tmp_path / "short.txt"], *words)


def test_show(cst, tmp_path):
    path = write_dat(tmp_path)
    np.save(tmp_path / "t.npy", TIMES)
    code, out, _ = cst("data", "show", path, "--times", tmp_path / "t.npy", "--channel", "1")
    assert code == 0
    clock = "times 0.05 to 0.65, step 0.1, 1 missing, jitter 7.1 % of a step"
    assert out.startswith(
        f"movie of 6 frames of 5 × 4 (uint16), {clock}\nvalues {VIOLET.min():.4g} to {VIOLET.max():.4g}\n"
    )
    assert "next: cst fit" in out
    assert "next: cst data preprocess-calcium" in cst("data", "show", path)[1]
    write_nwb(tmp_path / "a.nwb", ("a", 470.0, BLUE, {"rate": 10.0}), ("b", None, VIOLET, {"rate": 10.0}))
    _, out, _ = cst("data", "show", tmp_path / "a.nwb")
    assert "a: movie of 6 frames" in out and "b: movie of 6 frames" in out
    assert "next: cst data preprocess-calcium" in out
    (tmp_path / "svd").mkdir()
    write_svd(tmp_path / "svd")
    assert "movie of 6 frames of 5 × 4 (float64), no times" in cst("data", "show", tmp_path / "svd")[1]


def test_preprocessing_reads_them_too(cst, tmp_path):
    raw = np.random.default_rng(0).integers(5000, 6000, (120, 2, 6, 4)).astype(np.uint16)
    path = write_dat(tmp_path, raw)
    options = ["--wavelengths", "470,405", "--signal", "470", "--control", "405", "--rate", "20", "--bin", "1"]
    code, out, err = cst("data", "preprocess-calcium", path, "--out", tmp_path / "clean.zarr", *options)
    assert code == 0, err
    assert "470 nm: 120 × 6 × 4 frames at 10 Hz, 0 dropped" in out
    assert zarr.open_group(tmp_path / "clean.zarr", mode="r")["frames"].shape == (120, 6, 4)


@pytest.fixture
def one_colour(tmp_path):
    """A stack of 120 frames that says nothing about itself."""
    raw = np.random.default_rng(0).integers(5000, 6000, (120, 6, 4)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "movie.tif", raw, photometric="minisblack")
    return tmp_path / "movie.tif"


def test_one_colour_needs_its_name_and_no_control(cst, refused, one_colour, tmp_path):
    command = ["data", "preprocess-calcium", one_colour, "--out", tmp_path / "clean.zarr", "--bin", "1"]
    refused(command, "nothing says which wavelength", "--wavelengths 470,405", "--signal 470 --correction none")
    refused([*command, "--signal", "470", "--correction", "none"], "--rate", "--times")
    code, out, err = cst(*command, "--signal", "470", "--correction", "none", "--rate", "30")
    assert code == 0, err
    assert "470 nm: 120 × 6 × 4 frames at 30 Hz" in out


def test_other_colours_than_the_defaults(cst, refused, one_colour, tmp_path):
    command = ["data", "preprocess-calcium", one_colour, "--out", tmp_path / "clean.zarr", "--rate", "60", "--bin", "1"]
    whole = f"cst data preprocess-calcium {one_colour} --out {tmp_path / 'clean.zarr'}"
    rest = "--wavelengths 405,470 --rate 60.0 --signal 470 --control 405 --bin 1"
    words = f"has frames at 405 and 470 nm, none at 575 and 395 nm; if 470 nm is the signal, run: {whole} {rest}"
    refused([*command, "--wavelengths", "405,470"], words)
    refused([*command, "--wavelengths", "470"], "--signal 470", "--correction none")
    assert cst(*f"{whole} {rest} --correction none".split()[1:])[0] == 0


def test_help_says_what_one_colour_needs(cst):
    _, out, _ = cst("data", "preprocess-calcium", "--help")
    for words in ("--signal 470 --correction none", "--wavelengths 470,405", "575 nm and 395 nm, the defaults"):
        assert words in out
