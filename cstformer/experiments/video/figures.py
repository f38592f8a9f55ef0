"""Figures of the video experiment: a clip, what is given of it, what each model makes of it; a film between frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.video.experiment import (
    BETWEEN,
    KINDS,
    LINEAR,
    MEDIAN,
    NLM,
    RIVALS,
    SHOWN,
    WITH_GUESS,
    Config,
)
from cstformer.experiments.video.task import Videos, clips_to_test, corrupted
from cstformer.report import curves
from cstformer.report.style import PAGE_WIDTH, new_figure, save_figure, styled
from cstformer.system.atomic import atomic_path

ERROR_LIMIT = 0.3
MAGNIFIED = 2  # pixels of the film for each pixel of the data
MILLISECONDS = 100  # a picture of the film
_PICTURES = ("switching median", NLM, *RIVALS, *WITH_GUESS, LINEAR, MEDIAN)

Pictures = Float[np.ndarray, "T H W 3"]


def draw(config: Config, videos: Videos, results: dict[Cell, CellResult], out: Path) -> list[dict[str, str]]:
    """Draw every figure whose rows are there; their entries in `result.json`."""
    made: list[dict[str, str]] = []
    clips = clips_to_test(videos)
    for kind in KINDS:
        rows = {c.model: r.arrays["fresh restored"] for c, r in results.items() if c.condition == kind}
        rows = {name: rows[name] for name in _PICTURES if name in rows}
        if rows:
            given = corrupted(clips, videos, config.corruption(kind, videos).block, "fresh")[0, list(SHOWN)]
            save_figure(restored(clips[0, list(SHOWN)], given, rows), out / f"restored_{kind}.png")
            text = f"Frames {', '.join(map(str, SHOWN))} of the first test clip; corrupted {kind}, a new mask in each."
            made.append({"file": f"restored_{kind}.png", "title": f"Restored clip: {kind}", "caption": text})
    films = {c.model: r.arrays["film"] for c, r in results.items() if c.condition == BETWEEN}
    if MEDIAN in films:
        write_film(
            out / "between.gif", [films[name] for name in ("nearest frame", "linear blend", MEDIAN) if name in films]
        )
        text = "Every second frame of the first test clip is given; left to right: "
        text += ", ".join(name for name in ("nearest frame", "linear blend", MEDIAN) if name in films)
        text += ", asked four times a frame."
        made.append({"file": "between.gif", "title": "Continuous time", "caption": text})
    histories = {
        c.condition: r.facts["history"] for c, r in results.items() if c.model == MEDIAN and "history" in r.facts
    }
    if histories:
        save_figure(curves.learning_curves(histories), out / "learning_curves.png")
        text = "Validation loss in the model's units, on held-out crops of the training recordings."
        made.append({"file": "learning_curves.png", "title": "CST during training", "caption": text})
    return made


@styled
def restored(truth: Pictures, given: Pictures, systems: dict[str, Pictures]) -> Figure:
    """A row for the truth, what was given and each system; the last column is the error of the middle frame."""
    rows = {"truth": truth, "given": given, **systems}
    fig, axes = new_figure(len(rows), len(truth) + 1, (PAGE_WIDTH, 1.25 * len(rows) + 0.4))
    middle = len(truth) // 2
    image: Any = None
    for line, (name, frames) in zip(axes, rows.items(), strict=True):
        for ax in line:
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_visible(False)
        for ax, frame in zip(line, frames, strict=False):
            ax.imshow(frame.clip(0, 1), interpolation="nearest")
        if name == "truth":
            line[-1].set_visible(False)
        else:
            error = np.abs(frames[middle] - truth[middle]).mean(-1)
            image = line[-1].imshow(error, cmap="magma", vmin=0, vmax=ERROR_LIMIT, interpolation="nearest")
        line[0].set_ylabel(name.replace(" after", "\nafter").replace(" (", "\n("), fontsize=8)
    for ax, number in zip(axes[0], SHOWN, strict=False):
        ax.set_title(f"frame {number}")
    axes[1, -1].set_title(f"error, frame {SHOWN[middle]}")
    bar = fig.colorbar(image, ax=list(axes[:, -1]), fraction=0.08, pad=0.02)
    bar.set_label("absolute error, mean of the colours")
    bar.outline.set_visible(False)
    return fig


def write_film(path: Path, films: list[Pictures]) -> None:
    """An animated GIF of films side by side, whole or not at all."""
    from PIL import Image

    joined = np.concatenate(films, 2).repeat(MAGNIFIED, 1).repeat(MAGNIFIED, 2)
    pictures = [Image.fromarray(x) for x in np.rint(255 * joined.clip(0, 1)).astype(np.uint8)]
    options: dict[str, Any] = {"format": "GIF", "save_all": True, "append_images": pictures[1:]}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        pictures[0].save(file, duration=MILLISECONDS, loop=0, **options)
