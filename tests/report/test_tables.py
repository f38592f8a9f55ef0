from __future__ import annotations

import copy
import io
import json
import re

import pytest
from rich.console import Console

from cstformer.errors import CSTError
from cstformer.report import tables
from cstformer.report.results_page import write_results_md


def print_out(result, width=120, styles=False):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=styles, color_system="standard" if styles else None)
    for table in tables.console_table(result, width):
        console.print(table)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.029812, 0.004071, "0.0298 ± 0.0041"),
        (1.38, 0.08, "1.380 ± 0.080"),
        (4.88e-3, 2.1e-4, "0.00488 ± 0.00021"),
        (4.88e-4, 2.1e-5, "(4.88 ± 0.21)e-4"),
        (-0.316, 0.181, "-0.32 ± 0.18"),
        (12345.6, 321.0, "12,346 ± 321"),
        (0.0298, 0.5, "0.030 ± 0.500"),
        (1.0, 1e-9, "1.0000 ± 1.0e-9"),
        (0.0, 0.25, "0.00 ± 0.25"),
        (0.03859, None, "0.03859"),
        (0.03859, 0.0, "0.03859"),
        (0.03859, float("nan"), "0.03859"),
        (None, None, "–"),
        (float("nan"), 0.1, "–"),
        (float("inf"), 0.1, "∞"),
    ],
)
def test_values_carry_sensible_digits(mean, std, text):
    assert tables.format_value(mean, std) == text


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0, "< 0.0001"),
        (9.9e-5, "< 0.0001"),
        (0.0001, "0.0001"),
        (0.00342, "0.0034"),
        (0.5, "0.50"),
        (1.0, "1.0"),
    ],
)
def test_p_values_read_as_in_papers(p, text):
    assert tables.format_p(p) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.96, "1 min"), (60, "1 min"), (3599.6, "1 h"), (3660, "1 h 1 min"), (0, "0.00 s")],
)
def test_durations_never_show_sixty(seconds, text):
    assert tables.format_duration(seconds) == text


def test_groups_follow_conditions_and_mark_the_best_of_each_metric(result):
    clean, noisy = tables.groups(result)
    assert clean.condition == "clean, regular (n = 150)"
    assert clean.columns == ["model", "error", "paper", "roughness", "parameters", "training"]
    assert noisy.columns == ["model", "error", "roughness"]  # columns with nothing in them are left out
    best = {
        (line[0].text, column)
        for line in clean.lines
        for column, cell in zip(clean.columns, line, strict=True)
        if cell.best
    }
    assert best == {("CST", "error"), ("CST", "roughness")}  # the truth itself does not compete
    texts = [cell.text for cell in clean.lines[0]]
    assert texts == ["CST", "0.0298 ± 0.0041", "0.03859", "1.12 ± 0.22", "147,000", "1 min 58 s"]


def test_direction_of_better_depends_on_the_metric():
    models = ["a", "b", "c"]
    assert tables.best_rows("MSE", [3, 1, 2], models) == {1}
    assert tables.best_rows("R²", [0.3, 0.1, 0.2], models) == {0}
    assert tables.best_rows("roughness ratio", [0.01, 1.3, 50], models) == {1}
    assert tables.best_rows("error", [1, 1, None], models) == {0, 1}
    assert tables.best_rows("error", [1, None, float("nan")], models) == set()


def test_samples_of_different_size_get_a_column(result):
    result["table"][0]["metrics"]["error"]["n"] = 149
    group = tables.groups(result)[0]
    assert group.condition == "clean, regular"
    assert [line[group.columns.index("n")].text for line in group.lines][:2] == ["149, 150", "150"]


