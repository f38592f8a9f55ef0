"""Figures of the calcium experiment: a stimulus, contrasts, decoding, frames in between, waves and their speed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.calcium import recording as real
from cstformer.experiments.calcium import waves
from cstformer.experiments.calcium.decoding import BLOCKED, RANDOM
from cstformer.experiments.calcium.measures import CHOSEN, MOMENTS, SHOWN_SEGMENTS, Arrays
from cstformer.experiments.calcium.rows import BLUR, BLURRED_START, RAW, RECORDING, RINGS, SIMULATED, Config
from cstformer.experiments.calcium.task import Animal, Animals, load_animal, r_squared, shown_starts, true_frames
from cstformer.experiments.figures import PlannedFigure, add_colourbar, learning_figure, show_image
from cstformer.report.curves import error_distributions
from cstformer.report.style import PAGE_WIDTH, colours_of, new_figure, styled

DIVERGING, SEQUENTIAL = "RdBu_r", "cividis"


def planned_figures(
    config: Config, animals: Animals, test: waves.Rings, seed: int, results: dict[Cell, CellResult]
) -> Iterator[PlannedFigure]:
    """Every figure whose rows have been computed; ``test`` are the test waves."""
    of = {part: {c.model: r.arrays for c, r in results.items() if c.condition == part} for part in _PARTS}
    yield from _animal_figures(config, animals, of[SIMULATED])
    yield from _recording_figures(seed, of[RECORDING])
    yield from _wave_figures(test, of[RINGS])
    histories = {c: r.facts["history"] for c, r in results.items() if "history" in r.facts}
    yield from learning_figure(
        {f"{c.model}{_SHORT[c.condition]}": h for c, h in histories.items() if c.model.startswith("CST")},
        "Validation loss in the model's units, at hidden frames of held-out training segments.",
    )


_PARTS = (SIMULATED, RECORDING, RINGS)
_SHORT = {SIMULATED: ", animals", RECORDING: "", RINGS: ", waves"}


def _animal_figures(config: Config, animals: Animals, simulated: dict[str, Arrays]) -> Iterator[PlannedFigure]:
    """Predictions and attention around a stimulus and by contrast, decoding, and frames in between."""
    for name in [name for name in config.rows if name in simulated]:
        animal, x = load_animal(animals, animals.test[0]), simulated[name]
        slug = name.lower().replace(" ", "_")
        yield PlannedFigure(
            f"stimulus_{slug}.png",
            f"{name} around a stimulus",
            "Last frames of one-second segments of a simulated animal, in seconds from the onset of the strongest "
            "stimulus of its last 30 %. From the top: preprocessed data; the noise-free signal; the "
            "prediction, with its R² against that signal; the attention that the patches of the last frame receive, "
            "mean over readers, heads and layers, relative to uniform attention; the contrast on the screen. Figures 5 "
            "and 13 of the paper have data, prediction and the attention to regions of earlier frames, and no truth.",
            partial(story, x, animal, animals.patch),
        )
        yield PlannedFigure(
            f"contrast_{slug}.png",
            f"Attention of {name} by contrast",
            "Attention that the patches of the last frame receive while a stimulus of each contrast "
            "is shown, minus that without a stimulus. First scored animal, with the outline of its cortex.",
            partial(by_contrast, x, animal, animals.patch),
        )
    decoded = {name: x for name, x in simulated.items() if f"{BLOCKED} {CHOSEN}" in x}
    if decoded:
        yield PlannedFigure(
            "decoding.png",
            "Decoded contrast of the stimulus",
            "R² of the label at the last frame. Bars are means over the animals; each dot is an animal, and a line "
            "joins the dots of one animal. Higher is better.",
            partial(decoding, decoded),
        )
    pictured = {name: x["pictures"] for name, x in simulated.items() if name != RAW}
    if pictured:
        animal = load_animal(animals, animals.test[0])
        starts = shown_starts(animals, animal, config.shown)[:SHOWN_SEGMENTS]
        times = animal.clock[: animals.window] - animal.clock[0]
        middle = (times[1:] + times[:-1]) / 2
        truth = true_frames(animals, animals.test[0], starts, middle[[len(middle) // 2]])[:, 0]
        yield PlannedFigure(
            "between.png",
            "Halfway between two frames",
            "Segments of the first scored animal, at a time that was not recorded. R² over the pixels of the cortex.",
            partial(frames_between, 100 * truth, {n: 100 * x for n, x in pictured.items()}, animal.mask, "ΔF/F (%)"),
        )


def _recording_figures(seed: int, recorded: dict[str, Arrays]) -> Iterator[PlannedFigure]:
    """Frames in between and waves of the real recording."""
    if not recorded:
        return
    cortex = real.load_cortex(seed)
    truth = cortex.clean[cortex.between[real.shown_frames(cortex)]]
    made = {name: recorded[name]["made"] for name in (BLURRED_START, BLUR, "linear") if name in recorded}
    yield PlannedFigure(
        "recording.png",
        "Frames in between of the real recording",
        "z-scored signal; every third frame is given, with noise. R² over the pixels of the cortex.",
        partial(frames_between, truth, made, cortex.mask, "z-score"),
    )
    if BLURRED_START in recorded:
        x = recorded[BLURRED_START]
        velocities = {name: x[f"velocity {name}"] for name in ("CST", "differences", "optical flow")}
        yield PlannedFigure(
            "speed_recording.png",
            f"Waves of the real recording at {float(x['velocity time'][0]):.0f} s",
            "Speed and direction of level lines at the time of the largest change: from CST's own derivatives, from "
            "differences of the two blurred frames around that time, and by optical flow between them.",
            partial(speed_maps, velocities, cortex.mask, "pixels/s"),
        )


def _wave_figures(test: waves.Rings, rings: dict[str, Arrays]) -> Iterator[PlannedFigure]:
    """Velocities of one wave, and the errors of all."""
    if not rings:
        return
    velocity, steep = test.truth(0)
    fields = {"truth": velocity} | {name: x["shown"][0] for name, x in rings.items()}
    scaled = {name: waves.PIXEL_MM * v for name, v in fields.items()}
    yield PlannedFigure(
        "speed_ring.png",
        "A wave of known speed",
        "Velocity in the middle of the movie, halfway between two frames, where the wave is steep.",
        partial(speed_maps, scaled, steep, "mm/s"),
    )
    yield PlannedFigure(
        "speed_errors.png",
        "Error of the speed of waves",
        "Relative error, median over the steep pixels of a wave; every point is a test wave.",
        partial(error_distributions, {n: x["speed"] for n, x in rings.items()}, ylabel="relative error of the speed"),
    )


@styled
def story(x: dict[str, np.ndarray], animal: Animal, patch: tuple[int, int]) -> Figure:
    """Data, truth, prediction and attention at times around a stimulus, above the contrast on the screen."""
    rows = ("data", "truth", "prediction", "attention")
    fig = Figure(figsize=(PAGE_WIDTH, 6.4), layout="constrained")
    grid = fig.add_gridspec(len(rows) + 1, len(MOMENTS), height_ratios=[1] * len(rows) + [0.55])
    limit = float(np.nanquantile(np.abs(x["story truth"][:, animal.mask]), 0.99))
    low, high = (float(f(x["story attention"])) for f in (np.nanmin, np.nanmax))
    places: list[list[Axes]] = [[] for _ in rows]
    images: dict[str, Any] = {}
    for i, row in enumerate(rows):
        for j, moment in enumerate(MOMENTS):
            ax = fig.add_subplot(grid[i, j])
            picture, extent, scale = x[f"story {row}"][j], _extent(animal.mask.shape), _scale(100 * limit)
            if row == "attention":
                extent, scale = _extent(picture.shape, patch), {"vmin": low, "vmax": high, "cmap": SEQUENTIAL}
            else:
                picture = np.where(animal.mask, 100 * picture, np.nan)
            places[i].append(ax)
            images[row] = show_image(ax, picture, extent=extent, **scale)
            _outline(ax, animal.mask)
            if i == 0:
                ax.set_title(f"{moment:+g} s")
            if j == 0:
                ax.set_ylabel("noise-free" if row == "truth" else row)
            if row == "prediction":
                ax.set_xlabel(f"R² {r_squared(*_inside(x, j, animal.mask)):.2f}", fontsize=8)
    for row, label, some in (("data", "ΔF/F (%)", places[:-1]), ("attention", "attention / uniform", places[-1:])):
        add_colourbar(fig, images[row], [ax for line in some for ax in line], label, fraction=0.02, pad=0.01)
    ax = fig.add_subplot(grid[-1, :])
    onset = float(x["story onset"][0])
    near = (animal.clock >= onset + MOMENTS[0] - 1) & (animal.clock <= onset + MOMENTS[-1] + 1)
    ax.step(animal.clock[near] - onset, 100 * ((animal.label[near] + 1) / 2) ** 2, color="#444444", where="post")
    for moment in MOMENTS:
        ax.axvline(moment, color="#D55E00", linewidth=0.8, linestyle=":")
    ax.set_xlabel("seconds from the onset")
    ax.set_ylabel("contrast (%)")
    return fig


def _inside(x: dict[str, np.ndarray], j: int, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x["story prediction"][j][mask], x["story truth"][j][mask]


@styled
def by_contrast(x: dict[str, np.ndarray], animal: Animal, patch: tuple[int, int]) -> Figure:
    """Attention at each contrast minus that without a stimulus."""
    labels, attention = x["labels"], x["attention by label"]
    rest = attention[0] if labels[0] == -1 else np.zeros_like(attention[0])
    shown = [(label, a - rest) for label, a in zip(labels, attention, strict=True) if label > -1]
    shown = shown or [(labels[0], attention[0] - rest)]
    limit = max(float(np.nanmax(np.abs(a))) for _, a in shown) or 1.0
    fig, axes = new_figure(1, len(shown), (PAGE_WIDTH, 2.0))
    image: Any = None
    for ax, (label, a) in zip(axes[0], shown, strict=True):
        image = show_image(ax, a, extent=_extent(a.shape, patch), **_scale(limit))
        _outline(ax, animal.mask)
        ax.set_title(f"{100 * ((label + 1) / 2) ** 2:.0f} %")
    add_colourbar(fig, image, axes[0], "change of attention / uniform", fraction=0.03, pad=0.01)
    return fig


@styled
def decoding(systems: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Bars of mean R² with a dot for each animal, a panel for each split."""
    fig, axes = new_figure(1, 2, (PAGE_WIDTH, 3.4), sharey=True)
    colours = colours_of(systems)
    for ax, split in zip(axes[0], (BLOCKED, RANDOM), strict=True):
        scores = np.stack([x[f"{split} {CHOSEN}"][:, 1] for x in systems.values()])  # (systems, animals)
        for one in scores.T:
            ax.plot(range(len(scores)), one, color="#999999", linewidth=0.5, zorder=2)
        for i, (name, y) in enumerate(zip(systems, scores, strict=True)):
            ax.bar(i, y.mean(), color=colours[name], width=0.7, zorder=1)
            ax.plot(np.full(len(y), i), y, "o", color="#222222", markersize=2.5, zorder=3)
        ax.set_xticks(range(len(systems)), systems, rotation=45, ha="right")
        ax.axhline(0, color="#444444", linewidth=0.6)
        ax.set_title(split)
        ax.grid(axis="y")
    axes[0, 0].set_ylabel("R² of the decoded label")
    return fig


