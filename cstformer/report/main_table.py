"""The main comparison of an experiment: CST beside the best trained rival, the best method without training, the paper.

An experiment writes them to ``main`` of its `result.json` (`comparison`); the first page of all results shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cstformer.report.tables import (
    HIGHER_IS_BETTER,
    MISSING,
    UNSETTLED,
    format_number,
    format_value,
    settled,
)

COLUMNS = ["question", "CST", "best trained rival", "best without training", "paper (weights of its model)"]


def comparison(
    table: Iterable[Mapping[str, Any]],
    question: str,
    condition: str,
    metric: str,
    cst: str,
    trained: Sequence[str],
    classical: Sequence[str],
    paper: tuple[float, str] | None = None,
) -> list[dict[str, Any]]:
    """The entry of ``main`` for one condition, in a list; an empty list if CST has no row there.

    Parameters
    ----------
    table : rows of `result.json`
    question : what is measured, in words that anybody understands
    condition, metric : which column of which table
    cst : row of CST
    trained, classical : rows to choose the best rival from, with training and without
    paper : the paper's number, and the number of weights of its model, e.g. ``"818 K"``
    """
    rows = {row["model"]: row for row in table if row["condition"] == condition and metric in row["metrics"]}
    if cst not in rows:
        return []
    entry: dict[str, Any] = {"question": question, "condition": condition, "metric": metric}
    entry["CST"] = _number(rows[cst], metric)
    for kind, names in (("trained", trained), ("classical", classical)):
        found = [rows[name] for name in names if name in rows]
        entry[kind] = _number(best(found, metric), metric) if found else None
    return [entry | {"paper": None if paper is None else {"mean": paper[0], "weights": paper[1]}}]


def best(rows: Sequence[Mapping[str, Any]], metric: str) -> Mapping[str, Any]:
    """The row with the best mean; a rival that did not converge competes here, which can only favour rivals."""
    sign = -1 if any(word in metric.casefold() for word in HIGHER_IS_BETTER) else 1
    return min(rows, key=lambda row: sign * row["metrics"][metric]["mean"])


def _number(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    about = {"model": row["model"], "converged": settled(row), "parameters": row.get("parameters")}
    return about | dict(row["metrics"][metric])


def main_line(entry: Mapping[str, Any]) -> list[str]:
    """Cells of one comparison for the columns `COLUMNS`.

    >>> number = {"model": "CST", "converged": True, "mean": 0.0288, "std": 0.0026, "seeds": 5, "seed_std": 0.00021}
    >>> entry = {"question": "spirals", "metric": "error", "CST": number, "trained": None, "classical": None}
    >>> main_line(entry | {"paper": {"mean": 0.03859, "weights": "818 K"}})
    ['spirals (error)', '0.02880 ± 0.00021', '–', '–', '0.03859 (818 K)']
    """
    paper = entry.get("paper")
    told = MISSING if paper is None else f"{format_number(paper['mean'], 4)} ({paper['weights']})"
    cells = [_cell(entry[kind], kind != "CST") for kind in ("CST", "trained", "classical")]
    return [f"{entry['question']} ({entry['metric']})", *cells, told]


def _cell(number: Mapping[str, Any] | None, named: bool) -> str:
    """Mean ± standard deviation over seeds, if there are several, and the name of a rival."""
    if number is None:
        return MISSING
    spread = number.get("seed_std")
    text = format_value(number["mean"], spread) if spread else format_number(float(number["mean"]), 3)
    mark = "" if number.get("converged", True) else f" {UNSETTLED}"
    return f"{text}, {number['model']}{mark}" if named else f"{text}{mark}"


def ratio(entry: Mapping[str, Any], kind: str) -> float | None:
    """Error of CST over that of the best rival of a kind; R² counts as 1 − R², other scores have no ratio."""
    rival, metric = entry[kind], entry["metric"].casefold()
    if rival is None:
        return None
    errors = [number["mean"] for number in (entry["CST"], rival)]
    if metric.startswith(("r2", "r²")):
        errors = [1 - score for score in errors]
    elif any(word in metric for word in HIGHER_IS_BETTER):
        return None
    return errors[0] / errors[1] if min(errors) > 0 else None
