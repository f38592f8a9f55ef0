"""One chart over all experiments: the error of CST beside that of its best rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from cstformer.report.layout import legend_above
from cstformer.report.main_table import ratio
from cstformer.report.style import PAGE_WIDTH, colour_of, new_figure, styled, system_of
from cstformer.report.tables import HIGHER_IS_BETTER, YARDSTICKS

MOST_CONDITIONS = 3  # of each experiment: the first ones, which its table begins with


@dataclass(frozen=True)
class Comparison:
    """Error of CST over that of its best rival in one condition."""

    experiment: str
    condition: str
    metric: str
    rival: str
    ratio: float


def comparisons(results: Mapping[str, Mapping[str, Any]]) -> list[Comparison]:
    """Compare CST with its best rival by the first metric of the first conditions of each result.

    A share of explained variance counts as 1 − R². Other scores where more is better have no such ratio and are left
    out, and so are conditions without CST, without a rival, or with errors that are not positive.
    """
    found = []
    for name, result in results.items():
        conditions = list(dict.fromkeys(row["condition"] for row in result["table"]))[:MOST_CONDITIONS]
        for condition in conditions:
            rows = [row for row in result["table"] if row["condition"] == condition and row["metrics"]]
            metric = next((next(iter(row["metrics"])) for row in rows), "")
            errors = {row["model"]: error for row in rows if (error := _error(metric, row)) is not None and error > 0}
            own = [error for model, error in errors.items() if system_of(model) == "CST"]
            rivals = {m: e for m, e in errors.items() if "cst" not in m.casefold() and not _yardstick(m)}
            if own and rivals:
                best = min(rivals, key=lambda model: rivals[model])
                found.append(Comparison(name, condition, metric, best, min(own) / rivals[best]))
    return found


@styled
def plot_summary(found: list[Comparison]) -> Figure:
    """Draw a line for each comparison; left of 1, CST has the smaller error."""
    fig, axes = new_figure(1, 1, (PAGE_WIDTH, 1.1 + 0.28 * len(found)))
    ax, places = axes[0, 0], np.arange(len(found))[::-1]
    ratios = np.array([one.ratio for one in found])
    ax.axvline(1, color="#444444", linewidth=0.8)
    ax.hlines(places, np.minimum(ratios, 1), np.maximum(ratios, 1), color="#CCCCCC", linewidth=1.5, zorder=1)
    ax.plot(ratios, places, "o", color=colour_of("CST"), markersize=6, zorder=2)
    for one, place in zip(found, places, strict=True):
        side = 1 if one.ratio >= 1 else -1
        ax.annotate(
            f"{one.ratio:.2g} × {one.rival}",
            (one.ratio, place),
            (7 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=7.5,
        )
    ax.set_yticks(places, [f"{one.experiment}: {one.condition}" for one in found])
    ax.set_xscale("log")
    low, high = min(ratios.min(), 0.9), max(ratios.max(), 1.1)
    ax.set_xlim(low * (low / high) ** 0.6, high * (high / low) ** 0.6)  # room for the names
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(-0.7, len(found) - 0.3)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("error of CST ÷ error of its best rival (left of 1: CST is better)")
    return fig


@styled
def plot_main(entries: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the main comparisons (`report.main_table`): CST over the best trained rival and over the best without."""
    fig, axes = new_figure(1, 1, (PAGE_WIDTH, 1.3 + 0.3 * len(entries)))
    ax, places = axes[0, 0], np.arange(len(entries))[::-1]
    ax.axvline(1, color="#444444", linewidth=0.8)
    kinds = {
        "trained": ("best trained rival", "o", colour_of("CST")),
        "classical": ("best without training", "D", "#888888"),
    }
    for kind, (label, marker, colour) in kinds.items():
        found = [(value, y) for entry, y in zip(entries, places, strict=True) if (value := ratio(entry, kind))]
        if found:
            x, y = zip(*found, strict=True)
            ax.hlines(y, np.minimum(x, 1), np.maximum(x, 1), color="#DDDDDD", linewidth=1.2, zorder=1)
            ax.plot(x, y, marker, color=colour, markersize=6, label=f"CST ÷ {label}", zorder=2)
    ax.set_yticks(places, [entry["question"] for entry in entries])
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(-0.7, len(entries) - 0.3)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    ax.set_xlabel("error of CST ÷ error of the other (left of 1: CST is better)")
    handles, labels = ax.get_legend_handles_labels()
    legend_above(fig, handles, labels)
    return fig


def _error(metric: str, row: Mapping[str, Any]) -> float | None:
    mean, name = row["metrics"].get(metric, {}).get("mean"), metric.casefold()
    if not isinstance(mean, int | float) or not np.isfinite(mean):
        return None
    if name.startswith(("r2", "r²")):
        return 1 - mean
    return None if any(word in name for word in HIGHER_IS_BETTER) else float(mean)


def _yardstick(model: str) -> bool:
    return any(word in model.casefold() for word in YARDSTICKS)
