"""Which of the paper's claims about the spirals hold here, from the table of a run; and the main comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cstformer.baselines import BASELINES
from cstformer.experiments.spirals.rows import (
    BERT,
    BERT_AUGMENTED,
    BERT_STEPS,
    CST_DEFAULT,
    CST_PAPER,
    CST_STEPS,
    INTERPOLATION,
    RIVALS,
)
from cstformer.experiments.spirals.task import CLEAN, IRREGULAR, NOISY
from cstformer.report.main_table import comparison
from cstformer.report.tables import format_number

LEVEL = 0.05  # of the corrected tests

Table = Sequence[Mapping[str, Any]]


def main_comparisons(table: Table) -> list[dict[str, Any]]:
    """The three conditions; the paper's number is that of the first."""
    trained = [BERT, BERT_STEPS, BERT_AUGMENTED, *(BASELINES[key].label for key in RIVALS)]
    questions = {
        CLEAN: "curves between ten points",
        IRREGULAR: "curves between ten irregular points",
        NOISY: "curves between ten points with noise 0.1",
    }
    found = []
    for condition, question in questions.items():
        paper = (0.03859, "818 K") if condition == CLEAN else None
        found += comparison(table, question, condition, "error", CST_DEFAULT, trained, list(INTERPOLATION), paper)
    return found


def claims(table: Table, tests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each claim with ``holds`` ("yes", "no" or "not clear") and the numbers that decide it.

    A claim about the paper's models is judged on rows of the paper's size, trained as it says.
    """
    judge = _Judge(table, tests)
    return [
        judge.lower("CST has a lower error than the Transformer, at equal steps", CST_STEPS, BERT_STEPS, CLEAN),
        judge.lower("CST has a lower error than the Transformer, at equal minutes", CST_PAPER, BERT, CLEAN),
        judge.smoother("CST is smoother than the Transformer", CST_PAPER, BERT, CLEAN),
        judge.lower("with noise, CST has a lower error than linear interpolation", CST_PAPER, "linear", NOISY),
        judge.lower("with noise, CST has a lower error than a cubic spline", CST_PAPER, "cubic", NOISY),
        judge.lower("augmentation makes the Transformer worse", BERT, BERT_AUGMENTED, CLEAN),
    ]


class _Judge:
    """Compares two rows."""

    def __init__(self, table: Table, tests: Sequence[Mapping[str, Any]]):
        self.rows = {(row["model"], row["condition"]): row["metrics"] for row in table}
        self.tests = tests

    def lower(self, claim: str, first: str, second: str, condition: str) -> dict[str, Any]:
        """Whether the first row has the lower error; not clear without a significant test."""
        entry = self._entry(claim, first, second, condition, "error")
        if entry["holds"] == "not run":
            return entry
        names = {f"{first} vs {second}", f"{second} vs {first}"}
        p = next((t["p_value"] for t in self.tests if t["name"] in names and t["condition"] == condition), None)
        a, b = entry["numbers"].values()
        entry["p_value"] = p
        return entry | {"holds": "not clear" if p is None or p > LEVEL else "yes" if a < b else "no"}

    def smoother(self, claim: str, first: str, second: str, condition: str) -> dict[str, Any]:
        """Whether the first row's curves bend less than the second's."""
        entry = self._entry(claim, first, second, condition, "roughness")
        if entry["holds"] == "not run":
            return entry
        a, b = entry["numbers"].values()
        return entry | {"holds": "yes" if a < b else "no"}

    def _entry(self, claim: str, first: str, second: str, condition: str, metric: str) -> dict[str, Any]:
        known = all((row, condition) in self.rows for row in (first, second))
        numbers = {row: self.rows[row, condition][metric]["mean"] for row in (first, second)} if known else {}
        text = ", ".join(f"{row} {format_number(float(x), 3)}" for row, x in numbers.items())
        detail = {"condition": condition, "metric": metric, "numbers": numbers, "text": text}
        return {"claim": claim, "holds": "" if known else "not run"} | detail
