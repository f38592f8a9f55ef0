"""Restoration of corrupted video, and frames between frames (the paper's video experiment).

Command: ``cst run video --preset default``. Run time: an hour and a half on two cores.
Expect: a mean squared error of CST of 7e-4 with corrupted pixels and of 1.5e-3 with blocks of 16 × 16 pixels; 0.125 for
copying; 0.003 to 0.006 (pixels) and 0.005 to 0.009 (blocks) for the switching median. The paper has 0.1138 for CST, but
describes neither the mask nor the range of values.

Every model trains for eight minutes on crops of 10 × 32 × 32 pixels of one KITTI drive and is tested on whole clips of
another. The crops get new noise on half of their pixels in every step. Drives are read from ``kitti/`` in the folder
that ``CST_DATA`` names; without it, synthetic scenes are used. A second CST predicts frames between frames.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cstformer.baselines.sizes import SIZES
from cstformer.data.samples import Samples
from cstformer.datasets.moving_scene import MovingScene
from cstformer.datasets.video import SIZE
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import clip_mse, paired_tests, psnr, ssim, summary
from cstformer.experiments.training import ended_notes, finished_result, train_cell
from cstformer.experiments.video.figures import SHOWN, planned_figures
from cstformer.experiments.video.rows import (
    BETWEEN,
    BLENDS,
    CLASSICAL,
    CST_ROWS,
    DROPPED,
    GUESS,
    HALF,
    KINDS,
    MEDIAN,
    NLM,
    PAPER_ERROR,
    RIVALS,
    STRENGTHS,
    WITH_GUESS,
    Config,
    filtered,
    make_interpolator,
    make_model,
)
from cstformer.experiments.video.task import (
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
    moved_frames,
    recordings,
    training_crops,
)
from cstformer.training.settings import PRESETS

GAP = 5  # frames of a crop between frames; every second one is given


class VideoExperiment(Experiment):
    """Restored clips, and frames between frames; see the module's docstring."""

    name = "video"
    needs = ("PIL", "skimage")
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
            cst=PRESETS["smoke"] | {"steps": 3, "learning_rate": 1e-4},  # models stay close to their starts
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
        """Translate keys of `BASELINES` to rows."""
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
            return _between(cell, config, videos, folder, progress)
        return _restoration(cell, config, videos, folder, progress)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A table for each kind and motion of the masks, and two for frames between frames."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        for kind in (*KINDS, BETWEEN):
            for part in (DROPPED, HALF) if kind == BETWEEN else config.motions:
                condition = part if kind == BETWEEN else f"{kind}, {part} masks"
                for cell, result in results.items():
                    if cell.condition == kind:
                        metrics = {name: result.arrays[f"{part} {name}"] for name in ("MSE", "PSNR", "SSIM")}
                        paper = PAPER_ERROR.get(cell.model) if (kind, part) == ("pixels", "fresh") else None
                        summaries = {name: summary(x) for name, x in metrics.items()}
                        table.append(table_row(Cell(cell.model, condition, paper), result, summaries))
                        errors[cell.model, condition] = metrics["MSE"]
        pairs = [(MEDIAN, other, condition) for other, condition in errors if other != MEDIAN]
        videos = _videos(config, seed, out)
        return {
            "table": table,
            "tests": paired_tests(errors, pairs),
            "figures": write_figures(planned_figures(config, videos, results), out),
            "notes": _notes(config, results, videos),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The middle of the test clips, as the models are given it."""
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


def _restoration(cell: Cell, config: Config, videos: Videos, folder: Path, progress: bool) -> CellResult:
    """Corrupted test clips, restored by a filter or by a trained model."""
    clips, classical = clips_to_test(videos), cell.model in CLASSICAL
    corruption = config.corruption(cell.condition, videos)
    crops = training_crops(videos) if not classical or cell.model == GUESS else None
    guess = None
    if crops is not None and (cell.model in WITH_GUESS or cell.model == GUESS):
        guess = first_guess(crops, corruption, videos.seed)
    model: Any = None
    facts: dict[str, Any] = {}
    if crops is not None and not classical:
        model = make_model(cell.model, config, videos.seed)

        def given(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            y = corruption(frames, generator)
            return y if guess is None else guess.guess(y)

        facts = train_cell(model, as_samples(crops, videos), folder, progress, given=given)

    def restore(motion: str, stride: tuple[int, int]) -> tuple[Movies, float]:
        """Restored clips, and the seconds for each of them."""
        y, begin = corrupted(clips, videos, corruption.block, motion), time.perf_counter()
        if guess is not None:
            y = guess.guess(torch.from_numpy(y)).numpy()
        if model is not None:
            y = ask_clips(model, y, videos, np.arange(clips.shape[1]), stride)
        elif cell.model != GUESS:
            y = filtered(cell.model, y, clips[0])
        return y, (time.perf_counter() - begin) / len(clips)

    arrays: dict[str, np.ndarray] = {}
    for motion in config.motions:
        y, facts["seconds_a_clip"] = restore(motion, config.stride)
        kept = {"restored": y[0, list(SHOWN)].astype(np.float32)}
        arrays |= {f"{motion} {name}": x for name, x in (_metrics(y, clips) | kept).items()}
    if cell.model == MEDIAN:
        y, seconds = restore(config.motions[0], (config.frames, max(config.crop)))
        facts["apart"] = {"MSE": float(clip_mse(y, clips).mean()), "seconds_a_clip": seconds}
    return finished_result(model, arrays, facts)


def _between(cell: Cell, config: Config, videos: Videos, folder: Path, progress: bool) -> CellResult:
    """Dropped frames of the test clips, and half frame times of scenes whose truth is known."""
    videos = dataclasses.replace(videos, frames=GAP)
    model: Any = None
    facts: dict[str, Any] = {}
    if cell.model != GUESS:
        model = make_interpolator(cell.model, config, videos.seed)
        facts = train_cell(model, as_samples(training_crops(videos), videos), folder, progress)

    def ask(clips: Movies, times: np.ndarray, every: int = 1) -> Movies:
        if model is None:
            return moved_frames(clips[:, ::every], np.arange(0, clips.shape[1], every), times)
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
    return finished_result(model, arrays, facts)


def _metrics(y: Movies, truth: Movies) -> dict[str, np.ndarray]:
    return {"MSE": clip_mse(y, truth), "PSNR": psnr(y, truth), "SSIM": ssim(y, truth)}


def _notes(config: Config, results: dict[Cell, CellResult], videos: Videos) -> list[str]:
    found = recordings(videos)
    names = {part: ", ".join(f"{name} ({len(x)} frames)" for name, x in some.items()) for part, some in found.items()}
    sizes = " × ".join(map(str, (config.frames, *config.crop)))
    notes = [
        f"Trained on {names['train']}; tested on {names['test']}. N(0, 0.5) on 40 to 60 % of each frame, values in "
        f"[0, 1] and not clipped; single pixels, or blocks of {config.block} × {config.block}. Models are not told the "
        "mask.",
        f"Models are trained on {config.crops} crops of {sizes} pixels, at most {config.minutes:g} minutes each, with "
        "fresh corruption in every step and a fresh mask for every frame; fixed and moving masks are new to them. "
        "Whole clips are blended from overlapping crops.",
        "MSE as in the paper, PSNR and SSIM; a clip is one observation.",
        f"{GUESS}: a mix of the pixel and the mean of similar, trusted pixels around it. The weight of the pixel is "
        "its trust, which is fitted to training pairs. Rows with “+ guess” get the guess as their input and predict a "
        "change to it.",
        f"{NLM}: frame by frame; of {len(STRENGTHS)} strengths, the better one on the first test clip.",
        f"{DROPPED.capitalize()}: every second frame is given. {HALF.capitalize()}: all frames of a synthetic scene "
        "are given, and the truth halfway between them is exact. Frames are not corrupted there. The first guess is "
        "another one there: whole frames, moved along their motion to the time in question and blended.",
    ]
    between = {c.model: r.facts["seconds_a_frame"] for c, r in results.items() if c.condition == BETWEEN}
    if between:
        notes.append(f"Seconds of one core for a frame {BETWEEN}: {_listed(between)}.")
    for kind in KINDS:
        seconds = {c.model: r.facts["seconds_a_clip"] for c, r in results.items() if c.condition == kind}
        if seconds:
            notes.append(f"Seconds of one core to restore a clip, {kind}: {_listed(seconds)}.")
        apart = results[Cell(MEDIAN, kind)].facts.get("apart") if MEDIAN in seconds else None
        if apart:
            notes.append(
                f"With crops side by side instead of overlapping, {MEDIAN} has {apart['MSE']:.3g} ({kind}, "
                f"{config.motions[0]} masks) in {apart['seconds_a_clip']:.2g} seconds."
            )
    return notes + ended_notes(results)


def _listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {x:.2g}" for name, x in seconds.items())
