"""Plots of frames: images with a colour bar, an outline and arrows; tiles of attention; the trace of a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, DataRange1d, LinearColorMapper
from bokeh.models.annotations import ColorBar
from jaxtyping import Float

from cstformer.explorer import plots
from cstformer.explorer.exhibits import Stimulus
from cstformer.explorer.fields import mosaic
from cstformer.report.style import COLOURS

GROUND = "#EDEDEA"  # colour of pixels without data
ARROWS = ("x0", "y0", "x1", "y1")


def _palette(name: str) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    # Diverging: between the report's blue and orange, which are colour-blind safe.
    ends = [COLOURS["Transformer"], "#FFFFFF", COLOURS["CST"]]
    colours = colormaps[name] if name != "diverging" else LinearSegmentedColormap.from_list(name, ends)
    return [to_hex(colours(x)) for x in np.linspace(0, 1, 256)]


def _image_plot(title: str, axes: tuple[str, str], size: tuple[int, int]) -> Any:
    """Make an empty plot for an image of this (height, width), with rows downwards and square pixels."""
    ranges = {"x_range": DataRange1d(range_padding=0), "y_range": DataRange1d(range_padding=0, flipped=True)}
    height = int(np.clip(330 * size[0] / size[1] + 110, 240, 410))
    plot = plots.new_plot(axes[1], axes[0], height, title=title, match_aspect=True, **ranges)
    plot.title.text_font_size, plot.title.text_font_style = "13px", "normal"
    plot.grid.visible = False
    return plot


class PicturePlot:
    """Image of a frame. Without `limits` the colours diverge from blue to orange, symmetric around zero."""

    def __init__(
        self,
        title: str,
        limits: tuple[float, float] | None,
        bar: str,
        frame: tuple[int, int],
        edges: tuple[list, list],
        axes: tuple[str, str],
    ):
        self.plot = _image_plot(title, (f"{axes[0]} [pixel]", f"{axes[1]} [pixel]"), frame)
        self.mapper: Any = LinearColorMapper(palette=_palette("cividis" if limits else "diverging"), nan_color=GROUND)
        self.mapper.low, self.mapper.high = limits or (-1.0, 1.0)
        place: dict[str, Any] = {"image": [np.zeros(frame, np.float32)], "x": [-0.5], "y": [-0.5], "w": [1], "h": [1]}
        self.source = ColumnDataSource(place)
        self.colours = ColumnDataSource(place | {"image": [np.zeros(frame, np.uint32)]})
        where = {"x": "x", "y": "y", "dw": "w", "dh": "h"}
        self.image = self.plot.image("image", source=self.source, color_mapper=self.mapper, **where)
        self.rgba = self.plot.image_rgba("image", source=self.colours, visible=False, **where)
        for axis in (self.plot.x_range, self.plot.y_range):
            axis.renderers = [self.image, self.rgba]
        self.bar = ColorBar(
            color_mapper=self.mapper, title=bar, height=8, padding=4, title_text_font_style="normal", margin=0
        )
        self.bar.title_text_font_size = self.bar.major_label_text_font_size = "11px"
        self.plot.add_layout(self.bar, "below")
        self.plot.multi_line(*edges, color="#222222", line_width=1.4)
        self.arrows = ColumnDataSource({name: np.zeros(0) for name in (*ARROWS, "angle")})
        for colour, width in (("white", 4.0), ("#111111", 1.5)):
            self.plot.segment(*ARROWS, source=self.arrows, color=colour, line_width=width, line_alpha=0.85)
        self.plot.scatter("x1", "y1", marker="triangle", angle="angle", size=6, color="#111111", source=self.arrows)
        self.patch = ColumnDataSource({name: np.zeros(0) for name in ("x", "y", "w", "h")})
        for colour, line in (("white", 3.5), (COLOURS["CST"], 1.8)):
            look: dict[str, Any] = {"fill_alpha": 0, "line_color": colour, "line_width": line}
            self.plot.rect("x", "y", "w", "h", source=self.patch, **look)

    def set_limit(self, largest: float) -> None:
        """Let the colours span −largest to largest."""
        self.mapper.low, self.mapper.high = -largest, largest

    def show(self, picture: Float[np.ndarray, "h w *rgb"], title: str, zoom: int) -> None:
        """Draw (h, w) with the colour map, or (h, w, 3) as RGB scaled to the limits."""
        height, width = picture.shape[:2]
        place: dict[str, Any] = {"x": [-0.5 / zoom], "y": [-0.5 / zoom], "w": [width / zoom], "h": [height / zoom]}
        coloured = picture.ndim == 3
        self.image.visible, self.rgba.visible, self.bar.visible = not coloured, coloured, not coloured
        if coloured:
            span = self.mapper.high - self.mapper.low
            light = np.nan_to_num((picture - self.mapper.low) / span, nan=0.93)
            bytes_ = np.concatenate([light.clip(0, 1) * 255, np.full((height, width, 1), 255.0)], -1).astype(np.uint8)
            self.colours.data = place | {"image": [bytes_.view(np.uint32)[..., 0]]}
        else:
            self.source.data = place | {"image": [picture.astype(np.float32)]}
        self.plot.title.text = title

    def show_arrows(self, ends: dict[str, np.ndarray]) -> None:
        """Draw arrows. Rows increase downwards on the screen, so the angle uses y0 − y1."""
        angle = np.arctan2(ends["y0"] - ends["y1"], ends["x1"] - ends["x0"]) - np.pi / 2
        self.arrows.data = {**ends, "angle": angle}

    def hide_arrows(self) -> None:
        """Remove the arrows."""
        if len(self.arrows.data["x0"]):
            self.arrows.data = {name: np.zeros(0) for name in (*ARROWS, "angle")}

    def mark(self, pixel: tuple[int, int], patch: tuple[int, int]) -> None:
        """Outline the patch around a pixel."""
        self.patch.data = {"x": [pixel[1]], "y": [pixel[0]], "w": [patch[1]], "h": [patch[0]]}


class AttentionPlot:
    """Attention of one patch: a tile for each observed frame, a square for each of its patches."""

    def __init__(self, times: Float[np.ndarray, " T"], grid: tuple[int, int]):
        self.columns = min(len(times), max(1, round(np.sqrt(len(times) * 1.6 * grid[0] / grid[1]))))
        rows = -(-len(times) // self.columns)
        size = (rows * (grid[0] + 1) - 1, self.columns * (grid[1] + 1) - 1)
        self.plot = _image_plot("Attention of the marked patch, by time read", ("", ""), size)
        self.plot.axis.visible = False
        self.mapper: Any = LinearColorMapper(palette=_palette("cividis"), nan_color="#FFFFFF", low=0.0, high=1.0)
        self.source = ColumnDataSource({"image": [np.zeros(grid, np.float32)], "w": [1], "h": [1]})
        self.plot.image("image", x=0, y=0, dw="w", dh="h", source=self.source, color_mapper=self.mapper)
        number = np.arange(len(times))
        top, left = number // self.columns * (grid[0] + 1), number % self.columns * (grid[1] + 1)
        words = ColumnDataSource({"x": left + 0.25, "y": top + 0.2, "text": [f"{t:.3g}" for t in times]})
        look = {"text_font_size": "11px", "text_baseline": "top", "text_color": "#111111"}
        ground = {"background_fill_color": "white", "background_fill_alpha": 0.75}
        self.plot.text("x", "y", "text", source=words, **look, **ground)
        bar = ColorBar(color_mapper=self.mapper, title="attention / uniform attention", height=8, padding=4, margin=0)
        bar.title_text_font_style, bar.title_text_font_size = "normal", "11px"
        bar.major_label_text_font_size = "11px"
        self.plot.add_layout(bar, "below")

    def show(self, tiles: Float[np.ndarray, "T rows cols"]) -> None:
        """Draw the tiles."""
        picture = mosaic(tiles, self.columns).astype(np.float32)
        self.mapper.low, self.mapper.high = float(np.nanmin(tiles)), float(np.nanmax(tiles)) + 1e-12
        self.source.data = {"image": [picture], "w": [picture.shape[1]], "h": [picture.shape[0]]}


class TracePlot:
    """One pixel over time, with the stimulus below if it is known."""

    def __init__(self, x: str, ends: tuple[float, float], stimulus: Stimulus | None, origin: float):
        self.plot = plots.new_plot(x if stimulus is None else "", "value", 200, title="One pixel over time")
        self.plot.title.text_font_size, self.plot.title.text_font_style = "13px", "normal"
        self.plot.min_border_left = 64
        self.line, self.dots = (ColumnDataSource({"t": [], "y": []}) for _ in range(2))
        self.band = ColumnDataSource({"t": [], "low": [], "high": []})
        self.plot.varea("t", "low", "high", source=self.band, color=COLOURS["CST"], alpha=0.2)
        self.plot.line("t", "y", source=self.line, color=COLOURS["CST"], line_width=2.5)
        self.plot.scatter("t", "y", source=self.dots, size=7, color=COLOURS["observed"])
        self.plots, self.cursors = [self.plot], [plots.cursor(self.plot, ends[0])]
        if stimulus is not None:
            times, strength = stimulus
            below = plots.new_plot(x, "contrast [%]", 120, x_range=self.plot.x_range)
            below.min_border_left = 64
            below.step(times - origin, strength, mode="after", color=COLOURS["test"], line_width=2)
            below.yaxis.ticker.desired_num_ticks = 3
            below.y_range.start, below.y_range.end = 0, max(1.0, 1.1 * float(strength.max()))
            self.plots.append(below)
            self.cursors.append(plots.cursor(below, ends[0]))

    def show(
        self,
        times: np.ndarray,
        curve: np.ndarray,
        at: np.ndarray,
        observed: np.ndarray,
        pixel: tuple[int, int],
        band: tuple[float, np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Draw the curve of CST, its interval (level, low, high) if there is one, and the observed values."""
        level, low, high = band or (0.0, [], [])
        self.band.data = {"t": times if band else [], "low": low, "high": high}
        self.line.data = {"t": times, "y": curve}
        self.dots.data = {"t": at, "y": observed}
        interval = f", its {level:.0%} interval" if band else ""
        self.plot.title.text = f"CST{interval} and observed values at row {pixel[0]}, column {pixel[1]}"

    def move(self, t: float) -> None:
        """Put the cursor at a time."""
        for span in self.cursors:
            span.location = t
