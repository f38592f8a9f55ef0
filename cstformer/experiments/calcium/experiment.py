"""The paper's calcium experiment: cortex between frames, what the animal saw from attention, waves, a real recording.

``cst run calcium --preset default`` (about an hour on two cores) simulates ten animals of 15 minutes, cleans their
recordings, trains CST and five rivals for six minutes each on the first 70 % of five of them, and measures on the last
30 % of all ten: frames and frames in between against the noise-free activity, and the contrast of the stimulus decoded
from CST's attention or the rival's latent (paper, random split: R² 0.77 for CST-base, 0.60 for the raw data). Two more
models are trained on a real recording (if ``CST_DATA`` has it) and one on waves of known speed.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.baselines import BASELINES
from cstformer.baselines.sizes import SIZES
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.preprocess import PAPER_CROP, Preprocessing
from cstformer.errors import CSTWarning
from cstformer.experiments.base import Cell, CellResult, Experiment, table_row
from cstformer.experiments.calcium import recording as real
from cstformer.experiments.calcium import waves as waves
from cstformer.experiments.calcium.decoding import BLOCKED, RANDOM
from cstformer.experiments.calcium.measures import CHOSEN, FRAMES, LAST, Arrays, measure_animals
from cstformer.experiments.calcium.task import (
    Animals,
    load_animal,
    make_animals,
    segments,
    shown_starts,
    training_samples,
)
from cstformer.experiments.metrics import paired_test, summary
from cstformer.models.cst import CST
from cstformer.training.settings import PRESETS

SIMULATED, RECORDING, RINGS = "simulated animals", "recording", "waves of known speed"
MAIN, SMALL, BASE = "CST", "CST-small", "CST-base"
RAW, START, BLUR = "raw data", "space–time Wiener", "blur + linear"
NOISY_START, BLURRED_START = "CST (smooth start)", "CST (blurred frames)"
RIVALS = {"LatentODE": "latent-ode", "LSTM": "lstm", "ConvLSTM": "convlstm", "LFADS": "lfads", "ViViT": "vivit"}
CLASSICAL = {RAW: "copy", "linear": "linear", "cubic": "cubic", START: "space-time-wiener"}
PAPER_R2 = {RAW: 0.595, "LatentODE": -0.316, "LSTM": 0.024, "ConvLSTM": 0.342, "LFADS": 0.609, "ViViT": 0.637}
PAPER_R2 |= {SMALL: 0.676, BASE: 0.774}
MORE_THAN_ENOUGH = 3000  # steps: a training that has more than its minutes allow is annealed by the clock
# Settings of each CST row. Its attention is decoded on the animals, so nothing may spare it the work there: heads that
# look near a place, or a start that is a good filter already, leave maps that hardly depend on what is seen. So do more
# steps (decoded R² on the training part: 0.44 after 700, 0.32 after 2000), which make frames hardly better.
CST_ROWS: dict[str, dict[str, Any]] = {
    MAIN: PRESETS["frames"]
    | {"width": 64, "feedforward": 128, "layers": 2, "nearness": "never", "start": "linear", "steps": 700},
    # Of the recording there are few windows: more of them tell when to stop.
    BLURRED_START: PRESETS["frames"] | {"start": "linear", "validation": 0.15, "steps": MORE_THAN_ENOUGH},
    NOISY_START: PRESETS["frames"] | {"start": "smooth", "validation": 0.15, "steps": MORE_THAN_ENOUGH},
    RINGS: PRESETS["frames"] | {"steps": MORE_THAN_ENOUGH},
}


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    animals: int = 10
    training: int = 5
    """The first so many train the models; all are tested."""
    length: float = 15.0
    """Minutes of a recording."""
    camera: int = 64
    """Rows and columns of the camera; 64 show the paper's frames in pixels four times as large."""
    binning: int = 1
    crop: tuple[int, int, int, int] | None = (8, 10, 6, 6)
    electrons: float = 24000.0
    """Light of a bright pixel in a frame: that of the paper's binned pixels."""
    spontaneous: float = 0.25
    """Times the simulator's usual height of spontaneous waves, which else hide what the stimulus does."""
    patch: tuple[int, int] = (6, 4)
    """46 × 52 pixels make 8 × 13 patches, as many as the paper's."""
    window: int = 10
    stride: int = 20
    """Frames from one training segment to the next."""
    shown: int = 30
    """Segments of each animal on which frames are compared."""
    segments: int = 500
    """Segments of each animal from which the stimulus is decoded."""
    block: float = 14.0
    """Seconds of a block of the blocked split: two stimuli."""
    choosing: int = 2
    """Training animals on whose first 70 % the way to sum up attention is chosen."""
    rings: tuple[int, int] = (600, 100)
    """Waves of known speed: to train, to test."""
    ring_noise: float = 0.1
    minutes: float = 6.0
    """Time allowed to each training."""
    overlap: int = 2
    """Patches over each pixel along an axis where CST is asked for derivatives or for the recording."""
    rows: tuple[str, ...] = (MAIN,)
    """CST's rows on the simulated animals."""
    preset: str = "default"
    """Preset of the rivals."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every CST row."""
    rivals: dict[str, Any] = field(default_factory=dict)
    """Changes to the settings of every rival."""