def test_console_shows_numbers_tests_and_bold(result):
    text = print_out(result)
    for piece in ("clean, regular (n = 150)", "noise=0.1,unseen", "0.0298 ± 0.0041", "0.04329", "818,000"):
        assert piece in text
    assert re.search(r"CST vs Transformer .*< 0\.0001 .*0\.930 .*150", text)
    bold = re.findall(r"\x1b\[1m([^\x1b]*\d[^\x1b]*)\x1b", print_out(result, styles=True))
    assert [b.strip() for b in bold] == ["0.0298 ± 0.0041", "1.12 ± 0.22", "0.074 ± 0.012", "1.40 ± 0.28"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_console_of_any_width_shows_whole_numbers(result, width):
    for row in result["table"]:
        row["metrics"] = {
            f"{word} error": {"mean": 0.0298, "std": 0.0041, "n": 150} for word in ("first", "second", "third")
        }
        row |= {"model": row["model"] + " (paper preset), equal steps", "steps": 2000, "epochs": 286}
    text = print_out(result, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text and text.count("0.0298 ± 0.0041") >= len(result["table"])
    assert "first error" in text and "< 0.0001" in text
    for column in ("second error", "third error", "paper", "parameters", "training", "steps", "epochs"):
        assert column in text  # as a heading, or named below as one of the report
    assert ("in the report:" in text) == (width < 200)


def test_a_narrow_console_leaves_out_details_before_metrics(result):
    result["table"] = [row | {"steps": 2000, "epochs": 286} for row in result["table"]]
    clean = tables.console_table(result, 80)[0]
    assert [str(column.header) for column in clean.columns] == ["model", "error", "paper", "roughness", "training"]
    assert str(clean.caption) == "in the report: parameters, steps, epochs"


def test_console_takes_square_brackets_as_text(result):
    result["table"][0]["model"] = "CST [red]"
    assert "CST [red]" in print_out(result)


def test_markdown_says_how_it_was_made_and_holds_table_and_tests(result):
    text = tables.markdown_tables(result)
    head, _, rest = text.partition("**clean, regular")
    for piece in (
        "cst run spirals --preset default --seed 0",
        "preset default",
        "seed 0",
        "12 min 3 s",
        "cpu two cores",
    ):
        assert piece in head
    assert "| CST | **0.0298 ± 0.0041** | 0.03859 | **1.12 ± 0.22** | 147,000 | 1 min 58 s |" in rest
    assert "| linear | 0.0487 ± 0.0048 | – |" in rest
    assert "| CST vs Transformer | clean, regular | 12.00 | < 0.0001 | 0.930 | 150 |" in rest
    assert "| CST vs cubic | clean, regular | 3,312 | 0.0034 | 0.410 | 150 |" in rest
    assert "- Mean Euclidean error" in rest


def test_every_markdown_row_has_as_many_cells_as_its_header(result):
    result["table"][0]["model"] = "a|b <script> *x*\nnew line"
    text = tables.markdown_tables(result)
    assert "a\\|b &lt;script> \\*x\\* new line" in text
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.M):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
        assert len(counts) == 1


def test_results_md_has_a_section_per_run(result, tmp_path):
    other = copy.deepcopy(result) | {"experiment": "video", "tests": [], "notes": [], "seconds": 10}
    again = copy.deepcopy(result) | {"seed": 1}
    del again["command"]
    path = write_results_md([result, other, again], tmp_path / "RESULTS.md")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Results\n")
    headings = re.findall(r"^## (.*)$", text, flags=re.M)
    assert headings == ["spirals (default, seed 0)", "video", "spirals (default, seed 1)"]
    assert "cst run spirals --preset default --seed 1" in text  # made up from preset and seed
    assert "torch 2.9.0" in text and "24 min 17 s" in text
    assert [f.name for f in tmp_path.iterdir()] == ["RESULTS.md"]
    with pytest.raises(CSTError, match="at least one result"):
        write_results_md([], tmp_path / "RESULTS.md")


def test_load_result_returns_what_was_written(result, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert tables.load_result(tmp_path) == result


def remove(key):
    return lambda r: r.pop(key)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("table"), "lacks table"),
        (remove("tests"), "lacks tests"),
        (lambda r: r.update(table={}), "table of the result"),
        (lambda r: r.update(notes="text"), "notes of the result"),
        (lambda r: r["table"].append(3), r"table\[7\] must be an object"),
        (lambda r: r["table"][1].pop("model"), r"table\[1\]"),
        (lambda r: r["table"][2].update(metrics=[1]), r"table\[2\]\.metrics"),
        (lambda r: r["table"][2]["metrics"].update(error=0.1), r"metrics\['error'\] must have a number"),
        (
            lambda r: r["table"][2]["metrics"]["error"].update(mean="low"),
            r"metrics\['error'\] must have a number",
        ),
        (lambda r: r["tests"][0].pop("name"), r"tests\[0\]"),
        (lambda r: r["figures"].append({"title": "x"}), r"figures\[0\]"),
    ],
)
def test_wrong_shapes_are_named(result, tmp_path, spoil, message):
    spoil(result)
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(CSTError, match=message) as caught:
        tables.load_result(tmp_path)
    assert str(tmp_path / "result.json") in str(caught.value)
    assert "\n" not in str(caught.value)
