"""Attention maps side by side, to compare ways of up-sampling them (the paper's Figures 3 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from cstformer.errors import CSTError
from cstformer.report.layout import titled
from cstformer.report.style import PAGE_WIDTH, new_figure, styled


@styled
def attention_maps(
    rows: Sequence[Mapping[str, Float[np.ndarray, "m n"]]],
    ticks: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    *,
    names: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw attention maps (readers × tokens read), with one row of panels per sample and one column per method.

    Parameters
    ----------
    rows : {column title: map (m, n)} of each sample; all samples have the same columns
    ticks : {column title: (times of the readers, times of the tokens they read)}
    names : label of each row
    title : title of the figure

    Maps are drawn relative to uniform attention, map × n, so that maps of different sizes are comparable. The panels of
    a row share one colour scale.
    """
    if not rows or not rows[0]:
        raise CSTError("there is no attention map to draw")
    columns = list(rows[0])
    fig, axes = new_figure(len(rows), len(columns), (PAGE_WIDTH, 0.35 + 1.85 * len(rows)))
    for i, maps in enumerate(rows):
        relative = {name: m * m.shape[1] for name, m in maps.items()}
        low, high = (float(f([f(m) for m in relative.values()])) for f in (np.min, np.max))
        image: Any = None
        for j, column in enumerate(columns):
            ax = axes[i, j]
            image = ax.imshow(relative[column], cmap="cividis", vmin=low, vmax=high, aspect="auto")
            if i == 0:
                ax.set_title(column)
            readers, read = (ticks or {}).get(column, (np.empty(0), np.empty(0)))
            _label(ax.yaxis, readers if j == 0 or len(readers) != len(maps[columns[0]]) else np.empty(0))
            _label(ax.xaxis, read)
            if i == len(rows) - 1:
                ax.set_xlabel("time read")
            if j == 0:
                ax.set_ylabel(f"{names[i]}\nreader's time" if i < len(names) else "reader's time")
        bar = fig.colorbar(image, ax=list(axes[i]), fraction=0.03, pad=0.01)
        bar.set_label("attention / even")
        bar.outline.set_visible(False)
    return titled(fig, title)


def _label(axis: Any, times: np.ndarray) -> None:
    """Label the first, middle and last token of an axis with their times."""
    places = [] if not len(times) else sorted({0, len(times) // 2, len(times) - 1})
    axis.set_ticks(places, [f"{times[k]:.2g}" for k in places])
