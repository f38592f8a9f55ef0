"""Figures of the video experiment: restored clips of each model, and an animation between frames."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from PIL import Image

from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.figures import PlannedFigure, add_colourbar, learning_figure, show_image
from cstformer.experiments.video.rows import BETWEEN, KINDS, LINEAR, MEDIAN, NLM, RIVALS, WITH_GUESS, Config
from cstformer.experiments.video.task import Videos, clips_to_test, corrupted
from cstformer.report.style import PAGE_WIDTH, new_figure, styled

SHOWN = (1, 4, 7)  # frames of the first test clip that are kept for the figures
ERROR_LIMIT = 0.3
MAGNIFIED = 2  # pixels of the animation for each pixel of the data
MILLISECONDS = 100  # duration of a frame of the animation
_PICTURES = ("switching median", NLM, *RIVALS, *WITH_GUESS, LINEAR, MEDIAN)
_FILMS = ("nearest frame", "linear blend", MEDIAN)

Pictures = Float[np.ndarray, "T H W 3"]


def planned_figures(config: Config, videos: Videos, results: dict[Cell, CellResult]) -> Iterator[PlannedFigure]:
    """Every figure whose rows have been computed."""
    clips = clips_to_test(videos)
    for kind in KINDS:
        rows = {c.model: r.arrays["fresh restored"] for c, r in results.items() if c.condition == kind}
        rows = {name: rows[name] for name in _PICTURES if name in rows}
        if rows:
            given = corrupted(clips, videos, config.corruption(kind, videos).block, "fresh")[0, list(SHOWN)]
            yield PlannedFigure(
                f"restored_{kind}.png",
                f"Restored clip: {kind}",
                f"Frames {', '.join(map(str, SHOWN))} of the first test clip; corrupted {kind}, a new mask in each "
                "frame.",
                partial(restored, clips[0, list(SHOWN)], given, rows),
            )
    films = {c.model: r.arrays["film"] for c, r in results.items() if c.condition == BETWEEN}
    if MEDIAN in films:
        shown = [name for name in _FILMS if name in films]
        yield PlannedFigure(
            "between.gif",
            "Continuous time",
            f"Every second frame of the first test clip is given. From the left: {', '.join(shown)}, predicted four "
            "times a frame.",
            partial(animation, [films[name] for name in shown]),
        )
    yield from learning_figure(
        {c.condition: r.facts["history"] for c, r in results.items() if c.model == MEDIAN and "history" in r.facts},
        "Validation loss in the model's units, on held-out crops of the training recordings.",
    )


@styled
def restored(truth: Pictures, given: Pictures, systems: dict[str, Pictures]) -> Figure:
    """A row for the truth, the corrupted clip and each system; the last column is the error of the middle frame."""
    rows = {"truth": truth, "given": given, **systems}
    fig, axes = new_figure(len(rows), len(truth) + 1, (PAGE_WIDTH, 1.25 * len(rows) + 0.4))
    middle = len(truth) // 2
    image: Any = None
    for line, (name, frames) in zip(axes, rows.items(), strict=True):
        for ax, frame in zip(line, frames, strict=False):
            show_image(ax, frame.clip(0, 1))
        if name == "truth":
            line[-1].set_visible(False)
        else:
            error = np.abs(frames[middle] - truth[middle]).mean(-1)
            image = show_image(line[-1], error, cmap="magma", vmin=0, vmax=ERROR_LIMIT)
        line[0].set_ylabel(name.replace(" after", "\nafter").replace(" (", "\n("), fontsize=8)
    for ax, number in zip(axes[0], SHOWN, strict=False):
        ax.set_title(f"frame {number}")
    axes[1, -1].set_title(f"error, frame {SHOWN[middle]}")
    add_colourbar(fig, image, axes[:, -1], "absolute error, mean of the colours", fraction=0.08, pad=0.02)
    return fig


def animation(films: list[Pictures]) -> bytes:
    """Content of an animated GIF with films side by side."""
    joined = np.concatenate(films, 2).repeat(MAGNIFIED, 1).repeat(MAGNIFIED, 2)
    pictures = [Image.fromarray(x) for x in np.rint(255 * joined.clip(0, 1)).astype(np.uint8)]
    file = BytesIO()
    options: dict[str, Any] = {"save_all": True, "append_images": pictures[1:], "duration": MILLISECONDS, "loop": 0}
    pictures[0].save(file, format="GIF", **options)
    return file.getvalue()
