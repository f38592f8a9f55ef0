"""Rows of the imputation tables: conditions, the settings of a preset, and the model of each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cstformer.baselines import BASELINES
from cstformer.baselines.peers import PEERS, peers_installed
from cstformer.benchmarks.users import CLASSICAL
from cstformer.models.cst import CST

ETT, PHYSIONET, ERA5, OSCILLATORS = "ETTh1", "PhysioNet 2012", "ERA5", "oscillators"
CST_ROW, CST_ABSOLUTE = "CST", "CST, p = 1"
BOOSTING, TRANSFORMER = "Gradient boosting", "Transformer (BERT)"
SMOOTHING = {"RBF": 0.0, "RBF, smoothed": 1.0}
"""Thin-plate splines of SciPy on ERA5, and their smoothing."""
QUESTIONS = ("SAITS", TRANSFORMER, BOOSTING, "co-kriging", "GP", "linear")
"""Rows that CST is tested against."""
SHARES = (0.1, 0.5, 0.9)
# Mean absolute errors on the test months of ETTh1 printed in TSI-Bench (Du et al. 2024), for the shares above.
PUBLISHED = {
    "SAITS": (0.144, 0.223, 0.507),
    "BRITS": (0.145, 0.238, 0.609),
    TRANSFORMER: (0.178, 0.274, 0.696),
    "linear": (0.197, 0.267, 0.616),
}


@dataclass(frozen=True)
class Config:
    """Sizes of a preset."""

    data: tuple[str, ...] = (ETT, PHYSIONET, ERA5, OSCILLATORS)
    shares: tuple[float, ...] = SHARES
    """Shares of the cells removed from ETTh1."""
    part: str = "test"
    """Samples that are scored: ``test``, or ``validation`` to make choices without them."""
    seeds: int = 3
    """Repetitions, with other removed cells and other weights."""
    minutes: float = 1.5
    """Time limit of each training; SAITS and BRITS take all of it."""
    records: int | None = 2000
    """Records of PhysioNet 2012 that are read; None for all."""
    train: int = 300
    scored: int = 100
    """Numbers of simulated samples."""
    preset: str = "default"
    """Preset of the rivals that are trained."""
    cst: dict[str, Any] = field(default_factory=dict)
    """Changes to the default settings of CST."""
    peers: dict[str, Any] = field(default_factory=dict)
    """Changes to the sizes of SAITS."""

    def conditions(self) -> dict[str, float | None]:
        """Conditions of the table, with the share of the cells that are removed where there is one."""
        found: dict[str, float | None] = {}
        for data in self.data:
            if data == ETT:
                found |= {f"{ETT}, {100 * share:.0f} % removed": share for share in self.shares}
            else:
                share = 0.5 if data == OSCILLATORS else None
                detail = {PHYSIONET: "half of the times given", ERA5: "every sixth hour given"}
                found[f"{data}, {detail.get(data, '50 % removed')}"] = share
        return found


def rows_of(data: str) -> list[str]:
    """Rows of a data set, in the order of the table."""
    first = [CST_ROW, CST_ABSOLUTE] if data == ETT else [CST_ROW]
    if data == ERA5:  # too many channels for the others
        return [*first, TRANSFORMER, *(row for row in CLASSICAL if row != "co-kriging"), *SMOOTHING]
    return [*first, TRANSFORMER, *(PEERS if peers_installed() else ()), BOOSTING, *CLASSICAL]


def row_name(name: str) -> str:
    """Name in the table of a row that ``--models`` may call by its key in `BASELINES`."""
    keys = {"cst": CST_ROW, "cst-p1": CST_ABSOLUTE, "transformer": TRANSFORMER, "boosting": BOOSTING}
    keys |= {key: row for row, key in CLASSICAL.items()}
    return keys.get(name, name)


def published(row: str, condition: str, config: Config) -> float | None:
    """Published mean absolute error of a row on the test months of ETTh1; None for everything else."""
    share = config.conditions()[condition]
    if not condition.startswith(ETT) or share not in SHARES or row not in PUBLISHED or config.part != "test":
        return None
    return PUBLISHED[row][SHARES.index(share)]


def make_model(row: str, config: Config, seed: int, movie: bool) -> Any:
    """The model of a row, not fitted; ``movie`` says whether it reads patches."""
    if row in CLASSICAL:
        return BASELINES[CLASSICAL[row]](seed=seed)
    if row == BOOSTING:
        return BASELINES["boosting"].preset(config.preset, seed=seed)
    if row == TRANSFORMER:
        together = {"together": 64} if movie else {}  # one sequence for each patch of a frame would take too long
        return BASELINES["transformer"].preset(config.preset, seed=seed, max_minutes=config.minutes, **together)
    settings: dict[str, Any] = {"seed": seed, "max_minutes": config.minutes, **config.cst}
    return CST(**settings | ({"p": 1.0} if row == CST_ABSOLUTE else {}))
