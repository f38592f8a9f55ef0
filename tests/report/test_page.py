from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from cstformer.errors import CSTError
from cstformer.report.page import headline, legend, write_report
from cstformer.report.tables import groups

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element must be closed in its own order."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.cells: list[list[str]] = []
        self.best: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.declared = ""
        self.feed(text)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_decl(self, decl):
        self.declared = decl

    def handle_starttag(self, tag, attributes):
        assert len({name for name, _ in attributes}) == len(attributes)
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.stack and self.stack[-1] in ("td", "th"):
            self.cells[-1][-1] += data
            if self.tags[-1][1].get("class") == "best":
                self.best.append(data)
        if not {"style", "script"} & {*self.stack}:
            self.words.append(data)
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(run_dir):
    return Page(write_report(run_dir).read_text(encoding="utf-8"))


def save(run_dir, result):
    (run_dir / "result.json").write_text(json.dumps(result))


def test_the_page_is_a_document_with_all_its_parts(page):
    assert page.declared.lower() == "doctype html"
    assert page.all("html") == [{"lang": "en"}]
    assert any("width=device-width" in (meta.get("content") or "") for meta in page.all("meta"))
    for tag in ("title", "h1", "main", "header", "footer"):
        assert len(page.all(tag)) == 1
    for piece in (
        "spirals",
        "12 min 3 s",
        "cpu two cores, memory 8 GB",
        "cst run spirals --preset default --seed 0",
        "Mean Euclidean error, in the units of the data.",
        "model.width",
        "torch",
        "Each point is one curve.",
    ):
        assert piece in page.text


def test_the_tables_hold_the_numbers_next_to_the_papers(page):
    assert ["CST", "0.0298 ± 0.0041", "0.03859", "1.12 ± 0.22", "147,000", "1 min 58 s"] in page.cells
    assert ["Transformer", "0.0441 ± 0.0075", "0.04329", "340 ± 68", "818,000", "5 min"] in page.cells
    assert ["CST vs cubic", "clean, regular", "3,312", "0.0034", "0.410", "150"] in page.cells
    assert page.best == ["0.0298 ± 0.0041", "1.12 ± 0.22", "0.074 ± 0.012", "1.40 ± 0.28"]
    assert "best error is 0.0298 ± 0.0041 , by CST; the paper has 0.03859." in page.text


def test_every_figure_is_embedded_byte_for_byte(page, run_dir, result):
    images = page.all("img")
    assert len(images) == len(result["figures"]) == 2
    for image, figure in zip(images, result["figures"], strict=True):
        kind, _, data = image["src"].partition(";base64,")
        assert kind == "data:image/png"
        assert base64.b64decode(data, validate=True) == (run_dir / figure["file"]).read_bytes()
        assert image["alt"] == figure["title"]


