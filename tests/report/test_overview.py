"""The page over all experiments, and the command that makes it."""

import json

import pytest
from test_page import Page

from cstformer import cli
from cstformer.errors import CSTError
from cstformer.experiments import run_all as module
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.registry import EXPERIMENTS
from cstformer.experiments.run_all import run_all
from cstformer.report.page import results_in, write_overview
from cstformer.report.summary_chart import comparisons, plot_summary


@pytest.fixture
def two_runs(run_dir, result, tmp_path_factory):
    """A folder with the spirals run and a copy of it under another name."""
    folder = tmp_path_factory.mktemp("all")
    for name in ("video", "spirals"):
        (folder / name).mkdir()
        (folder / name / "result.json").write_text(json.dumps(result | {"experiment": name}))
        (folder / name / "figures").symlink_to(run_dir / "figures")
    return folder


def test_one_page_over_all_runs(two_runs, result):
    # Figures of another folder are not pulled in, not even through a link.
    with pytest.raises(CSTError, match="lies outside"):
        write_overview(two_runs)
    for name in ("video", "spirals"):
        (two_runs / name / "result.json").write_text(json.dumps(result | {"experiment": name, "figures": []}))
    page = Page(write_overview(two_runs, {"calcium": "no <data>"}).read_text())
    assert [run.name for run in results_in(two_runs)] == ["spirals", "video"]
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["#spirals", "#video", "./spirals/report.html", "./video/report.html"]
    assert (
        page.text.count("best error is 0.0298 ± 0.0041 , by CST; the paper has 0.03859") == 4
    )  # in short, and in full
    assert "calcium was not run: no <data>" in page.text
    assert page.text.count("cst run spirals --preset default") == 2


def test_the_overview_is_short_and_has_a_chart(two_runs, result):
    for name in ("video", "spirals"):
        (two_runs / name / "result.json").write_text(json.dumps(result | {"experiment": name, "figures": []}))
    page = Page(write_overview(two_runs).read_text())
    assert len(page.all("img")) == 1 and page.all("img")[0]["src"].startswith("data:image/png;base64,")
    assert page.all("details") == [{}, {}]  # tables are folded away


def test_the_chart_compares_cst_with_its_best_rival(result):
    clean, noisy = comparisons({"spirals": result})
    # The noise-free truth is no rival; the cubic spline is.
    assert (clean.rival, clean.condition, clean.metric) == ("cubic", "clean, regular", "error")
    assert clean.ratio == pytest.approx(0.029812 / 0.0376) and noisy.ratio == pytest.approx(0.0743 / 0.1068)
    # Of R², what is not explained counts: (1 − 0.9) / (1 − 0.8).
    scores = {"CST": 0.9, "first guess of CST": 0.99, "linear": 0.8}
    table = [{"model": m, "condition": "c", "metrics": {"R²": {"mean": s}}} for m, s in scores.items()]
    (only,) = comparisons({"calcium": {"table": table}})
    assert only.ratio == pytest.approx(0.5) and only.rival == "linear"
    for row in table:
        row["metrics"] = {"PSNR": {"mean": 20.0}}  # has no ratio
    assert comparisons({"video": {"table": table}}) == []
    drawn = plot_summary([clean, noisy]).axes[0].lines[1].get_xdata()
    assert drawn.tolist() == [clean.ratio, noisy.ratio]


def test_an_empty_folder_has_no_page(tmp_path):
    with pytest.raises(CSTError, match="holds no result"):
        write_overview(tmp_path)


class Tiny(Experiment):
    """One number, or no data."""

    presets = {"smoke": Cell("nobody", "nowhere")}  # noqa: RUF012  (any dataclass will do)
    parallel = False

    def __init__(self, name, fails=False):
        self.name, self.fails, self.computed, self.reason = name, fails, 0, "its data are not there"

    def cells(self, config):
        return [Cell("CST", "here")]

    def compute(self, cell, config, seed, folder, progress):
        self.computed += 1
        if self.fails:
            raise CSTError(self.reason)
        return CellResult({}, 1, 0.0, {})

    def gather(self, config, seed, results, out):
        rows = [table_row(cell, r, {"error": {"mean": 0.5, "std": 0.1, "n": 2}}) for cell, r in results.items()]
        return {"table": rows, "tests": [], "figures": [], "notes": []}


def test_all_experiments_run_and_resume(tmp_path, monkeypatch):
    tiny = {name: Tiny(name, fails=name == "calcium") for name in ("spirals", "calcium", "cost")}
    monkeypatch.setattr(module, "load_experiment", tiny.get)
    out, markdown = tmp_path / "all", tmp_path / "RESULTS.md"
    for _ in range(2):
        missing = run_all(list(tiny), "smoke", out, markdown=markdown, quiet=True)
        assert missing == {"calcium": "its data are not there"}
    assert {name: experiment.computed for name, experiment in tiny.items()} == {"spirals": 1, "calcium": 2, "cost": 1}
    text = markdown.read_text()
    assert text.index("## spirals") < text.index("## cost") and "calcium" not in text
    page = Page((out / "report.html").read_text())
    assert "calcium was not run: its data are not there" in page.text and (out / "cost" / "report.html").exists()
    with pytest.raises(CSTError, match="unknown preset 'huge'"):
        run_all(list(tiny), "huge", out, quiet=True)


def test_the_console_shows_the_extra_to_install(tmp_path, monkeypatch, capsys):
    tiny = Tiny("cost", fails=True)
    tiny.reason = 'the row needs torchdiffeq; pip install "cstformer[rivals]"'
    monkeypatch.setattr(module, "load_experiment", {"cost": tiny}.get)
    run_all(["cost"], "smoke", tmp_path / "all")
    assert tiny.reason in capsys.readouterr().err.replace("\n", " ")


def test_the_command_says_what_was_not_run(tmp_path, monkeypatch, capsys):
    tiny = {name: Tiny(name, fails=name == "cost") for name in EXPERIMENTS}
    monkeypatch.setattr(module, "load_experiment", tiny.get)
    monkeypatch.chdir(tmp_path)
    command = ["run", "all", "--preset", "smoke", "--quiet", "--markdown", "RESULTS.md"]
    assert cli.main(command) == 2
    said = capsys.readouterr()
    assert "wrote runs/all-smoke/report.html" in said.out and "wrote RESULTS.md" in said.out
    assert "cst: error: not run: cost" in said.err
    assert cli.main(["report", "runs/all-smoke", "--markdown", "again.md"]) == 0
    assert (tmp_path / "again.md").read_text() == (tmp_path / "RESULTS.md").read_text()
    assert cli.main(["run", "all", "--models", "cst"]) == 2
