"""Limits, legends, titles and labels of figures, placed so that they cover no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox


def plain_log_axis(ax: Axes) -> None:
    """Label a log axis with plain numbers such as 0.02 and 500, and with ticks between decades if these are few."""
    decades = float(np.diff(np.log10(ax.get_ylim()))[0])
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.3 else (1,), numticks=12))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def padded(values: np.ndarray, fraction: float) -> tuple[float, float]:
    """Axis limits around the values, with a margin of this fraction of their range."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    air = (high - low) * fraction or 0.05 * max(abs(high), 1e-3)
    return low - air, high + air


def legend_above(fig: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Put the legend above the panels, where it covers no data."""
    columns = len(labels) if sum(map(len, labels)) + 7 * len(labels) < 105 else 3
    fig.legend(handles, labels, loc="outside upper center", ncols=columns, columnspacing=1.4)


def titled(fig: Figure, title: str) -> Figure:
    """Put the title above the figure, or above its legend if there is one."""
    if title and fig.legends:
        fig.legends[0].set_title(title, prop=FontProperties(size=10))
    elif title:
        fig.suptitle(title)
    return fig


def _overlap(a: Bbox, b: Bbox) -> float:
    width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(width, 0) * max(height, 0)


def label_points(fig: Figure, ax: Axes, names: Sequence[str], x: np.ndarray, y: np.ndarray, keep_clear: float) -> None:
    """Write each name beside its point, at the first of twelve positions without an overlap.

    Names avoid other points, other names and the horizontal line at y = ``keep_clear``. Call this last, when the limits
    of the axes and the layout of the figure are final.
    """
    canvas = FigureCanvasAgg(fig)
    fig.draw_without_rendering()
    renderer = canvas.get_renderer()
    centres = ax.transData.transform(np.column_stack([x, y]))
    radius = fig.dpi * 5 / 72
    taken = [Bbox.from_extents(cx - radius, cy - radius, cx + radius, cy + radius) for cx, cy in centres]
    frame = ax.get_window_extent(renderer)
    near, far = 6, 15
    places = [(near, 0), (-near, 0), (0, near), (0, -near), (near, near), (-near, near), (near, -near)]
    places += [(-near, -near), (0, far), (0, -far), (far, far), (-far, -far)]
    line = ax.transData.transform((x[0], keep_clear))[1]
    taken.append(Bbox.from_extents(frame.x0, line - 1, frame.x1, line + 1))
    for i in np.argsort(x):
        candidates = []
        for dx, dy in places:
            text = ax.annotate(
                names[i],
                (x[i], y[i]),
                xytext=(dx, dy),
                textcoords="offset points",
                ha="left" if dx > 0 else "right" if dx < 0 else "center",
                va="bottom" if dy > 0 else "top" if dy < 0 else "center",
                color="#222222",
                fontsize=8.5,
            )
            text.set_in_layout(False)
            box = text.get_window_extent(renderer).padded(radius / 3)
            others = [other for j, other in enumerate(taken) if j != i]
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
            cost = sum(_overlap(box, other) for other in others) + (1e6 if outside else 0)
            candidates.append((cost, box, text))
            if cost == 0:
                break
        best = min(candidates, key=lambda candidate: candidate[0])
        for candidate in candidates:
            if candidate is not best:
                candidate[2].remove()
        taken.append(best[1])
