"""Common style of all figures: a fixed, colour-blind-safe colour per system, plain axes, atomic files.

Matplotlib is used only through its objects (`matplotlib.figure.Figure`), without windows, backends or global state,
so figures can be drawn in a thread, a server or a test.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from cstformer.errors import CSTError
from cstformer.system.atomic import atomic_path

PAGE_WIDTH = 7.4
"""Inches. At 150 dpi this fills the text width of the page, and 8-point text stays readable."""

DPI = 150

# Okabe and Ito's eight colours, which are distinguishable with all common forms of colour blindness. CST is red, the
# Transformer blue and unseen points green, as in the paper's Figure 2.
COLOURS = {
    "CST": "#D55E00",
    "Transformer": "#0072B2",
    "linear": "#E69F00",
    "cubic": "#CC79A7",
    "GP": "#56B4E9",
    "truth": "#B5B5B5",
    "observed": "#000000",
    "test": "#009E73",
    # Fields and videos; from Paul Tol's muted scheme.
    "FNO2D": "#88CCEE",
    "FNO3D": "#332288",
    "ViViT": "#44AA99",
    "3D-ViT": "#117733",
    "ConvGRU": "#999933",
    "LSTM": "#DDCC77",
    "ConvLSTM": "#CC6677",
    "LFADS": "#882255",
    "LatentODE": "#AA4499",
    "copy": "#666666",
}
"""Colour of each system; `colour_of` also accepts the names in `ALIASES`."""

ALIASES = {
    "spline": "cubic",
    "cubic spline": "cubic",
    "linear interpolation": "linear",
    "gaussian process": "GP",
    "noise-free": "truth",
    "unseen": "test",
    "latent ode": "LatentODE",
    "copy input": "copy",
    "raw data": "copy",
}

# Colours of unknown names; none of these belongs to a known system.
FALLBACK = ("#6A3D9A", "#A6761D", "#1B9E9E", "#E7298A", "#5C7A29", "#4D4D4D", "#B2182B", "#2C5AA0")

# Dash patterns, so that lines are distinguishable without colour too.
LINES: dict[str, Any] = {"linear": (0, (5, 1.5)), "cubic": (0, (6, 1.5, 1.2, 1.5)), "GP": (0, (1.5, 1.2))}

LABELS = {"truth": "noise-free curve", "observed": "observed points", "test": "unseen points"}

STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "regular",
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=FALLBACK),
    "figure.facecolor": "white",
    "figure.titlesize": 10,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "cstformer",
    "text.color": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws a figure: apply `STYLE` while it runs, and restore matplotlib's settings."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


@styled
def new_figure(
    rows: int = 1, cols: int = 1, size: tuple[float, float] = (PAGE_WIDTH, 3.2), **subplots: Any
) -> tuple[Figure, np.ndarray]:
    """Make a figure and its (rows, cols) array of axes; ``subplots`` is passed to `Figure.subplots`.

    >>> fig, axes = new_figure(2, 3)
    >>> axes.shape
    (2, 3)
    """
    fig = Figure(figsize=size, layout="constrained")
    return fig, fig.subplots(rows, cols, squeeze=False, **subplots)


@styled
def save_figure(fig: Figure, path: str | os.PathLike[str], *, svg: bool = False) -> Path:
    """Write the figure to ``path`` (a .png, 150 dpi) atomically and return the path; ``svg`` adds a vector version."""
    target = check_figure_path(path)
    with atomic_path(target) as tmp:
        fig.savefig(tmp, format="png", dpi=DPI, metadata={"Software": None})
    if svg:
        with atomic_path(target.with_suffix(".svg")) as tmp:
            fig.savefig(tmp, format="svg", metadata={"Date": None})
    return target


def check_figure_path(path: str | os.PathLike[str]) -> Path:
    """Refuse anything but a .png, before the work that makes the figure."""
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise CSTError(f"{target.name!r} is no name of a figure: figures are saved as .png; change the suffix")
    return target


def system_of(name: str) -> str | None:
    """Find the known system that a name refers to, or None.

    >>> system_of("cubic spline"), system_of("Transformer, σ=0.1"), system_of("transformers"), system_of("x")
    ('cubic', 'Transformer', None, None)
    """
    text = name.strip().casefold()
    known = {system.casefold(): system for system in COLOURS} | ALIASES
    for key in sorted(known, key=len, reverse=True):
        # "CST (paper)" is a variant of CST, "linearised" is not a variant of linear.
        if text.startswith(key) and not text[len(key) : len(key) + 1].isalnum():
            return known[key]
    return None


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Give each name its own colour: that of its system, a shade of it for variants, or a fallback colour.

    >>> colours_of(["CST", "Transformer", "cubic spline"])
    {'CST': '#D55E00', 'Transformer': '#0072B2', 'cubic spline': '#CC79A7'}
    """
    names = list(dict.fromkeys(names))
    exact = {name for name in names if name.strip().casefold() in {c.casefold() for c in COLOURS} | set(ALIASES)}
    chosen: dict[str, str] = {}
    # Exact names first, so that a variant never takes the colour of the system itself.
    for name in sorted(names, key=lambda name: name not in exact):
        system = system_of(name)
        if system is not None:
            options = [_shade(COLOURS[system], step) for step in (0.0, -0.45, 0.4, -0.7, 0.6, -0.25, 0.2)]
        else:
            start = zlib.crc32(name.encode()) % len(FALLBACK)
            spare = FALLBACK[start:] + FALLBACK[:start]
            options = [_shade(colour, step) for step in (0.0, 0.45, -0.4) for colour in spare]
        used = set(chosen.values())
        chosen[name] = next((colour for colour in options if colour not in used), options[-1])
    return {name: chosen[name] for name in names}


def colour_of(name: str) -> str:
    """Colour of one name, the same in every figure.

    >>> colour_of("CST"), colour_of("spline") == colour_of("cubic")
    ('#D55E00', True)
    """
    return colours_of([name])[name]


def line_of(name: str) -> Any:
    """Dash pattern of a system's line, solid if it has none."""
    return LINES.get(system_of(name) or "", "-")


def panel_letter(ax: Axes, letter: str) -> None:
    """Put a bold panel letter above the upper left corner of the axes."""
    ax.set_title(letter, loc="left", fontweight="bold", fontsize=11)


def _shade(colour: str, step: float) -> str:
    """Blend a colour with white (step > 0) or black (step < 0)."""
    rgb, end = np.array(to_rgb(colour)), 1.0 if step > 0 else 0.0
    red, green, blue = rgb + abs(step) * (end - rgb)
    return to_hex((red, green, blue)).upper()
