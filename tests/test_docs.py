"""The site builds without a warning, its links lead somewhere, and what its pages show can be run."""

import copy
import dataclasses
import functools
import importlib.util
import inspect
import os
import posixpath
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib
import numpy as np
import pytest
import scipy.io

import cstformer as cst
from cstformer import cli
from cstformer.baselines import neural
from cstformer.benchmarks import chosen
from cstformer.cli.fit import read_settings
from cstformer.cli.run import ALL
from cstformer.experiments.registry import EXPERIMENTS
from cstformer.models import fitting

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.py"))
STEPS = 1  # of every training in an example

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    """Language and text of the code blocks of a page, in order."""
    return [(m[1], m[2]) for m in BLOCK.finditer(page.read_text()) if m[1] in languages]


def shell_commands(text):
    """The `cst` commands among lines of a shell, without their comments."""
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))[:1] == ["cst"]]


# --- The site ---


class Page(HTMLParser):
    """Links and identifiers of a built page, and what a browser would load from elsewhere."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.loaded, self.equations = [], set(), [], 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes.get("id"), attributes.get("name")}
        self.equations += tag == "math"
        target = attributes.get("href") or attributes.get("src")
        if target and tag in ("a", "img"):
            self.links.append(target)
        if target and tag in ("script", "link", "img"):
            self.loaded.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed; pip install cstformer[docs]")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {path.relative_to(out).as_posix(): Page(path) for path in out.rglob("*.html")}, out


def test_links_and_images_lead_somewhere(site):
    pages, out = site
    checked = 0
    for name, page in pages.items():
        if name == "404.html":  # its links are relative to a server's root
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            )
            assert (out / target).exists(), f"{name} links to {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{name} links to {link}"
            checked += 1
    assert checked > 500


def test_the_site_needs_no_network(site):
    pages, _ = site
    for name, page in pages.items():
        assert not [link for link in page.loaded if urlsplit(link).netloc], name


def test_every_page_is_in_the_navigation(site):
    pages, _ = site
    listed = set(pages["index.html"].links)
    assert {path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md")} - {"index.html"} <= listed
    assert {f"gallery/{script.stem}.html" for script in GALLERY} <= listed
    assert {"results.html", "contributing.html", "changelog.html"} <= listed


def test_what_is_generated_is_there(site):
    pages, out = site
    settings = (out / "settings.html").read_text()
    for field in dataclasses.fields(cst.CST):
        assert f"<code>{field.name}</code>" in settings and f"<code>{field.default}</code>" in settings
    help_text = (out / "command_line.html").read_text()
    for command in ("cst fit", "cst predict", "cst data make spirals", "cst data preprocess-calcium", "cst run"):
        assert f"usage: {command}" in help_text
    assert {f"cstformer.{name}" for name in cst.__all__} <= pages["api.html"].ids
    methods = {name for name in dir(cst.CST) if inspect.isfunction(getattr(cst.CST, name)) and name[0] != "_"}
    # Of scikit-learn, of the settings, and of rivals.
    others = {name for name in methods if name.endswith(("_request", "_routing"))} | {"get_params", "settings"}
    others |= {"resolved", "latent"}
    assert {f"cstformer.CST.{name}" for name in methods - others} <= pages["api.html"].ids
    assert not [name for name in pages["api.html"].ids if re.search(r"\._[a-z]", name or "")], "private names"
    api = re.sub(r"<[^>]+>", "", (out / "api.html").read_text())
    for field in dataclasses.fields(cst.CST):  # defaults in the signature, not the calls that declare them
        assert f"{field.name}={field.default!r}".replace("'", "&quot;") in api.replace('"', "&quot;")
    tex = (ROOT / "docs" / "how_it_works.md").read_text()
    assert pages["how_it_works.html"].equations == len(re.findall(r"\$\$.*?\$\$|\$[^$]+\$", tex, re.DOTALL))
    assert "arithmatex" not in (out / "how_it_works.html").read_text()


def test_charts_show_the_numbers_of_the_results(site):
    pages, out = site
    for name in ("spirals", "navier_stokes", "video", "attention", "cost"):
        charts = [link for link in pages[f"{name}.html"].links if link.startswith("figures/chart-")]
        assert len(charts) == 1 and (out / charts[0]).stat().st_size > 5000, name


def test_a_chart_reads_its_table():
    spec = importlib.util.spec_from_file_location("charts", ROOT / "docs" / "charts.py")
    charts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(charts)
    rows = "| CST | **(2.0 ± 1.5)e-4** |\n| LSTM | 1,200 ± 30 |\n| no | – |\n"
    text = f"## a\n\n**b (n = 2)**\n\n| model | x |\n|---|---|\n{rows}"
    assert charts.read_column(text, "a", "b", "x") == {"CST": (2e-4, 1.5e-4), "LSTM": (1200.0, 30.0)}
    assert charts.replace_markers("<!-- chart: a | c | x -->", text) == ("", {})
    page, images = charts.replace_markers("<!-- chart: a | b | x -->\n\n<!-- results: main a -->\n", text)
    assert len(images) == 1 and page.endswith("<!-- results: main a -->\n")


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: page.name)
def test_links_work_in_the_repository_too(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        path = urlsplit(link).path
        assert urlsplit(link).scheme or not path or (page.parent / path).exists(), link


# --- Commands ---


def check_command(words):
    """Refuse a command that the parser, the settings or the lists of names do not know."""
    args, extra = cli.build_parser().parse_known_args(words[1:])
    assert not extra
    if words[1] == "fit":
        read_settings(args)
    if words[1] == "run":
        assert args.experiment in (*EXPERIMENTS, ALL)
    if words[1] == "bench" and args.only:
        chosen(args.only.split(","))


def exit_code(words):
    try:
        check_command(words)
    except SystemExit as end:  # of --help and of bad arguments
        return end.code
    return 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page, capsys):
    text = page.read_text()
    shown = [words for _, block in blocks(page, "", "sh") for words in shell_commands(block)]
    spoken = [shlex.split(command) for command in re.findall(r"`(cst [^`\n]+)`", BLOCK.sub("", text))]
    for words in [*shown, *spoken]:
        code = exit_code(words)
        if words in spoken and code and "arguments are required" in capsys.readouterr().err:
            code = exit_code([*words, "--help"])  # a command may be spoken of without its arguments
        assert code == 0, " ".join(words)


@pytest.mark.parametrize(
    "command", ["cst fti a", "cst run spiral", "cst fit a --out b --widht 3", "cst bench --only x"]
)
def test_wrong_commands_are_found(command):
    with pytest.raises((SystemExit, AssertionError, cst.CSTError)):
        check_command(shlex.split(command))


# --- Examples ---


def prepare_rivals(names):
    frames = np.random.default_rng(0).normal(size=(4, 6, 8, 8, 1))
    names["train"] = names["context"] = cst.frames_to_samples(frames, patch=(4, 4))
    names["at"] = cst.frame_queries(names["train"].layout, [1.5])


def prepare_navier_stokes(names):
    # The published layout (N, nx, ny, T), on few points: fast to write.
    scipy.io.savemat("flow.mat", {"u": np.zeros((1000, 8, 8, 9), dtype=np.float32), "t": np.arange(1.0, 10.0)})


def prepare_video(names):
    h5py = pytest.importorskip("h5py")
    with h5py.File("X_train.hkl", "w") as file:
        file["data_0"] = np.zeros((24, 128, 160, 3), dtype=np.uint8)
    with h5py.File("sources_train.hkl", "w") as file:
        file["data_0"] = np.array([b"city-1"] * 12 + [b"road-2"] * 12)


# What the examples of a page take for granted.
PREPARE = {"rivals.md": prepare_rivals, "navier_stokes.md": prepare_navier_stokes, "video.md": prepare_video}
# Files that a reader has and a test has not, by one that the test writes.
STAND_INS = {"flow.zarr": "flow.mat"}
# Pages whose shell commands are run as well.
RUN_COMMANDS = {"getting_started.md"}


@pytest.fixture
def short_training(monkeypatch):
    for module in (fitting, neural):
        monkeypatch.setattr(module, "train", functools.partial(few_steps, module.train))


def few_steps(train, network, loss, score, count, settings, **options):
    short = copy.copy(settings)
    short.steps = STEPS
    return train(network, loss, score, count, short, **options)


EXAMPLES = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch, short_training):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "example"}
    if page.name in PREPARE:
        PREPARE[page.name](names)
    for language, text in blocks(page, "python", "sh"):
        if language == "python":
            for theirs, ours in STAND_INS.items():
                text = text.replace(theirs, ours)
            exec(compile(text, page.name, "exec"), names)
        elif page.name in RUN_COMMANDS:
            for words in shell_commands(text):
                assert cli.main(words[1:]) == 0, " ".join(words)


def test_examples_are_there():
    assert {"README.md", "getting_started.md", "data.md"} <= {page.name for page in EXAMPLES}


# --- The gallery ---


@pytest.mark.filterwarnings("ignore::cstformer.CSTWarning")  # of models that were trained for a step
@pytest.mark.parametrize("script", GALLERY, ids=lambda script: script.stem)
def test_the_gallery_runs(script, tmp_path, monkeypatch, short_training):
    if script.stem == "cortex":
        pytest.importorskip("tifffile")
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context():
        exec(compile(script.read_text(), script.name, "exec"), {"__name__": script.stem})
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.parametrize("script", GALLERY, ids=lambda script: script.stem)
def test_pages_of_the_gallery_show_their_scripts(script):
    page = script.with_suffix(".md").read_text()
    code = script.read_text().split('"""', 2)[2].lstrip()
    assert f"```python\n{code}```" in page, "run `make gallery`"
    assert f"]({script.stem}.png)" in page and script.with_suffix(".png").stat().st_size < 60_000
    assert script.stem in (ROOT / "docs" / "gallery.md").read_text()
