"""The figure of the clocks experiment: a missing frame, a pixel around it, and the errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cstformer.experiments.clocks.task import Gaps
from cstformer.experiments.figures import PlannedFigure, add_colourbar, show_image
from cstformer.report.style import PAGE_WIDTH, colour_of, line_of, panel_letter, styled

CAPTION = (
    "a: a dropped frame of the first recording, by each method, beside the noise-free signal (ΔF/F in per cent). "
    "b: the pixel with the strongest signal around that time; points are recorded frames, the line is the time of the "
    "dropped one. c: error at all dropped frames of each recording, relative to the variance of the signal."
)


def planned_figures(
    gaps: Gaps, example: Mapping[str, Mapping[str, np.ndarray]], errors: Mapping[str, np.ndarray]
) -> list[PlannedFigure]:
    """One figure: ``example`` has the arrays of the first recording by row, ``errors`` those of all recordings."""
    draw = partial(missing_frames, gaps, example, errors)
    return [PlannedFigure("clocks.png", "Frames that were dropped", CAPTION, draw)]


@styled
def missing_frames(
    gaps: Gaps, example: Mapping[str, Mapping[str, np.ndarray]], errors: Mapping[str, np.ndarray]
) -> Figure:
    """Draw a missing frame, the course of a pixel, and the errors."""
    any_row = next(iter(example.values()))
    clock, when = any_row["clock"], float(any_row["when"])
    truth = gaps.truth(np.array([when]))[0]
    row, col = np.unravel_index(np.nanargmax(np.abs(truth)), truth.shape)
    fig = Figure(figsize=(PAGE_WIDTH, 5.2), layout="constrained")
    parts: Any = fig.subfigures(2, 1, height_ratios=[1, 1.25])
    top, bottom = parts
    axes = top.subplots(1, 1 + len(example), squeeze=False)[0]
    limit = 100 * float(np.nanmax(np.abs(truth)))
    frames = {"noise-free": truth} | {name: arrays["frame"] for name, arrays in example.items()}
    for ax, (name, frame) in zip(axes, frames.items(), strict=True):
        image = show_image(ax, 100 * frame, cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set_title(name)
    panel_letter(axes[0], "a")
    add_colourbar(top, image, axes, "ΔF/F [%]", shrink=0.8)
    course, spread = bottom.subplots(1, 2, width_ratios=[1.7, 1])
    course.plot(clock, 100 * gaps.truth(clock)[:, row, col], color=colour_of("truth"), lw=4, label="noise-free")
    for name, arrays in example.items():
        course.plot(clock, 100 * arrays["course"], color=colour_of(name), ls=line_of(name), label=name, lw=1.2)
    near = (gaps.times >= clock[0]) & (gaps.times <= clock[-1])
    course.plot(gaps.times[near], 100 * gaps.frames[near, row, col], "o", color="black", ms=2.5, label="recorded")
    course.axvline(when, color="#888888", lw=0.8)
    course.set(xlabel="time [s]", ylabel="ΔF/F of a pixel [%]")
    course.legend(loc="upper right", fontsize=7)
    panel_letter(course, "b")
    for i, (name, error) in enumerate(errors.items()):
        spread.plot(np.full(len(error), i), error, "o", color=colour_of(name), alpha=0.7)
    spread.set_yscale("log")
    spread.set_ylim(0.5 * min(e.min() for e in errors.values()), 2 * max(e.max() for e in errors.values()))
    spread.set_xticks(range(len(errors)), list(errors), rotation=30, ha="right")
    spread.set_ylabel("relative squared error")
    spread.grid(axis="y")
    panel_letter(spread, "c")
    return fig
