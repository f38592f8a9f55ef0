"""The figure of the study of the Sobolev term: error with it over that without, against its weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from cstformer.report.layout import legend_above
from cstformer.report.style import PAGE_WIDTH, new_figure, styled

COLOURS = {1: "#0072B2", 2: "#D55E00", 3: "#009E73"}
STYLES = {"value": "-", "slope": "--"}
COLUMNS = 3


@styled
def gains(
    table: Sequence[Mapping[str, Any]],
    without: str,
    parse: Callable[[str], tuple[int, float]],
    names: Mapping[str, str],
) -> Figure:
    """Draw a panel for each case; ``parse`` gives order and weight of a row, ``names`` the metrics by kind."""
    cases = list(dict.fromkeys(row["condition"] for row in table))
    lines = -(-len(cases) // COLUMNS)
    fig, axes = new_figure(lines, COLUMNS, (PAGE_WIDTH, 0.8 + 2.0 * lines), sharex=True)
    for ax, case in zip(axes.ravel(), cases, strict=False):
        rows = {row["model"]: row["metrics"] for row in table if row["condition"] == case}
        ax.axhline(1, color="#444444", linewidth=0.8)
        for kind, style in STYLES.items():
            for order, colour in COLOURS.items():
                found = sorted((parse(name)[1], name) for name in rows if parse(name)[0] == order)
                base = rows[without][names[kind]]["mean"] if without in rows else float("nan")
                y = [rows[name][names[kind]]["mean"] / base for _, name in found]
                spread = [rows[name][names[kind]].get("seed_std", 0.0) / base for _, name in found]
                label = f"k = {order}, {'values' if kind == 'value' else 'slopes'}"
                ax.errorbar(
                    [x for x, _ in found], y, spread, color=colour, linestyle=style, marker="o", ms=3, label=label
                )
        ax.set_xscale("log")
        ax.set_title(case.replace(", ", ",\n", 1), fontsize=7.5)
    for ax in axes.ravel()[len(cases) :]:
        ax.set_visible(False)
    fig.supxlabel("weight μ (1: term of the data = their variance)", fontsize=8.5)
    fig.supylabel("error ÷ error without the term", fontsize=8.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    legend_above(fig, handles, labels)
    return fig
