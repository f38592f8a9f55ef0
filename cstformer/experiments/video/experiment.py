"""The paper's video experiment: clips of a drive with noise on half of their pixels, to be restored on another drive.

``cst run video --preset default`` (an hour and a half on two cores) trains every model for eight minutes on crops of
10 × 32 × 32 pixels of one KITTI drive (``CST_DATA`` names the folder that has ``kitti/``; else of synthetic scenes),
corrupted anew in every step, and tests on whole clips of the other one. Expect copying at an MSE of 0.125,
the switching median at 0.003 to 0.006 with single pixels corrupted and at 0.005 to 0.009 with blocks of 16 × 16 (paper:
CST 0.1138, with neither the mask nor the range of values said). A second CST is asked between the frames.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cstformer.baselines import BASELINES
from cstformer.baselines.filters import median_filter
from cstformer.baselines.sizes import SIZES
from cstformer.data.samples import Samples
from cstformer.datasets.corruption import MOTIONS
from cstformer.datasets.moving_scene import MovingScene
from cstformer.datasets.video import SIZE
from cstformer.errors import CSTError, CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.metrics import clip_mse, paired_test, psnr, ssim, summary
from cstformer.experiments.video.task import (
    Corruption,
    Movies,
    Videos,
    as_samples,
    ask_clips,
    clips_to_test,
    corrupted,
    find_recordings,
    first_guess,
    frame_size,
    make_data,
    on_their_way,
    training_crops,
)
from cstformer.models.cst import CST
from cstformer.training.settings import PRESETS

MEDIAN, LINEAR = "CST", "CST (no guess)"
GUESS = "first guess of CST"
NLM = "non-local means after it"
KINDS = ("pixels", "blocks")
BETWEEN = "between frames"
DROPPED, HALF = "dropped frames", "half frame times of a moving scene"
# Settings of the CST rows. The target is known without noise, so there is nothing for a Sobolev term to smooth; with an
# exponent near 1 the loss is not left to the few crops that move fastest.
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
GAP = 5  # frames of a crop of which every second one is given
# Trained rivals: key in the registry and changes to its default preset. Transformers get the patches and width of CST.
_VIT = {"tubelet_frames": 1, "tubelet_rows": 8, "tubelet_cols": 8, "batch": 4, "steps": 3000}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "ConvGRU": ("convgru", {"hidden": 8, "batch": 4, "steps": 2000}),
    "3D-ViT": ("vit3d", _VIT),
    "ViViT": ("vivit", _VIT),
}
WITH_GUESS = {f"{name} + guess": name for name in RIVALS}
CLASSICAL = ("copy", "copy, clipped", "mean of the clip", "median 3×3×3", "switching median", NLM, GUESS)
BLENDS = {"linear blend": "linear", "nearest frame": "nearest"}
PAPER_ERROR = {"CST": 0.1138, "3D-ViT": 0.2505, "ViViT": 0.3651, "ConvGRU": 0.363}
THRESHOLD = 0.15  # of the switching median: the best of those tried on both drives
STRENGTHS = (0.06, 0.1)  # of non-local means; the better one on the first test clip is taken, in favour of that row
SHOWN = (1, 4, 7)  # frames of the first test clip that are kept for the figures


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    size: tuple[int, int] = SIZE
    crop: tuple[int, int] = (32, 32)
    frames: int = 10
    patch: tuple[int, int] = (8, 8)
    crops: int = 1500
    test: int = 7
    block: int = 16
    """Side of the corrupted blocks in pixels; the other kind of mask has single pixels."""
    motions: tuple[str, ...] = MOTIONS
    """Masks to test on; training draws a fresh one for every frame."""
    stride: tuple[int, int] = (10, 16)
    """Frames and pixels from one crop to the next when whole clips are asked for."""
    minutes: float = 8.0
    """Time allowed to each training."""
    scenes: int = 6
    length: int = 40
    """Number and frames of the synthetic scenes, where there are no drives."""
    real: bool = True
    """Whether drives are used where they are there."""
    preset: str = "default"
    """Preset of the trained rivals."""
    paper: bool = False
    """Whether the models have the paper's sizes; they then see whole clips and no guess."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every CST row."""
    rivals: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every trained rival."""

    def corruption(self, kind: str, videos: Videos) -> Corruption:
        """Law of the corruption while training."""
        return Corruption(1 if kind == "pixels" else self.block, frame_size(videos))


class VideoExperiment(Experiment):
    """Clips without their corruption, and frames between frames; see the module's text."""

    name = "video"
    presets = {  # noqa: RUF012
        "smoke": Config(
            size=(32, 48),
            crop=(16, 16),
            frames=5,
            patch=(4, 4),
            crops=12,
            test=2,
            block=8,
            stride=(5, 16),
            minutes=1.0,
            scenes=2,
            length=20,
            real=False,
            preset="smoke",
            cst=PRESETS["smoke"] | {"steps": 3, "learning_rate": 1e-4},  # rows stay near where they begin
            rivals={"steps": 3, "learning_rate": 1e-4},
        ),
        "default": Config(),
        "paper": Config(
            crop=SIZE,
            frames=10,
            patch=(16, 32),
            crops=100,
            stride=(10, 32),
            minutes=48 * 60,
            preset="paper",
            paper=True,
        ),
    }

    def cells(self, config: Config) -> list[Cell]:
        """Both kinds of masks, and the frames between."""
        trained = list(SIZES["video"]) if config.paper else [*CST_ROWS, *RIVALS, *WITH_GUESS]
        cells = [Cell(row, kind) for kind in KINDS for row in (*trained, *CLASSICAL)]
        return cells if config.paper else [*cells, *(Cell(row, BETWEEN) for row in (MEDIAN, *BLENDS, GUESS))]

    def row_name(self, name: str) -> str:
        """Registry keys stand for their rows."""
        return {"cst": MEDIAN, **{key: row for row, (key, _) in RIVALS.items()}}.get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Read the drives, or draw the scenes."""
        make_data(
            _videos(config, seed, out), lambda: find_recordings(config.size, config.scenes, config.length, config.real)
        )

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit on crops of the training recordings, and measure on whole clips of the others."""
        videos = _videos(config, seed, folder.parent.parent)
        if cell.condition == BETWEEN:
            return self._between(cell, config, videos, folder, progress)
        clips, filtered = clips_to_test(videos), cell.model in CLASSICAL
        model, guess = None, None
        facts: dict[str, Any] = {}
        corruption = config.corruption(cell.condition, videos)
        if not filtered or cell.model == GUESS:
            crops = training_crops(videos)
            if cell.model in WITH_GUESS or cell.model == GUESS:
                guess = first_guess(crops, corruption, seed)
        if not filtered:
            model = _model(cell.model, config, seed)
            trust = guess

            def given(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
                y = corruption(frames, generator)
                return y if trust is None else trust.guess(y)

            facts = _fit(model, as_samples(crops, videos), folder, progress, given=given)

        def restore(motion: str, stride: tuple[int, int]) -> tuple[Movies, float]:
            """Restored clips, and the seconds that each took."""
            y, begin = corrupted(clips, videos, corruption.block, motion), time.perf_counter()
            if guess is not None:
                y = guess.guess(torch.from_numpy(y)).numpy()
            if model is not None:
                y = ask_clips(model, y, videos, np.arange(clips.shape[1]), stride)
            elif cell.model != GUESS:
                y = _filter(cell.model, y, clips[0])
            return y, (time.perf_counter() - begin) / len(clips)

        arrays: dict[str, np.ndarray] = {}
        for motion in config.motions:
            y, facts["seconds_a_clip"] = restore(motion, config.stride)
            kept = {"restored": y[0, list(SHOWN)].astype(np.float32)}
            arrays |= {f"{motion} {name}": x for name, x in (_metrics(y, clips) | kept).items()}
        if cell.model == MEDIAN:
            y, seconds = restore(config.motions[0], (config.frames, max(config.crop)))
            facts["apart"] = {"MSE": float(clip_mse(y, clips).mean()), "seconds_a_clip": seconds}
        return _result(model, arrays, facts)

    def _between(self, cell: Cell, config: Config, videos: Videos, folder: Path, progress: bool) -> CellResult:
        """Every second frame is given, and the others are asked for; half frame times where the truth is known."""
        videos = dataclasses.replace(videos, frames=GAP)
        model: Any = None
        facts: dict[str, Any] = {}
        if cell.model != GUESS:
            samples = as_samples(training_crops(videos), videos)
            if cell.model in BLENDS:
                model = BASELINES[BLENDS[cell.model]](seed=videos.seed).fit(samples)
            else:
                settings = INTERPOLATING | config.cst | {"hide": INTERPOLATING["hide"]}
                model = CST(**settings | {"seed": videos.seed, "max_minutes": config.minutes, "validation": 0.03})
                facts = _fit(model, samples, folder, progress)

        def ask(clips: Movies, times: np.ndarray, every: int = 1) -> Movies:
            if model is None:
                return on_their_way(clips[:, ::every], np.arange(0, clips.shape[1], every), times)
            return ask_clips(model, clips, videos, times, (2, config.stride[1]), every)

        clips = clips_to_test(videos)[:, :9]
        odd = np.arange(1, 8, 2)
        begin = time.perf_counter()
        y = ask(clips, odd, every=2)
        facts["seconds_a_frame"] = (time.perf_counter() - begin) / (len(clips) * len(odd))
        arrays = {f"{DROPPED} {name}": x for name, x in _metrics(y, clips[:, odd]).items()}
        fine = np.linspace(0, 8, 33)
        arrays["film"] = ask(clips[:1], fine, every=2)[0].astype(np.float32)
        scenes = [MovingScene(seed=1000 + i, size=frame_size(videos)) for i in range(min(2, config.test))]
        whole, half = np.arange(GAP), np.arange(GAP - 1) + 0.5
        frames = np.stack([scene.frames(whole) for scene in scenes])
        truth = np.stack([scene.frames(half) for scene in scenes])
        y = ask(frames, half)
        arrays |= {f"{HALF} {name}": x for name, x in _metrics(y, truth).items()}
        return _result(model, arrays, facts)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A table for each kind and motion of the masks, and for each way to ask between frames."""
        from cstformer.experiments.video.figures import draw

        table: list[dict[str, Any]] = []
        errors: dict[str, dict[str, np.ndarray]] = {}
        for kind in (*KINDS, BETWEEN):
            for part in (DROPPED, HALF) if kind == BETWEEN else config.motions:
                condition = part if kind == BETWEEN else f"{kind}, {part} masks"
                for cell, result in results.items():
                    if cell.condition == kind:
                        metrics = {name: result.arrays[f"{part} {name}"] for name in ("MSE", "PSNR", "SSIM")}
                        paper = PAPER_ERROR.get(cell.model) if (kind, part) == ("pixels", "fresh") else None
                        summaries = {name: summary(x) for name, x in metrics.items()}
                        table.append(table_row(Cell(cell.model, condition, paper), result, summaries))
                        errors.setdefault(condition, {})[cell.model] = metrics["MSE"]
        tests = [
            {"name": f"{MEDIAN} vs {other}", "condition": condition, **dataclasses.asdict(paired_test(rows[MEDIAN], x))}
            for condition, rows in errors.items()
            for other, x in rows.items()
            if MEDIAN in rows and other != MEDIAN
        ]
        figures = draw(config, _videos(config, seed, out), results, out)
        return {"table": table, "tests": tests, "figures": figures, "notes": _notes(config, results, out, seed)}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The middle of the test clips, as it is given."""
        videos = _videos(config, seed, out)
        clips = clips_to_test(videos)
        corner = [(n - k) // 2 for n, k in zip(clips.shape[2:4], config.crop, strict=True)]
        rows, cols = (slice(first, first + k) for first, k in zip(corner, config.crop, strict=True))
        if condition == BETWEEN:
            return as_samples(clips[:, :GAP, rows, cols], videos, every=2)
        block = config.corruption(condition, videos).block
        return as_samples(corrupted(clips, videos, block, "fresh")[:, : config.frames, rows, cols], videos)


EXPERIMENT = VideoExperiment()


def _videos(config: Config, seed: int, out: Path) -> Videos:
    return Videos(out / "frames.npz", config.crop, config.frames, config.patch, config.crops, config.test, seed)


def _model(name: str, config: Config, seed: int) -> Any:
    """The unfitted system of a cell."""
    common = {"seed": seed, "max_minutes": config.minutes, "validation": 0.03}
    if config.paper:
        return SIZES["video"][name].model(**common | (config.cst if name == "CST" else config.rivals))
    if name in CST_ROWS:
        return CST(**common | CST_ROWS[name] | config.cst)
    key, settings = RIVALS[WITH_GUESS.get(name, name)]
    skip = {"skip": True} if name in WITH_GUESS else {}
    return BASELINES[key].preset(config.preset, **common | settings | {"hide": 0.0} | skip | config.rivals)


def _fit(model: Any, samples: Samples, folder: Path, progress: bool, **options: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CSTWarning)  # that a cap was reached is said in the notes
        model.fit(samples, state=folder / "training.safetensors", progress=progress, **options)
    report = model.report_
    if report.ended == "interrupted":
        raise KeyboardInterrupt  # the state is on disk: the next run goes on
    model.save(folder / "model")
    return {"history": report.history, "ended": report.ended, "steps": report.steps}


def _result(model: Any, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> CellResult:
    seconds = model.report_.seconds if "steps" in facts else 0.0
    return CellResult(arrays, 0 if model is None else model.n_parameters_, seconds, facts)


def _metrics(y: Movies, truth: Movies) -> dict[str, np.ndarray]:
    return {"MSE": clip_mse(y, truth), "PSNR": psnr(y, truth), "SSIM": ssim(y, truth)}


def _filter(name: str, given: Movies, clean: Any) -> Movies:
    """A row without training; ``clean`` is the truth of the first clip, by which one setting is chosen."""
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
        from skimage.restoration import denoise_nl_means
    except ImportError:
        raise CSTError(f"the row {NLM!r} needs scikit-image; install cstformer[video]") from None
    sizes = {"patch_size": 3, "patch_distance": 3}
    return np.stack([denoise_nl_means(x, h=strength, fast_mode=True, channel_axis=-1, **sizes) for x in clip])


def _notes(config: Config, results: dict[Cell, CellResult], out: Path, seed: int) -> list[str]:
    from cstformer.experiments.video.task import recordings

    found = recordings(_videos(config, seed, out))
    names = {part: ", ".join(f"{name} ({len(x)} frames)" for name, x in some.items()) for part, some in found.items()}
    sizes = " × ".join(map(str, (config.frames, *config.crop)))
    notes = [
        f"Trained on {names['train']}; tested on {names['test']}. N(0, 0.5) on 40 to 60 % of each frame, values in "
        f"[0, 1] and not clipped; single pixels, or blocks of {config.block} × {config.block}. The mask is secret.",
        f"Models are trained on {config.crops} crops of {sizes} pixels, at most {config.minutes:g} minutes each, with "
        "fresh corruption in every step and a fresh mask for every frame; fixed and moving masks are new to them. "
        "Whole clips are blended from overlapping crops.",
        "MSE as in the paper, PSNR and SSIM; a clip is one observation.",
        f"{GUESS}: the pixel and the mean of those around that are trusted and alike, mixed by the pixel's trust, "
        "which is fitted to training pairs. Rows with “+ guess” get it as their input and give a change to it.",
        f"{NLM}: frame by frame; of {len(STRENGTHS)} strengths, the better one on the first test clip.",
        f"{DROPPED.capitalize()}: every second frame is given. {HALF.capitalize()}: all frames of a synthetic scene "
        "are given, the truth halfway between is exact. Nothing is corrupted there; the first guess is another one, "
        "whole frames that are moved to the moment in question and blended.",
    ]
    seconds = {c.model: r.facts["seconds_a_frame"] for c, r in results.items() if c.condition == BETWEEN}
    if seconds:
        listed = ", ".join(f"{name} {x:.2g}" for name, x in seconds.items())
        notes.append(f"Seconds of one core for a frame {BETWEEN}: {listed}.")
    for kind in KINDS:
        seconds = {c.model: r.facts["seconds_a_clip"] for c, r in results.items() if c.condition == kind}
        if seconds:
            listed = ", ".join(f"{name} {x:.2g}" for name, x in seconds.items())
            notes.append(f"Seconds of one core to restore a clip, {kind}: {listed}.")
        apart = results[Cell(MEDIAN, kind)].facts.get("apart") if MEDIAN in seconds else None
        if apart:
            notes.append(
                f"With crops side by side instead of overlapping, {MEDIAN} has {apart['MSE']:.3g} ({kind}, "
                f"{config.motions[0]} masks) in {apart['seconds_a_clip']:.2g} seconds."
            )
    for cell, result in results.items():
        if result.facts.get("ended") not in (None, "finished"):
            steps, why = result.facts["steps"], result.facts["ended"]
            notes.append(f"{cell.model}, {cell.condition}: ended after {steps} steps ({why}).")
    return notes
