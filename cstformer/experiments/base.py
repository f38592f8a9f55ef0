"""What all experiments share: cells that are computed once, kept on disk, and gathered into ``result.json``.

A *cell* is one system in one condition. Its arrays are written atomically when it is done; a run that was
interrupted finds them and goes on with the next cell, and inside a cell training itself resumes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.files import read_npz
from cstformer.system.threads import cores
from cstformer.system.versions import versions
from cstformer.system.workers import begin_worker


@dataclass(frozen=True)
class Cell:
    """One row of the table: a system in a condition, and the numbers the paper gives for it."""

    model: str
    condition: str
    paper: float | None = None

    @property
    def slug(self) -> str:
        """Name of its files."""
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.model}--{self.condition}".lower()).strip("-")


@dataclass
class CellResult:
    """What a cell leaves behind: arrays by name, and facts for the table."""

    arrays: dict[str, np.ndarray]
    parameters: int
    train_seconds: float
    facts: dict[str, Any]


class Experiment(ABC):
    """One experiment of the paper."""

    name: str
    presets: dict[str, Any]
    """Configuration (a frozen dataclass) of each preset."""
    parallel: bool = True
    """Whether cells may be computed side by side; not where they measure time."""

    @abstractmethod
    def cells(self, config: Any) -> list[Cell]:
        """All cells of a plain run, in the order of the table."""

    def all_cells(self, config: Any) -> list[Cell]:
        """All cells there are, for ``--models all`` and for rows asked for by name."""
        return self.cells(config)

    def row_name(self, name: str) -> str:
        """Name in the table of what the command line may call otherwise, e.g. by its key in the registry."""
        return name

    def prepare(self, config: Any, seed: int, out: Path, progress: bool) -> None:  # noqa: B027
        """Make what all cells share, such as data on disk; called before any of them, and quick if it is there."""

    @abstractmethod
    def compute(self, cell: Cell, config: Any, seed: int, folder: Path, progress: bool) -> CellResult:
        """Train (if need be) and predict; ``folder`` is the cell's own, for models and resume states."""

    @abstractmethod
    def gather(self, config: Any, seed: int, results: dict[Cell, CellResult], out: Path) -> dict[str, Any]:
        """The ``table``, ``tests``, ``figures`` and ``notes`` of `result.json`; draws the figures into ``out``."""

    def context(self, condition: str, config: Any, seed: int, out: Path) -> Samples | None:
        """Samples on which the explorer shows the models of a condition, of the run in ``out``; None: it has none."""
        return None

    def stimulus(self, condition: str, config: Any, seed: int, out: Path) -> tuple[np.ndarray, np.ndarray] | None:
        """Times and strength of what was shown, on the clock of the samples' ``origin``, for the explorer."""
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
    """Compute what is missing, gather, write ``result.json`` and ``report.html``, print the table.

    ``cst`` has settings of CST that do not change its results: ``devices``, ``strategy``.
    """
    if preset not in experiment.presets:
        raise unknown("preset", preset, experiment.presets)
    config = experiment.presets[preset]
    cells = _chosen(experiment, config, models)
    _claim(
        out,
        {"experiment": experiment.name, "preset": preset, "seed": seed, "config": _jsonable(asdict(config))},
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
        _compute_in_parallel(experiment, missing, config, seed, out, jobs, quiet)
    else:
        for cell in missing:
            _compute(experiment, cell, config, seed, out, not quiet)
    results = {cell: found for cell in cells if (found := _read(out, cell)) is not None}
    seconds = time.monotonic() - started
    gathered = experiment.gather(config, seed, results, out)
    result = {
        "experiment": experiment.name,
        "preset": preset,
        "seed": seed,
        "settings": _jsonable(asdict(config)),
        "versions": versions(),
        "machine": machine(),
        "seconds": round(sum(r.facts["seconds"] for r in results.values()), 1),
        "wall_seconds": round(seconds, 1),
        "command": _command(experiment.name, preset, seed, models),
        **gathered,
    }
    with atomic_path(out / "result.json") as temporary:
        temporary.write_text(json.dumps(_jsonable(result), indent=1))
    _present(result, out, quiet)
    return result


def table_row(cell: Cell, result: CellResult, metrics: dict[str, dict[str, float | int]]) -> dict[str, Any]:
    """A row of ``table`` as the contract has it."""
    return {
        "model": cell.model,
        "condition": cell.condition,
        "metrics": metrics,
        "parameters": result.parameters,
        "train_seconds": round(result.train_seconds, 1),
        "paper": cell.paper,
    }


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


def _compute(experiment: Experiment, cell: Cell, config: Any, seed: int, out: Path, progress: bool) -> None:
    folder = out / "cells" / cell.slug
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    result = experiment.compute(cell, config, seed, folder, progress)
    result.facts["seconds"] = result.facts.get("seconds", time.monotonic() - started)
    with atomic_path(folder / "arrays.npz") as temporary:
        np.savez_compressed(temporary, **result.arrays)  # type: ignore[arg-type]
    about = {
        "parameters": result.parameters,
        "train_seconds": result.train_seconds,
        "facts": _jsonable(result.facts),
    }
    with atomic_path(folder / "done.json") as temporary:  # written last: its presence means the cell is done
        temporary.write_text(json.dumps(about))


def _compute_in_parallel(
    experiment: Experiment, cells: list[Cell], config: Any, seed: int, out: Path, jobs: int, quiet: bool
) -> None:
    """One thread per process: on small models that is faster than many threads in one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin_worker, (os.getpid(),)) as pool,
        Progress(*columns, console=Console(stderr=True), disable=quiet) as bar,
    ):
        task = bar.add_task(f"{experiment.name} ({jobs} at a time)", total=len(cells))
        futures = {pool.submit(_compute, experiment, c, config, seed, out, False): c for c in cells}
        try:
            for future in as_completed(futures):
                future.result()
                cell = futures[future]
                bar.console.print(f"done: {cell.model}, {cell.condition}", highlight=False)
                bar.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read(out: Path, cell: Cell) -> CellResult | None:
    folder = out / "cells" / cell.slug
    if not (folder / "done.json").exists():
        return None
    about = json.loads((folder / "done.json").read_text())
    return CellResult(read_npz(folder / "arrays.npz"), about["parameters"], about["train_seconds"], about["facts"])


def _command(name: str, preset: str, seed: int, models: Sequence[str] | None) -> str:
    command = f"cst run {name} --preset {preset} --seed {seed}"
    return command if models is None else f"{command} --models {shlex.quote(','.join(models))}"


def _jsonable(x: Any) -> Any:
    """Plain JSON: tuples become lists, NumPy numbers become numbers, infinities text."""
    if isinstance(x, dict):
        return {str(k): _jsonable(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_jsonable(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, float) and x in (float("inf"), float("-inf")):
        return str(x)
    return x


def _present(result: dict[str, Any], out: Path, quiet: bool) -> None:
    from rich.console import Console

    from cstformer.report.page import write_report
    from cstformer.report.tables import console_table

    page = write_report(out)
    console = Console()
    for table in console_table(result):
        console.print(table)
    if not quiet:
        console.print(f"result: {out / 'result.json'}\nreport: {page}", highlight=False)
