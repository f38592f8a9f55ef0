"""The explorer's view of frames: any time at any resolution, time derivative, waves, and attention of a patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import panel as pn
from bokeh.events import Tap

from cstformer.data.samples import Samples
from cstformer.explorer import fields, plots
from cstformer.explorer.curves import per, time_range, unit_of
from cstformer.explorer.exhibits import Stimulus
from cstformer.explorer.pictures import AttentionPlot, PicturePlot, TracePlot
from cstformer.explorer.query import chosen, number, switch
from cstformer.explorer.widgets import WIDE, after, html
from cstformer.models.cst import CST

FINEST = 2**17  # largest number of fine pixels in a picture
BLENDED = 100  # patches per frame up to which overlapping patches are blended by default
LIVE, REST = 15, 150  # milliseconds until the coarse picture, and until the fine one once the slider rests
ALL_LAYERS = "mean of all"


class FieldView:
    """One sample of frames and one model; `picks`, `main` and `extras` go into the page, `state` into its address."""

    def __init__(
        self,
        model: CST,
        sample: Samples,
        query: Mapping[str, str],
        act: Callable[[Callable], Callable],
        stimulus: Stimulus | None = None,
    ):
        self.model, self.film = model, fields.Recording(sample)
        self.reader = model.reader(sample)
        self.low, self.high = time_range(self.reader)
        self.layout = self.film.layout
        self._unit = unit_of(sample, sample.coord_names[0])
        self._origin = float(sample.origin[0, 0])
        self.stimulus = _within(stimulus, self._origin + self.low, self._origin + self.high)
        self._make_widgets(query)
        self._make_plots()
        self.picture = np.zeros((2, *self.layout.frame, self.layout.channels))
        self.refine()
        self.look()
        self._live, self._rest = after(act(self.quick), LIVE), after(act(self.refine), REST)
        self.time.param.watch(lambda event: (self._live(), self._rest()), "value")
        for widget in (self.zoom, self.blend, self.waves, self.channel):
            widget.param.watch(act(lambda event: self.refine()), "value")
        for widget in (self.row, self.col, self.layer, self.channel):
            widget.param.watch(act(lambda event: self.look()), "value")
        for plot in (self.value.plot, self.seen.plot, self.slope.plot):
            plot.on_event(Tap, act(self._tap))

    def _make_widgets(self, query: Mapping[str, str]) -> None:
        (height, width), channels = self.layout.frame, self.layout.channels
        name = plots.label(self.film.sample.coord_names[0], self._unit)
        self.time: Any = pn.widgets.FloatSlider(
            label=f"Time {name}",
            start=self.low,
            end=self.high,
            step=(self.high - self.low) / 1000,
            value=number(query, "t", (self.low + self.high) / 2, self.low, self.high),
            format="0.000",
            **WIDE,
        )
        zooms = [f"{z}×" for z in (1, 2, 4, 8) if z == 1 or height * width * z**2 <= FINEST]
        self.zoom: Any = pn.widgets.RadioButtonGroup(
            label="Resolution", options=zooms, value=chosen(query, "zoom", zooms, zooms[0]), **WIDE
        )
        blended = len(self.layout.centres) <= BLENDED and min(self.layout.patch) > 1
        self.blend: Any = pn.widgets.Checkbox(
            label="Blend overlapping patches", value=switch(query, "blend", blended), **WIDE
        )
        brain = self.stimulus is not None or not self.film.exists.all()
        self.waves: Any = pn.widgets.Checkbox(label="Wave direction", value=switch(query, "waves", brain), **WIDE)
        options = ["colours", *map(str, range(3))] if channels == 3 else [str(i) for i in range(channels)]
        self.channel: Any = pn.widgets.Select(
            label="Channel", options=options, value=chosen(query, "channel", options, options[0]), **WIDE
        )
        self.channel.visible = channels > 1
        places = np.argwhere(self.film.exists)
        row, col = places[((places - np.array([height - 1, width - 1]) / 2) ** 2).sum(1).argmin()]
        self.row: Any = pn.widgets.IntSlider(
            label="Row [pixel]",
            start=0,
            end=max(1, height - 1),
            value=int(number(query, "row", row, 0, height - 1)),
            **WIDE,
        )
        self.col: Any = pn.widgets.IntSlider(
            label="Column [pixel]",
            start=0,
            end=max(1, width - 1),
            value=int(number(query, "col", col, 0, width - 1)),
            **WIDE,
        )
        layers = [ALL_LAYERS, *(str(i + 1) for i in range(self.model.layers))]
        self.layer: Any = pn.widgets.Select(
            label="Attention of layer", options=layers, value=chosen(query, "layer", layers, layers[0]), **WIDE
        )
        self.picks = [self.channel, html("<h2>Resolution</h2>"), self.zoom, self.blend, self.waves]
        hint = "<p class='hint'>Click into a picture, or move the sliders for row and column.</p>"
        self.extras = [html("<h2>Inspect one pixel</h2>"), html(hint), self.row, self.col, self.layer]

    def _make_plots(self) -> None:
        unit = per("", self._unit, 1)
        edges, names = fields.outline(self.film.exists), self.film.sample.coord_names
        low, high = np.nanquantile(self.film.frames, [0.002, 0.998])
        make: dict[str, Any] = {"frame": self.layout.frame, "edges": edges, "axes": (names[1], names[2])}
        self.value = PicturePlot("CST", (float(low), float(high)), "value", **make)
        self.seen = PicturePlot("Observed", (float(low), float(high)), "value", **make)
        self.slope = PicturePlot("Time derivative", None, plots.label("∂ value / ∂t", unit), **make)
        self.slope.set_limit(self._largest_slope())
        self.attention = AttentionPlot(self.film.times - self.film.times[0] + self.low, self.layout.grid)
        x = plots.label(names[0], self._unit)
        self.trace = TracePlot(x, (self.low, self.high), self.stimulus, self._origin)
        parts = (self.value, self.seen, self.slope, self.attention)
        pictures = pn.Column(*(pn.pane.Bokeh(part.plot, **WIDE) for part in parts), css_classes=["pictures"], **WIDE)
        traces = [pn.pane.Bokeh(plot, **WIDE) for plot in self.trace.plots]
        self.main = [pn.Column(self.time, css_classes=["time"], **WIDE), pictures, *traces]

    def _largest_slope(self) -> float:
        """Largest time derivative at a few times, which sets one colour scale for the whole sample."""
        times = np.linspace(self.low, self.high, 5)[1:-1]
        slopes = [fields.outside_hidden(fields.pictures(self.reader, t)[1], self.film.exists, 1) for t in times]
        return float(np.nanquantile(np.abs(slopes), 0.998)) or 1.0

    # Drawing

    def quick(self) -> None:
        """Draw only the picture, in the resolution of the data, while the slider moves."""
        t = self.time.value
        value = fields.pictures(self.reader, t, slope=False)
        self.value.show(self._masked(value[0], 1), f"CST at {self._at(t)}", 1)
        self.value.hide_arrows()
        self._follow(t)

    def refine(self) -> None:
        """Draw the picture in the chosen resolution, its time derivative and its waves."""
        t, zoom = self.time.value, int(self.zoom.value[:-1])
        waves = self.waves.value
        found = fields.pictures(self.reader, t, zoom, 2 if self.blend.value else 1, gradient=waves)
        self.picture = found[:2]
        self.value.show(self._masked(found[0], zoom), f"CST at {self._at(t)}", zoom)
        self.slope.show(_one(self._masked(found[1], zoom)), f"Time derivative at {self._at(t)}", zoom)
        if waves:
            slope, *gradient = (_one(self._masked(part, zoom)) for part in found[1:])
            self.value.show_arrows(fields.arrows(fields.wave_velocity(slope, np.stack(gradient)), zoom))
        else:
            self.value.hide_arrows()
        self._follow(t)
        self._attend()

    def _follow(self, t: float) -> None:
        nearest = self.film.nearest(t)
        self.seen.show(
            self._masked(self.film.frames[nearest], 1), f"Observed at {self._at(self.film.times[nearest])}", 1
        )
        self.trace.move(t)

    def look(self) -> None:
        """Draw the trace of the chosen pixel and the attention of the patch around it."""
        pixel = (self.row.value, self.col.value)
        times = np.linspace(self.low, self.high, 161)
        channel = 0 if self.channel.value == "colours" else int(self.channel.value)
        curve = fields.pixel_trace(self.reader, pixel, times)[:, channel]
        found = fields.pixel_band(self.model, self.film.sample, pixel, times)
        bounds = None if found is None else (found[0], found[1][:, channel], found[2][:, channel])
        self.trace.show(times, curve, self.film.times, self.film.frames[:, pixel[0], pixel[1], channel], pixel, bounds)
        for picture in (self.value, self.seen, self.slope):
            picture.mark(pixel, self.layout.patch)
        self._attend()

    def _attend(self) -> None:
        layer = None if self.layer.value == ALL_LAYERS else int(self.layer.value) - 1
        place = (self.time.value, float(self.row.value), float(self.col.value))
        self.attention.show(fields.attention_frames(self.reader, place, layer)[1])

    def _tap(self, event: Any) -> None:
        height, width = self.layout.frame
        self.row.value = int(np.clip(round(event.y), 0, height - 1))
        self.col.value = int(np.clip(round(event.x), 0, width - 1))

    def _masked(self, picture: np.ndarray, zoom: int) -> np.ndarray:
        """The picture in colours (h, w, 3), or its chosen channel (h, w), with NaN where there are no data."""
        shown = fields.outside_hidden(picture, self.film.exists, zoom)
        return shown if self.channel.value == "colours" else shown[..., int(self.channel.value)]

    def _at(self, t: float) -> str:
        name = self.film.sample.coord_names[0]
        return f"{name} = {t:.3f} {self._unit}".strip()

    # Link and download

    def state(self) -> dict[str, str]:
        """Parameters of this view in the address, besides model and sample."""
        return {
            "t": f"{self.time.value:.6g}",
            "zoom": self.zoom.value,
            "blend": str(int(self.blend.value)),
            "waves": str(int(self.waves.value)),
            "channel": self.channel.value if self.layout.channels > 1 else "",
            "row": str(self.row.value),
            "col": str(self.col.value),
            "layer": "" if self.layer.value == ALL_LAYERS else self.layer.value,
        }

    def prediction(self) -> Samples:
        """The displayed picture and its time derivative, for download."""
        return fields.as_samples(self.picture, self.time.value, int(self.zoom.value[:-1]), self.film)


def _one(picture: np.ndarray) -> np.ndarray:
    """One number per pixel: the mean of the colours."""
    return picture if picture.ndim == 2 else picture.mean(-1)


def _within(stimulus: Stimulus | None, low: float, high: float) -> Stimulus | None:
    """The part of a stimulus within a window of the recording; None if there is none."""
    if stimulus is None:
        return None
    times, strength = stimulus
    inside = (times >= low) & (times <= high)
    return (times[inside], strength[inside]) if inside.any() else None
