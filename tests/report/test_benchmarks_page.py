"""The page of benchmarks: a table each, below its picture if there is one."""

from cstformer.report.benchmarks import write_benchmarks_md


def test_a_picture_in_the_folder_of_figures_stands_above_its_table(tmp_path):
    rows = [{"benchmark": name, "case": "a", "seconds": 1.5} for name in ("scaling", "step")]
    facts = {"command": "cst bench", "machine": "a computer", "versions": {"torch": "2"}}
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "scaling.png").touch()
    write_benchmarks_md(tmp_path / "page.md", rows, facts)
    parts = (tmp_path / "page.md").read_text().split("\n\n")
    assert parts[2:4] == ["## scaling", "![scaling](figures/scaling.png)"]
    assert parts[5] == "## step" and parts[6].startswith("| case | seconds |")
