"""Pages made from committed results: every number in a marked part is that of a result file."""

import copy
import json
import re
from pathlib import Path

import pytest

from cstformer import cli
from cstformer.errors import CSTError
from cstformer.experiments.registry import EXPERIMENTS
from cstformer.report.main_table import comparison, main_line, ratio
from cstformer.report.results_page import write_results_md
from cstformer.report.site import FOLDER, MARKED, PAGE, fill, keep_result, kept_results, pages, write_site

ROOT = Path(__file__).parents[2]
PART = "<!-- results: {} -->\n{}\n<!-- end of results -->"


@pytest.fixture
def complete(result):
    """A result with main comparisons, claims, seeds and a row that did not converge."""
    result["table"][0]["metrics"]["error"] |= {"seeds": 5, "seed_std": 0.00021}
    result["table"][1]["converged"] = False
    paper = (0.03859, "818 K")
    rows = ("curves", "clean, regular", "error", "CST", ["Transformer"], ["linear", "cubic"], paper)
    claim = {"claim": "CST is smoother", "holds": "no", "text": "CST 61, Transformer 0.8"}
    return result | {"main": comparison(result["table"], *rows), "claims": [claim], "figures": []}


def test_the_committed_pages_have_the_numbers_of_the_results():
    """Run `cst report --site .` if this fails."""
    results = kept_results(ROOT)
    for page in pages(ROOT):
        text = page.read_text()
        assert fill(text, results) == text, page.name
        assert text.count("<!-- results:") == len(MARKED.findall(text)) == text.count("<!-- end of results"), page.name


def test_the_committed_results_page_is_made_from_the_results(tmp_path):
    results = kept_results(ROOT)
    if not results:
        pytest.skip("no result of this version is committed yet")
    text = (ROOT / PAGE).read_text()
    figure = re.search(r"^!\[.*\]\((.*)\)$", text, re.M)
    missing = {name: f"cst run {name}" for name in EXPERIMENTS if name not in results}
    made = write_results_md(list(results.values()), tmp_path / PAGE, missing, figure and figure[1])
    assert made.read_text() == text


def test_one_command_makes_all_pages(complete, tmp_path, capsys):
    run, root = tmp_path / "run", tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    run.mkdir()
    (run / "result.json").write_text(json.dumps(complete))
    (root / "README.md").write_text(f"# a\n\n{PART.format('main spirals video', 'old 0.5')}\n\nend\n")
    other = PART.format("main video", "numbers of an older version")
    (root / "docs" / "spirals.md").write_text(f"{PART.format('claims spirals', '')}\n{other}\n")
    assert cli.main(["report", str(run), "--site", str(root)]) == 0
    readme, page = (root / "README.md").read_text(), (root / "docs" / "spirals.md").read_text()
    assert "old 0.5" not in readme and readme.endswith("end\n")
    line = "| curves (error) | 0.02981 ± 0.00021 | 0.0441, Transformer † | 0.0376, cubic | 0.03859 (818 K) |"
    assert line in readme and "Not run with this version yet: `cst run video`." in readme
    assert "- **no**: CST is smoother (CST 61, Transformer 0.8)" in page and other in page
    text = (root / PAGE).read_text()
    first, _, details = text.partition("## spirals")
    assert line in first and "](docs/figures/results.png)" in first and "video (`cst run video`)" in first
    assert details.count("<details markdown>") == details.count("</details>") == 1
    assert (root / "docs" / "figures" / "results.png").stat().st_size > 5000
    assert "<strong>no</strong>: CST is smoother (CST 61, Transformer 0.8)" in (run / "report.html").read_text()
    # A second time nothing is left to change, and numbers that are not in the results come out.
    assert fill(readme, kept_results(root)) == readme
    assert fill(readme.replace("0.0376", "0.0375"), kept_results(root)) == readme


def test_kept_results_are_small_and_real(complete, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(complete))
    kept = json.loads(keep_result(tmp_path, tmp_path / "root").read_text())
    assert kept["figures"] == [] and kept["table"][0]["metrics"]["error"]["mean"] == 0.029812
    (tmp_path / "result.json").write_text(json.dumps(complete | {"preset": "smoke"}))
    with pytest.raises(CSTError, match="numbers mean nothing"):
        keep_result(tmp_path, tmp_path / "root")
    with pytest.raises(CSTError, match="holds no result"):
        write_site(tmp_path / "nothing", {})
    with pytest.raises(CSTError, match="at least one RUN"):
        cli.report.run(type("Args", (), {"runs": [], "site": None, "markdown": None}))
    assert (tmp_path / "root" / FOLDER / "spirals" / "result.json").stat().st_size < 20_000


def test_a_table_by_its_condition(complete):
    text = fill(PART.format("table spirals | clean, regular", ""), {"spirals": complete})
    assert "| CST | **0.0298 ± 0.0041** | 0.03859 | 0.00021 (5) |" in text
    assert "| Transformer † | 0.0441 ± 0.0075 |" in text
    with pytest.raises(CSTError, match="asks for the table 'dirty'"):
        fill(PART.format("table spirals | dirty", ""), {"spirals": complete})


def test_ratios_of_errors_and_of_scores(complete):
    entry = complete["main"][0]
    assert ratio(entry, "classical") == pytest.approx(0.029812 / 0.0376)
    score = copy.deepcopy(entry) | {"metric": "R²", "CST": {"mean": 0.9}, "trained": {"mean": 0.8}, "classical": None}
    assert ratio(score, "trained") == pytest.approx(0.5) and ratio(score, "classical") is None
    assert main_line(complete["main"][0])[0] == "curves (error)"


def test_a_row_that_did_not_converge_is_never_the_best(complete):
    complete["table"][1]["metrics"]["error"]["mean"] = 0.001
    text = fill(PART.format("table spirals | clean, regular", ""), {"spirals": complete})
    assert "| CST | **0.0298" in text and "**0.001" not in text
