"""The paper's four parameter tables, ours next to the paper's."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from cstformer.baselines.sizes import SIZES, Size
from cstformer.data.patches import PatchLayout
from cstformer.errors import CSTError, unknown
from cstformer.models.cst import CST
from cstformer.network.transformer import ContinuousTransformer
from cstformer.report.tables import MISSING
from cstformer.training.cost import Workload, memory_bytes, traffic_bytes


def parameter_tables(experiment: str | None = None) -> list[Table]:
    """Make one table per experiment, or that of ``experiment`` alone."""
    if experiment is not None and experiment not in SIZES:
        raise unknown("experiment", experiment, SIZES)
    tables = []
    for name, rows in SIZES.items():
        if experiment not in (None, name):
            continue
        table = Table(title=f"{name}: trainable numbers", title_justify="left")
        table.add_column("model")
        for column in ("ours", "paper", "ratio"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("note", overflow="fold")
        for label, size in rows.items():
            try:
                count = size.count()
                table.add_row(label, f"{count:,}", size.paper, f"{count / size.published:.3f}", size.note)
            except CSTError as error:  # a package is missing: the other rows do not need it
                table.add_row(label, MISSING, size.paper, MISSING, str(error))
        tables.append(table)
    return tables


RATE, WINDOW, STRIDE = 10.0, 10, 5  # frames a second of the paper's recordings, frames of a window and between windows
OURS: dict[str, Any] = {
    **{"pattern": "context", "attention_kind": "exact", "norm": "pre", "readout": "skip", "encoding": "fourier"},
    **{"order": 2, "dummies": 10, "sobolev_every": 4, "hide": 0.5, "projections": 1},
}


def cost_table(
    experiment: str, hours: float, processes: int, strategy: str = "ddp", speed: float | None = None
) -> Table:
    """What it takes to train the CSTs of an experiment with frames on a recording of so many hours.

    ``speed`` is the number of 10⁹ operations a second that one process sustains.
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
    columns = ["weights", "FLOP a window", "FLOP an epoch", "MB of weights", "MB a window", "MB sent a step"]
    for column in columns + (["hours an epoch"] if speed else []):
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
    """Weights of a model, and the training step of one window."""
    assert isinstance(size.data, PatchLayout)
    changed = Size(size.key, size.paper, size.data, {**size.settings, **changes})
    model, network = changed.model(), changed.network()
    assert isinstance(model, CST) and isinstance(network, ContinuousTransformer)
    points = WINDOW * size.data.grid[0] * size.data.grid[1]
    return changed.count(), Workload.of(network.architecture, points, model)
