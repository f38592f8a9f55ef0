"""PhysioNet/CinC Challenge 2012, set a: the first 48 hours of intensive-care patients, at irregular minutes.

Half of the time points of each scored patient are given and the others asked for. Errors count the cells that were
measured at the asked points, of variables scaled to [0, 1] by the range of the training patients. Patients with fewer
than eight time points are left out, and so are age, sex, height, type of unit and weight, which hardly change.

The file is a table with the columns ``record``, ``minutes`` and one for each variable, empty where not measured.
Silva et al., Computing in Cardiology (2012); interpolation task of Shukla and Marlin, mTAN (ICLR 2021).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.datasets.gaps import GapTask, check_part
from cstformer.datasets.published import published_file
from cstformer.errors import CSTError
from cstformer.system.files import readable

FILE = "physionet2012/set_a.parquet"
SOURCE = "https://physionet.org/content/challenge-2012 (set-a, as one table)"
STATIC = ("Age", "Gender", "Height", "ICUType", "Weight")
FEWEST = 8  # time points of a patient
TRAINING = 0.8  # share of the patients that may be learned from
VALIDATION = 0.2  # share of these that part="validation" scores
SPLIT_SEED = 0  # the split is the same for every seed of a task


def physionet_file() -> Path:
    """Path of the file, or a `CSTError` that says where to get it."""
    return published_file("PhysioNet 2012", FILE, SOURCE)


def physionet_task(part: str = "test", seed: int = 0, records: int | None = None) -> GapTask:
    """Patients half of whose time points are asked for.

    Parameters
    ----------
    part : ``test``; or ``validation``, which scores a fifth of the training patients and learns from the others
    seed : of the asked time points
    records : read the first of the file only; None for all
    """
    check_part(part)
    patients, names = _read(physionet_file(), records)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(patients))
    learned, scored = np.split(order, [round(TRAINING * len(order))])
    low, span = _range([patients[i][1] for i in learned])
    if part == "validation":
        learned, scored = np.split(learned, [round((1 - VALIDATION) * len(learned))])
    labels: dict[str, Any] = {"coord_names": ["hour"], "value_names": names, "units": {"hour": "h"}}
    pairs = [(t, (y - low) / span) for t, y in patients]
    rng = np.random.default_rng([seed, 2012])
    given, asked = zip(*(_halves(pairs[i], rng) for i in scored), strict=True)
    queries = Samples.from_list(asked, **labels)
    at = np.where(queries.point_observed[..., None], queries.coords, queries.coords[:, :1])
    return GapTask(
        Samples.from_list([pairs[i] for i in learned], **labels),
        Samples.from_list(given, **labels),
        at,
        queries.values,
        queries.observed,
    )


Patient = tuple[np.ndarray, np.ndarray]
"""Hours (n,) and values (n, c), NaN where not measured."""


def _halves(patient: Patient, rng: np.random.Generator) -> tuple[Patient, Patient]:
    """Split the time points of a patient at random into given and asked ones."""
    t, y = patient
    given = np.zeros(len(t), dtype=bool)
    given[rng.permutation(len(t))[: len(t) // 2]] = True
    return (t[given], y[given]), (t[~given], y[~given])


def _range(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lowest value of each variable, and its range, which is 1 for constant or never measured variables."""
    everything = np.concatenate(values)
    seen = ~np.isnan(everything)
    low = np.where(seen, everything, np.inf).min(0)
    span = np.where(seen, everything, -np.inf).max(0) - low
    never = ~seen.any(0)
    return np.where(never, 0.0, low), np.where(never | (span == 0), 1.0, span)


@lru_cache(maxsize=2)
def _read(path: Path, records: int | None) -> tuple[list[Patient], tuple[str, ...]]:
    """All patients with at least `FEWEST` time points, in the order of the file, and the names of the variables."""
    import pandas as pd

    with readable(path, "a table of patients"):
        table: Any = pd.read_parquet(path)
        table = table.drop(columns=[name for name in STATIC if name in table])
        names = tuple(str(name) for name in table.columns if name not in ("record", "minutes"))
        table = table[table[list(names)].notna().any(axis=1)].sort_values(["record", "minutes"], kind="stable")
        ids = table["record"].to_numpy()
        hours, values = table["minutes"].to_numpy(dtype=float) / 60, table[list(names)].to_numpy(dtype=float)
        ends = np.flatnonzero(np.diff(ids)) + 1
        patients = list(zip(np.split(hours, ends), np.split(values, ends), strict=True))[:records]
        patients = [patient for patient in patients if len(patient[0]) >= FEWEST]
        if len(patients) < 5:
            raise CSTError(f"only {len(patients)} patients have {FEWEST} time points; at least 5 are needed")
    return patients, names
