"""Self-contained HTML pages: one per run and one summary of all runs. They open from disk and load nothing."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from cstformer.errors import CSTError
from cstformer.report.style import DPI
from cstformer.report.summary_chart import comparisons, plot_summary
from cstformer.report.tables import (
    TEST_COLUMNS,
    UNSETTLED,
    Group,
    command_of,
    describe_machine,
    format_duration,
    format_number,
    groups,
    lines_of_tests,
    load_result,
)
from cstformer.system.atomic import atomic_path

IMAGE_TYPES = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}


SMOKE = "smoke"
"""The preset whose numbers mean nothing."""

ORDER = ("spirals", "sobolev", "attention", "video", "navier-stokes", "calcium", "cost")
"""Experiments in the order of the paper; others follow."""


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write `report.html` into the folder of a run, from its `result.json` and figures, and return its path."""
    folder = Path(run_dir)
    result = load_result(folder)
    target = folder / "report.html"
    text = render_page(result, folder)
    with atomic_path(target) as tmp:
        tmp.write_text(text, encoding="utf-8")
    return target


def render_page(result: Mapping[str, Any], folder: str | os.PathLike[str]) -> str:
    """Return the HTML of a run. Figures are read from ``folder`` and embedded."""
    tables = groups(result)
    facts = {
        "preset": result["preset"],
        "seed": format_number(result["seed"]),
        "time": format_duration(result["seconds"]),
        "machine": describe_machine(result["machine"]),
    }
    return _template("page.html").render(
        title=result["experiment"],
        smoke=result["preset"] == SMOKE,
        facts=facts,
        headlines=[line for line in map(headline, tables) if line],
        claims=result.get("claims", []),
        tables=tables,
        test_columns=TEST_COLUMNS,
        tests=lines_of_tests(result),
        figures=[_figure(entry, Path(folder)) for entry in result["figures"]],
        notes=result.get("notes", []),
        command=command_of(result),
        settings=flatten(result["settings"]),
        versions=flatten(result["versions"]),
    )


def write_overview(folder: str | os.PathLike[str], missing: Mapping[str, str] | None = None) -> Path:
    """Write the summary `report.html` of the runs in a folder (``cst run all``), one subfolder per experiment.

    ``missing`` gives the reason for each experiment that could not be run.
    """
    folder = Path(folder)
    target = folder / "report.html"
    text = render_overview({run.name: load_result(run) for run in results_in(folder)}, folder, missing or {})
    with atomic_path(target) as tmp:
        tmp.write_text(text, encoding="utf-8")
    return target


def results_in(folder: str | os.PathLike[str]) -> list[Path]:
    """List the direct subfolders with a result, in the order of the paper; unknown experiments come last."""
    root = Path(folder).resolve()
    runs = [path.parent for path in Path(folder).glob("*/result.json") if path.resolve().is_relative_to(root)]
    place = {name: i for i, name in enumerate(ORDER)}
    return sorted(runs, key=lambda run: (place.get(run.name, len(ORDER)), run.name))


def render_overview(results: Mapping[str, Mapping[str, Any]], folder: Path, missing: Mapping[str, str]) -> str:
    """Return the HTML of the summary: the best models, the tables and the first figure of each result."""
    if not results and not missing:
        raise CSTError(f"{folder} holds no result; `cst run all` writes one folder per experiment")
    parts = []
    for name, result in results.items():
        tables = groups(result)
        made = (result["preset"], f"seed {format_number(result['seed'])}", format_duration(result["seconds"]))
        parts.append(
            {
                "name": name,
                "facts": ", ".join(made),
                "tables": tables,
                "headlines": [line for line in map(headline, tables) if line],
                "figures": [_figure(entry, folder / name) for entry in result["figures"][:1]],
                "command": command_of(result),
            }
        )
    machines = dict.fromkeys(describe_machine(result["machine"]) for result in results.values())
    total = format_duration(sum(result["seconds"] for result in results.values()))
    facts = {"experiments": str(len(parts)), "time": total, "machine": "; ".join(machines) or "–"}
    compared = comparisons(results)
    return _template("overview.html").render(
        title="All experiments",
        smoke=any(result["preset"] == SMOKE for result in results.values()),
        facts=facts,
        parts=parts,
        missing=missing,
        chart=_png(plot_summary(compared)) if compared else "",
    )


