"""How every experiment registers its figures: as a list of `PlannedFigure`, written by `write_figures`.

Also the few parts of a drawing that several experiments share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cstformer.report.curves import learning_curves
from cstformer.report.style import save_figure
from cstformer.system.atomic import atomic_path


@dataclass(frozen=True)
class PlannedFigure:
    """One figure of a report: its file, its text, and the function that draws it."""

    file: str
    """Name in the run directory; it ends in .png, or in .gif for an animation."""
    title: str
    caption: str
    draw: Callable[[], Figure | bytes]
    """Returns a Matplotlib figure, or the content of the file."""


def write_figures(planned: Iterable[PlannedFigure], out: Path) -> list[dict[str, str]]:
    """Draw the figures into ``out`` and return the ``figures`` of `result.json`."""
    entries = []
    for figure in planned:
        drawn = figure.draw()
        if isinstance(drawn, bytes):
            with atomic_path(out / figure.file) as temporary:
                temporary.write_bytes(drawn)
        else:
            save_figure(drawn, out / figure.file)
        entries.append({"file": figure.file, "title": figure.title, "caption": figure.caption})
    return entries


def learning_figure(histories: dict[str, Any], caption: str) -> list[PlannedFigure]:
    """The validation losses of CST by label, or no figure if nothing was trained."""
    draw = partial(learning_curves, histories)
    return [PlannedFigure("learning_curves.png", "CST during training", caption, draw)] if histories else []


def show_image(ax: Axes, image: np.ndarray, **options: Any) -> Any:
    """Draw an image without ticks and frame; ``options`` are those of ``imshow``."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax.imshow(image, interpolation="nearest", **options)


def add_colourbar(fig: Figure, image: Any, axes: Iterable[Axes], label: str, **options: Any) -> None:
    """Put a labelled colour bar beside ``axes``; ``options`` are those of ``Figure.colorbar``."""
    bar = fig.colorbar(image, ax=list(axes), **options)
    bar.set_label(label)
    bar.outline.set_visible(False)
