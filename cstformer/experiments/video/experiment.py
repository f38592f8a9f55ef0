"""Restoration of corrupted video, and frames between frames (the paper's video experiment).

Command: ``cst run video --preset default``. Run time: about an hour and a quarter on two cores.
Expect: a mean squared error of CST of 7e-4 with corrupted pixels and of 1.5e-3 with blocks of 16 × 16 pixels; 0.125 for
copying; 0.003 to 0.006 (pixels) and 0.005 to 0.009 (blocks) for the switching median. The paper has 0.1138 for CST, but
describes neither the mask nor the range of values.

Every model trains for two minutes on crops of 10 × 32 × 32 pixels of one KITTI drive and is tested on whole clips of
the other, in both directions and with three seeds. The crops get new noise on half of their pixels in every step.
Drives are read from ``kitti/`` in the folder that ``CST_DATA`` names; without it, synthetic scenes are used. A second
CST predicts frames between frames. The learning rate of every rival is searched on its validation crops.
"""

from __future__ import annotations

import dataclasses
import time
from operator import itemgetter
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
from cstformer.experiments.training import ended_notes, finished_result, search_notes, searched, train_cell
from cstformer.experiments.video.figures import SHOWN, planned_figures
from cstformer.experiments.video.rows import (
    BETWEEN,
    BLENDS,
    CLASSICAL,
    DIRECTIONS,
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
    WITHOUT_GUESS,
    Config,
    filtered,
    make_interpolator,
    make_model,
    questions,
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
from cstformer.report.main_table import comparison
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
            seeds=1,
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
        """Both kinds of masks and the frames between, in both directions."""
        cells = []
        for direction in DIRECTIONS:
            for kind in KINDS:
                trained = [MEDIAN, *WITHOUT_GUESS, *WITH_GUESS] if kind == KINDS[0] else [MEDIAN, *WITH_GUESS]
                trained = list(SIZES["video"]) if config.paper else trained
                cells += [Cell(row, f"{kind}, {direction}") for row in (*trained, *CLASSICAL)]
            if not config.paper:
                cells += [Cell(row, f"{BETWEEN}, {direction}") for row in (MEDIAN, *BLENDS, GUESS)]
        return cells

    def repeats(self, cell: Cell, config: Config) -> int:
        """CST and the rivals that get its guess are trained several times."""
        return config.seeds if cell.model == MEDIAN or cell.model in WITH_GUESS else 1

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
        kind, direction = cell.condition.split(", ")
        videos = _videos(config, seed, folder.parent.parent, direction)
        compute = _between if kind == BETWEEN else _restoration
        return compute(cell, config, videos, seed + cell.repeat, folder, progress)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """A table for each kind and motion of the masks, and two for frames between frames."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        rows = {(c.model, c.condition.split(", ")[0]) for c in results}
        names = list(dict.fromkeys(cell.model for cell in results))
        for kind in (*KINDS, BETWEEN):
            for part in (DROPPED, HALF) if kind == BETWEEN else config.motions:
                condition = part if kind == BETWEEN else f"{kind}, {part} masks"
                for name in [name for name in names if (name, kind) in rows]:
                    both = [r for c, r in results.items() if c.model == name and c.condition.startswith(kind)]
                    metrics = {metric: _clips(both, f"{part} {metric}") for metric in ("MSE", "PSNR", "SSIM")}
                    paper = PAPER_ERROR.get(name) if (kind, part) == ("pixels", "fresh") else None
                    summaries = {metric: summary(x) for metric, x in metrics.items()}
                    table.append(table_row(Cell(name, condition, paper), _joined(both), summaries))
                    errors[name, condition] = metrics["MSE"]
        first = {
            dataclasses.replace(c, condition=c.condition.split(", ")[0]): r
            for c, r in results.items()
            if c.condition.endswith(DIRECTIONS[0])
        }
        videos = _videos(config, seed, out)
        return {
            "main": _main(table, config),
            "table": table,
            "tests": paired_tests(errors, questions(dict.fromkeys(condition for _, condition in errors))),
            "figures": write_figures(planned_figures(config, videos, first), out),
            "notes": _notes(config, first, videos) + search_notes(results) + ended_notes(results),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples:
        """The middle of the test clips, as the models are given it."""
        condition, direction = condition.split(", ")
        videos = _videos(config, seed, out, direction)
        clips = clips_to_test(videos)
        corner = [(n - k) // 2 for n, k in zip(clips.shape[2:4], config.crop, strict=True)]
        rows, cols = (slice(first, first + k) for first, k in zip(corner, config.crop, strict=True))
        if condition == BETWEEN:
            return as_samples(clips[:, :GAP, rows, cols], videos, every=2)
        block = config.corruption(condition, videos).block
        return as_samples(corrupted(clips, videos, block, "fresh")[:, : config.frames, rows, cols], videos)


EXPERIMENT = VideoExperiment()


def _videos(config: Config, seed: int, out: Path, direction: str = DIRECTIONS[0]) -> Videos:
    sizes = config.crop, config.frames, config.patch, config.crops, config.test
    return Videos(out / "frames.npz", *sizes, seed, swapped=direction != DIRECTIONS[0])


def _clips(directions: list[CellResult], name: str) -> np.ndarray:
    """Scores of the clips of both directions, (seeds, clips)."""
    return np.concatenate([result.over_seeds(itemgetter(name)) for result in directions], 1)


def _joined(directions: list[CellResult]) -> CellResult:
    """The results of both directions as seeds of one row, whose steps and times are averaged."""
    first, *rest = [one for result in directions for one in (dataclasses.replace(result, others=()), *result.others)]
    return dataclasses.replace(first, others=tuple(rest))


def _main(table: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    """Both kinds of masks, drawn anew for each frame, and dropped frames."""
    filters = [name for name in CLASSICAL if name != GUESS]
    found = []
    for kind in KINDS:
        question, paper = f"video with noise on half of its {kind}", (0.1138, "93.3 M") if kind == "pixels" else None
        rivals = [*RIVALS, *WITH_GUESS]
        found += comparison(table, question, f"{kind}, fresh masks", "MSE", MEDIAN, rivals, filters, paper)
    blends = list(BLENDS)
    return found + comparison(table, "every second frame of a video", DROPPED, "MSE", MEDIAN, [], blends)


def _restoration(cell: Cell, config: Config, videos: Videos, seed: int, folder: Path, progress: bool) -> CellResult:
    """Corrupted test clips, restored by a filter or by a trained model."""
    clips, classical = clips_to_test(videos), cell.model in CLASSICAL
    corruption = config.corruption(cell.condition.split(", ")[0], videos)
    crops = training_crops(videos) if not classical or cell.model == GUESS else None
    guess = None
    if crops is not None and (cell.model in WITH_GUESS or cell.model == GUESS):
        guess = first_guess(crops, corruption, videos.seed)
    model: Any = None
    facts: dict[str, Any] = {}
    if crops is not None and not classical:
        model = make_model(cell.model, config, seed)

        def given(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            y = corruption(frames, generator)
            return y if guess is None else guess.guess(y)

        samples = as_samples(crops, videos)
        if cell.model in RIVALS or cell.model in WITH_GUESS:
            model, facts = searched(model, samples, given=given)
        facts |= train_cell(model, samples, folder, progress, given=given)

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


def _between(cell: Cell, config: Config, videos: Videos, seed: int, folder: Path, progress: bool) -> CellResult:
    """Dropped frames of the test clips, and half frame times of scenes whose truth is known."""
    videos = dataclasses.replace(videos, frames=GAP)
    model: Any = None
    facts: dict[str, Any] = {}
    if cell.model != GUESS:
        model = make_interpolator(cell.model, config, seed)
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
        f"Trained on {names['train']}, tested on {names['test']}, and the other way round; tables have the clips of "
        "both directions. N(0, 0.5) on 40 to 60 % of each frame, values in "
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
    return notes


def _listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {x:.2g}" for name, x in seconds.items())
