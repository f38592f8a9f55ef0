"""Growth of time and memory of a training step: the figure of ``cst bench --figure`` (the paper's Figure 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from cstformer.errors import CSTError
from cstformer.report.layout import legend_above, plain_log_axis, titled
from cstformer.report.style import PAGE_WIDTH, new_figure, styled

SYSTEMS = {
    "joint, exact": ("#0072B2", "s", (0, (5, 1.5))),
    "joint, Nyström": ("#CC79A7", "^", (0, (1.5, 1.2))),
    "context": ("#D55E00", "o", "-"),
}
LABELS = {"dummies": "dummy points", "points": "context points", "width": "width", "order": "derivative order"}
MEASURES = {"seconds": "seconds a step", "peak MB": "peak memory (MB)"}


@styled
def scaling_figure(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Figure:
    """Draw time (top) and memory (bottom) against each varied size, one column per size, with fitted slopes.

    ``rows`` are those of the benchmark ``scaling``: measurements {"axis", "system", "size", "seconds", "peak MB"} and
    fits {"axis", "system", "slope of seconds", "slope of peak MB"}.
    """
    measured = [row for row in rows if "size" in row]
    axes = [axis for axis in LABELS if any(row["axis"] == axis for row in measured)]
    if not axes:
        raise CSTError("rows has no measurement of the benchmark 'scaling'; run cst bench --only scaling")
    fig, panels = new_figure(2, len(axes), (PAGE_WIDTH, 4.6), sharex="col")
    for column, axis in enumerate(axes):
        for line, (measure, label) in enumerate(MEASURES.items()):
            ax = panels[line, column]
            for system, (colour, marker, style) in SYSTEMS.items():
                mine = [row for row in measured if (row["axis"], row["system"]) == (axis, system)]
                if mine:
                    x, y = [row["size"] for row in mine], [row[measure] for row in mine]
                    ax.plot(x, y, color=colour, marker=marker, markersize=3.5, linestyle=style, label=system)
            ax.set_yscale("log")
            plain_log_axis(ax)
            ax.grid(True)
            if axis != "order":
                ax.set_xscale("log")
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                ax.xaxis.set_minor_formatter(NullFormatter())
            _write_slopes(ax, [r for r in rows if r["axis"] == axis and f"slope of {measure}" in r], measure)
            if column == 0:
                ax.set_ylabel(label)
        panels[1, column].set_xlabel(LABELS[axis])
    legend_above(fig, *panels[0, 0].get_legend_handles_labels())
    return titled(fig, title)


def _write_slopes(ax: Any, slopes: Sequence[Mapping[str, Any]], measure: str) -> None:
    """Write the exponents of the fitted power laws into a free corner, each in the colour of its line."""
    for i, row in enumerate(slopes):
        text, colour = f"slope {row[f'slope of {measure}']:.2f}", SYSTEMS[row["system"]][0]
        ax.text(0.04, 0.97 - 0.1 * i, text, color=colour, transform=ax.transAxes, va="top", size=7.5)
