"""Figures of the intervals experiment: reliability, and width against the distance to the nearest observation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from cstformer.experiments.figures import PlannedFigure
from cstformer.experiments.intervals.measures import LEVELS
from cstformer.report.layout import legend_above
from cstformer.report.style import PAGE_WIDTH, colours_of, styled

Found = Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]
"""Arrays by condition and row."""

RELIABILITY = (
    "Share of new observations that intervals cover, against their level. Bars are 95 % bounds of the mean over "
    "samples. On the diagonal intervals keep what they promise; below it they are too narrow."
)
WIDTHS = (
    "Mean width of intervals of 90 %, against the distance in time of the query to the nearest observed point, both in "
    "the units of the data. Data whose queries all have the same distance are left out."
)


def planned_figures(found: Found) -> list[PlannedFigure]:
    """Both figures; the second needs queries at several distances."""
    figures = [PlannedFigure("reliability.png", "Coverage against level", RELIABILITY, partial(reliability, found))]
    several = {name: rows for name, rows in found.items() if all(len(arrays["gap"]) > 1 for arrays in rows.values())}
    if several:
        figures.append(PlannedFigure("widths.png", "Width against distance", WIDTHS, partial(widths, several)))
    return figures


@styled
def reliability(found: Found) -> Figure:
    """Coverage against level, a panel for each condition."""
    fig, axes = _panels(found)
    for ax, (condition, rows) in zip(axes, found.items(), strict=False):
        ax.plot([0.45, 1], [0.45, 1], color="#888888", lw=0.8)
        colours = colours_of(rows)
        for k, (name, arrays) in enumerate(rows.items()):
            coverage = arrays["coverage"]  # (L, N)
            error = 1.96 * coverage.std(1, ddof=1) / np.sqrt(coverage.shape[1])
            at = np.array(LEVELS) + 0.004 * (k - (len(rows) - 1) / 2)  # side by side
            ax.errorbar(at, coverage.mean(1), error, color=colours[name], marker="o", ms=3, lw=1.2, label=name)
        ax.set(title=condition, xlabel="level", ylabel="coverage", xlim=(0.45, 1), ylim=(0.3, 1.02))
    return fig


@styled
def widths(found: Found) -> Figure:
    """Width of intervals of 90 % against distance, a panel for each condition."""
    fig, axes = _panels(found)
    for ax, (condition, rows) in zip(axes, found.items(), strict=False):
        colours = colours_of(rows)
        for name, arrays in rows.items():
            ax.plot(arrays["gap"], arrays["gap_width"], color=colours[name], marker="o", ms=3, lw=1.2, label=name)
        ax.set(title=condition, xlabel="distance in time", ylabel="width at 90 %")
        ax.set_ylim(0, 1.08 * max(arrays["gap_width"].max() for arrays in rows.values()))
    return fig


def _panels(found: Found) -> tuple[Figure, list]:
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    fig = Figure(figsize=(PAGE_WIDTH, 0.4 + 2.5 * rows), layout="constrained")
    axes = list(fig.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[len(found) :]:
        ax.set_visible(False)
    names = dict.fromkeys(name for row in found.values() for name in row)
    handles = [axes[0].plot([], [], color=colour, marker="o", ms=3)[0] for colour in colours_of(names).values()]
    legend_above(fig, handles, list(names))
    return fig, axes
