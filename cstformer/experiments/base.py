"""What all experiments share: cells, the contract of an experiment, and the function that runs one.

A *cell* is one model in one condition. Its arrays are written when it is done, and `result.json` is made from them. An
interrupted run keeps its finished cells; the same command resumes the training of the cell at work (see `training`)
and then computes the others.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cstformer.baselines import BASELINES
from cstformer.data.checks import extrapolation
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, unknown
from cstformer.experiments.workers import compute_in_parallel
from cstformer.report.page import write_report
from cstformer.report.tables import console_table
from cstformer.system.atomic import atomic_path
from cstformer.system.extras import need
from cstformer.system.files import read_npz
from cstformer.system.threads import cores
from cstformer.system.versions import versions


@dataclass(frozen=True)
class Cell:
    """One model in one condition, with the number that the paper reports for it.

    ``repeat`` numbers the trainings of the same model: the seed of each is that of the run plus this number.
    """

    model: str
    condition: str
    paper: float | None = None
    repeat: int = 0

    @property
    def slug(self) -> str:
        """Name of the cell's folder."""
        again = f"--repeat-{self.repeat}" if self.repeat else ""
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.model}--{self.condition}{again}".lower()).strip("-")


@dataclass
class CellResult:
    """What a finished cell keeps on disk."""

    arrays: dict[str, np.ndarray]
    parameters: int
    """Number of trained weights."""
    train_seconds: float
    facts: dict[str, Any]
    """Anything else that the table, the notes or the figures need, as JSON."""
    others: tuple[CellResult, ...] = ()
    """Results of the same cell with other seeds."""

    def over_seeds(self, measure: Callable[[dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
        """Stack what ``measure`` makes of the arrays of each seed: (seeds, samples) for `metrics.summary`."""
        return np.stack([measure(one.arrays) for one in (self, *self.others)])


class Experiment(ABC):
    """One experiment of the paper."""

    name: str
    presets: dict[str, Any]
    """Configuration (a frozen dataclass) of each preset."""
    needs: tuple[str, ...] = ()
    """Optional modules that every run imports; those of rivals are `Model.needs`."""
    parallel: bool = True
    """Whether cells may be computed side by side; False where they measure time."""

    @abstractmethod
    def cells(self, config: Any) -> list[Cell]:
        """Cells of a run without ``--models``, in the order of the table."""

    def all_cells(self, config: Any) -> list[Cell]:
        """Every cell that ``--models`` can choose from; ``--models all`` takes them all."""
        return self.cells(config)

    def repeats(self, cell: Cell, config: Any) -> int:
        """How often a cell is computed, each time with another seed; rows that nothing random enters need one."""
        return 1

    def row_name(self, name: str) -> str:
        """Name in the table of the row that ``--models`` calls ``name``, e.g. by its key in `BASELINES`."""
        return name

    def prepare(self, config: Any, seed: int, out: Path, progress: bool) -> None:  # noqa: B027
        """Make what all cells share, such as data on disk. Called before the cells; skips what is already there."""

    @abstractmethod
    def compute(self, cell: Cell, config: Any, seed: int, folder: Path, progress: bool) -> CellResult:
        """Train the model, if it has to be trained, and predict; ``folder`` holds the model and its resume state.

        ``seed`` is that of the run, which makes the data; models take ``seed + cell.repeat``.
        """

    @abstractmethod
    def gather(self, config: Any, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """Make ``table``, ``tests``, ``figures`` and ``notes`` of `result.json`; draw the figures into ``out``.

        ``results`` has the first seed of each cell, with the `others` in it. ``main``, optional, lists the comparisons
        of the first page of all results, see `report.overview`.
        """

    def context(self, condition: str, config: Any, seed: int, out: Path) -> Samples | None:
        """Test samples of a condition of the run in ``out``, for the explorer; None if there are none."""
        return None

    def stimulus(self, condition: str, config: Any, seed: int, out: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Times and strength of the stimulus, on the clock of the samples' ``origin``, for the explorer."""
        return None


def run_experiment(
    experiment: Experiment,
    preset: str,
    out: Path,
    seed: int = 0,
    models: Sequence[str] | None = None,
    quiet: bool = False,
    jobs: int | None = None,
    cst: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute the missing cells, write ``result.json`` and ``report.html``, and print the table.

    Parameters
    ----------
    experiment, preset
    out : run directory; that of an earlier, interrupted run with the same preset and seed is continued
    seed : of the data and of every model
    models : rows to compute, by their names in the table or their keys in `BASELINES`; None for all of a plain run
    quiet : no progress bars
    jobs : number of processes, by default one for each core
    cst : settings of CST that do not change its results: ``devices``, ``strategy``
    """
    if preset not in experiment.presets:
        raise unknown("preset", preset, experiment.presets)
    config = experiment.presets[preset]
    chosen = _chosen(experiment, config, models)
    cells = _repeated(experiment, config, chosen)
    _check_extras(experiment, cells)
    _claim(
        out,
        {"experiment": experiment.name, "preset": preset, "seed": seed, "config": jsonable(asdict(config))},
    )
    if cst:
        if not hasattr(config, "cst"):
            raise CSTError(f"{experiment.name} trains no model; leave {', '.join(f'--{name}' for name in cst)} out")
        config = replace(config, cst=config.cst | cst)
        jobs = jobs or max(1, cores() // cst.get("devices", 1))
    started = time.monotonic()
    experiment.prepare(config, seed, out, not quiet)
    missing = [cell for cell in cells if _read(out, cell) is None]
    jobs = min(jobs or cores(), len(missing)) if experiment.parallel else 1
    if jobs > 1:
        compute_in_parallel(
            partial(_compute, experiment, config, seed, out, False), missing, jobs, experiment.name, quiet
        )
    else:
        for cell in missing:
            _compute(experiment, config, seed, out, not quiet, cell)
    results = {cell: merged([_read(out, each) for each in cells if same(each, cell)]) for cell in chosen}
    seconds = time.monotonic() - started
    gathered = experiment.gather(config, seed, results, out)
    result = {
        "experiment": experiment.name,
        "preset": preset,
        "seed": seed,
        "settings": jsonable(asdict(config)),
        "versions": versions(),
        "machine": machine(),
        "seconds": round(sum(one.facts["seconds"] for r in results.values() for one in (r, *r.others)), 1),
        "wall_seconds": round(seconds, 1),
        "command": _command(experiment.name, preset, seed, models),
        **gathered,
    }
    with atomic_path(out / "result.json") as temporary:
        temporary.write_text(json.dumps(jsonable(result), indent=1))
    _present(result, out, quiet)
    return result


def table_row(cell: Cell, result: CellResult, metrics: dict[str, dict[str, float | int]]) -> dict[str, Any]:
    """One row of the ``table`` of `result.json`; time, steps and epochs are means over the seeds."""
    runs = (result, *result.others)
    row = {
        "model": cell.model,
        "condition": cell.condition,
        "metrics": metrics,
        "parameters": result.parameters,
        "train_seconds": round(float(np.mean([r.train_seconds for r in runs])), 1),
        "paper": cell.paper,
    }
    known = [name for name in ("steps", "epochs") if name in result.facts]
    row |= {name: round(float(np.mean([r.facts[name] for r in runs])), 2) for name in known}
    return row if "epochs" not in known else row | {"converged": all(r.facts["converged"] for r in runs)}


def merged(results: Sequence[CellResult | None]) -> CellResult:
    """Results of the seeds of one cell as one, with the arrays of the first."""
    first, *others = [result for result in results if result is not None]
    return replace(first, others=tuple(others))


def same(one: Cell, other: Cell) -> bool:
    """Whether two cells differ in their seed at most."""
    return (one.model, one.condition) == (other.model, other.condition)


def machine() -> str:
    """A short description of this computer, without its name."""
    count = cores()
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{model}, {count} cores, {platform.system()}"


def _chosen(experiment: Experiment, config: Any, models: Sequence[str] | None) -> list[Cell]:
    if models is None:
        return experiment.cells(config)
    cells = experiment.all_cells(config)
    if list(models) == ["all"]:
        return cells
    names = [experiment.row_name(name) for name in models]
    known = {cell.model for cell in cells}
    for name in names:
        if name not in known:
            raise unknown("model", name, known)
    return [cell for cell in cells if cell.model in names]


def _repeated(experiment: Experiment, config: Any, cells: Sequence[Cell]) -> list[Cell]:
    """Every cell with each of its seeds; first seeds come first, so that an interrupted run has all rows early."""
    found = [replace(cell, repeat=k) for cell in cells for k in range(experiment.repeats(cell, config))]
    return sorted(found, key=lambda cell: cell.repeat)


def _check_extras(experiment: Experiment, cells: Sequence[Cell]) -> None:
    """Refuse a run whose packages are missing before its first cell, which may be hours before the one that needs them.

    The name of a row begins with the label of its rival.
    """
    need(*experiment.needs, for_what=f"cst run {experiment.name}")
    for rival in BASELINES.values():
        row = next((cell.model for cell in cells if cell.model.startswith(rival.label)), None)
        if row is not None:
            need(*rival.needs, for_what=f"the row {row}")


def _claim(out: Path, identity: dict[str, Any]) -> None:
    """Make the run directory, or check that it belongs to the same run."""
    path = out / "run.json"
    text = json.dumps(identity, indent=1, sort_keys=True)
    if path.exists():
        if path.read_text() != text:
            raise CSTError(f"{out} holds a run with another preset, seed or version; choose another --out or remove it")
        return
    if out.exists() and any(out.iterdir()):
        raise CSTError(f"{out} is not empty and not a run of cstformer; choose another --out")
    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CSTError(f"cannot make {out}: {error.strerror}") from None
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def _compute(experiment: Experiment, config: Any, seed: int, out: Path, progress: bool, cell: Cell) -> None:
    folder = out / "cells" / cell.slug
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with extrapolation():  # a small preset may hold out times beyond its few training samples
        result = experiment.compute(cell, config, seed, folder, progress)
    result.facts["seconds"] = result.facts.get("seconds", time.monotonic() - started)
    with atomic_path(folder / "arrays.npz") as temporary:
        np.savez_compressed(temporary, **result.arrays)  # type: ignore[arg-type]
    about = {
        "parameters": result.parameters,
        "train_seconds": result.train_seconds,
        "facts": jsonable(result.facts),
    }
    with atomic_path(folder / "done.json") as temporary:  # written last: its presence means the cell is done
        temporary.write_text(json.dumps(about))


def _read(out: Path, cell: Cell) -> CellResult | None:
    folder = out / "cells" / cell.slug
    if not (folder / "done.json").exists():
        return None
    about = json.loads((folder / "done.json").read_text())
    return CellResult(read_npz(folder / "arrays.npz"), about["parameters"], about["train_seconds"], about["facts"])


def _command(name: str, preset: str, seed: int, models: Sequence[str] | None) -> str:
    command = f"cst run {name} --preset {preset} --seed {seed}"
    return command if models is None else f"{command} --models {shlex.quote(','.join(models))}"


def jsonable(x: Any) -> Any:
    """Convert to plain JSON: tuples become lists, NumPy scalars become numbers, infinities become strings."""
    if isinstance(x, dict):
        return {str(k): jsonable(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [jsonable(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, float) and x in (float("inf"), float("-inf")):
        return str(x)
    return x


def _present(result: dict[str, Any], out: Path, quiet: bool) -> None:
    page = write_report(out)
    console = Console()
    for table in console_table(result, console.width):
        console.print(table)
    if not quiet:
        console.print(f"result: {out / 'result.json'}\nreport: {page}", highlight=False)
