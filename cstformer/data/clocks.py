"""Clocks of recordings: the time of every frame, from a list of seconds or from the counter of the camera."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.arrays import as_floats
from cstformer.data.names import name_and_unit
from cstformer.data.table_files import read_table
from cstformer.errors import CSTError, unknown
from cstformer.system.files import check_bytes, npy_header, read_npz, readable

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".npy", ".npz")
TIMES = {"t", "time", "times", "timestamp", "timestamps", "seconds", "t_s", "ttl"}
COUNTERS = {"frame", "frames", "frame_number", "frame_id", "counter", "index"}
SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def load_times(path: str | os.PathLike[str], rate: float | None = None) -> Float[np.ndarray, " n"]:
    r"""Times of frames in seconds, one per frame, in their order; gaps and jitter stay as they are.

    Parameters
    ----------
    path : `.npy` (n,); `.npz` with `times`; a text file with one number per line, such as the onsets of TTL pulses; or
        a table with a column `time` (or `time [ms]`), or with the counter of the camera in a column `frame` or
        `counter`, in which dropped frames are missing numbers.
    rate : frames per second, which turns a counter into times.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # frame 2 was dropped
    ...     _ = Path(folder, "camera.csv").write_text("frame,exposure\n0,5\n1,5\n3,5\n")
    ...     load_times(f"{folder}/camera.csv", rate=10.0).tolist()
    [0.0, 0.1, 0.3]
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise unknown(f"kind of file for times ({path})", suffix, SUFFIXES)
    with readable(path, "times of frames") as source:
        if suffix == ".npy":
            return _checked(path, _npy(source))
        if suffix == ".npz":
            arrays = read_npz(source)
            key = next((k for k in arrays if k in TIMES), None)
            if key is None:
                raise CSTError(f"has no key 'times' but {', '.join(arrays)}; save the times as times=")
            return _checked(path, arrays[key])
        table = read_table(source) if suffix == ".parquet" or _has_heading(source) else _plain(source)
        return _column(path, table, rate)


def describe_clock(times: Float[np.ndarray, " n"] | None) -> str:
    """Range and step of the times, how many frames are missing between them, and their jitter.

    >>> describe_clock(np.array([0.0, 0.1, 0.2, 0.4, 0.5]))
    'times 0 to 0.5, step 0.1, 1 missing'
    """
    if times is None:
        return "no times"
    text = f"times {times[0]:g} to {times[-1]:g}"
    steps = np.diff(times)
    usual = float(np.median(steps)) if len(steps) > 1 else 0.0
    if usual <= 0:
        return text
    slots = np.rint(steps / usual)  # 1 where no frame is missing
    missing, single = int((slots - 1).clip(0).sum()), steps[slots == 1]
    jitter = 100 * float(np.std(single)) / usual
    text += f", step {usual:.4g}" + (f", {missing} missing" if missing else "")
    return text + (f", jitter {jitter:.2g} % of a step" if jitter > 0.1 else "")


def _npy(path: Path) -> np.ndarray:
    with path.open("rb") as stream:
        shape, dtype = npy_header(path, stream, "times")
    check_bytes(path, int(np.prod(shape)) * dtype.itemsize)
    return np.load(path, allow_pickle=False)


def _has_heading(path: Path) -> bool:
    """Whether the first line of a text file is no row of numbers."""
    with path.open(errors="replace") as stream:
        words = stream.readline(2**16).replace(",", " ").split()
    try:
        return not [float(word) for word in words]
    except ValueError:
        return True


def _plain(path: Path) -> Any:
    import pandas as pd

    return pd.read_csv(path, sep=r"[,\s]+", engine="python", header=None)


def _column(path: str | os.PathLike[str], table: Any, rate: float | None) -> Float[np.ndarray, " n"]:
    """The column of a table that is the clock."""
    headings = {column: name_and_unit(str(column)) for column in table.columns}
    for column, (name, unit) in headings.items():
        if name.casefold() in TIMES:
            if unit not in SECONDS:
                raise unknown(f"unit of the column {column!r} in {path}", unit, SECONDS)
            return _checked(path, table[column]) * SECONDS[unit]
    for column, (name, _) in headings.items():
        if name.casefold() in COUNTERS:
            if rate is None:
                raise CSTError(f"{path} counts frames (column {column!r}) but has no times; give the rate in Hz too")
            return _checked(path, table[column]) / rate
    if len(headings) > 1:
        raise CSTError(f"{path} has no column 'time' or 'frame' but {', '.join(map(str, table.columns))}; rename one")
    return _checked(path, table.iloc[:, 0])


def _checked(path: str | os.PathLike[str], data: Any) -> Float[np.ndarray, " n"]:
    times = as_floats("times", data)
    times = times.reshape(-1) if times.size == max(times.shape, default=0) else times
    if times.ndim != 1 or len(times) == 0:
        raise CSTError(f"{path} must hold one list of times, it has shape {times.shape}")
    bad = np.flatnonzero(~np.isfinite(times))
    if len(bad):
        raise CSTError(f"{path}: time {bad[0] + 1} of {len(times)} is {times[bad[0]]}; every frame needs a time")
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        at = back[0]
        raise CSTError(f"{path}: times must increase, but {times[at + 1]:g} follows {times[at]:g} (row {at + 2})")
    return times