def test_nothing_is_loaded_from_elsewhere(page, run_dir):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "srcset", "poster", "data"):
            assert attributes.get(name, "data:").startswith("data:")
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "http://" not in text and "https://" not in text
    assert not re.search(r"url\(|@import", text)
    policy = next(m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


def test_the_browser_may_run_our_script_and_no_other(page):
    digest = base64.b64encode(hashlib.sha256("".join(page.scripts).encode()).digest()).decode()
    policy = next(m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert f"script-src 'sha256-{digest}'" in policy["content"] and "unsafe-inline'; script" in policy["content"]
    assert page.all("script") == [{}]


def test_the_main_figure_comes_before_the_tables(page):
    order = [tag for tag, _ in page.tags if tag in ("img", "table")]
    assert order[0] == "img" and "table" in order and order.count("img") == 2
    assert page.text.index("1. Errors") < page.text.index("0.0298 ± 0.0041 0.03859") < page.text.index("2. Smoothness")


def test_a_smoke_run_says_so(run_dir, result, page):
    warning = "Smoke run: numbers mean nothing."
    assert warning not in page.text
    save(run_dir, result | {"preset": "smoke"})
    assert warning in Page(write_report(run_dir).read_text(encoding="utf-8")).text


def test_code_between_backticks_is_code(run_dir, result):
    save(run_dir, result | {"notes": ["Use `cst run <all>` again."]})
    text = write_report(run_dir).read_text(encoding="utf-8")
    assert "Use <code>cst run &lt;all&gt;</code> again." in text


def test_the_legend_explains_only_what_is_there(result):
    assert legend(groups(result)) == (
        "Mean ± standard deviation over n test samples. Bold: the best of its column under the same condition; for "
        "roughness, the nearest to 1. Paper: the number it prints for the first metric; – where it prints none. "
        "Click a heading to sort."
    )
    row = {"model": "CST", "condition": "here", "metrics": {"error": {"mean": 0.5}}}
    assert legend(groups(result | {"table": [row]})) == "Click a heading to sort."


def test_tables_fit_a_laptop_and_can_be_sorted(browser, run_dir, result):
    for row in result["table"]:
        row["metrics"] |= {f"a measure with a long name {i}": {"mean": i, "std": 0.1, "n": 150} for i in range(5)}
    save(run_dir, result)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(write_report(run_dir).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 1280

    table = page.locator("table.sortable").first
    models = lambda: [cell.inner_text() for cell in table.locator("tbody th").all()]  # noqa: E731
    table.get_by_text("roughness", exact=True).click()
    assert models() == ["truth", "CST", "cubic", "Transformer", "linear"]
    table.get_by_text("training", exact=True).focus()
    page.keyboard.press("Enter")  # 1 min 58 s before 5 min; what is missing comes last
    assert models()[:2] == ["CST", "Transformer"]
    table.get_by_text("error", exact=True).click()
    table.get_by_text("error", exact=True).click()
    assert models()[0] == "linear" and table.locator("[aria-sort=descending]").inner_text().startswith("error")
    page.close()
    assert not wrong


def test_small_and_missing_numbers_sort_in_both_directions(browser, run_dir, result):
    errors = {"a": (4.88e-5, 2.1e-6), "b": (0.0298, 0.0041), "c": (2.1e-4, 3e-5), "d": (9.1e-6, 1e-7)}
    rows = [
        {"model": name, "condition": "here", "metrics": {"error": {"mean": mean, "std": std, "n": 10}}}
        for name, (mean, std) in errors.items()
    ]
    rows.append({"model": "e", "condition": "here", "metrics": {"error": {"mean": None}}})
    save(run_dir, result | {"table": rows, "tests": []})
    page = browser.new_page()
    page.goto(write_report(run_dir).as_uri())
    table = page.locator("table.sortable").first
    assert "(4.88 ± 0.21)e-5" in table.inner_text()
    models = lambda: [cell.inner_text() for cell in table.locator("tbody th").all()]  # noqa: E731
    table.get_by_text("error", exact=True).click()
    assert models() == ["d", "a", "c", "b", "e"]
    table.get_by_text("error", exact=True).click()
    assert models() == ["b", "c", "a", "d", "e"]
    page.close()


def test_the_page_knows_paper_darkness_and_small_screens(run_dir):
    text = write_report(run_dir).read_text(encoding="utf-8")
    for query in ("@media print", "prefers-color-scheme: dark", "max-width: 480px"):
        assert query in text


def test_foreign_text_stays_text_wherever_it_stands(run_dir, result):
    evil = "<script>alert('x')</script>\"&"
    result["experiment"] = result["preset"] = result["command"] = result["machine"] = evil
    result["notes"] = [evil]
    result["settings"] = {evil: {evil: evil}}
    result["versions"] = {evil: evil}
    for row in result["table"]:
        row["model"] = row["condition"] = evil
        row["metrics"][evil] = row["metrics"].pop("roughness")
    for test in result["tests"]:
        test["name"] = test["condition"] = test["statistic"] = evil
    for figure in result["figures"]:
        figure["title"] = figure["caption"] = evil
    save(run_dir, result)
    text = write_report(run_dir).read_text(encoding="utf-8")
    assert text.lower().count("<script") == 1
    page = Page(text)
    assert "alert" not in "".join(page.scripts)
    assert page.text.count("<script>alert('x')</script>") > 15
    assert page.all("img")[0]["alt"] == evil


def test_a_bare_result_makes_a_valid_page(run_dir, result):
    bare = result | {"table": [], "tests": [], "figures": [], "settings": {}, "versions": {}, "seed": None}
    del bare["notes"], bare["command"]
    save(run_dir, bare)
    page = Page(write_report(run_dir).read_text(encoding="utf-8"))
    assert "This run has no table." in page.text
    assert "cst run spirals --preset default" in page.text
    assert not page.all("img")


def test_headline_needs_a_winner(result):
    clean, noisy = groups(result)
    assert headline(clean)["model"] == "CST" and headline(clean)["paper"] == "0.03859"
    assert headline(noisy)["paper"] == ""
    result["table"] = result["table"][:1]
    assert headline(groups(result)[0]) is None


def test_writing_twice_leaves_one_page_and_the_same(run_dir):
    before = {f.name for f in run_dir.iterdir()}
    first = write_report(run_dir).read_bytes()
    assert write_report(run_dir) == run_dir / "report.html"
    assert (run_dir / "report.html").read_bytes() == first
    assert {f.name for f in run_dir.iterdir()} == before | {"report.html"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b'{"experiment": ', "as JSON"),
        (b"\xff\xfe\x00", "as JSON"),
        (b"[1]", "got list"),
        (b"", "as JSON"),
    ],
)
def test_a_run_without_a_valid_result_is_refused_in_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(CSTError, match=message) as caught:
        write_report(tmp_path)
    assert "result.json" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("figures/absent.png", "cannot read the figure"),
        ("../secret.png", "lies outside"),
        ("/etc/hostname.png", "lies outside"),
        ("result.json", "has none of the suffixes"),
        ("empty.png", "is empty"),
    ],
)
def test_a_figure_that_cannot_be_embedded_is_named(run_dir, result, file, message):
    (run_dir.parent / "secret.png").write_bytes(b"secret")
    (run_dir / "empty.png").touch()
    result["figures"].append({"file": file, "title": "", "caption": ""})
    save(run_dir, result)
    with pytest.raises(CSTError, match=message) as caught:
        write_report(run_dir)
    assert file.split("/")[-1] in str(caught.value)
    assert not (run_dir / "report.html").exists()
