"""Figures of the imputation experiment: error against share, patients, a day of ETTh1, training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cstformer.datasets.gaps import GapTask
from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.figures import PlannedFigure, learning_figure
from cstformer.experiments.imputation.rows import BOOSTING, CST_ABSOLUTE, CST_ROW, ETT, OSCILLATORS, PHYSIONET, Config
from cstformer.experiments.imputation.task import curve_times, data_of, make_task, shown_samples
from cstformer.report.layout import legend_above, padded, plain_log_axis
from cstformer.report.style import PAGE_WIDTH, colour_of, colours_of, line_of, new_figure, styled

DRAWN = (CST_ROW, CST_ABSOLUTE, BOOSTING, "linear")  # rows whose curves are drawn, at most three of them
DAY_SHARE = 0.5  # of the removed cells, in the figure of one day
Curves = dict[str, np.ndarray]
"""Answers (shown samples, m, c) by row."""


def planned_figures(
    config: Config, seed: int, results: dict[Cell, CellResult], table: list[dict[str, Any]]
) -> Iterator[PlannedFigure]:
    """Every figure whose rows have been computed."""
    published = any(row["paper"] for row in table if data_of(row["condition"]) == ETT)
    crosses = ", crosses the published errors of the model of the same colour" if published else ""
    if len(config.shares) > 1 and any(data_of(row["condition"]) == ETT for row in table):
        yield PlannedFigure(
            "error_by_share.png",
            "ETTh1: error against the share of removed cells",
            "Mean error over the removed cells, in standardised units; bars are standard deviations over "
            f"seeds{crosses}. Lower is better.",
            partial(error_by_share, table, config),
        )
    for condition in config.conditions():
        curves = _curves(results, condition)
        if not curves:
            continue
        task = make_task(condition, config, seed)
        assert isinstance(task, GapTask)
        if data_of(condition) == PHYSIONET:
            yield PlannedFigure(
                "patients.png",
                "Two patients",
                "Scored patients at a third and two thirds of the ranks of asked cells; the four variables with most "
                "asked cells. Filled points were given, open ones asked for. Variables are scaled to [0, 1] by "
                "their range in training patients.",
                partial(two_samples, task, curves, "hours after admission"),
            )
        elif data_of(condition) == ETT and config.conditions()[condition] == DAY_SHARE:
            yield PlannedFigure(
                "day.png",
                f"One day of {condition}",
                "First day of a scored window, in standardised units. Filled points were given, open ones "
                "were removed and asked for.",
                partial(one_day, task, curves),
            )
        elif data_of(condition) == OSCILLATORS:
            yield PlannedFigure(
                "oscillators.png",
                "Two rings of oscillators",
                "Scored samples. Filled points were given, with noise; open ones are the noise-free values of the "
                "removed cells.",
                partial(two_samples, task, curves, "time / s"),
            )
    histories = {
        _short_name(cell.condition): result.facts["history"]
        for cell, result in results.items()
        if cell.model == CST_ROW and "history" in result.facts
    }
    yield from learning_figure(
        histories,
        "Validation loss in the model's units, at hidden cells of held-out training samples. The dot marks the step "
        "whose weights are kept.",
    )


def _short_name(condition: str) -> str:
    """The data set, and the share of removed cells of ETTh1, which has several.

    >>> _short_name("ETTh1, 10 % removed"), _short_name("ERA5, every sixth hour given")
    ('ETTh1, 10 %', 'ERA5')
    """
    return condition.split(" removed")[0] if data_of(condition) == ETT else data_of(condition)


def _curves(results: dict[Cell, CellResult], condition: str) -> Curves:
    """Curves of the drawn rows in a condition; CST with p = 1 takes the place of CST where both were trained."""
    found = {
        cell.model: result.arrays["curve"]
        for cell, result in results.items()
        if cell.condition == condition and "curve" in result.arrays
    }
    if CST_ABSOLUTE in found:
        found.pop(CST_ROW, None)
    return {row: found[row] for row in DRAWN if row in found}


@styled
def error_by_share(table: Sequence[dict[str, Any]], config: Config) -> Figure:
    """Draw the mean absolute and the mean squared error of each row against the share of removed cells."""
    conditions = {c: share for c, share in config.conditions().items() if data_of(c) == ETT and share is not None}
    rows = [row for row in table if row["condition"] in conditions]
    names = list(dict.fromkeys(row["model"] for row in rows))
    colours = colours_of(names)
    fig, axes = new_figure(1, 2, (PAGE_WIDTH, 3.6))
    for ax, measure in zip(axes[0], ("MAE", "MSE"), strict=True):
        for name in names:
            mine = [row for row in rows if row["model"] == name]
            x = [100 * conditions[row["condition"]] for row in mine]
            y = [row["metrics"][measure]["mean"] for row in mine]
            sd = [row["metrics"][measure].get("seed_std", 0.0) for row in mine]
            ax.errorbar(x, y, sd, color=colours[name], linestyle=line_of(name), marker="o", markersize=3.5, label=name)
            known = [(a, row["paper"]) for a, row in zip(x, mine, strict=True) if row["paper"]]
            if measure == "MAE" and known:
                ax.plot(*zip(*known, strict=True), "x", color=colours[name], markersize=6)
        ax.set_yscale("log")
        ax.set_xticks([100 * share for share in conditions.values()])
        ax.set_xlabel("removed cells / %")
        ax.set_ylabel({"MAE": "mean absolute error", "MSE": "mean squared error"}[measure])
        ax.grid(True, axis="y")
        plain_log_axis(ax)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    legend_above(fig, handles, labels)
    return fig


@styled
def two_samples(task: GapTask, curves: Curves, xlabel: str) -> Figure:
    """Draw the four channels with most asked cells of both shown samples, one column for each sample."""
    shown = shown_samples(task)
    fig, axes = new_figure(4, 2, (PAGE_WIDTH, 7.0), sharex="col")
    for j, i in enumerate(shown):
        channels = np.sort(np.argsort(-task.asked[i].sum(0), kind="stable")[:4])
        for ax, k in zip(axes[:, j], channels, strict=True):
            _draw_channel(ax, task, curves, j, int(k))
            ax.set_ylabel(task.context.value_names[k])
        axes[-1, j].set_xlabel(xlabel)
    fig.align_ylabels(axes[:, 0])
    fig.align_ylabels(axes[:, 1])
    _legend(fig, axes[0, 0], len(curves))
    return fig


@styled
def one_day(task: GapTask, curves: Curves) -> Figure:
    """Draw all channels of the first day of the first shown window."""
    count = task.context.c
    fig, axes = new_figure((count + 1) // 2, 2, (PAGE_WIDTH, 1.2 + 1.45 * ((count + 1) // 2)), sharex=True)
    for k, ax in enumerate(axes.ravel()):
        if k == count:
            ax.set_visible(False)
            break
        _draw_channel(ax, task, curves, 0, k, until=24.0)
        ax.set_ylabel(task.context.value_names[k])
        ax.set_xticks(range(0, 25, 6))
        ax.tick_params(labelbottom=k >= count - 2)
        ax.set_xlabel("hour" if k == count - 1 else "")
    fig.align_ylabels(axes[:, 0])
    fig.align_ylabels(axes[:, 1])
    _legend(fig, axes[0, 0], len(curves))
    return fig


def _draw_channel(ax: Axes, task: GapTask, curves: Curves, j: int, k: int, until: float = np.inf) -> None:
    """Draw one channel of the ``j``-th shown sample: answers as lines, given and asked cells as points."""
    i, t = shown_samples(task)[j], curve_times(task)
    names, early = list(curves), t <= until
    for height, name in enumerate(reversed(names)):  # the first on top
        style: dict[str, Any] = {"linestyle": line_of(name), "linewidth": 1.2, "zorder": 2 + height / 10}
        ax.plot(t[early], curves[name][j, early, k], color=colours_of(names)[name], label=name, **style)
    given, asked = task.context.observed[i, :, k], task.asked[i, :, k]
    x, y = task.context.coords[i, given, 0], task.context.values[i, given, k]
    points, truth = task.at[i, asked, 0], task.truth[i, asked, k]
    style = {"linestyle": "", "marker": "o", "markersize": 3.5, "zorder": 4}
    ax.plot(x[x <= until], y[x <= until], color=colour_of("observed"), label="given", **style)
    open_style = style | {"markerfacecolor": "white", "markeredgecolor": colour_of("test")}
    ax.plot(points[points <= until], truth[points <= until], label="asked", **open_style)
    # A spline may leave the data by far; the limits are those of the data and of CST.
    first = curves[names[0]][j, early, k]
    ax.set_ylim(padded(np.concatenate([y[x <= until], truth[points <= until], first]), 0.08))


def _legend(fig: Figure, ax: Axes, lines: int) -> None:
    """Put the legend above the panels, in the order of the rows; the first ``lines`` entries were drawn backwards."""
    handles, labels = ax.get_legend_handles_labels()
    legend_above(fig, handles[:lines][::-1] + handles[lines:], labels[:lines][::-1] + labels[lines:])
