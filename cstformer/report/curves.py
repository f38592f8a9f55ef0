"""Figures of curves in the plane: the paper's Figures 2 and 6 to 10, error against roughness, and learning curves.

Each function takes plain arrays and returns a `Figure`. The arrays of one curve are

    fine_times (m,)      fits {name: (m, 2)}      truth (m, 2), the noise-free curve, optional
    observed (t, y) and test (t, y) with t (k,) and y (k, 2): points that the models saw, and did not see.

Several curves have one more leading axis, (n, m, 2) and so on. All curves may share their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cstformer.errors import CSTError
from cstformer.report.distributions import ERROR, PValues, draw_distributions
from cstformer.report.layout import label_points, legend_above, padded, plain_log_axis, titled
from cstformer.report.panels import (
    COMPONENTS,
    Curve,
    Fits,
    Points,
    closer_look,
    curve_legend,
    draw_component,
    draw_plane,
    draw_slopes,
    draw_zoom,
    present,
    share_time,
    square_limits,
    take_apart,
)
from cstformer.report.style import (
    PAGE_WIDTH,
    colour_of,
    colours_of,
    line_of,
    new_figure,
    panel_letter,
    styled,
)


@styled
def spiral_overview(
    fine_times: ArrayLike,
    fits: Fits,
    observed: Points,
    test: Points | None,
    errors: Mapping[str, ArrayLike],
    *,
    truth: ArrayLike | None = None,
    p_values: PValues | None = None,
    derivatives: Fits | None = None,
    zoom: tuple[float, float] | None = None,
    title: str = "",
) -> Figure:
    """Draw the paper's Figure 2: A the curves in the plane, B components, C a closer look, D the errors.

    B and C show the first curve. C shows the interval where the fits differ most, or ``zoom`` = (from, to). Its lower
    half is the slope: ``derivatives`` {name: (m, 2)} if given, else finite differences of the fits.
    ``errors`` {name: (n_curves,)} and ``p_values`` are as in `error_distributions`.
    """
    curves = take_apart(fine_times, fits, observed, test, truth)
    curve = curves[0]
    component, window = closer_look(curve, zoom)

    fig, axes = new_figure(2, 2, (PAGE_WIDTH, 6.9), width_ratios=(1, 1.25), height_ratios=(1, 1.08))
    plane, distribution = axes[0, 0], axes[1, 1]
    against_time, closer = _halves(fig, axes[0, 1]), _halves(fig, axes[1, 0])

    for one in curves:
        draw_plane(plane, one)
    plane.set_title("in the plane")
    panel_letter(plane, "A")

    for c, ax in enumerate(against_time):
        draw_component(ax, curve, c)
        if c == component:
            ax.axvspan(*window, color="#F0EDE4", zorder=0, linewidth=0)
    share_time(against_time)
    against_time[0].set_title("each component")
    panel_letter(against_time[0], "B")

    draw_zoom(closer[0], curve, component, window)
    slopes = {n: np.gradient(y, curve.times, axis=0) for n, y in curve.fits.items()}
    if derivatives is not None:
        slopes |= take_apart(fine_times, derivatives, observed, test, truth)[0].fits
    draw_slopes(closer[1], curve, slopes, component, window)
    share_time(closer)
    closer[0].set_title("a closer look")
    panel_letter(closer[0], "C")

    draw_distributions(distribution, errors, p_values, None)
    distribution.set_title("error of each curve")
    panel_letter(distribution, "D")
    curve_legend(fig, curves[0])
    fig.align_ylabels([*against_time])
    fig.align_ylabels([*closer])
    return titled(fig, title)


@styled
def example_spiral(
    fine_times: ArrayLike,
    fits: Fits,
    observed: Points,
    test: Points | None = None,
    *,
    truth: ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Draw the paper's Figure 6: one curve in the plane and each component against time.

    If ``fits`` is empty, only the data are shown.
    """
    curve = take_apart(fine_times, fits, observed, test, truth)[0]
    fig, axes = new_figure(1, 2, (PAGE_WIDTH, 3.7), width_ratios=(1, 1.25))
    components = _halves(fig, axes[0, 1])
    draw_plane(axes[0, 0], curve)
    for c, ax in enumerate(components):
        draw_component(ax, curve, c)
    share_time(components)
    fig.align_ylabels(components)
    curve_legend(fig, curve)
    return titled(fig, title)


