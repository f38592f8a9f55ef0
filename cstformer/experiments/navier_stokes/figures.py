"""Figures of the Navier–Stokes experiment: fields and slopes between frames, error against time and noise, zoom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cstformer.experiments.navier_stokes.errors import BICUBIC, FOURIER, TILED, ZOOMED, Arrays, shown_times
from cstformer.experiments.navier_stokes.experiment import (
    LINEAR,
    MIXED,
    NOISE_ROWS,
    SMOOTH,
    START,
    TO_LINEAR,
    WIENER,
    Config,
    Row,
    mean_at,
)
from cstformer.experiments.navier_stokes.task import Flows, closer_truth
from cstformer.report import curves
from cstformer.report.layout import legend_above, plain_log_axis
from cstformer.report.style import PAGE_WIDTH, colours_of, line_of, new_figure, save_figure, styled

DIVERGING = "RdBu_r"
_PICTURES = (SMOOTH, WIENER, "linear")
_LINES = (SMOOTH, LINEAR, START, WIENER, "cubic", "linear", TO_LINEAR, "FNO2D", "FNO3D (resampled)")


def draw(
    config: Config,
    flows: Flows,
    looks: dict[Row, Arrays],
    unseen: np.ndarray,
    histories: dict[str, Any],
    out: Path,
) -> list[dict[str, str]]:
    """Draw every figure whose rows are there; their entries in `result.json`.

    ``unseen`` (N, T) belongs to the setting with the fewest given frames, in which fields and noise levels are drawn.
    """
    made: list[dict[str, str]] = []

    def add(file: str, title: str, caption: str, figure: Figure) -> None:
        save_figure(figure, out / file)
        made.append({"file": file, "title": title, "caption": caption})

    few = f"given={config.few}"
    systems = {name: looks[name, few] for name in _PICTURES if (name, few) in looks}
    if systems:
        flow = _typical(next(iter(systems.values()))["fine"])
        at = shown_times(flows)
        w, slope = (x[flow, at] for x in closer_truth(flows, config.closer))
        times = flows.fine_times[at]
        text = f"A test flow of median error, {config.few} frames given, at times halfway between two frames."
        fields = {name: look["fields"][flow] for name, look in systems.items()}
        add("fields.png", "Vorticity between the frames", text, pictures(w, fields, times, "vorticity w"))
        slopes = {name: look["slopes"][flow] for name, look in systems.items()}
        text += " The truth is the right-hand side of the equation."
        add("slopes.png", "Time derivative between the frames", text, pictures(slope, slopes, times, "∂w/∂t"))
    settings = {
        f"given={g}": {n: looks[n, f"given={g}"] for n in _LINES if (n, f"given={g}") in looks} for g in config.given
    }
    if any(settings.values()):
        add(
            "error_time.png",
            "Error against time",
            f"Mean over {config.closer} test flows, asked for four times a time unit; given frames differ from flow to "
            "flow, the first and the last are always given. The field itself grows with time.",
            errors_in_time(flows.fine_times, settings),
        )
    levels = {n: [looks.get((n, f"{few},noise={x:g}")) for x in config.levels] for n in (MIXED, *NOISE_ROWS)}
    complete = {n: [mean_at(x["mse"], unseen) for x in found if x] for n, found in levels.items() if all(found)}
    if complete:
        add(
            "error_noise.png",
            "Error against noise",
            f"Unseen times, {config.few} frames given; mean and standard error over the test flows. CST is one model, "
            "trained on flows of any noise between the lowest and the highest; the others are fitted at each level.",
            errors_by_noise(config.levels, complete),
        )
    zoomed = {name: look["field"] for (name, condition), look in looks.items() if condition == config.zoomed}
    if zoomed:
        add(
            "zoom.png",
            f"The field on {config.zoomed}",
            f"A model of {config.size} × {config.size} frames asked between the pixels, half of the frame's width and "
            "height; the solver was run on the fine grid from the same initial condition. Errors share their colours.",
            zoom_panels({name: w[0] for name, w in zoomed.items()}),
        )
    if histories:
        add(
            "learning_curves.png",
            "CST during training",
            "Validation loss in the model's units, at hidden frames of held-out training flows, with their noise.",
            curves.learning_curves(histories),
        )
    return made


@styled
def pictures(truth: np.ndarray, systems: dict[str, np.ndarray], times: np.ndarray, label: str) -> Figure:
    """Fields (T, H, W): the truth, and each system with its error; a column a time."""
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
        bar = fig.colorbar(image, ax=list(axes.ravel()), fraction=0.02, pad=0.01)
        bar.set_label(kind)
        bar.outline.set_visible(False)
    return fig


def _picture(ax: Axes, field: np.ndarray, limit: float) -> Any:
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax.imshow(field.T, origin="lower", cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest")


@styled
def errors_in_time(times: np.ndarray, settings: dict[str, dict[str, Arrays]]) -> Figure:
    """Error at each fine time, a panel a setting."""
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
    """A quarter of the fine field: the solver's, CST's, and the errors of all ways to get it."""
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
        bar = fig.colorbar(image, ax=list(axes.ravel()), fraction=0.025, pad=0.01)
        bar.set_label(label)
        bar.outline.set_visible(False)
    return fig


def _typical(errors: np.ndarray) -> int:
    """The flow of median error."""
    return int(np.argsort(errors.mean(1))[len(errors) // 2])
