"""Widefield calcium imaging (the paper's experiment): frames, decoding from attention, waves, a real recording.

Command: ``cst run calcium --preset default``. Run time: about an hour on two cores.
The paper decodes the stimulus with an R² of 0.77 from CST-base and of 0.60 from the raw data, on its own recordings.

Twenty-five animals of 15 minutes are simulated and their recordings preprocessed. CST, once for frames and once for
decoding, and seven rivals train for four minutes each, with three seeds, on the first 70 % of five animals.
They are tested on the last 30 % of the other twenty: frames and frames in between against the noise-free activity, and
the contrast of the stimulus, decoded from the last frame, a latent state or attention; the training animals choose from
which, in the same way for every row. Two more models train on a real recording, if the folder that ``CST_DATA`` names
has it, and one on waves of known speed.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.datasets.calcium.preprocess import PAPER_CROP, Preprocessing
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.calcium import recording as real
from cstformer.experiments.calcium import waves
from cstformer.experiments.calcium.decoding import BLOCKED, RANDOM
from cstformer.experiments.calcium.figures import planned_figures
from cstformer.experiments.calcium.measures import CHOSEN, FRAMES, Arrays, measure_animals
from cstformer.experiments.calcium.rows import (
    BASE,
    BLUR,
    BLURRED_START,
    CLASSICAL,
    FOR_FRAMES,
    MAIN,
    NOISY_START,
    PAPER_R2,
    QUESTIONS,
    RAW,
    RECORDING,
    RINGS,
    RIVALS,
    SIMULATED,
    SMALL,
    START,
    WIDE_LFADS,
    Config,
    make_model,
)
from cstformer.experiments.calcium.task import (
    Animals,
    load_animal,
    make_animals,
    segments,
    shown_starts,
    training_samples,
)
from cstformer.experiments.figures import write_figures
from cstformer.experiments.metrics import paired_tests, summary
from cstformer.experiments.training import ended_notes, finished_result, search_notes, searched, train_cell
from cstformer.report.main_table import comparison
from cstformer.training.settings import PRESETS


class CalciumExperiment(Experiment):
    """Frames, decoding and waves; see the module's docstring."""

    name = "calcium"
    needs = ("dask", "zarr", "skimage")
    presets = {  # noqa: RUF012
        "smoke": Config(
            training=2,
            scored=1,
            length=1.0,
            camera=32,
            crop=(0, 0, 0, 0),
            patch=(8, 8),
            window=5,
            shown=3,
            segments=40,
            choosing=1,
            rings=(8, 6),
            seeds=1,
            minutes=1.0,
            overlap=1,
            preset="smoke",
            cst=PRESETS["smoke"] | {"steps": 3, "order": 1, "dummies": 4},
            rivals={"steps": 3},
        ),
        "default": Config(),
        "paper": Config(
            camera=512,
            binning=2,
            crop=PAPER_CROP,
            electrons=6000.0,
            patch=(23, 16),
            minutes=48 * 60,
            rows=(SMALL, BASE),
            preset="paper",
        ),
    }

    def cells(self, config: Config) -> list[Cell]:
        """The simulated animals, the recording if it is there, the waves."""
        rivals = [row for row in RIVALS if row != WIDE_LFADS or config.preset != "paper"]  # where LFADS has 100 already
        cells = [Cell(row, SIMULATED) for row in (*config.rows, *rivals, *CLASSICAL)]
        if real.recording_file() is not None:
            rows = (BLURRED_START, NOISY_START, "linear", "cubic", BLUR, START)
            cells += [Cell(row, RECORDING) for row in rows]
        return cells + [Cell(row, RINGS) for row in (MAIN, *waves.METHODS)]

    def repeats(self, cell: Cell, config: Config) -> int:
        """Networks on the simulated animals are trained several times."""
        return config.seeds if cell.condition == SIMULATED and cell.model not in CLASSICAL else 1

    def row_name(self, name: str) -> str:
        """Translate keys of `BASELINES` to rows."""
        # Of several rows of one rival, the key means the first.
        keys = {key: row for row, key in reversed((RIVALS | CLASSICAL).items())}
        return (keys | {"cst": FOR_FRAMES}).get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Simulate and preprocess the recordings."""
        make_animals(_animals(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit the model of the row, if it has one, and measure."""
        if cell.condition == RECORDING:
            return _on_recording(cell, config, seed, folder, progress)
        if cell.condition == RINGS:
            return _on_rings(cell, config, seed, folder, progress)
        animals = _animals(config, seed, folder.parent.parent)
        model = make_model(cell.model, config, seed + cell.repeat)
        samples = training_samples(animals)
        model, facts = searched(model, samples) if cell.model in RIVALS else (model, {})
        facts |= train_cell(model, samples, folder, progress)
        arrays, more = measure_animals(model, cell.model == RAW, animals, config, seed)
        return finished_result(model, arrays, facts | more)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Tables of frames, of both splits, of all summaries of CST's attention, of the recording and of the waves."""
        table: list[dict[str, Any]] = []
        errors: dict[tuple[str, str], np.ndarray] = {}
        pairs: list[tuple[str, str, str]] = []
        for condition, rows, paired in _tables(results):
            for (cell, name), metrics in rows.items():
                paper = PAPER_R2.get(name) if condition == f"decoding, {RANDOM}" else None
                summaries = {metric: summary(x) for metric, x in metrics.items()}
                table.append(table_row(Cell(name, condition, paper), results[cell], summaries))
                errors[name, condition] = next(iter(metrics.values()))
            names = [name for _, name in rows]
            first = MAIN if condition == RINGS else config.rows[0 if condition in FRAMES else -1]
            if paired:
                others = names if condition == RINGS else QUESTIONS
                pairs += [(first, other, condition) for other in others if other != first]
        planned = planned_figures(config, _animals(config, seed, out), _rings(config, seed)[1], seed, results)
        return {
            "main": _main(table, config),
            "table": table,
            "tests": paired_tests(errors, pairs),
            "figures": write_figures(planned, out),
            "notes": _notes(config, results),
        }

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples | None:
        """Segments of the last 30 % of the first scored animal; windows of the recording; waves."""
        if condition == RECORDING:
            if real.recording_file() is None:
                return None
            cortex = real.load_cortex(seed)
            return real.given_samples(cortex, cortex.blurred())
        if condition == RINGS:
            return _rings(config, seed)[1].samples()
        animals = _animals(config, seed, out)
        animal = load_animal(animals, animals.test[0])
        return segments(animals, animal, shown_starts(animals, animal, config.shown))

    def stimulus(self, condition: str, config: Config, seed: int, out: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Label of each frame of the first scored animal."""
        if condition != SIMULATED:
            return None
        animals = _animals(config, seed, out)
        animal = load_animal(animals, animals.test[0])
        return animal.clock, animal.label


EXPERIMENT = CalciumExperiment()


def _animals(config: Config, seed: int, out: Path) -> Animals:
    return Animals(
        folder=out / "animals",
        training=config.training,
        scored=config.scored,
        minutes=config.length,
        camera=config.camera,
        electrons=config.electrons,
        spontaneous=config.spontaneous,
        cleaning=Preprocessing(binning=config.binning, crop=config.crop),
        patch=config.patch,
        window=config.window,
        stride=config.stride,
        seed=seed,
    )


def _rings(config: Config, seed: int) -> tuple[waves.Rings, waves.Rings]:
    """Waves for training and for testing."""
    train, test = (waves.make_rings(n, config.ring_noise, 2 * seed + i) for i, n in enumerate(config.rings))
    return train, test


def _on_recording(cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
    cortex = real.load_cortex(seed)
    if cell.model in ("linear", "cubic", BLUR):
        made = real.interpolated(cortex, "blur" if cell.model == BLUR else cell.model)
        return CellResult(real.between_scores(cortex, made) | {"made": real.shown(cortex, made)}, 0, 0.0, {})
    model = make_model(cell.model, config, seed)
    frames = cortex.blurred() if cell.model == BLURRED_START else cortex.noisy[cortex.given]
    facts = train_cell(model, real.given_samples(cortex, frames), folder, progress)
    made = real.ask_model(model, cortex, frames, config.overlap)
    arrays = real.between_scores(cortex, made) | {"made": real.shown(cortex, made)}
    if cell.model == BLURRED_START:
        found = real.recording_waves(model, cortex, frames, config.overlap)
        arrays |= {f"velocity {name}": x.astype(np.float32) for name, x in found.items()}
    return finished_result(model, arrays, facts)


def _on_rings(cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
    train, test = _rings(config, seed)
    if cell.model in waves.METHODS:
        velocities = np.stack([waves.classical_velocity(cell.model, movie) for movie in test.frames])
        return CellResult(waves.ring_errors(test, velocities) | {"shown": velocities[:2]}, 0, 0.0, {})
    model = make_model(cell.model, config, seed)
    facts = train_cell(model, train.samples(), folder, progress)
    velocities = waves.model_velocity(model, test.samples(), config.overlap)
    return finished_result(model, waves.ring_errors(test, velocities) | {"shown": velocities[:2]}, facts)


Rows = dict[tuple[Cell, str], dict[str, np.ndarray]]
"""Metrics of a table by cell and row name, (seeds, observations)."""


def _tables(results: dict[Cell, CellResult]) -> list[tuple[str, Rows, bool]]:
    """All tables: the condition, its rows, and whether rows are tested against each other."""
    animals = {cell: r for cell, r in results.items() if cell.condition == SIMULATED}
    tables: list[tuple[str, Rows, bool]] = []
    for kind in FRAMES:
        tables.append((kind, {(c, c.model): _columns(r, kind) for c, r in animals.items()}, True))
    for split in (BLOCKED, RANDOM):
        decoded = {(c, c.model): r for c, r in animals.items() if f"{split} {CHOSEN}" in r.arrays}
        rows = {key: _decoding(result, split, CHOSEN) for key, result in decoded.items()}
        tables.append((f"decoding, {split}", rows, True))
        for cell, r in animals.items():
            ways = list(r.facts["chosen_by"]) if cell.model.startswith(MAIN) or cell.model == RAW else []
            rows = {(cell, f"{cell.model}, {way}"): _decoding(r, split, way) for way in ways}
            if rows:
                tables.append((f"decoding, {split}, all ways for {cell.model}", rows, False))
    recorded = {(c, c.model): _recorded(r.arrays) for c, r in results.items() if c.condition == RECORDING}
    tables.append(("recording, frames in between", recorded, False))
    names = {"speed": "relative error of the speed", "direction": "error of the direction (°)"}
    moved = {c: r for c, r in results.items() if c.condition == RINGS}
    tables.append((RINGS, {(c, c.model): {n: r.arrays[k] for k, n in names.items()} for c, r in moved.items()}, True))
    return tables


def _columns(result: CellResult, kind: str) -> dict[str, np.ndarray]:
    """Scores of frames by name, (seeds, animals)."""
    keys = [key for key in result.arrays if key.startswith(f"{kind} R²")]
    return {key.removeprefix(f"{kind} "): result.over_seeds(itemgetter(key)) for key in keys}


def _decoding(result: CellResult, split: str, way: str) -> dict[str, np.ndarray]:
    error, score = np.moveaxis(result.over_seeds(itemgetter(f"{split} {way}")), -1, 0)
    return {"R²": score, "MSE": error}


def _recorded(arrays: Arrays) -> dict[str, np.ndarray]:
    names = ("R²", "R² of a frame", "R² of a pixel")
    return {f"{n}, {part}": arrays[part][[i]] for part in real.PARTS for i, n in enumerate(names)}


def _main(table: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    questions = {
        "stimulus decoded from the activity (simulated cortex)": (f"decoding, {RANDOM}", "R²", (0.774, "93.3 M")),
        "frames between frames (simulated cortex)": (FRAMES[1], None, None),
    }
    found = []
    for question, (condition, metric, paper) in questions.items():
        columns: list[str] = next((list(row["metrics"]) for row in table if row["condition"] == condition), [""])
        column, first = metric or columns[0], config.rows[0 if condition in FRAMES else -1]
        found += comparison(table, question, condition, column, first, list(RIVALS), list(CLASSICAL), paper)
    return found


def _notes(config: Config, results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        f"{config.training + config.scored} simulated animals of {config.length:g} minutes, from camera counts through "
        f"the whole preprocessing; the first 70 % of {config.training} of them train, the last 30 % of the other "
        f"{config.scored} test. At most {config.minutes:g} minutes for each training. An animal is one observation.",
        "Frames are compared with the noise-free neural signal of the simulator, in ΔF/F: at the times of the given "
        "frames (reconstruction) and halfway between them. What preprocessing changes counts as error for every row. "
        "Between frames, raw data means the nearest given frame.",
        f"Decoding: {config.segments} segments of each animal, 10 components, 3 neighbours, label 2√contrast − 1 of "
        f"the last frame, 10 splits pooled. Blocked: blocks of {config.block:g} s, no frame in both training and test. "
        "Effect 1 means that the first has the higher R² in every animal.",
        "Every row may be decoded from its answer at the last frame; models with a latent state also from this state, "
        "CST also from its attention, raw data also from all frames. The blocked split of the training part of "
        f"{config.choosing} training animals chooses.",
        "Waves: growing rings of 3 to 12 mm/s; median over the pixels where the true slope in space is at least 30 % "
        "of the largest; a wave is one observation. Effect −1 means that the first has the lower error in every wave.",
    ]
    ways: dict[str, list[str]] = {}
    for cell, result in results.items():
        if "way" in result.facts:
            ways.setdefault(result.facts["way"], []).append(cell.model)
    if ways:
        notes.append("Chosen: " + "; ".join(f"{way!r} for {', '.join(names)}" for way, names in ways.items()) + ".")
    notes += search_notes(results) + ended_notes(results)
    if not any(cell.condition == RECORDING for cell in results):
        notes.append(f"The real recording was left out: CST_DATA does not name a folder with {real.FILE}.")
    else:
        notes.append(
            "Recording: one animal, so no test. Every third frame is given, with noise of 0.3 sd; models are trained "
            "on the given frames of the first 70 %, and no frame in between is ever given."
        )
    return notes
