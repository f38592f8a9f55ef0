"""RESULTS.md: one screen with the main comparisons, then everything else by experiment, folded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cstformer.errors import CSTError
from cstformer.report.main_table import COLUMNS, main_line
from cstformer.report.tables import (
    check_result,
    escape_markdown,
    format_duration,
    format_number,
    markdown_table,
    markdown_tables,
)
from cstformer.system.atomic import atomic_path

LEGEND = (
    "Numbers are followed by ± their standard deviation over the seeds of the training, where there are several. Lower "
    "is better, except for R². “Paper” is the number printed there, with the number of weights of its model; its "
    "data, units and noise are not always ours, see the page of the experiment. †: not converged in its time."
)
ABOUT = (
    "This page is written by `cst report` from the `result.json` of each run; do not edit it. Each section starts with "
    "the command that makes it again."
)
DETAILS = (
    "In the tables below, values are mean ± standard deviation over the n test samples, of means over all seeds; “± "
    "over seeds” is the standard deviation of the first metric over the seeds, and their number. Bold is the best of "
    "its column under the same condition (for roughness, the nearest to 1). Rows marked † saw less than one epoch or "
    "still improved when their time was over, and are never bold. Tests are paired Wilcoxon tests of the samples' "
    "means over the seeds, corrected by Holm's method within a condition. Times are sums over all rows, of which as "
    "many run side by side as there are cores."
)

EARLIER = "Version 0.1.0 has numbers of most of them, [on a page of their own](docs/results_0.1.0.md)."


def write_results_md(
    results: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    missing: Mapping[str, str] | None = None,
    figure: str | None = None,
) -> Path:
    """Write RESULTS.md from several results, one section per experiment, in the given order.

    Parameters
    ----------
    results : contents of `result.json`
    path : file to write
    missing : command of each experiment that was not run with this version, by name
    figure : path of the chart of the main comparisons, relative to the page
    """
    if not results:
        raise CSTError("RESULTS.md needs at least one result, got none")
    for result in results:
        check_result(result)
    parts = ["# Results", *_first_screen(results, missing or {}, figure), DETAILS, _software(results)]
    names = [result["experiment"] for result in results]
    for result in results:
        title = result["experiment"]
        if names.count(title) > 1:  # distinguish sections of the same experiment
            title += f" ({result['preset']}, seed {format_number(result['seed'])})"
        head, _, tables = markdown_tables(result).rstrip().partition("\n\n**")
        folded = f"<details markdown>\n<summary>Tables, tests and notes</summary>\n\n**{tables}\n\n</details>"
        parts += [
            f"## {escape_markdown(title)}",
            head,
            *([claims_list(result)] if result.get("claims") else []),
            folded,
        ]
    target = Path(path)
    with atomic_path(target) as tmp:
        tmp.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def _first_screen(results: Sequence[Mapping[str, Any]], missing: Mapping[str, str], figure: str | None) -> list[str]:
    parts = [main_table(results), LEGEND] if any(result.get("main") for result in results) else []
    if figure is not None and parts:
        parts.insert(0, f"![Error of CST over that of the best rival in each experiment]({figure})")
    if missing:
        commands = ", ".join(f"{name} (`{command}`)" for name, command in missing.items())
        parts.append(f"Not run with this version yet: {commands}. {EARLIER}")
    return [*parts, ABOUT]


def _software(results: Sequence[Mapping[str, Any]]) -> str:
    total = format_duration(sum(result["seconds"] for result in results))
    versions = dict(item for result in results for item in result["versions"].items())
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"Total time {total}. {escape_markdown(software)}".strip()


def main_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The main comparisons of all results in one table."""
    lines = [main_line(entry) for result in results for entry in result.get("main", [])]
    return markdown_table(COLUMNS, [[escape_markdown(cell) for cell in line] for line in lines], left=1)


def claims_list(result: Mapping[str, Any]) -> str:
    """Which of the paper's claims hold in a result, one line each."""
    lines = []
    for claim in result["claims"]:
        numbers = f" ({escape_markdown(claim['text'])})" if claim.get("text") else ""
        lines.append(f"- **{escape_markdown(claim['holds'])}**: {escape_markdown(claim['claim'])}{numbers}")
    return "\n".join(["Claims of the paper, and whether they hold here:", "", *lines])