@styled
def more_spirals(
    fine_times: ArrayLike,
    fits: Fits,
    observed: Points,
    test: Points | None = None,
    *,
    truth: ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Draw the paper's Figure 7: one column per curve and one row per system in ``fits``."""
    return titled(_rows_of_systems(take_apart(fine_times, fits, observed, test, truth)), title)


@styled
def noisy_spirals(
    fine_times: ArrayLike,
    fits: Fits,
    observed: Points,
    truth: ArrayLike,
    test: Points | None = None,
    *,
    title: str = "",
) -> Figure:
    """Draw the paper's Figure 8: fits of noisy points over the noise-free curve, one row per system."""
    return titled(_rows_of_systems(take_apart(fine_times, fits, observed, test, truth)), title)


@styled
def error_distributions(
    errors: Mapping[str, ArrayLike],
    p_values: PValues | None = None,
    *,
    title: str = "",
    ylabel: str = ERROR,
    condition: str | None = None,
) -> Figure:
    """Draw the paper's Figures 9 and 10: the error of every curve for each system, with P values.

    ``errors`` is {name: (n_curves,)}. ``condition`` selects among the tests of a `result.json`. The axis is
    logarithmic if the medians of the systems differ by more than a factor of ten, or an error is more than 20 times the
    largest median.
    """
    fig, axes = new_figure(1, 1, (min(PAGE_WIDTH, 1.6 + 1.5 * max(len(errors), 2)), 3.8))
    draw_distributions(axes[0, 0], errors, p_values, condition)
    axes[0, 0].set_ylabel(ylabel)
    return titled(fig, title)


@styled
def error_against_roughness(
    rows: Sequence[Mapping[str, Any]],
    *,
    error: str = "error",
    roughness: str = "roughness",
    condition: str | None = None,
    title: str = "",
) -> Figure:
    """Draw one labelled point per model: its error, and the roughness of its curves relative to the noise-free ones.

    ``rows`` is the `table` of a `result.json`; ``error`` and ``roughness`` name two of its metrics. Rows without both
    metrics, or of a condition other than ``condition``, are left out.
    """
    points: dict[str, tuple[float, float]] = {}
    for row in rows:
        if condition is not None and row["condition"] != condition:
            continue
        x, y = ((row["metrics"].get(name) or {}).get("mean") for name in (error, roughness))
        if x is not None and y is not None and np.isfinite([x, y]).all() and y > 0:
            points[row["model"]] = (float(x), float(y))
    if not points:
        raise CSTError(f"no row has both metrics {error!r} and {roughness!r} (condition {condition!r})")
    fig, axes = new_figure(1, 1, (PAGE_WIDTH * 0.86, 3.9))
    ax, colours = axes[0, 0], colours_of(points)
    errors, ratios = np.array(list(points.values())).T
    ax.set_yscale("log")
    ax.set_xlim(padded(errors, 0.12))
    low, high = padded(np.log10(np.append(ratios, 1.0)), 0.14)
    ax.set_ylim(10 ** min(low, -0.3), 10 ** max(high, 0.3))
    ax.axhline(1, color=colour_of("truth"), linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    ax.scatter(errors, ratios, s=46, c=list(colours.values()), edgecolors="white", linewidths=0.8, zorder=3)
    ax.grid(True)
    ax.set_xlabel(error if error != "error" else ERROR)
    ax.set_ylabel(f"{roughness} (1 = noise-free curve)")
    plain_log_axis(ax)
    titled(fig, title)
    label_points(fig, ax, list(points), errors, ratios, keep_clear=1.0)
    return fig


@styled
def learning_curves(
    histories: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str = "",
    xlabel: str = "training step",
    ylabel: str = "error at held-out points",
) -> Figure:
    """Draw the score of each model during training, with its best value marked.

    ``histories`` is {name: [(step, score)]}. Scores that are not positive and finite are left out, since the axis is
    logarithmic.
    """
    fig, axes = new_figure(1, 1, (PAGE_WIDTH * 0.86, 3.4))
    ax, drawn = axes[0, 0], 0
    colours = colours_of(histories)
    for name, history in histories.items():
        table = np.asarray(history, dtype=float).reshape(-1, 2)
        table = table[np.isfinite(table).all(axis=1) & (table[:, 1] > 0)]
        if not len(table):
            continue
        drawn += 1
        ax.plot(*table.T, color=colours[name], linestyle=line_of(name), label=name)
        best = table[table[:, 1].argmin()]
        ax.plot(*best, "o", color=colours[name], markersize=5.5, markeredgecolor="white", markeredgewidth=0.8)
    if not drawn:
        raise CSTError("no learning curve has a positive finite score")
    ax.set_yscale("log")
    ax.grid(True)
    plain_log_axis(ax)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    legend_above(fig, *ax.get_legend_handles_labels())
    return titled(fig, title)


def _halves(fig: Figure, ax: Axes) -> list[Axes]:
    """Replace a panel by two panels, one above the other."""
    spec = ax.get_subplotspec()
    assert spec is not None
    ax.remove()
    halves = spec.subgridspec(2, 1)
    return [fig.add_subplot(halves[0]), fig.add_subplot(halves[1])]


def _rows_of_systems(curves: Sequence[Curve]) -> Figure:
    names = list(curves[0].fits)
    if not names:
        raise CSTError("fits is empty; pass at least one system to draw")
    if len(curves) > 8:
        raise CSTError(f"{len(curves)} curves do not fit side by side; choose at most 8")
    # Square panels: the page width determines their side, and their side the height of the figure.
    side = min((PAGE_WIDTH - 0.45) / len(curves) - 0.42, 2.2)
    size = (PAGE_WIDTH, 0.8 + (side + 0.12) * len(names))
    fig, axes = new_figure(len(names), len(curves), size, sharex="col", sharey="col")
    for i, name in enumerate(names):
        for j, curve in enumerate(curves):
            ax = axes[i, j]
            draw_plane(ax, curve, [name])
            # A square box, the same scale on both axes, and the same limits down the column.
            ax.set_box_aspect(1)
            ax.set_aspect("auto")
            limits = square_limits([*curve.fits.values(), curve.observed[1], *present(curve.truth)])
            ax.set_xlim(limits[0])
            ax.set_ylim(limits[1])
            ax.xaxis.set_major_locator(MaxNLocator(3))
            ax.yaxis.set_major_locator(MaxNLocator(3))
            if i < len(names) - 1:
                ax.set_xlabel("")
            ax.set_ylabel(COMPONENTS[1] if j == 0 else "")
            if j == 0:
                ax.annotate(
                    name,
                    (0, 0.5),
                    xycoords="axes fraction",
                    xytext=(-48, 0),
                    textcoords="offset points",
                    rotation=90,
                    ha="right",
                    va="center",
                    fontweight="bold",
                    color=colours_of(names)[name],
                )
    curve_legend(fig, curves[0])
    return fig