class CalciumExperiment(Experiment):
    """Frames, decoding, waves; see the module's text."""

    name = "calcium"
    presets = {  # noqa: RUF012
        "smoke": Config(
            animals=3,
            training=2,
            length=1.0,
            camera=32,
            crop=(0, 0, 0, 0),
            patch=(8, 8),
            window=5,
            shown=3,
            segments=40,
            choosing=1,
            rings=(8, 6),
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
        """The simulated animals; the recording where it is there; the waves."""
        cells = [Cell(row, SIMULATED) for row in (*config.rows, *RIVALS, *CLASSICAL)]
        if real.recording_file() is not None:
            rows = (BLURRED_START, NOISY_START, "linear", "cubic", BLUR, START)
            cells += [Cell(row, RECORDING) for row in rows]
        return cells + [Cell(row, RINGS) for row in (MAIN, *waves.METHODS)]

    def row_name(self, name: str) -> str:
        """Registry keys stand for their rows."""
        keys = {key: row for row, key in (RIVALS | CLASSICAL).items()}
        return (keys | {"cst": MAIN}).get(name, name)

    def prepare(self, config: Config, seed: int, out: Path, progress: bool) -> None:
        """Simulate and clean the recordings."""
        make_animals(_animals(config, seed, out), progress)

    def compute(self, cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
        """Fit what there is to fit, and measure."""
        if cell.condition == RECORDING:
            return _on_recording(cell, config, seed, folder, progress)
        if cell.condition == RINGS:
            return _on_rings(cell, config, seed, folder, progress)
        animals = _animals(config, seed, folder.parent.parent)
        model = _model(cell.model, config, seed)
        facts = _fit(model, training_samples(animals), folder, progress)
        arrays, more = measure_animals(model, cell.model == RAW, animals, config, seed)
        return _result(model, arrays, facts | more)

    def gather(self, config: Config, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Tables of the frames, both splits, all ways to read CST's attention, the recording and the waves."""
        from cstformer.experiments.calcium.figures import draw

        table: list[dict[str, Any]] = []
        tests: list[dict[str, Any]] = []
        animals = {cell: r for cell, r in results.items() if cell.condition == SIMULATED}

        def add(condition: str, rows: dict[tuple[Cell, str], dict[str, np.ndarray]], paired: bool = True) -> None:
            first = next((name for _, name in rows if name.split(",")[0] in (*config.rows, MAIN)), None)
            for (cell, name), metrics in rows.items():
                paper = PAPER_R2.get(name) if condition == f"decoding, {RANDOM}" else None
                summaries = {metric: summary(x) for metric, x in metrics.items()}
                table.append(table_row(Cell(name, condition, paper), results[cell], summaries))
            values = {name: next(iter(metrics.values())) for (_, name), metrics in rows.items()}
            for other in [name for name in values if first and paired and name != first]:
                test = dataclasses.asdict(paired_test(values[first or ""], values[other]))
                tests.append({"name": f"{first} vs {other}", "condition": condition, **test})

        for kind in FRAMES:
            add(kind, {(c, c.model): _columns(r.arrays, kind) for c, r in animals.items()})
        for split in (BLOCKED, RANDOM):
            decoded = {(c, c.model): r.arrays for c, r in animals.items() if f"{split} {CHOSEN}" in r.arrays}
            rows = {key: _decoding(arrays, split, CHOSEN) for key, arrays in decoded.items()}
            for cell, name in decoded:
                if name == RAW:
                    rows[cell, f"{RAW}, {LAST}"] = _decoding(animals[cell].arrays, split, LAST)
            add(f"decoding, {split}", rows)
            for cell, r in animals.items():
                ways = list(r.facts.get("chosen_by", {}))
                rows = {(cell, f"{cell.model}, {way}"): _decoding(r.arrays, split, way) for way in ways}
                if rows:
                    add(f"decoding, {split}, maps of {cell.model}", rows, paired=False)
        recorded = {(c, c.model): _recorded(r.arrays) for c, r in results.items() if c.condition == RECORDING}
        add("recording, frames in between", recorded, paired=False)
        names = {"speed": "relative error of the speed", "direction": "error of the direction (°)"}
        moved = {c: r for c, r in results.items() if c.condition == RINGS}
        add(RINGS, {(c, c.model): {n: r.arrays[k] for k, n in names.items()} for c, r in moved.items()})
        figures = draw(config, _animals(config, seed, out), seed, results, out)
        return {"table": table, "tests": tests, "figures": figures, "notes": _notes(config, results)}

    def context(self, condition: str, config: Config, seed: int, out: Path) -> Samples | None:
        """Segments of the last 30 % of the first animal; windows of the recording; waves."""
        if condition == RECORDING:
            if real.recording_file() is None:
                return None
            cortex = real.load_cortex(seed)
            return real.given_samples(cortex, cortex.blurred())
        if condition == RINGS:
            return _rings(config, seed)[1].samples(waves.PATCH)
        animals = _animals(config, seed, out)
        animal = load_animal(animals, 0)
        return segments(animals, animal, shown_starts(animals, animal, config.shown))

    def stimulus(self, condition: str, config: Config, seed: int, out: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Label of each frame of the first animal."""
        if condition != SIMULATED:
            return None
        animal = load_animal(_animals(config, seed, out), 0)
        return animal.clock, animal.label


EXPERIMENT = CalciumExperiment()


def _animals(config: Config, seed: int, out: Path) -> Animals:
    return Animals(
        folder=out / "animals",
        count=config.animals,
        training=config.training,
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
    """Waves to train on, and to test on."""
    train, test = (waves.make_rings(n, config.ring_noise, 2 * seed + i) for i, n in enumerate(config.rings))
    return train, test


def _model(name: str, config: Config, seed: int) -> Any:
    """The unfitted system of a row."""
    common = {"seed": seed, "max_minutes": config.minutes}
    if name in CLASSICAL:
        return BASELINES[CLASSICAL[name]](seed=seed)
    if name in RIVALS:
        sizes = dict(SIZES["calcium"][name].settings) if config.preset == "paper" else {}
        steps = {} if config.preset == "paper" else {"steps": MORE_THAN_ENOUGH}
        return BASELINES[RIVALS[name]].preset(config.preset, **common | steps | sizes | config.rivals)
    if name in (SMALL, BASE):
        return SIZES["calcium"][name].model(**common | config.cst)
    return CST(**common | CST_ROWS[name] | config.cst)


def _fit(model: Any, samples: Samples, folder: Path, progress: bool) -> dict[str, Any]:
    """Train, or go on; save what was trained; facts for the notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CSTWarning)  # that a cap was reached is said in the notes
        model.fit(samples, state=folder / "training.safetensors", progress=progress)
    report = getattr(model, "report_", None)
    if report is None:
        return {}
    if report.ended == "interrupted":
        raise KeyboardInterrupt  # the state is on disk: the next run goes on
    model.save(folder / "model")
    return {"history": report.history, "ended": report.ended, "steps": report.steps}


def _result(model: Any, arrays: Arrays, facts: dict[str, Any]) -> CellResult:
    report = getattr(model, "report_", None)
    return CellResult(arrays, model.n_parameters_, 0.0 if report is None else report.seconds, facts)


def _on_recording(cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
    cortex = real.load_cortex(seed)
    if cell.model in ("linear", "cubic", BLUR):
        made = real.interpolated(cortex, "blur" if cell.model == BLUR else cell.model)
        return CellResult(real.between_scores(cortex, made) | {"made": real.shown(cortex, made)}, 0, 0.0, {})
    model = _model(cell.model, config, seed)
    frames = cortex.blurred() if cell.model == BLURRED_START else cortex.noisy[cortex.given]
    facts = _fit(model, real.given_samples(cortex, frames), folder, progress)
    made = real.ask_model(model, cortex, frames, config.overlap)
    arrays = real.between_scores(cortex, made) | {"made": real.shown(cortex, made)}
    if cell.model == BLURRED_START:
        found = real.recording_waves(model, cortex, frames, config.overlap)
        arrays |= {f"velocity {name}": x.astype(np.float32) for name, x in found.items()}
    return _result(model, arrays, facts)


def _on_rings(cell: Cell, config: Config, seed: int, folder: Path, progress: bool) -> CellResult:
    train, test = _rings(config, seed)
    if cell.model in waves.METHODS:
        velocities = np.stack([waves.classical_velocity(cell.model, movie) for movie in test.frames])
        return CellResult(waves.ring_errors(test, velocities) | {"shown": velocities[:2]}, 0, 0.0, {})
    model = _model(RINGS, config, seed)
    facts = _fit(model, train.samples(waves.PATCH), folder, progress)
    velocities = waves.model_velocity(model, test.samples(waves.PATCH), config.overlap)
    return _result(model, waves.ring_errors(test, velocities) | {"shown": velocities[:2]}, facts)


def _columns(arrays: Arrays, kind: str) -> dict[str, np.ndarray]:
    """Scores of frames by name, a number an animal."""
    return {key.removeprefix(f"{kind} "): x for key, x in arrays.items() if key.startswith(f"{kind} R²")}


def _decoding(arrays: Arrays, split: str, way: str) -> dict[str, np.ndarray]:
    error, score = arrays[f"{split} {way}"].T
    return {"R²": score, "MSE": error}


def _recorded(arrays: Arrays) -> dict[str, np.ndarray]:
    names = ("R²", "R² of a frame", "R² of a pixel")
    return {f"{n}, {part}": arrays[part][[i]] for part in real.PARTS for i, n in enumerate(names)}


def _notes(config: Config, results: dict[Cell, CellResult]) -> list[str]:
    notes = [
        f"{config.animals} simulated animals of {config.length:g} minutes, from camera counts through the whole "
        f"preprocessing; the first 70 % of {config.training} of them train, the last 30 % of all test. At most "
        f"{config.minutes:g} minutes for each training. An animal is one observation.",
        "Frames are compared with the noise-free neural signal of the simulator, in ΔF/F: at the times of the given "
        "frames (reconstruction) and halfway between them. What preprocessing changes counts as error for every row. "
        "Between frames, raw data means the nearest given frame.",
        f"Decoding: {config.segments} segments of each animal, 10 components, 3 neighbours, label 2√contrast − 1 of "
        f"the last frame, 10 splits together. Blocked: blocks of {config.block:g} s, no frame on both sides. Effect 1 "
        "means that the first has the higher R² in every animal.",
        "Rivals give the state that their model has of the last frame; raw data all its frames, or the last.",
        "Waves: growing rings of 3 to 12 mm/s; median over the pixels where the true slope in space is at least 30 % "
        "of the largest; a wave is one observation. Effect −1 means that the first has the lower error in every wave.",
    ]
    for cell, result in results.items():
        if "way" in result.facts:
            notes.append(
                f"{cell.model} is decoded from {result.facts['way']!r}, chosen by the blocked split on the training "
                "part of training animals; the tables of maps have every other way."
            )
        if result.facts.get("ended") not in (None, "finished"):
            steps, why = result.facts["steps"], result.facts["ended"]
            notes.append(f"{cell.model}, {cell.condition}: ended after {steps} steps ({why}).")
    if not any(cell.condition == RECORDING for cell in results):
        notes.append(f"The real recording was left out: CST_DATA does not name a folder with {real.FILE}.")
    else:
        notes.append(
            "Recording: one animal, so no test. Every third frame is given, with noise of 0.3 sd; models are trained "
            "on the given frames of the first 70 %, and no frame in between is ever given."
        )
    return notes
