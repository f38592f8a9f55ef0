"""Building blocks of the explorer's plots, in the colours of the report."""

from __future__ import annotations

from typing import Any

import bokeh.plotting
from bokeh.models import ColumnDataSource, WheelZoomTool
from bokeh.models.annotations import Span

from cstformer.report.style import COLOURS

INK, QUIET, GRID = "#222222", "#62625D", "#E4E4E4"
DASHES: dict[str, Any] = {"CST": "solid", "linear": [6, 3], "cubic": [8, 3, 2, 3]}
NAMES = {"CST": "CST", "linear": "linear", "cubic": "cubic spline"}


def new_plot(x: str, y: str, height: int, **options: Any) -> Any:
    """Make an empty plot with labelled axes. Dragging and scrolling move the page until a tool is chosen."""
    make: Any = bokeh.plotting.figure  # its type stubs do not list these keywords
    plot = make(
        height=height,
        sizing_mode="stretch_width",
        x_axis_label=x,
        y_axis_label=y,
        tools="pan,wheel_zoom,box_zoom,reset,save",
        active_drag=None,
        active_scroll=None,
        toolbar_location="above",
        **options,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.background_fill_color = plot.border_fill_color = "white"
    plot.grid.grid_line_color = GRID
    for axis in plot.axis:
        axis.axis_line_color = axis.major_tick_line_color = "#444444"
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = INK
        axis.axis_label_text_font_size, axis.major_label_text_font_size = "13px", "12px"
    plot.yaxis.axis_label_standoff = 6
    plot.min_border_right = 12
    return plot


def zoom_by_wheel(plot: Any) -> None:
    """Let the wheel zoom in time while the pointer is over the plot."""
    tool = WheelZoomTool(dimensions="width")
    plot.add_tools(tool)
    plot.toolbar.active_scroll = tool


def lines(plot: Any, source: ColumnDataSource, x: str, columns: dict[str, str], legend: bool = False) -> dict[str, Any]:
    """Draw the lines of the systems {name: column}, CST last and on top; return the glyphs by name."""
    drawn = {}
    for name in sorted(columns, key=lambda name: name == "CST"):
        label = {"legend_label": NAMES[name]} if legend else {}
        width = 2.5 if name == "CST" else 1.7
        drawn[name] = plot.line(
            x, columns[name], source=source, color=COLOURS[name], line_width=width, line_dash=DASHES[name], **label
        )
    return drawn


def cursor(plot: Any, place: float) -> Span:
    """Add a movable vertical line at a time."""
    span = Span(location=place, dimension="height", line_color=QUIET, line_width=1.2, line_dash=[2, 2])
    plot.add_layout(span)
    return span


def label(name: str, unit: str) -> str:
    """Label of an axis: its name and unit.

    >>> label("t", "s"), label("y", "")
    ('t [s]', 'y')
    """
    return f"{name} [{unit}]" if unit else name
