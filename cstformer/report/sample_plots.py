"""Pictures of samples of curves: observed points, the curves of models through them, bands, hidden points."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from cstformer.data.dates import dated_axis
from cstformer.errors import CSTError
from cstformer.report.layout import legend_above, padded
from cstformer.report.style import COLOURS, DPI, PAGE_WIDTH, STYLE, colours_of, line_of, styled

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

MOST_SAMPLES = 4  # panels side by side that are still readable on a page
MOST_CHANNELS = 6  # rows of panels
FULL_SIZE = 60  # points that get full-size markers; more of them shrink and fade


class Picture(Figure):
    """A figure that notebooks show by themselves and `savefig` writes; matplotlib's global state stays as it is."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=DPI)
        return out.getvalue()

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure in the style in which it was drawn."""
        with matplotlib.rc_context(STYLE):
            super().savefig(fname, **options)


@styled
def plot_samples(
    samples: Samples,
    curves: Mapping[str, Float[np.ndarray, "N m c"]] | None = None,
    at: Float[np.ndarray, "N m 1"] | None = None,
    band: tuple[Float[np.ndarray, "N m c"], Float[np.ndarray, "N m c"]] | None = None,
    band_label: str = "",
    hidden: Samples | None = None,
    channels: Sequence[str] | None = None,
) -> Picture:
    """Draw a column of panels for each sample and a row for each channel.

    Parameters
    ----------
    samples : Samples of one coordinate axis
        The first `MOST_SAMPLES` are drawn.
    curves : dict of (N, m, c), optional
        Values of models by name, at ``at``.
    at : (N, m, 1), optional
        Where the curves and the band are known.
    band : two arrays (N, m, c), optional
        Lower and upper end of a band, drawn in the colour of the first curve.
    band_label : its name in the legend
    hidden : Samples, optional
        Points of the same samples that the models did not see.
    channels : names of the channels to draw; the first `MOST_CHANNELS` by default
    """
    check_curves(samples)
    rows, count = _chosen(samples, channels), min(len(samples), MOST_SAMPLES)
    fig = Picture(figsize=(PAGE_WIDTH if count > 1 else 0.7 * PAGE_WIDTH, 0.9 + 1.5 * len(rows)), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.subplots(len(rows), count, squeeze=False, sharey="row", sharex="col")
    clock, curves = PlotTimes(samples), curves or {}
    for i in range(count):
        for row, c in enumerate(rows):
            draw_panel(axes[row, i], samples, i, c, clock, curves, at, band, band_label, hidden)
        axes[0, i].set_title(f"sample {samples.sample_ids[i]}")
        axes[-1, i].set_xlabel(label_of(samples, samples.coord_names[0]))
    for row, c in enumerate(rows):
        axes[row, 0].set_ylabel(label_of(samples, samples.value_names[c]))
        # A rival that overshoots may leave the panel; points, band and the first curve stay inside.
        parts = [part for part in (samples, hidden) if part is not None]
        shown = [part.values[:count, :, c][part.observed[:count, :, c]] for part in parts]
        shown += [y[:count, :, c].ravel() for y in (*[*curves.values()][:1], *(band or ()))]
        axes[row, 0].set_ylim(padded(np.concatenate(shown), 0.08))
    if curves or hidden is not None:
        pairs = [pair for ax in axes.flat for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
        handles = {label: handle for handle, label in pairs}
        names = [*curves, *(name for name in handles if name not in curves)]
        legend_above(fig, [handles[name] for name in names], names)
    return fig


def draw_panel(
    ax: Axes,
    samples: Samples,
    i: int,
    c: int,
    clock: PlotTimes,
    curves: Mapping[str, Float[np.ndarray, "N m c"]],
    at: Float[np.ndarray, "N m 1"] | None = None,
    band: tuple[Float[np.ndarray, "N m c"], Float[np.ndarray, "N m c"]] | None = None,
    band_label: str = "",
    hidden: Samples | None = None,
) -> None:
    """Draw one channel of one sample, see `plot_samples`."""
    colours = colours_of(curves)
    if at is not None:
        x = clock(at[i, :, 0], i)
        if band is not None:
            low, high = (end[i, :, c] for end in band)
            colour = next(iter(colours.values()), COLOURS["CST"])
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0, label=band_label)
        for name, y in reversed([*curves.items()]):  # the first one is drawn last, on top
            ax.plot(x, y[i, :, c], color=colours[name], linestyle=line_of(name), linewidth=1.3, label=name)
    _points(ax, samples, i, c, clock, COLOURS["observed"], "observed points", joined=not curves)
    if hidden is not None:
        _points(ax, hidden, i, c, clock, COLOURS["test"], "hidden points")
    if clock.dated:
        locator = AutoDateLocator(maxticks=5)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def check_curves(samples: Samples) -> Samples:
    """Refuse samples of several coordinate axes, which need other pictures."""
    if samples.d != 1:
        raise CSTError(
            f"plot draws curves of one coordinate axis, got {samples}; look at movies and fields with `cst explore`"
        )
    return samples


def time_grid(*parts: Samples, count: int = 400) -> Float[np.ndarray, "N m 1"]:
    """Regular times (N, count, 1) from the first to the last observed point of each sample, in any of the parts."""
    low = [np.where(part.point_observed, part.coords[..., 0], np.inf).min(1) for part in parts]
    high = [np.where(part.point_observed, part.coords[..., 0], -np.inf).max(1) for part in parts]
    return np.linspace(np.min(low, axis=0), np.max(high, axis=0), count, axis=1)[..., None]


class PlotTimes:
    """Coordinates of a sample as what stands on the axis: dates where the samples have dates."""

    def __init__(self, samples: Samples):
        self.origin, self.found = samples.origin[:, 0], dated_axis(samples.coord_names, samples.units)
        self.dated = self.found is not None

    def __call__(self, x: Float[np.ndarray, " m"], i: int) -> np.ndarray:
        """Times x of sample i."""
        return x if self.found is None else self.found[1].dates(x + self.origin[i])


def _points(
    ax: Axes, samples: Samples, i: int, c: int, clock: PlotTimes, colour: str, label: str, joined: bool = False
) -> None:
    """Draw the observed cells of a channel; ``joined`` adds a thin line, which shows what follows what."""
    seen = samples.observed[i, :, c]
    if joined:
        order = np.flatnonzero(seen)[samples.coords[i, seen, 0].argsort()]
        x = clock(samples.coords[i, order, 0], i)
        ax.plot(x, samples.values[i, order, c], color=COLOURS["truth"], linewidth=0.7)
    crowd = min(1.0, FULL_SIZE / max(1, int(seen.sum())))
    style = {"markersize": 1.2 + 2.4 * crowd**0.5, "alpha": 0.25 + 0.75 * crowd, "mew": 0}
    ax.plot(clock(samples.coords[i, seen, 0], i), samples.values[i, seen, c], "o", color=colour, label=label, **style)


def _chosen(samples: Samples, channels: Sequence[str] | None) -> list[int]:
    if channels is None:
        return list(range(min(samples.c, MOST_CHANNELS)))
    unknown = [name for name in channels if name not in samples.value_names]
    if unknown or not channels:
        raise CSTError(f"channels={list(channels)!r}: choose from {', '.join(samples.value_names)}")
    return [samples.value_names.index(name) for name in channels]


def label_of(samples: Samples, name: str) -> str:
    """Name of an axis or channel with its unit; dates have none."""
    dated = dated_axis([name], samples.units) is not None
    unit = "" if dated else samples.units.get(name, "")
    return f"{name} [{unit}]" if unit else name
