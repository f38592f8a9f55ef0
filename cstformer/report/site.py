"""Pages whose numbers come from the committed results: RESULTS.md, and marked parts of README.md and docs/.

The folder ``results/`` has the `result.json` of the last run of each experiment. A page marks a part that is made from
them by two comments; what stands between these is replaced:

    <!-- results: main spirals navier-stokes -->
    <!-- end of results -->

``main`` makes the table of the main comparisons of some experiments, ``claims`` the list of the paper's claims, and
``table NAME | CONDITION`` one table. A part of which no experiment has a result is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cstformer.errors import CSTError
from cstformer.report.main_table import ratio
from cstformer.report.page import SMOKE, results_in
from cstformer.report.results_page import claims_list, main_table, write_results_md
from cstformer.report.style import save_figure
from cstformer.report.summary_chart import plot_main
from cstformer.report.tables import command_of, condition_table, escape_markdown, load_result
from cstformer.system.atomic import atomic_path

FOLDER, PAGE, CHART = "results", "RESULTS.md", "docs/figures/results.png"
MARKED = re.compile(r"(<!-- results: (\w+) (.+?) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
DIGITS = 6  # significant digits of the numbers that are kept

Results = Mapping[str, Mapping[str, Any]]
"""Results by the name of the experiment."""


def keep_result(run: Path, root: Path) -> Path:
    """Copy the result of a run, without its figures, to the folder of committed results."""
    result = load_result(run)
    if result["preset"] == SMOKE:
        raise CSTError(f"{run} is a run of the preset {SMOKE!r}, whose numbers mean nothing; run the default preset")
    target = root / FOLDER / result["experiment"] / "result.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps(_short(result | {"figures": []}), indent=1, ensure_ascii=False) + "\n")
    return target


def kept_results(root: Path) -> dict[str, dict[str, Any]]:
    """The committed results, in the order of the paper."""
    return {run.name: load_result(run) for run in results_in(root / FOLDER)}


def write_site(root: Path, experiments: Mapping[str, str]) -> list[Path]:
    """Write RESULTS.md, its chart and the marked parts of all pages; return the files that changed or may have.

    ``experiments`` has the command of every experiment by name; those without a result are listed with it.
    """
    results = kept_results(root)
    if not results:
        raise CSTError(f"{root / FOLDER} holds no result; give runs, whose results are then kept there")
    written = []
    entries = [entry for result in results.values() for entry in result.get("main", [])]
    compared = [entry for entry in entries if ratio(entry, "trained") or ratio(entry, "classical")]
    if compared:
        (root / CHART).parent.mkdir(parents=True, exist_ok=True)
        written.append(save_figure(plot_main(compared), root / CHART))
    missing = {name: command for name, command in experiments.items() if name not in results}
    written.append(write_results_md(list(results.values()), root / PAGE, missing, CHART if compared else None))
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text, results)) != text:
            with atomic_path(page) as temporary:
                temporary.write_text(filled, encoding="utf-8")
            written.append(page)
    return written


def pages(root: Path) -> list[Path]:
    """Pages that may have marked parts."""
    return [page for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if page.is_file()]


def fill(text: str, results: Results) -> str:
    """Replace what stands in the marked parts of a page."""

    def replaced(match: re.Match[str]) -> str:
        made = _part(match[2], match[3], results)
        return match[0] if made is None else f"{match[1]}{made}\n{match[5]}"

    return MARKED.sub(replaced, text)


def _part(kind: str, about: str, results: Results) -> str | None:
    """Markdown of a marked part; None if there is no result for it."""
    if kind == "table":
        name, condition = (word.strip() for word in about.split("|"))
        return _table(results[name], condition) if name in results else None
    names = about.split()
    found = [results[name] for name in names if name in results]
    if not found:
        return None
    if kind == "claims":
        return "\n\n".join(claims_list(result) for result in found if result.get("claims"))
    if kind != "main":
        raise CSTError(f"a page asks for results of the kind {kind!r}; known are main, claims and table")
    missing = [f"`cst run {name}`" for name in names if name not in results]
    note = f"\n\nNot run with this version yet: {', '.join(missing)}." if missing else ""
    return main_table(found) + note


def _table(result: Mapping[str, Any], condition: str) -> str:
    found = condition_table(result, condition)
    if found is None:
        known = ", ".join(dict.fromkeys(row["condition"] for row in result["table"]))
        raise CSTError(f"a page asks for the table {condition!r}, which {result['experiment']} has not: {known}")
    return f"{found}\n\n{escape_markdown(command_of(result))}, cstformer {result['versions'].get('cstformer', '?')}."


def _short(x: Any) -> Any:
    """Round numbers, so that files stay small and comparable."""
    if isinstance(x, dict):
        return {key: _short(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_short(value) for value in x]
    return float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x
