"""Tables of ``cst models``: sizes of the models next to the paper's, and the cost of training CST."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from cstformer.baselines.sizes import SIZES, Size
from cstformer.data.layout import PatchLayout
from cstformer.errors import CSTError, unknown
from cstformer.models.cst import CST
from cstformer.network.transformer import ContinuousTransformer
from cstformer.report.tables import MISSING
from cstformer.training.cost import Workload, memory_bytes, traffic_bytes
from cstformer.training.settings import resolve


def parameter_tables(experiment: str | None = None) -> list[Table]:
    """Return one table of trainable parameters per experiment, or the table of ``experiment`` alone."""
    if experiment is not None and experiment not in SIZES:
        raise unknown("experiment", experiment, SIZES)
    tables = []
    for name, rows in SIZES.items():
        if experiment not in (None, name):
            continue
        table = Table(title=f"{name}: trainable parameters", title_justify="left")
        table.add_column("model")
        for column in ("ours", "paper", "ratio"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("note", overflow="fold")
        for label, size in rows.items():
            try:
                count = size.count()
                table.add_row(label, f"{count:,}", size.paper, f"{count / size.published:.3f}", size.note)
            except CSTError as error:  # an optional package is missing; the other rows do not need it
                table.add_row(label, MISSING, size.paper, MISSING, str(error))
        tables.append(table)
    return tables


RATE = 10.0  # frames per second of the paper's recordings
WINDOW, STRIDE = 10, 5  # frames of a window, and between the starts of two windows
# The default settings of `CST`, on the paper's width and depth.
OURS: dict[str, Any] = {
    **{"pattern": "context", "attention_kind": "exact", "norm": "pre", "readout": "skip", "encoding": "fourier"},
    **{"order": 2, "dummies": 10, "sobolev_every": 4, "hide": 0.5, "projections": 1},
}


def cost_table(
    experiment: str, hours: float, processes: int, strategy: str = "ddp", speed: float | None = None
) -> Table:
    """Return what it takes to train the CSTs of an experiment on a recording of frames that is ``hours`` long.

    ``speed``, in 10⁹ operations per second of one process, adds the time of an epoch.
    """
    rows = {k: v for k, v in SIZES.get(experiment, {}).items() if v.key == "cst" and isinstance(v.data, PatchLayout)}
    if not rows:
        frames = [name for name, sizes in SIZES.items() if any(isinstance(s.data, PatchLayout) for s in sizes.values())]
        raise CSTError(f"--cost is for recordings of frames; choose --experiment {', '.join(frames)}")
    if not (hours > 0 and processes > 0 and (speed is None or speed > 0)):
        raise CSTError(f"--hours {hours:g}, --processes {processes} and --speed must be positive")
    windows = max(1, math.floor((hours * 3600 * RATE - WINDOW) / STRIDE) + 1)
    title = (
        f"{experiment}: {hours:g} hours at {RATE:g} Hz, {windows:,} windows of {WINDOW} frames, {processes} processes"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    columns = ["weights", "FLOP / window", "FLOP / epoch", "MB of weights", "MB / window", "MB sent / step"]
    for column in columns + (["hours / epoch"] if speed else []):
        table.add_column(column, justify="right")
    for label, size in rows.items():
        for name, changes in ((label, {}), (f"{label}, context", OURS)):
            count, work = _training(size, changes)
            megabytes = (memory_bytes(count, processes, strategy), work.activations(work.order))
            numbers = [f"{x / 1e6:,.0f}" for x in (*megabytes, traffic_bytes(count, processes))]
            flops = work.flops(), work.flops() * windows
            time = [f"{flops[1] / (speed * 1e9 * processes) / 3600:,.1f}"] if speed else []
            table.add_row(name, f"{count:,}", *(f"{x:.2e}" for x in flops), *numbers, *time)
    return table


def _training(size: Size, changes: dict[str, Any]) -> tuple[int, Workload]:
    """Number of weights, and the work of a training step on one window, of a size with changed settings."""
    assert isinstance(size.data, PatchLayout)
    changed = Size(size.key, size.paper, size.data, {**size.settings, **changes})
    model, network = changed.model(), changed.network()
    assert isinstance(model, CST) and isinstance(network, ContinuousTransformer)
    points = WINDOW * size.data.grid[0] * size.data.grid[1]
    return changed.count(), Workload.of(network.architecture, points, resolve(model.settings(), "frames"))
