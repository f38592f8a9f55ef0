"""Rows of the video tables: their names, the settings of a preset, and the model or filter of each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.baselines.filters import median_filter
from cstformer.baselines.sizes import SIZES
from cstformer.datasets.video import SIZE
from cstformer.errors import CSTError
from cstformer.experiments.video.task import Corruption, Movies, Videos, frame_size
from cstformer.models.cst import CST
from cstformer.training.settings import PRESETS

MEDIAN, LINEAR = "CST", "CST (no guess)"
GUESS = "first guess of CST"
NLM = "non-local means after it"
KINDS = ("pixels", "blocks")
BETWEEN = "between frames"
DIRECTIONS = ("a on b", "b on a")
"""Which recordings train and which test; tables have the clips of both directions together."""
DROPPED, HALF = "dropped frames", "half frame times of a moving scene"
# Settings of the CST rows. Targets are noise-free, so the Sobolev term has nothing to smooth (order 0). An exponent p
# near 1 keeps the few crops with the fastest motion from dominating the loss.
RESTORING = PRESETS["frames"] | {
    "width": 128,
    "feedforward": 256,
    "learning_rate": 2e-3,
    "order": 0,
    "hide": 0.0,
    "p": 1.25,
}
CST_ROWS: dict[str, dict[str, Any]] = {
    MEDIAN: RESTORING | {"start": "median"},
    LINEAR: RESTORING | {"start": "linear"},
}
INTERPOLATING = RESTORING | {"start": "motion", "hide": 0.5, "noise": 0.0, "batch": 8}
# Trained rivals: key in `BASELINES` and changes to the default preset. Transformers get the patches and width of CST.
_VIT = {"tubelet_frames": 1, "tubelet_rows": 8, "tubelet_cols": 8, "batch": 4, "steps": 3000}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "ConvGRU": ("convgru", {"hidden": 8, "batch": 4, "steps": 2000}),
    "3D-ViT": ("vit3d", _VIT),
    "ViViT": ("vivit", _VIT),
}
WITH_GUESS = {f"{name} + guess": name for name in ("ConvGRU", "3D-ViT")}
WITHOUT_GUESS = (LINEAR, *RIVALS)
"""Rows that see the corrupted clip alone, as the paper's models do: for single pixels, with one seed."""
CLASSICAL = ("copy", "copy, clipped", "mean of the clip", "median 3×3×3", "switching median", NLM, GUESS)
BLENDS = {"linear blend": "linear", "nearest frame": "nearest"}
PAPER_ERROR = {"CST": 0.1138, "3D-ViT": 0.2505, "ViViT": 0.3651, "ConvGRU": 0.363}
THRESHOLD = 0.15  # of the switching median: the best of those tried on both drives
STRENGTHS = (0.06, 0.1)  # of non-local means: the better one on the first test clip is used, which favours this row


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    size: tuple[int, int] = SIZE
    crop: tuple[int, int] = (32, 32)
    frames: int = 10
    patch: tuple[int, int] = (8, 8)
    crops: int = 1500
    test: int = 20
    seeds: int = 3
    """Trainings of each row that is compared by a test."""
    block: int = 16
    """Side of the corrupted blocks in pixels; the other kind of mask corrupts single pixels."""
    motions: tuple[str, ...] = ("fresh", "fixed")
    """Motions of the mask in the tests; training draws a fresh mask for every frame."""
    stride: tuple[int, int] = (10, 16)
    """Frames and pixels from one crop to the next in predictions of whole clips."""
    minutes: float = 2.0
    """Time limit of each training."""
    scenes: int = 6
    """Number of synthetic scenes, used if there are no drives."""
    length: int = 40
    """Frames of a synthetic scene."""
    real: bool = True
    """Whether to use the drives if they are there."""
    preset: str = "default"
    """Preset of the trained rivals."""
    paper: bool = False
    """Whether the models have the paper's sizes; they then see whole clips and get no guess."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every CST row."""
    rivals: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every trained rival."""

    def corruption(self, kind: str, videos: Videos) -> Corruption:
        """The corruption of the training crops."""
        return Corruption(1 if kind == "pixels" else self.block, frame_size(videos))


def make_model(name: str, config: Config, seed: int) -> Any:
    """The model of a row that restores clips, not fitted."""
    common = {"seed": seed, "max_minutes": config.minutes, "validation": 0.03}
    if config.paper:
        return SIZES["video"][name].model(**common | (config.cst if name == "CST" else config.rivals))
    if name in CST_ROWS:
        return CST(**common | CST_ROWS[name] | config.cst)
    key, settings = RIVALS[WITH_GUESS.get(name, name)]
    skip = {"skip": True} if name in WITH_GUESS else {}
    return BASELINES[key].preset(config.preset, **common | settings | {"hide": 0.0} | skip | config.rivals)


def make_interpolator(name: str, config: Config, seed: int) -> Any:
    """The model of a row between frames, not fitted."""
    if name in BLENDS:
        return BASELINES[BLENDS[name]](seed=seed)
    settings = INTERPOLATING | config.cst | {"hide": INTERPOLATING["hide"]}
    return CST(**settings | {"seed": seed, "max_minutes": config.minutes, "validation": 0.03})


def filtered(name: str, given: Movies, clean: Any) -> Movies:
    """Clips restored by a row of `CLASSICAL`; ``clean`` is the first true clip, which selects the strength of `NLM`."""
    if name == "copy":
        return given
    if name == "copy, clipped":
        return given.clip(0, 1)
    if name == "mean of the clip":
        return np.broadcast_to(given.mean(1, keepdims=True), given.shape)
    median = np.stack([median_filter(clip) for clip in given])
    if name == "median 3×3×3":
        return median
    far = np.sqrt(np.square(given - median).mean(-1, keepdims=True)) > THRESHOLD
    switched = np.where(far, median, given)
    if name == "switching median":
        return switched
    tried = {h: _non_local_means(switched[0], h) for h in STRENGTHS}
    best = min(STRENGTHS, key=lambda h: float(np.square(tried[h] - clean).mean()))
    return np.stack([tried[best], *(_non_local_means(clip, best) for clip in switched[1:])])


def _non_local_means(clip: np.ndarray, strength: float) -> np.ndarray:
    try:
        from skimage.restoration import denoise_nl_means  # an optional dependency
    except ImportError:
        raise CSTError(f'the row {NLM!r} needs scikit-image; pip install "cstformer[video]"') from None
    sizes = {"patch_size": 3, "patch_distance": 3}
    return np.stack([denoise_nl_means(x, h=strength, fast_mode=True, channel_axis=-1, **sizes) for x in clip])


def questions(conditions: Iterable[str]) -> list[tuple[str, str, str]]:
    """Pairs of rows that are tested: CST against its own start, the best rival with it, and the best other filter."""
    others = (GUESS, "3D-ViT + guess", NLM, "linear blend")
    return [(MEDIAN, other, condition) for condition in conditions for other in others]
