"""Charts of tables in RESULTS.md, drawn when the site is built, so that a page shows the results as they stand.

A page asks for one by a comment ``<!-- chart: SECTION | TABLE | COLUMN -->``.
"""

from __future__ import annotations

import io
import re

import matplotlib

from cstformer.report.style import DPI, STYLE, colour_of, new_figure

MARKER = re.compile(r"<!-- chart: ([^|\n]+) \| ([^|\n]+) \| ([^|\n]+?) -->")
MOST_ROWS = 14
NUMBER = re.compile(r"\(?([\d.,]+)(?: ± ([\d.,]+))?\)?(e-?\d+)?")


def read_column(results: str, section: str, table: str, column: str) -> dict[str, tuple[float, float]]:
    r"""Mean and standard deviation (0 if there is none) by model; empty if RESULTS.md has no such table.

    >>> text = "## a\n**b (n = 2)**\n\n| model | x |\n|---|---|\n| CST | **(2.0 ± 1.5)e-4** |\n| mean | – |\n"
    >>> read_column(text, "a", "b", "x")
    {'CST': (0.0002, 0.00015)}
    """
    part = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", results, re.M | re.S)
    found = re.search(rf"^\*\*{re.escape(table)}(?: \(n = \d+\))?\*\*\n\n((?:\|.*\n)+)", part[1] if part else "", re.M)
    if found is None:
        return {}
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found[1].splitlines())
    cells = {row[0]: NUMBER.fullmatch(row[head.index(column)].strip("*")) for row in rows}
    return {name: _numbers(*match.groups()) for name, match in cells.items() if match}


def _numbers(mean: str, sd: str | None, power: str | None) -> tuple[float, float]:
    value, spread = (float((text or "0").replace(",", "") + (power or "")) for text in (mean, sd))
    return value, spread


def draw(rows: dict[str, tuple[float, float]], label: str) -> bytes:
    """PNG with a point and a bar for each model, the best on top; variants of CST in its colour."""
    best = sorted(rows.items(), key=lambda item: item[1][0])[:MOST_ROWS][::-1]
    with matplotlib.rc_context(STYLE):
        fig, ((ax,),) = new_figure(size=(7.4, 0.7 + 0.22 * len(best)))
        for y, (name, (mean, sd)) in enumerate(best):
            colour = colour_of("CST") if name.startswith(("CST", "context")) else "#666666"
            # A bar ends above zero, which a logarithmic axis does not have.
            ax.errorbar(mean, y, xerr=[[min(sd, 0.9 * mean)], [sd]], fmt="o", ms=4, color=colour)
        ax.set_ylim(-0.6, len(best) - 0.4)
        ax.set_yticks(range(len(best)), [name for name, _ in best])
        if best[0][1][0] > 5 * best[-1][1][0]:
            ax.set_xscale("log")
        ax.set_xlabel(label)
        ax.grid(axis="x")
        out = io.BytesIO()
        fig.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def replace_markers(markdown: str, results: str) -> tuple[str, dict[str, bytes]]:
    """Markdown with images in the place of the markers, and these images by their path."""
    images: dict[str, bytes] = {}

    def image(match: re.Match[str]) -> str:
        section, table, column = match.groups()
        rows = read_column(results, section, table, column)
        if not rows:
            return ""
        path = f"figures/chart-{re.sub('[^a-z0-9]+', '-', f'{section} {table}'.lower())}.png"
        images[path] = draw(rows, f"{column} ({section}: {table})")
        version = re.search(r"cstformer ([\d.]+)", results)
        spread = any(sd for _, sd in rows.values())
        bars = " Bars are standard deviations over test samples, cut off above zero." if spread else ""
        note = f"From [all results](results.md) of version {version[1] if version else 'unknown'}.{bars}"
        return f"![{column} of {section}, {table}]({path})\n\n*{note}*"

    return MARKER.sub(image, markdown), images
