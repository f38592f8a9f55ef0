"""Panels that draw one curve: in the plane, against time, enlarged, and its slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cstformer.errors import CSTError
from cstformer.report.layout import legend_above, padded
from cstformer.report.style import LABELS, colour_of, colours_of, line_of

Points: TypeAlias = tuple[ArrayLike, ArrayLike]
Fits: TypeAlias = Mapping[str, ArrayLike]

TIME = "time t"
COMPONENTS = ("component 1", "component 2")


@dataclass(frozen=True)
class Curve:
    """One curve: the fits of each system, observed and unseen points, and the noise-free truth."""

    times: np.ndarray
    fits: dict[str, np.ndarray]
    observed: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray] | None
    truth: np.ndarray | None


def take_apart(
    fine_times: ArrayLike, fits: Fits, observed: Points, test: Points | None, truth: ArrayLike | None
) -> list[Curve]:
    """Check the shapes of the arrays and split them into one `Curve` each."""
    arrays = {f"fits[{name!r}]": np.asarray(y, dtype=float) for name, y in fits.items()}
    if truth is not None:
        arrays["truth"] = np.asarray(truth, dtype=float)
    arrays = {name: y[None] if y.ndim == 2 else y for name, y in arrays.items()}
    points = {"observed": observed} if test is None else {"observed": observed, "test": test}
    for name, (_, y) in points.items():
        arrays[name] = np.asarray(y, dtype=float)
        if arrays[name].ndim == 2:
            arrays[name] = arrays[name][None]
    n = len(arrays["observed"])
    for name, y in arrays.items():
        if y.ndim != 3 or y.shape[-1] != 2 or len(y) != n:
            raise CSTError(f"{name} must be (points, 2), or ({n}, points, 2) as observed; got {y.shape}")
    times = {"fine_times": fine_times} | {name: t for name, (t, _) in points.items()}
    expected = {name: name if name in points else next(iter(arrays)) for name in times}
    grids = {}
    for name, t in times.items():
        t, length = np.asarray(t, dtype=float), arrays[expected[name]].shape[1]
        if name == "fine_times" and not fits and truth is None:
            length = t.shape[-1]
        if t.shape not in ((length,), (n, length)):
            raise CSTError(f"the times of {name} must be ({length},) or ({n}, {length}); got {t.shape}")
        grids[name] = np.broadcast_to(t, (n, length))
    for name, y in arrays.items():
        if name not in points and y.shape[1] != grids["fine_times"].shape[1]:
            raise CSTError(f"{name} has {y.shape[1]} points, fine_times {grids['fine_times'].shape[1]}")
    return [
        Curve(
            grids["fine_times"][i],
            {name: arrays[f"fits[{name!r}]"][i] for name in fits},
            (grids["observed"][i], arrays["observed"][i]),
            None if test is None else (grids["test"][i], arrays["test"][i]),
            arrays["truth"][i] if truth is not None else None,
        )
        for i in range(n)
    ]


def draw_plane(ax: Axes, curve: Curve, names: Sequence[str] | None = None) -> None:
    """Draw the curve in the plane, with all fits or only those in ``names``."""
    if curve.truth is not None:
        ax.plot(*curve.truth.T, color=colour_of("truth"), linewidth=2.6, zorder=1)
    if curve.test is not None:
        ax.plot(*curve.test[1].T, ".", color=colour_of("test"), markersize=3.5, alpha=0.55, zorder=2, mew=0)
    colours = colours_of(curve.fits)
    for name in curve.fits if names is None else names:
        ax.plot(*curve.fits[name].T, color=colours[name], linestyle=line_of(name), linewidth=1.3, zorder=3)
    _observed(ax, *curve.observed[1].T)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(COMPONENTS[0])
    ax.set_ylabel(COMPONENTS[1])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_locator(MaxNLocator(5))


def draw_component(ax: Axes, curve: Curve, component: int) -> None:
    """Draw one component against time."""
    if curve.truth is not None:
        ax.plot(
            curve.times,
            curve.truth[:, component],
            color=colour_of("truth"),
            linewidth=2.6,
            zorder=1,
        )
    if curve.test is not None:
        t, y = curve.test
        ax.plot(t, y[:, component], ".", color=colour_of("test"), markersize=4, alpha=0.6, zorder=2, mew=0)
    for name, colour in colours_of(curve.fits).items():
        ax.plot(
            curve.times,
            curve.fits[name][:, component],
            color=colour,
            linestyle=line_of(name),
            linewidth=1.3,
            zorder=3,
        )
    _observed(ax, curve.observed[0], curve.observed[1][:, component])
    ax.set_xlabel(TIME)
    ax.set_ylabel(COMPONENTS[component])
    ax.yaxis.set_major_locator(MaxNLocator(4))


def _observed(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    ax.plot(x, y, "o", color=colour_of("observed"), markersize=4.2, zorder=4, mec="white", mew=0.6)


def draw_zoom(ax: Axes, curve: Curve, component: int, window: tuple[float, float]) -> None:
    """Draw one component against time, within an interval of time."""
    draw_component(ax, curve, component)
    inside = _inside(curve.times, window)
    seen = [y[inside, component] for y in (*curve.fits.values(), *present(curve.truth))]
    for t, y in (curve.observed, *present(curve.test)):
        seen.append(y[_inside(t, window), component])
    ax.set_xlim(window)
    ax.set_ylim(padded(np.concatenate(seen), 0.08))


def draw_slopes(
    ax: Axes, curve: Curve, slopes: Mapping[str, np.ndarray], component: int, window: tuple[float, float]
) -> None:
    """Draw the slopes (m, 2) of the fits and of the noise-free curve within an interval of time."""
    inside = _inside(curve.times, window)
    if curve.truth is not None:
        slope = np.gradient(curve.truth, curve.times, axis=0)[:, component]
        ax.plot(curve.times, slope, color=colour_of("truth"), linewidth=2.6, zorder=1)
    for name, colour in colours_of(slopes).items():
        ax.plot(
            curve.times,
            slopes[name][:, component],
            color=colour,
            linestyle=line_of(name),
            linewidth=1.1,
            zorder=3,
        )
    ax.set_xlim(window)
    ax.set_ylim(padded(np.concatenate([y[inside, component] for y in slopes.values()]), 0.08))
    ax.set_xlabel(TIME)
    ax.set_ylabel("its slope")
    ax.yaxis.set_major_locator(MaxNLocator(4))


def share_time(axes: Sequence[Axes]) -> None:
    """Give two panels, one above the other, a common time axis."""
    axes[0].sharex(axes[1])
    axes[0].tick_params(labelbottom=False)
    axes[0].set_xlabel("")


def closer_look(curve: Curve, zoom: tuple[float, float] | None) -> tuple[int, tuple[float, float]]:
    """Choose the component and the interval, a fifth of the time axis, where the fits differ most."""
    first, last = float(curve.times[0]), float(curve.times[-1])
    values = np.stack([*curve.fits.values(), *present(curve.truth)])
    spread = np.ptp(values, axis=0)  # (m, 2)
    if zoom is not None:
        if not (first <= zoom[0] < zoom[1] <= last):
            raise CSTError(f"zoom must lie within the times {first:g} to {last:g}, got {zoom}")
        return int(spread[_inside(curve.times, zoom)].mean(axis=0).argmax()), zoom
    half = (last - first) / 10
    centres = np.linspace(first + half, last - half, 33)
    means = np.array([spread[_inside(curve.times, (c - half, c + half))].mean(axis=0) for c in centres])
    best, component = np.unravel_index(means.argmax(), means.shape)
    return int(component), (float(centres[best] - half), float(centres[best] + half))


def curve_legend(fig: Figure, curve: Curve) -> None:
    """Draw the legend of a curve in one line above the panels."""
    handles = [
        Line2D([], [], color=colour, linestyle=line_of(name), linewidth=1.5, label=name)
        for name, colour in colours_of(curve.fits).items()
    ]
    if curve.truth is not None:
        truth = Line2D([], [], color=colour_of("truth"), linewidth=2.6, label=LABELS["truth"])
        handles.append(truth)
    handles.append(
        Line2D([], [], color=colour_of("observed"), marker="o", markersize=4.5, ls="", label=LABELS["observed"])
    )
    if curve.test is not None:
        handles.append(Line2D([], [], color=colour_of("test"), marker="o", markersize=3, ls="", label=LABELS["test"]))
    legend_above(fig, handles, [str(handle.get_label()) for handle in handles])


def square_limits(clouds: Sequence[np.ndarray]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Axis limits of equal length that contain all points."""
    points = np.concatenate(clouds)
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    centre, half = (low + high) / 2, 0.56 * (high - low).max()
    return (float(centre[0] - half), float(centre[0] + half)), (
        float(centre[1] - half),
        float(centre[1] + half),
    )


def present(x: Any) -> list[Any]:
    """Return [x], or an empty list if x is None."""
    return [] if x is None else [x]


def _inside(t: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    return (t >= window[0]) & (t <= window[1])
