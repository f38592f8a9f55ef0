"""Rows of the Navier–Stokes tables: their names, the settings of a preset, and the model of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cstformer.baselines import BASELINES, TransformerSpline
from cstformer.experiments.navier_stokes.errors import FOURIER, ZOOMED
from cstformer.experiments.navier_stokes.noise_levels import CSTOfLevels
from cstformer.models.cst import CST
from cstformer.training.settings import PRESETS

SMOOTH, JOINT = "CST (smooth start)", "CST (joint, Nyström)"
MIXED = "CST (one model for all noise levels)"
TRANSFORMER = "Transformer"
TO_LINEAR, TO_SPLINE = "Transformer + linear", "Transformer + spline"
WIENER, START = "Wiener + cubic", "space–time Wiener"
FILTERED = " after the Wiener filter"
"""End of the names of rivals that are given the frames of CST's start in the place of the noisy ones."""
# Settings of each CST row. The numbers of steps, here and below, are what the minutes of a core allow, or more: a
# training that reaches its time limit first is annealed by the clock.
CST_ROWS: dict[str, dict[str, Any]] = {
    SMOOTH: PRESETS["frames"] | {"start": "smooth"},
    # The paper's network, pattern, loss and training, with Nyström attention as described there. In `joint` every token
    # carries all derivatives: k = 3 with ten samples and 500 dummy points a step would need more than ten gigabytes,
    # hence order 2, 50 points and batch 2. A search for μ would leave no time to train.
    JOINT: PRESETS["paper"]
    | {"attention_kind": "nystrom", "order": 2, "mu": "auto", "dummies": 50, "batch": 2, "steps": 500},
    MIXED: PRESETS["frames"] | {"start": "smooth"},
}
# Trained rivals: key in `BASELINES` and changes to the default preset. The published operator pads by 6.
_FNO3D = {"steps": 300, "batch": 2, "padding": 6}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    TRANSFORMER: ("transformer-linear", {"steps": 1500}),
    "FNO2D": ("fno2d", {"steps": 1200}),
    "FNO3D (index grid)": ("fno3d", _FNO3D | {"resample": "index", "slots": 16}),
    "FNO3D (resampled)": ("fno3d", _FNO3D | {"resample": "regular", "slots": 26}),
}
RIVALS |= {f"{row}{FILTERED}": RIVALS[row] for row in (TRANSFORMER, "FNO3D (resampled)")}
PUBLISHED = (TRANSFORMER, "FNO2D", "FNO3D (index grid)")
"""Rivals of the paper: beside its number of given frames. The others stand beside the smallest number."""
CLASSICAL = {"linear": "linear", "cubic": "cubic", WIENER: "wiener", START: "space-time-wiener", "GP in time": "gp"}
NOISE_ROWS = ("linear", "cubic", WIENER, START)
PAPER_ERROR = {JOINT: 4.88e-3, TO_LINEAR: 5.12e-3, TO_SPLINE: 5.54e-3, "FNO2D": 1.88e-2, "FNO3D (index grid)": 1.38}


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    training: int = 300
    test: int = 150
    size: int = 64
    patch: int = 8
    until: float = 20.0
    given: tuple[int, ...] = (10, 5)
    """Numbers of given frames of a flow; the noise levels use the smallest."""
    noise: float = 0.1
    """Noise of the main tables, relative to the standard deviation of the training frames."""
    levels: tuple[float, ...] = (0.05, 0.1, 0.2)
    """Noise levels of the comparison; one CST is trained on flows of any level between the lowest and the highest."""
    seeds: int = 3
    """Trainings of each network."""
    minutes: float = 3.5
    """Time limit of each training, its search for a rate not included."""
    closer: int = 12
    """Test flows that are also predicted between the times of the frames, and drawn."""
    overlap: int = 2
    """Patches over each pixel along an axis in the frames of CST; see `fine_frames`."""
    zoom: int = 4
    """Fine pixels for each pixel in the test of spatial continuity."""
    preset: str = "default"
    """Preset of the trained rivals."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every CST row."""
    rivals: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every trained rival."""

    @property
    def few(self) -> int:
        """The smallest number of given frames."""
        return min(self.given)

    @property
    def zoomed(self) -> str:
        """Name of the condition on the fine grid."""
        return f"{self.zoom * self.size} × {self.zoom * self.size} points"

    def settings(self) -> dict[str, tuple[int, float, float | None]]:
        """For each condition of a cell: given frames, noise, and the highest noise if levels are mixed."""
        low, high = min(self.levels), max(self.levels)
        table = {f"given={g}": (g, self.noise, None) for g in self.given}
        levels = {f"given={self.few},noise={n:g}": (self.few, n, None) for n in self.levels if n != self.noise}
        return {**table, **levels, f"given={self.few},noise={low:g} to {high:g}": (self.few, low, high)}


def make_model(name: str, config: Config, seed: int) -> Any:
    """The model of a cell, not fitted."""
    common = {"seed": seed, "max_minutes": config.minutes, "validation": 0.04}
    if name in CLASSICAL:
        return BASELINES[CLASSICAL[name]](seed=seed)
    if name in RIVALS:
        key, settings = RIVALS[name]
        return BASELINES[key].preset(config.preset, **common | settings | config.rivals)
    return (CSTOfLevels if name == MIXED else CST)(**common | CST_ROWS[name] | config.cst)


def fitted_rows(name: str, model: Any) -> dict[str, Any]:
    """The rows that a fitted model gives: one, except for the Transformer, whose training serves two."""
    if not name.startswith(TRANSFORMER):
        return {name: model}
    end = name.removeprefix(TRANSFORMER)
    return {f"{TO_LINEAR}{end}": model, f"{TO_SPLINE}{end}": TransformerSpline.of(model)}


def questions(condition: str) -> list[tuple[str, str, str]]:
    """Pairs of rows that are tested: CST against its own start and its best rivals, and the paper's own pair."""
    pairs = [(SMOOTH, START), (SMOOTH, WIENER), (SMOOTH, f"{TO_SPLINE}{FILTERED}"), (SMOOTH, TO_LINEAR)]
    pairs += [(JOINT, TO_LINEAR), (MIXED, START), (ZOOMED, FOURIER)]
    return [(first, second, condition) for first, second in pairs]
