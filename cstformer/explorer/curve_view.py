"""The explorer's view of curves: value and two derivatives at any time, and the effect of noise and gaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import numpy as np
import panel as pn
from bokeh.events import RangesUpdate
from bokeh.models import ColumnDataSource, Range1d, TapTool

from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.explorer import plots
from cstformer.explorer.curves import (
    POINTS,
    Changes,
    as_samples,
    band,
    curves,
    disturbed,
    first_view,
    kept,
    per,
    time_range,
    unit_of,
)
from cstformer.explorer.query import chosen, number, numbers
from cstformer.explorer.widgets import WIDE, html
from cstformer.models.cst import CST
from cstformer.report.style import COLOURS

FULL_SIZE = 60  # points of a sample that get markers of full size; more of them shrink and fade
ORDER_NAMES = ("{}", "d{} / d{}", "d²{} / d{}²")


class CurveView:
    """One curve of one model; `picks`, `main` and `extras` go into the page, `state` into its address."""

    def __init__(self, model: CST, sample: Samples, query: Mapping[str, str], act: Callable[[Callable], Callable]):
        self.model, self.sample = model, sample
        self.clicked = frozenset(int(i) for i in numbers(query, "without"))
        self.seed = int(number(query, "draw", 0, 0, 10**6))
        self.reader = model.reader(sample)
        self.whole = low, high = time_range(self.reader)
        self._unit = unit_of(sample, sample.coord_names[0])
        self._make_widgets(query, low, high)
        self.times = np.linspace(*first_view(sample, self.time.value, low, high), POINTS)
        self._make_plots()
        self.refit()
        for widget in (self.noise, self.removed):
            widget.param.watch(act(lambda event: self.refit()), "value")
        self.channel.param.watch(act(lambda event: self.draw()), "value")
        for widget in (self.others, self.band):
            widget.param.watch(act(lambda event: self._show_others()), "value")
        self.time.param.watch(act(lambda event: self.move()), "value")
        self.again.on_click(act(lambda event: self._draw_again()))
        self.restore.on_click(act(lambda event: self._restore()))
        self.dots.selected.on_change("indices", act(self._tap))
        for plot in self.plots:
            plot.on_event(RangesUpdate, act(lambda event: self.look(event.x0, event.x1)))

    def _make_widgets(self, query: Mapping[str, str], low: float, high: float) -> None:
        s = self.sample
        start = number(query, "t", (low + high) / 2, low, high)
        name = plots.label(s.coord_names[0], self._unit)
        self.time: Any = pn.widgets.FloatSlider(
            label=name if name.casefold().startswith("time") else f"Time {name}",
            start=low,
            end=high,
            step=(high - low) / 1000,
            value=start,
            format="0.0000",
            **WIDE,
        )
        names = list(s.value_names)
        self.channel: Any = pn.widgets.Select(
            label="Value", options=names, value=chosen(query, "value", names, names[0]), visible=s.c > 1, **WIDE
        )
        most = max(0, int(s.point_observed[0].sum()) - 2)
        self.removed: Any = pn.widgets.IntSlider(
            label="Points removed", start=0, end=max(1, most), value=int(number(query, "gaps", 0, 0, most)), **WIDE
        )
        self.removed.disabled = most == 0
        self.noise: Any = pn.widgets.FloatSlider(
            label="Noise added (sd / sd of the values)",
            start=0,
            end=1,
            step=0.01,
            value=number(query, "noise", 0, 0, 1),
            **WIDE,
        )
        shown = [name for name in ("linear", "cubic") if name in query.get("with", "linear,cubic").split(",")]
        self.others: Any = pn.widgets.CheckBoxGroup(
            label="Beside CST", options={"linear": "linear", "cubic spline": "cubic"}, value=shown, inline=True, **WIDE
        )
        self.band: Any = pn.widgets.Checkbox(label="Interval of CST", value=query.get("band") != "0", **WIDE)
        self.again = pn.widgets.Button(label="Draw again", **WIDE)
        self.restore = pn.widgets.Button(label="As observed", **WIDE)
        self.readout = html("", css_classes=["readout"])
        self.picks = [self.channel, self.readout]
        self.extras = [
            html("<h2>Change the data</h2>"),
            self.noise,
            self.removed,
            pn.Row(self.again, self.restore, css_classes=["buttons"], **WIDE),
            html("<p class='hint'>Click an observed point to remove it, a hollow one to restore it.</p>"),
            html("<h2>Beside CST</h2>"),
            self.others,
            self.band,
        ]

    def _make_plots(self) -> None:
        s = self.sample
        nothing = np.full(len(self.times), np.nan)
        self.source = ColumnDataSource({"t": self.times, "low": nothing, "high": nothing})
        self.dots = ColumnDataSource({"t": [], "y": [], "fill": [], "point": [], "u": [], "v": []})
        x = plots.label(s.coord_names[0], self._unit)
        self.now = ColumnDataSource({"t": [], "y0": [], "y1": [], "y2": [], "u": [], "v": []})
        self.plots: list[Any] = []
        self.glyphs: list[dict[str, Any]] = []
        self.cursors: list[Any] = []
        edge = 0.02 * (self.times[-1] - self.times[0])
        self.view: Any = Range1d(self.times[0] - edge, self.times[-1] + edge)
        for order, height in enumerate((330, 190, 210)):
            plot = plots.new_plot(x if order == 2 else "", "", height, x_range=self.view)
            plot.min_border_left = 64
            plots.zoom_by_wheel(plot)
            if order == 0:  # below the lines
                self.area = plot.varea(
                    "t", "low", "high", source=self.source, fill_color=COLOURS["CST"], fill_alpha=0.15
                )
            drawn = plots.lines(plot, self.source, "t", {k: f"{k}{order}" for k in plots.DASHES}, legend=order == 0)
            # The slopes of an interpolating spline through noise would flatten everything else.
            plot.y_range.renderers = [drawn["CST"]]
            if order == 0:
                points = self._scatter(plot, "t", "y", legend_label="observed")
                plot.y_range.renderers = [drawn["CST"], self.area, points]
                legend = plot.legend[0]
                legend.orientation, legend.border_line_color, legend.label_text_font_size = "horizontal", None, "12px"
                legend.spacing, legend.padding, legend.margin = 12, 2, 0
                plot.add_layout(legend, "above")
            self.plots.append(plot)
            self.glyphs.append(drawn)
            self.cursors.append(plots.cursor(plot, self.time.value))
            plot.scatter("t", f"y{order}", source=self.now, size=9, color=COLOURS["CST"], line_color="white")
        columns = [pn.pane.Bokeh(plot, **WIDE) for plot in self.plots]
        figures = pn.FlexBox(pn.Column(*columns, css_classes=["plots"], **WIDE), css_classes=["figures"], **WIDE)
        self.main = [pn.Column(self.time, css_classes=["time"], **WIDE), figures]
        if s.c >= 2:
            first, second = s.value_names[:2]
            names = [plots.label(name, unit_of(s, name)) for name in (first, second)]
            phase = plots.new_plot(names[0], names[1], 360, match_aspect=True)
            for name in ("linear", "cubic", "CST"):
                glyph = plots.lines(phase, self.source, f"{name}u", {name: f"{name}v"})
                self.glyphs.append(glyph)
            ranged = [self.glyphs[-1]["CST"], self._scatter(phase, "u", "v")]  # no rival, as above
            phase.x_range.renderers = phase.y_range.renderers = ranged
            phase.scatter("u", "v", source=self.now, size=11, color=COLOURS["CST"], line_color="white")
            figures.append(pn.Column(pn.pane.Bokeh(phase, **WIDE), css_classes=["phase"], **WIDE))

    def _scatter(self, plot: Any, x: str, y: str, **options: Any) -> Any:
        crowd = min(1.0, FULL_SIZE / max(1, int(self.sample.point_observed[0].sum())))
        alpha = 0.25 + 0.75 * crowd
        look = {"fill_color": "fill", "line_color": COLOURS["observed"], "line_width": 1.3 * crowd**0.5}
        look |= {"size": 2.5 + 6.5 * crowd**0.5, "alpha": alpha, "nonselection_alpha": alpha}
        points = plot.scatter(x, y, source=self.dots, **look, **options)
        plot.add_tools(TapTool(renderers=[points]))
        return points

    @property
    def disturbance(self) -> Changes:
        """The disturbance that the widgets describe."""
        return Changes(self.noise.value, self.removed.value, self.clicked, self.seed)

    def refit(self) -> None:
        """Encode the disturbed sample and draw everything again."""
        self.keep = kept(self.sample, self.disturbance)
        self.seen = disturbed(self.sample, self.disturbance, self.model.scaling_.sd)
        self.reader = self.model.reader(self.seen)
        self._ask()

    def look(self, start: float, end: float) -> None:
        """Ask for the times that are visible now, so that a closer look shows more of the curves."""
        low, high = max(start, self.whole[0]), min(end, self.whole[1])
        if low < high and (low, high) != (self.times[0], self.times[-1]):
            self.times = np.linspace(low, high, POINTS)
            self._ask()

    def _ask(self) -> None:
        self.found = curves(self.reader, self.times)
        self.bounds = band(self.model, self.seen, self.times)
        self.draw()

    def draw(self) -> None:
        """Draw the chosen channel."""
        k = self.sample.value_names.index(self.channel.value)
        nothing = np.full((len(self.times), self.sample.c), np.nan)
        level, low, high = self.bounds or (0.0, nothing, nothing)
        self.band.label = f"{100 * level:.0f} % interval of CST" if level else "Interval of CST (not calibrated)"
        self.band.disabled = not level
        data: dict[str, Any] = {"t": self.times, "low": low[:, k], "high": high[:, k]}
        for name, orders in self.found.items():
            data |= {f"{name}{j}": orders[j, :, k] for j in range(3)}
            data |= {f"{name}u": orders[0, :, 0], f"{name}v": orders[0, :, min(1, self.sample.c - 1)]}
        # A removed point stays as a hollow marker, so that it can be clicked again.
        everything = disturbed(
            self.sample, Changes(self.noise.value, 0, frozenset(), self.seed), self.model.scaling_.sd
        )
        real = np.flatnonzero(self.sample.point_observed[0])
        values = np.where(everything.observed[0], everything.values[0], np.nan)[real]
        self.dots.data = {
            "t": self.sample.coords[0, real, 0],
            "y": values[:, k],
            "u": values[:, 0],
            "v": values[:, min(1, self.sample.c - 1)],
            "fill": [COLOURS["observed"] if self.keep[i] else "white" for i in real],
            "point": real,
        }
        self.source.data = data
        t, value = self.sample.coord_names[0], self.channel.value
        for order, (plot, form) in enumerate(zip(self.plots, ORDER_NAMES, strict=True)):
            unit = per(unit_of(self.sample, value), self._unit, order)
            plot.yaxis.axis_label = plots.label(form.format(value, t), unit)
        self._show_others()
        self.move()

    def move(self) -> None:
        """Query the model at the time of the slider."""
        t = self.time.value
        if not self.view.start <= t <= self.view.end:  # the view follows the slider
            half = (self.view.end - self.view.start) / 2
            self.view.update(start=t - half, end=t + half)
            self.look(self.view.start, self.view.end)  # which draws, and comes back here
            return
        at = np.concatenate(self.reader.partials(np.array([[t]]), ((0,), (1,), (2,))))[:, 0]  # (3, c)
        k = self.sample.value_names.index(self.channel.value)
        now: dict[str, Any] = {"t": [t], "u": [at[0, 0]], "v": [at[0, min(1, self.sample.c - 1)]]}
        self.now.data = now | {f"y{j}": [at[j, k]] for j in range(3)}
        for span in self.cursors:
            span.location = t
        rows = "".join(
            f"<tr><th scope='row'>{escape(name)}</th>" + "".join(f"<td>{x:.4g}</td>" for x in at[:, i]) + "</tr>"
            for i, name in enumerate(self.sample.value_names[:6])
        )
        coord = escape(plots.label(self.sample.coord_names[0], self._unit))
        self.readout.object = (
            f"<table aria-live='polite'><caption>CST at {coord} = {t:.4f}</caption>"
            "<tr><th></th><th scope='col'>value</th><th scope='col'>first</th>"
            "<th scope='col'>second derivative</th></tr>"
            f"{rows}</table>"
        )

    def _show_others(self) -> None:
        self.area.visible = self.band.value and self.bounds is not None
        for drawn in self.glyphs:
            for name, glyph in drawn.items():
                glyph.visible = name == "CST" or name in self.others.value

    def _draw_again(self) -> None:
        self.seed += 1
        self.refit()

    def _restore(self) -> None:
        self.clicked = frozenset()
        self.removed.value, self.noise.value = 0, 0.0
        self.refit()

    def _tap(self, attribute: str, old: list[int], new: list[int]) -> None:
        """Remove the clicked point, or restore it."""
        if not new:
            return
        before = self.clicked
        self.clicked = before ^ {int(self.dots.data["point"][new[0]])}
        self.dots.selected.indices = []
        try:
            self.refit()
        except CSTError:
            self.clicked = before
            raise

    def state(self) -> dict[str, str]:
        """Parameters of this view in the address, besides model and sample."""
        how = self.disturbance
        return {
            "t": f"{self.time.value:.6g}",
            "value": self.channel.value if self.sample.c > 1 else "",
            "noise": f"{how.noise:g}" if how.noise else "",
            "gaps": f"{how.removed}" if how.removed else "",
            "without": ",".join(map(str, sorted(how.clicked))),
            "draw": f"{how.seed}" if how.seed else "",
            "band": "" if self.band.value else "0",
            "with": "" if len(self.others.value) == 2 else ",".join(self.others.value) or "none",
        }

    def prediction(self) -> Samples:
        """The displayed curve and its derivatives, for download."""
        return as_samples(self.times, self.found["CST"], self.seen)
