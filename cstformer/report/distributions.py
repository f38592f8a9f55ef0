"""Panel of error distributions: one dot per sample, quartiles, density, and brackets with P values."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde

from cstformer.errors import CSTError
from cstformer.report.layout import padded, plain_log_axis
from cstformer.report.style import colours_of
from cstformer.report.tables import format_number, format_p

PValues: TypeAlias = Mapping[tuple[str, str], float] | Sequence[Mapping[str, Any]]
"""P values by pair of names, or the `tests` of a `result.json`, whose names have the form "A vs B"."""

ERROR = "mean error at unseen points"


def draw_distributions(
    ax: Axes, errors: Mapping[str, ArrayLike], p_values: PValues | None, condition: str | None
) -> None:
    """Draw the errors of each name side by side, with a bracket for each P value."""
    data = {name: np.asarray(e, dtype=float).ravel() for name, e in errors.items()}
    data = {name: e[np.isfinite(e)] for name, e in data.items()}
    if not data or not all(len(e) for e in data.values()):
        raise CSTError("errors needs at least one finite number for each name")
    everything = np.concatenate(list(data.values()))
    medians = [np.median(e) for e in data.values()]
    # A linear axis would flatten small medians, or all of them where one sample went far astray.
    wide = max(medians) > 10 * min(medians) or everything.max() > 20 * max(medians)
    logarithmic = bool(everything.min() > 0 and wide)
    colours = colours_of(data)
    for x, (name, e) in enumerate(data.items()):
        _raincloud(ax, x, e, colours[name], logarithmic)
    pairs = _pairs(p_values, list(data), condition)
    scaled = np.log10(everything) if logarithmic else everything
    low, high = padded(scaled, 0.06)
    # Leave room above the data: each bracket takes a tenth of the height.
    high += (high - low) * 0.1 * len(pairs) / (1 - 0.1 * len(pairs)) if len(pairs) < 9 else 0
    if logarithmic:
        ax.set_yscale("log")
        ax.set_ylim(10**low, 10**high)
        plain_log_axis(ax)
    else:
        ax.set_ylim(max(low, 0) if everything.min() >= 0 else low, high)
    for level, ((a, b), p) in enumerate(pairs.items()):
        _bracket(ax, sorted((list(data).index(a), list(data).index(b))), 0.93 - 0.1 * (len(pairs) - 1 - level), p)
    ax.set_xlim(-0.62, len(data) - 0.38)
    width = 15 if len(data) <= 3 else 11
    labels = [
        textwrap.fill(name, width, break_long_words=False) + f"\nmean {format_number(float(e.mean()))}"
        for name, e in data.items()
    ]
    ax.set_xticks(range(len(data)), labels)
    ax.tick_params(axis="x", length=0)
    ax.grid(True, axis="y")
    ax.set_ylabel(ERROR)


def _raincloud(ax: Axes, x: int, e: np.ndarray, colour: str, logarithmic: bool) -> None:
    """Draw each curve as a dot, the quartiles as a bar, and the density beside them."""
    jitter = np.random.default_rng(x).uniform(-0.34, -0.12, len(e))
    ax.plot(x + jitter, e, "o", color=colour, markersize=2.8, alpha=0.45, mew=0, zorder=2)
    scaled = np.log10(e) if logarithmic else e
    if len(e) >= 5 and np.ptp(scaled) > 1e-9 * max(abs(scaled).max(), 1e-300):
        at = np.linspace(scaled.min(), scaled.max(), 200)
        density = gaussian_kde(scaled)(at)
        heights, width = 10**at if logarithmic else at, density / density.max()
        ax.fill_betweenx(
            heights,
            x + 0.08,
            x + 0.08 + 0.36 * width,
            where=width > 0.03,  # cut the thin tail of the density towards lone outliers
            color=colour,
            alpha=0.35,
            linewidth=0,
        )
    lower, middle, upper = np.quantile(e, (0.25, 0.5, 0.75))
    ax.plot([x, x], [lower, upper], color=colour, linewidth=4.5, solid_capstyle="butt", zorder=3)
    ax.plot([x - 0.07, x + 0.07], [middle, middle], color="#222222", linewidth=1.4, zorder=4)


def _bracket(ax: Axes, ends: Sequence[int], height: float, p: float) -> None:
    text = format_p(p)
    transform = ax.get_xaxis_transform()
    x = [ends[0], ends[0], ends[1], ends[1]]
    y = [height - 0.012, height, height, height - 0.012]
    ax.plot(x, y, color="#444444", linewidth=0.8, transform=transform, clip_on=False)
    label = f"P {text}" if text.startswith("<") else f"P = {text}"
    ax.text(sum(ends) / 2, height + 0.008, label, ha="center", va="bottom", fontsize=8, transform=transform)


def _pairs(p_values: PValues | None, names: Sequence[str], condition: str | None) -> dict[tuple[str, str], float]:
    """P value of each pair of drawn names, sorted by the width of their bracket."""
    found: dict[tuple[str, str], float] = {}
    if isinstance(p_values, Mapping):
        for (a, b), p in p_values.items():
            if a not in names or b not in names:
                raise CSTError(f"there is a P value for {a!r} and {b!r}, but errors has {', '.join(names)}")
            found[a, b] = float(p)
    else:
        spelled = {name.casefold(): name for name in names}
        for test in p_values or ():
            if condition is not None and test.get("condition") != condition:
                continue
            sides = re.split(r"\s+(?:vs\.?|versus|against)\s+", test["name"].split(": ")[-1].casefold())
            if len(sides) == 2 and all(side in spelled for side in sides) and test.get("p_value") is not None:
                found[spelled[sides[0]], spelled[sides[1]]] = float(test["p_value"])
    return dict(sorted(found.items(), key=lambda item: abs(names.index(item[0][0]) - names.index(item[0][1]))))
