"""Figures of the Navier–Stokes experiment: fields and slopes between frames, error against time and noise, zoom."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cstformer.experiments.figures import PlannedFigure, add_colourbar, learning_figure, show_image
from cstformer.experiments.navier_stokes.errors import (
    BICUBIC,
    FOURIER,
    TILED,
    ZOOMED,
    Arrays,
    Row,
    mean_at,
    shown_times,
)
from cstformer.experiments.navier_stokes.rows import (
    MIXED,
    NOISE_ROWS,
    SMOOTH,
    START,
    TO_LINEAR,
    WIENER,
    Config,
)
from cstformer.experiments.navier_stokes.task import Flows, closer_truth, unseen_times
from cstformer.report.layout import legend_above, plain_log_axis
from cstformer.report.style import PAGE_WIDTH, colours_of, line_of, new_figure, styled

DIVERGING = "RdBu_r"
_PICTURES = (SMOOTH, WIENER, "linear")
_LINES = (SMOOTH, START, WIENER, "cubic", "linear", TO_LINEAR, "FNO2D", "FNO3D (resampled)")


def planned_figures(
    config: Config, flows: Flows, looks: dict[Row, Arrays], histories: dict[str, Any]
) -> Iterator[PlannedFigure]:
    """Every figure whose rows have been computed."""
    yield from _fields(config, flows, looks)
    yield from _errors(config, flows, looks)
    zoomed = {name: look["field"] for (name, condition), look in looks.items() if condition == config.zoomed}
    if zoomed:
        yield PlannedFigure(
            "zoom.png",
            f"The field on {config.zoomed}",
            f"A model of {config.size} × {config.size} frames, asked between the pixels; half of the frame's width and "
            "height is shown. The solver ran on the fine grid from the same initial condition. All errors have the "
            "same colour scale.",
            partial(zoom_panels, {name: w[0] for name, w in zoomed.items()}),
        )
    yield from learning_figure(
        histories, "Validation loss in the model's units, at hidden frames of held-out training flows, noise included."
    )


def _fields(config: Config, flows: Flows, looks: dict[Row, Arrays]) -> Iterator[PlannedFigure]:
    """Fields and slopes of one test flow between the frames."""
    few = f"given={config.few}"
    systems = {name: looks[name, few] for name in _PICTURES if (name, few) in looks}
    if not systems:
        return
    flow, at = _typical(next(iter(systems.values()))["fine"]), shown_times(flows)
    w, slope = (x[flow, at] for x in closer_truth(flows, config.closer))
    times = flows.fine_times[at]
    text = f"A test flow of median error, {config.few} frames given, at times halfway between two frames."
    fields = {name: look["fields"][flow] for name, look in systems.items()}
    yield PlannedFigure(
        "fields.png", "Vorticity between the frames", text, partial(pictures, w, fields, times, "vorticity w")
    )
    slopes = {name: look["slopes"][flow] for name, look in systems.items()}
    yield PlannedFigure(
        "slopes.png",
        "Time derivative between the frames",
        f"{text} The truth is the right-hand side of the equation.",
        partial(pictures, slope, slopes, times, "∂w/∂t"),
    )


def _errors(config: Config, flows: Flows, looks: dict[Row, Arrays]) -> Iterator[PlannedFigure]:
    """Error against time, and against noise."""
    settings = {
        f"given={g}": {n: looks[n, f"given={g}"] for n in _LINES if (n, f"given={g}") in looks} for g in config.given
    }
    if any(settings.values()):
        yield PlannedFigure(
            "error_time.png",
            "Error against time",
            f"Mean over {config.closer} test flows, at four times per time unit. The first and the last frame are "
            "always given, the others differ from flow to flow. The field itself grows with time.",
            partial(errors_in_time, flows.fine_times, settings),
        )
    unseen, few = unseen_times(flows, config.few), f"given={config.few}"
    levels = {n: [looks.get((n, f"{few},noise={x:g}")) for x in config.levels] for n in (MIXED, *NOISE_ROWS)}
    complete = {n: [mean_at(x["mse"], unseen) for x in found if x] for n, found in levels.items() if all(found)}
    if complete:
        yield PlannedFigure(
            "error_noise.png",
            "Error against noise",
            f"Unseen times, {config.few} frames given; mean and standard error over the test flows. CST is one model, "
            "trained on flows of any noise between the lowest and the highest; the others are fitted at each level.",
            partial(errors_by_noise, config.levels, complete),
        )


@styled
def pictures(truth: np.ndarray, systems: dict[str, np.ndarray], times: np.ndarray, label: str) -> Figure:
    """Draw fields (T, H, W): a row for each time, columns for the truth and for each system with its error."""
    names = ["noise-free", *(text for name in systems for text in (name, "its error"))]
    rows = [truth, *(x for y in systems.values() for x in (y, y - truth))]
    fig, axes = new_figure(len(times), len(rows), (PAGE_WIDTH * 1.15, 0.5 + 0.98 * len(times)))
    scale = float(np.abs(truth).max())
    worst = max(float(np.quantile(np.abs(y - truth), 0.995)) for y in systems.values())
    images: dict[str, Any] = {}
    for j, (name, fields) in enumerate(zip(names, rows, strict=True)):
        kind, limit = ("error", worst) if name == "its error" else (label, scale)
        for i, t in enumerate(times):
            ax = axes[i, j]
            images[kind] = _picture(ax, fields[i], limit)
            if i == 0:
                ax.set_title(name.replace(" (", "\n(").replace(" + ", "\n+ "), fontsize=8)
            if j == 0:
                ax.set_ylabel(f"t = {t:g}")
    for kind, image in images.items():
        add_colourbar(fig, image, axes.ravel(), kind, fraction=0.02, pad=0.01)
    return fig


def _picture(ax: Axes, field: np.ndarray, limit: float) -> Any:
    return show_image(ax, field.T, origin="lower", cmap=DIVERGING, vmin=-limit, vmax=limit)


@styled
def errors_in_time(times: np.ndarray, settings: dict[str, dict[str, Arrays]]) -> Figure:
    """Error at each fine time, a panel for each number of given frames."""
    fig, axes = new_figure(1, len(settings), (PAGE_WIDTH, 3.6), sharey=True)
    names = list(dict.fromkeys(name for systems in settings.values() for name in systems))
    colours, handles = colours_of(names), {}
    for ax, (setting, systems) in zip(axes[0], settings.items(), strict=True):
        for name, look in systems.items():
            line = {"color": colours[name], "linestyle": line_of(name), "linewidth": 2 if name == SMOOTH else 1.2}
            (handles[name],) = ax.plot(times, look["fine"].mean(0), label=name, **line)
        ax.set_yscale("log")
        ax.set_xlabel("time")
        ax.set_title(setting.replace("given=", "frames given: "))
        ax.grid(axis="y")
    axes[0, 0].set_ylabel("mean squared error of w")
    legend_above(fig, list(handles.values()), list(handles))
    return fig


@styled
def errors_by_noise(levels: tuple[float, ...], systems: dict[str, list[np.ndarray]]) -> Figure:
    """Mean error and its standard error at each level of noise."""
    fig, axes = new_figure(1, 1, (PAGE_WIDTH, 3.8))
    ax = axes[0, 0]
    for name, colour in colours_of(systems).items():
        mean = [float(x.mean()) for x in systems[name]]
        error = [float(x.std() / np.sqrt(len(x))) for x in systems[name]]
        ax.errorbar(levels, mean, error, color=colour, linestyle=line_of(name), marker="o", markersize=4, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(levels, [f"{100 * level:g} %" for level in levels])
    ax.set_xticks([], minor=True)
    plain_log_axis(ax)
    ax.set_xlabel("noise, relative to the standard deviation of the field")
    ax.set_ylabel("mean squared error of w")
    ax.grid(axis="y")
    legend_above(fig, *ax.get_legend_handles_labels())
    return fig


@styled
def zoom_panels(fields: dict[str, np.ndarray]) -> Figure:
    """A quarter of the fine field, by the solver and by CST, and the errors of all methods."""
    truth = fields["solver (truth)"]
    part = (slice(truth.shape[0] // 2), slice(truth.shape[1] // 2))
    errors = {name: fields[name] - truth for name in (ZOOMED, TILED, FOURIER, BICUBIC)}
    limits = float(np.abs(truth).max()), float(np.quantile(np.abs(errors[ZOOMED]), 0.995))
    fig, axes = new_figure(2, 3, (PAGE_WIDTH, 5.2))
    panels = {"solver": (truth, 0), ZOOMED: (fields[ZOOMED], 0)}
    panels |= {f"error: {name}": (error, 1) for name, error in errors.items()}
    images: list[Any] = [None, None]
    for ax, (name, (field, kind)) in zip(axes.ravel(), panels.items(), strict=True):
        images[kind] = _picture(ax, field[part], limits[kind])
        ax.set_title(name.replace(", ", ",\n").replace("error: ", "error:\n"), fontsize=8)
    for image, label in zip(images, ("vorticity w", "error"), strict=True):
        add_colourbar(fig, image, axes.ravel(), label, fraction=0.025, pad=0.01)
    return fig


def _typical(errors: np.ndarray) -> int:
    """Index of the flow with the median error."""
    return int(np.argsort(errors.mean(1))[len(errors) // 2])