def _template(name: str) -> Template:
    """Load a template. Results may come from elsewhere, so all of their text is escaped."""
    files = resources.files("cstformer.report")
    loader = FunctionLoader(lambda part: files.joinpath(part).read_text(encoding="utf-8"))
    look: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **look)
    environment.filters["code"] = in_code
    script = files.joinpath("sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    # The browser runs the script with this hash and no other, whatever a result may contain.
    environment.globals |= {"script": Markup(script), "script_hash": f"sha256-{digest}", "legend": legend}
    return environment.get_template(name)


def in_code(text: str) -> Markup:
    """HTML of a text in which `code` stands between backticks.

    >>> in_code("run `cst run <all>` again")
    Markup('run <code>cst run &lt;all&gt;</code> again')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def legend(tables: Sequence[Group]) -> str:
    """What the marks in these tables mean; of marks that are there."""
    entries = [entry for group in tables for line in group.lines for entry in line]
    columns = {column for group in tables for column in group.columns}
    parts = []
    if any("±" in entry.text for entry in entries):
        parts.append("Mean ± standard deviation over n test samples.")
    if "± over seeds" in columns:
        parts.append("± over seeds: standard deviation of the first metric over trainings, and their number.")
    if any(entry.text.endswith(UNSETTLED) for entry in entries):
        parts.append(f"{UNSETTLED}: less than one epoch, or still improving when its time was over; never bold.")
    if any(entry.best for entry in entries):
        rough = any("roughness" in column.casefold() for column in columns)
        parts.append(
            f"Bold: the best of its column under the same condition{'; for roughness, the nearest to 1' * rough}."
        )
    if "paper" in columns:
        parts.append("Paper: the number it prints for the first metric; – where it prints none.")
    return " ".join([*parts, "Click a heading to sort."])


def _png(figure: Figure) -> str:
    """A figure as a data URI."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode('ascii')}"


def headline(group: Group) -> dict[str, str] | None:
    """Name the best model by the first metric of a condition; None if there is nothing to compare."""
    if len(group.columns) < 2:
        return None
    winners = [line for line in group.lines if line[1].best]
    if not winners:
        return None
    paper = ""
    if "paper" in group.columns:
        paper = winners[0][group.columns.index("paper")].text
    return {
        "condition": group.condition,
        "metric": group.columns[1],
        "model": ", ".join(line[0].text for line in winners),
        "value": winners[0][1].text,
        "paper": paper.strip("–"),
    }


def flatten(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """List nested settings as (dotted name, text).

    >>> flatten({"model": {"width": 64, "norm": "pre"}, "sizes": [1, 2], "mu": None})
    [('model.width', '64'), ('model.norm', 'pre'), ('sizes', '[1, 2]'), ('mu', '–')]
    """
    lines: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            lines += flatten(value, f"{prefix}{key}.")
        elif value is None:
            lines.append((f"{prefix}{key}", "–"))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            lines.append((f"{prefix}{key}", text))
    return lines


def _figure(entry: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Read a figure and encode it as a data URI."""
    path = folder / entry["file"]
    # A result may come from elsewhere. It must not embed other files of this disk into a page that may be shared.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CSTError(f"the figure {entry['file']!r} lies outside of {folder}; figures must be inside the run")
    kind = IMAGE_TYPES.get(path.suffix.lower())
    if kind is None:
        raise CSTError(f"the figure {entry['file']!r} has none of the suffixes {', '.join(IMAGE_TYPES)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CSTError(
            f"cannot read the figure {path}: {error.strerror or error}; run the experiment again to make it"
        ) from error
    if not content:
        raise CSTError(f"the figure {path} is empty; run the experiment again to make it")
    title, caption = (str(entry.get(key) or "") for key in ("title", "caption"))
    return {
        "source": f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}",
        "title": title,
        "caption": caption,
        "alternative": title or caption or path.stem,
    }