@styled
def frames_between(truth: np.ndarray, systems: dict[str, np.ndarray], mask: np.ndarray, label: str) -> Figure:
    """Frames of the truth and of each system with its R²; a row for each frame, a column for each system."""
    columns = {"truth": truth} | systems
    fig, axes = new_figure(len(truth), len(columns), (PAGE_WIDTH, 0.5 + 0.85 * len(truth)))
    limit = float(np.nanquantile(np.abs(truth[:, mask]), 0.995))
    image: Any = None
    for j, (name, frames) in enumerate(columns.items()):
        for i, frame in enumerate(frames):
            ax = axes[i, j]
            image = show_image(ax, np.where(mask, frame, np.nan), extent=_extent(mask.shape), **_scale(limit))
            _outline(ax, mask)
            if i == 0:
                ax.set_title(name.replace(" (", "\n(").replace(" + ", "\n+ ").replace("–time", "–\ntime"), fontsize=7)
            if j:
                ax.set_xlabel(f"R² {r_squared(frame[mask], truth[i][mask]):.2f}", fontsize=7)
    add_colourbar(fig, image, axes.ravel(), label, fraction=0.02, pad=0.01)
    return fig


@styled
def speed_maps(velocities: dict[str, np.ndarray], where: np.ndarray, unit: str) -> Figure:
    """Speed as colour, direction as arrows of equal length; a panel for each method."""
    fig, axes = new_figure(1, len(velocities), (PAGE_WIDTH, 1.8))
    speeds = {name: np.where(where, np.hypot(*v), np.nan) for name, v in velocities.items()}
    first = next(iter(speeds.values()))
    highest = 1.5 * float(np.nanquantile(first, 0.9)) if np.isfinite(first).any() else 1.0
    image: Any = None
    for ax, (name, v) in zip(axes[0], velocities.items(), strict=True):
        image = show_image(ax, speeds[name], extent=_extent(where.shape), vmin=0, vmax=highest, cmap=SEQUENTIAL)
        step = max(1, max(where.shape) // 9)
        rows, cols = np.meshgrid(*(np.arange(step // 2, n, step) for n in where.shape), indexing="ij")
        some = np.isfinite(speeds[name][rows, cols]) & (speeds[name][rows, cols] > 0)
        rows, cols = rows[some], cols[some]
        down, right = v[:, rows, cols] / speeds[name][rows, cols]
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1.2 / step, "pivot": "mid", "width": 0.008}
        ax.quiver(cols, rows, right, down, color="#D55E00", **arrows)
        if not where.all():
            _outline(ax, where)
        ax.set_title(name.replace(" + ", "\n+ "), fontsize=7)
    add_colourbar(fig, image, axes[0], f"speed ({unit})", fraction=0.03, pad=0.01, extend="max")
    return fig


def _scale(limit: float) -> dict[str, Any]:
    return {"vmin": -limit, "vmax": limit, "cmap": DIVERGING}


def _extent(shape: tuple[int, ...], size: tuple[int, int] = (1, 1)) -> tuple[float, float, float, float]:
    """Extent, in pixels of the frame, of an image whose pixels cover ``size`` pixels of the frame each."""
    return (-0.5, shape[1] * size[1] - 0.5, shape[0] * size[0] - 0.5, -0.5)


def _outline(ax: Axes, mask: np.ndarray) -> None:
    """Draw the edge of the cortex."""
    padded = np.pad(mask, 1).astype(float)
    rows, cols = (np.arange(-1, n + 1) for n in mask.shape)
    ax.contour(cols, rows, padded, levels=[0.5], colors="#222222", linewidths=0.6)
    ax.set_xlim(-0.5, mask.shape[1] - 0.5)
    ax.set_ylim(mask.shape[0] - 0.5, -0.5)
