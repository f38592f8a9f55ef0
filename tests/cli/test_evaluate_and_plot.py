"""``cst evaluate`` and ``cst plot``: what a user types, what is printed, which file appears."""

import re

import pytest
from matplotlib.image import imread
from small_models import waves

from cstformer import Samples


@pytest.fixture
def many(tmp_path):
    waves(32).to_frame().to_csv(tmp_path / "many.csv", index=False)
    return tmp_path / "many.csv"


def test_evaluate_prints_every_model_and_writes_a_figure(cst, many, tmp_path):
    out = tmp_path / "figure.png"
    code, told, err = cst("evaluate", many, "--out", out, "--preset", "smoke", "--steps", "2", "--quiet")
    assert code == 0, err
    lines = told.splitlines()
    assert re.fullmatch(r"trained on 24 samples, asked for \d+ hidden cells of 8 others", lines[0])
    names = [line[:20].strip() for line in lines[2:8]]
    assert names == ["model", "CST", "Linear interpolation", "Cubic spline", "Gaussian process", "Last value"]
    assert all(re.search(r"[+-]\d+% \([+-]\d+% to [+-]\d+%\) +\d of 8$", line) for line in lines[4:8])
    assert lines[9].startswith("On these data ") and lines[11] == f"wrote {out}"
    assert lines[10].startswith("CST has no intervals; 90% intervals need 9 held-out training samples")
    assert max(map(len, lines[2:8])) <= 80
    assert imread(out).std() > 0


def test_evaluate_tells_the_coverage_of_intervals(cst, many, tmp_path):
    command = ["evaluate", many, "--out", tmp_path / "e.png", "--preset", "smoke", "--steps", "2", "--quiet"]
    code, told, err = cst(*command, "--validation", "0.5")
    found = re.search(r"^Intervals of CST at 90% cover ([\d.]+)% of the hidden cells\.$", told, re.M)
    assert code == 0 and found and 60 < float(found[1]) <= 100, err
    code, told, err = cst(*command, "--validation", "0.2")  # five samples allow 83 %
    assert re.search(r"^Intervals of CST at 83% cover [\d.]+% of the hidden cells; 90% intervals need 9", told, re.M)


def test_evaluate_cuts_a_long_recording(cst, tmp_path):
    waves(1, points=200).to_frame().to_csv(tmp_path / "one.csv", index=False)
    command = ["evaluate", tmp_path / "one.csv", "--preset", "smoke", "--steps", "1", "--quiet"]
    code, told, err = cst(*command, "--window", "0.3", "--out", tmp_path / "e.png")
    assert code == 0 and "hidden cells" in told, err


def test_evaluate_refuses_before_it_trains(refused, many, tmp_path):
    waves(1).to_frame().to_csv(tmp_path / "one.csv", index=False)
    refused(["evaluate", tmp_path / "one.csv", "--out", tmp_path / "e.png"], "too few", "--window")
    refused(["evaluate", many, "--out", "e.pdf"], "e.pdf", ".png")
    refused(["evaluate", many, "--stride", "1"], "--stride needs --window")


def test_plot_of_a_file_and_of_a_model(cst, curves, model, tmp_path):
    out = tmp_path / "curves.png"
    assert cst("plot", curves, "--out", out) == (0, f"wrote {out}\n", "")
    plain = imread(out)
    assert cst("plot", curves, "--model", model, "--rivals", "linear,cubic", "--out", out)[0] == 0
    assert imread(out).shape != plain.shape or (imread(out) != plain).any()
    chosen = cst("plot", curves, "--samples", "cell 4,cell 1", "--channels", "y1", "--out", out)
    assert chosen[0] == 0 and imread(out).shape[0] < plain.shape[0]  # one row of panels, not two


def test_plot_refuses_unknown_names(refused, curves, model, tmp_path):
    out = tmp_path / "x.png"
    assert Samples.load(curves).sample_ids[0] == "cell 0"
    refused(["plot", curves, "--samples", "cel 4", "--out", out], "unknown sample 'cel 4'", "did you mean 'cell 4'")
    refused(["plot", curves, "--model", model, "--rivals", "cubik", "--out", out], "did you mean 'cubic'")
    refused(["plot", curves, "--channels", "y7", "--out", out], "y7", "y0, y1")
