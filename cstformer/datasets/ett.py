"""ETTh1: seven hourly series of an electricity transformer, with cells removed at random, as in TSI-Bench.

Two years of load (``HUFL`` to ``LULL``) and oil temperature (``OT``), from July 2016 to June 2018. The calendar months
are split in order: 14 to train, 5 to validate and 5 to test. Values are standardised by the training months. Windows of
48 hours lie side by side. A share of all cells is removed, from training windows too: no model sees a removed cell.

Zhou et al., Informer (AAAI 2021); protocol of Du et al., TSI-Bench (2024).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.datasets.gaps import GapTask, check_part, remove_cells
from cstformer.datasets.published import published_file
from cstformer.errors import CSTError
from cstformer.system.files import readable

FILE = "ett/ETTh1.csv"
SOURCE = "https://github.com/zhouhaoyi/ETDataset"
MONTHS = {"train": (0, 14), "validation": (14, 19), "test": (19, 24)}
"""Calendar months of each part, counted from the first month of the file; the last is not included."""
WINDOW = 48  # hours

Windows = tuple[np.ndarray, tuple[str, ...]]
"""Standardised windows (N, 48, c), and the date on which each begins."""


def ett_file() -> Path:
    """Path of the file, or a `CSTError` that says where to get it."""
    return published_file("ETTh1", FILE, SOURCE)


def ett_task(share: float, part: str = "test", seed: int = 0, mixed: bool = False) -> GapTask:
    """Windows of ETTh1 with a share of their cells removed.

    Parameters
    ----------
    share : of the cells that are removed, between 0 and 1
    part : ``test``, or ``validation`` for the months between training and test
    seed : of the removed cells
    mixed : deal the windows of all months to the parts at random, so that they are exchangeable; the published
        protocol keeps the months in order
    """
    check_part(part)
    path = ett_file()
    windows = {name: _windows(path, name) for name in ("train", part)}
    if mixed:
        windows = _mixed({name: _windows(path, name) for name in MONTHS}, seed)
    (train, _), (scored, starts) = windows["train"], windows[part]
    rng = np.random.default_rng([seed, round(1000 * share)])
    kept, _ = remove_cells(train, share, rng)
    given, removed = remove_cells(scored, share, rng)
    hours, names = np.arange(WINDOW, dtype=float), _read(path)[2]
    labels: dict[str, Any] = {"coord_names": ["hour"], "value_names": names, "units": {"hour": "h"}}
    at = np.tile(hours[:, None], (len(scored), 1, 1))
    return GapTask(
        Samples(hours, kept, **labels),
        Samples(hours, given, sample_ids=starts, **labels),
        at,
        scored,
        removed,
    )


def _mixed(parts: dict[str, Windows], seed: int) -> dict[str, Windows]:
    """Deal the windows of all parts anew, as many to each as before."""
    values, days = (np.concatenate([windows[k] for windows in parts.values()]) for k in (0, 1))
    order = np.random.default_rng([seed, 13]).permutation(len(values))
    ends = np.cumsum([len(one) for one, _ in parts.values()])
    dealt = zip(parts, np.split(order, ends[:-1]), strict=True)
    return {name: (values[mine], tuple(days[mine].tolist())) for name, mine in dealt}


@lru_cache(maxsize=6)
def _windows(path: Path, part: str) -> Windows:
    """Standardised windows (N, 48, c) of a part, and the date on which each begins."""
    dates, values, _ = _read(path)
    months = dates.astype("datetime64[M]").astype(int)
    months -= months[0]
    first, last = MONTHS[part]
    training, mine = months < MONTHS["train"][1], (months >= first) & (months < last)
    count = int(mine.sum()) // WINDOW
    if count == 0:
        raise CSTError(f"{path} has no window of {WINDOW} hours in months {first + 1} to {last}; get the whole file")
    scaled = (values[mine] - values[training].mean(0)) / values[training].std(0)
    starts = dates[mine][: count * WINDOW : WINDOW].astype("datetime64[h]")
    return scaled[: count * WINDOW].reshape(count, WINDOW, -1), tuple(starts.astype(str).tolist())


@lru_cache(maxsize=2)
def _read(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Dates (T,), values (T, c) and their names; an hour from each row to the next is required."""
    import pandas as pd

    with readable(path, "ETTh1"):
        table = pd.read_csv(path, parse_dates=["date"])
        dates = table.pop("date").to_numpy().astype("datetime64[s]")
        values = table.to_numpy(dtype=float)
        if (np.diff(dates) != np.timedelta64(1, "h")).any() or not np.isfinite(values).all():
            raise CSTError("rows must be one hour apart and have no empty cell; get the file again")
    return dates, values, tuple(table.columns)
