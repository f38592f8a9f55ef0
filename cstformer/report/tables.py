"""Tables of a `result.json` for the console, for RESULTS.md and for the report, all with the same cells."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from cstformer.errors import CSTError
from cstformer.system.files import readable

MISSING = "–"
UNSETTLED = "†"
"""Mark of rows that did not converge."""

# Required keys of a result and their types. `notes` and `command` are optional.
CONTRACT: dict[str, type | tuple[type, ...]] = {
    "experiment": str,
    "preset": str,
    "seed": (int, type(None)),
    "settings": dict,
    "versions": dict,
    "machine": (str, dict),
    "seconds": (int, float),
    "table": list,
    "tests": list,
    "figures": list,
}

HIGHER_IS_BETTER = ("r2", "r²", "accuracy", "correlation", "psnr", "ssim")

# Reference rows, which do not compete: no model can beat them.
YARDSTICKS = ("truth", "noise-free", "floor")


@dataclass(frozen=True)
class Entry:
    """One formatted cell of a table; ``best`` if it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Group:
    """The rows of one condition; the first column is the model."""

    condition: str
    columns: list[str]
    lines: list[list[Entry]]


# Numbers ----------------------------------------------------------------------------------------------------


def format_number(x: object, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits. Integers are written in full, None and NaN as "–".

    >>> [format_number(x) for x in (0.038591, 818_000, 1.5e-7, 12.0, None, float("nan"))]
    ['0.0386', '818,000', '1.50e-7', '12.0', '–', '–']
    """
    if isinstance(x, bool) or not isinstance(x, int | float):
        return MISSING if x is None else str(x)
    if not math.isfinite(x):
        return MISSING if math.isnan(x) else ("∞" if x > 0 else "−∞")
    if isinstance(x, int):
        return f"{x:,}"
    if x == 0:
        return "0"
    if not 1e-3 <= abs(x) < 1e6:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{x:,.{max(digits - 1 - _exponent(x), 0)}f}"


def format_value(mean: object, std: object = None) -> str:
    """Format mean ± standard deviation, with two significant digits of the deviation.

    >>> format_value(0.029812, 0.004071), format_value(4.88e-5, 2.1e-6), format_value(0.03859)
    ('0.0298 ± 0.0041', '(4.88 ± 0.21)e-5', '0.03859')
    """
    if not _is_number(mean) or not _is_number(std) or not std:
        return format_number(float(mean) if _is_number(mean) else mean, 4)
    scale = _exponent(max(abs(mean), abs(std)))
    if -3 <= scale < 6:
        return _plus_minus(mean, std)
    return f"({_plus_minus(mean / 10.0**scale, std / 10.0**scale)})e{scale}"


def _plus_minus(mean: float, std: float) -> str:
    decimals = max(1 - _exponent(std), 0)
    if mean and decimals - 1 > 4 - _exponent(mean):  # a deviation far below the mean gets its own format
        return f"{format_number(float(mean), 5)} ± {format_number(float(std), 2)}"
    if mean:  # a mean far below its deviation keeps two digits
        decimals = max(decimals, 1 - _exponent(mean) if _exponent(mean) >= -5 else 0)
    return f"{mean:,.{decimals}f} ± {std:,.{decimals}f}"


def _exponent(x: float) -> int:
    return math.floor(math.log10(abs(x)))


def _is_number(x: object) -> TypeGuard[float]:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def format_p(p: object) -> str:
    """Format a P value as papers do.

    >>> [format_p(p) for p in (3e-26, 0.00342, 0.0512, 0.7, None)]
    ['< 0.0001', '0.0034', '0.051', '0.70', '–']
    """
    if not _is_number(p):
        return MISSING
    return "< 0.0001" if p < 1e-4 else format_number(float(p), 2) if p >= 1e-3 else f"{p:.4f}"


def format_duration(seconds: object) -> str:
    """Format a duration in readable units.

    >>> [format_duration(s) for s in (0.42, 12.3, 723, 4000, None)]
    ['0.42 s', '12.3 s', '12 min 3 s', '1 h 7 min', '–']
    """
    if not _is_number(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


# Reading ----------------------------------------------------------------------------------------------------


def load_result(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the `result.json` in the folder of a run; raise a `CSTError` if it is invalid."""
    path = Path(run_dir) / "result.json"
    if not path.is_file():
        raise CSTError(f"no result in {run_dir}: {path} does not exist; `cst run` writes it at the end of a run")
    with readable(path, "JSON"):
        result = json.loads(path.read_text(encoding="utf-8"))
        check_result(result)
    return result


def check_result(result: object) -> None:
    """Raise a `CSTError` that names the place if this does not have the structure of a `result.json`."""
    if not isinstance(result, dict):
        raise CSTError(f"a result is an object with {', '.join(CONTRACT)}; got {type(result).__name__}")
    missing = [key for key in CONTRACT if key not in result]
    if missing:
        raise CSTError(f"the result lacks {', '.join(missing)}")
    for key, kind in (*CONTRACT.items(), ("notes", list), ("command", str)):
        if key in result and not isinstance(result[key], kind):
            raise CSTError(f"{key} of the result is {_short(result[key])}, which is not of type {_names(kind)}")
    for i, row in enumerate(result["table"]):
        _check_row(row, f"table[{i}]")
    for key, required in (("tests", "name"), ("figures", "file")):
        for i, entry in enumerate(result[key]):
            if not isinstance(entry, dict) or not isinstance(entry.get(required), str):
                raise CSTError(f"{key}[{i}] must be an object with the text {required!r}, got {_short(entry)}")


def _check_row(row: object, where: str) -> None:
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("model", "condition")):
        raise CSTError(f"{where} must be an object with the texts 'model' and 'condition', got {_short(row)}")
    metrics = row.get("metrics")
    if not isinstance(metrics, dict):
        raise CSTError(f"{where}.metrics must be an object of name: {{mean, std, n}}, got {_short(metrics)}")
    for name, metric in metrics.items():
        mean = metric.get("mean", math.nan) if isinstance(metric, dict) else "none"
        if mean is not None and (isinstance(mean, bool) or not isinstance(mean, int | float)):
            raise CSTError(f"{where}.metrics[{name!r}] must have a number 'mean', got {_short(metric)}")


def _names(kind: type | tuple[type, ...]) -> str:
    return " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Cells ------------------------------------------------------------------------------------------------------


def groups(result: Mapping[str, Any]) -> list[Group]:
    """Group the table by condition, keeping the order in which conditions and models first appear."""
    check_result(result)
    conditions = dict.fromkeys(row["condition"] for row in result["table"])
    return [_group(c, [row for row in result["table"] if row["condition"] == c]) for c in conditions]


def _group(condition: str, rows: list[dict[str, Any]]) -> Group:
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    columns = [("model", [Entry(row["model"] + ("" if settled(row) else f" {UNSETTLED}")) for row in rows])]
    for i, name in enumerate(metrics):
        entries = [row["metrics"].get(name, {}) for row in rows]
        means = [e.get("mean") if settled(row) else None for e, row in zip(entries, rows, strict=True)]
        winners = best_rows(name, means, [row["model"] for row in rows])
        texts = [format_value(e.get("mean"), e.get("std")) for e in entries]
        columns.append((name, [Entry(text, best=j in winners) for j, text in enumerate(texts)]))
        if i == 0:  # the paper gives one number per row, for the first metric
            columns += _unless_empty("paper", [format_number(row.get("paper"), 4) for row in rows])
            columns += _unless_empty("± over seeds", [_over_seeds(e) for e in entries])
    sizes = [{m["n"] for m in r["metrics"].values() if isinstance(m.get("n"), int)} for r in rows]
    every_size = set().union(*sizes)
    if len(every_size) == 1:
        condition = f"{condition} (n = {every_size.pop():,})"
    else:
        columns += _unless_empty("n", [", ".join(map(format_number, sorted(s))) or MISSING for s in sizes])
    columns += _unless_empty("parameters", [format_number(row.get("parameters")) for row in rows])
    columns += _unless_empty("training", [format_duration(row.get("train_seconds")) for row in rows])
    columns += _unless_empty("steps", [_rounded(row.get("steps")) for row in rows])
    columns += _unless_empty("epochs", [_rounded(row.get("epochs")) for row in rows])
    lines = [list(line) for line in zip(*(cells for _, cells in columns), strict=True)]
    return Group(condition, [name for name, _ in columns], lines)


def settled(row: Mapping[str, Any]) -> bool:
    """Whether a row's training converged, or it has none. The others are marked and never the best of a column."""
    return bool(row.get("converged", True))


def _over_seeds(entry: Mapping[str, Any]) -> str:
    """Standard deviation over the seeds, and their number.

    >>> _over_seeds({"mean": 1.0, "seeds": 3, "seed_std": 0.0213}), _over_seeds({"mean": 1.0})
    ('0.021 (3)', '–')
    """
    return f"{entry['seed_std']:.2g} ({entry['seeds']})" if "seeds" in entry else MISSING


def _rounded(x: object) -> str:
    """A count that may be a mean over seeds: whole from ten on."""
    return (f"{x:,.0f}" if x >= 10 else format_number(float(x), 2)) if _is_number(x) else MISSING


def _unless_empty(name: str, texts: list[str]) -> list[tuple[str, list[Entry]]]:
    """Make a column, or none if all of its cells are missing."""
    return [(name, [Entry(text) for text in texts])] if any(text != MISSING for text in texts) else []


def best_rows(metric: str, means: Sequence[object], models: Sequence[str]) -> set[int]:
    """Rows with the best mean: the lowest; for scores such as R² the highest; for roughness the nearest to 1.

    Of ``coverage at 90 %`` the nearest to 0.9 is best.

    Reference rows (the truth itself, a noise floor) do not compete. With fewer than two competitors no row is best.

    >>> best_rows("error", [0.03, 0.02, 0.0], ["CST", "cubic", "truth"])
    {1}
    >>> best_rows("R2", [0.1, 0.7], ["a", "b"]), best_rows("roughness", [0.5, 1.2, 9], ["a", "b", "c"])
    ({1}, {1})
    """
    name, badness = metric.casefold(), {}
    for i, (mean, model) in enumerate(zip(means, models, strict=True)):
        if not _is_number(mean) or any(word in model.casefold() for word in YARDSTICKS):
            continue
        if level := re.fullmatch(r"coverage at (\d+) %", name):
            badness[i] = abs(mean - int(level[1]) / 100)
        elif "roughness" in name:
            badness[i] = abs(math.log(mean)) if mean > 0 else math.inf
        else:
            badness[i] = -mean if any(word in name for word in HIGHER_IS_BETTER) else mean
    if len(badness) < 2:
        return set()
    return {i for i, value in badness.items() if value == min(badness.values())}


TEST_COLUMNS = ["test", "condition", "statistic", "P (Holm)", "effect", "n"]


def lines_of_tests(result: Mapping[str, Any]) -> list[list[str]]:
    """Format the statistical tests, one line each, for the columns `TEST_COLUMNS`."""
    return [
        [
            test["name"],
            str(test.get("condition") or MISSING),
            format_number(test.get("statistic"), 4),
            format_p(test.get("p_value")),
            format_number(test.get("effect")),
            format_number(test.get("n")),
        ]
        for test in result["tests"]
    ]


def describe_machine(machine: str | Mapping[str, Any]) -> str:
    """Describe the machine in one line.

    >>> describe_machine({"cpu": "EPYC", "cores": 2})
    'cpu EPYC, cores 2'
    """
    return machine if isinstance(machine, str) else ", ".join(f"{key} {value}" for key, value in machine.items())


def command_of(result: Mapping[str, Any]) -> str:
    """Return the command that reproduces this result; if none was recorded, derive it from preset and seed."""
    seed = "" if result["seed"] is None else f" --seed {result['seed']}"
    return result.get("command") or f"cst run {result['experiment']} --preset {result['preset']}{seed}"


# Console and Markdown ---------------------------------------------------------------------------------------


DETAILS = ("epochs", "steps", "parameters", "n", "± over seeds")
"""Columns that a narrow console leaves out first, in this order."""
NARROWEST = 16
"""Characters to which a narrow console may fold the names of models."""


def console_table(result: Mapping[str, Any], width: int) -> list[Table]:
    """Tables for `rich`: one per condition, with the best of each metric in bold, and one of the tests.

    Numbers are never folded. Names of models are; where this is not enough for ``width`` characters, columns are left
    out, which a line below the table names: details first, then metrics from the last one on.
    """
    tables = []
    for group in groups(result):
        last = [*group.columns[:0:-1]]
        metrics = [name for name in last[:-1] if name not in (*DETAILS, "training", "paper")]
        lines = [[Text(cell.text, style="bold" if cell.best else "") for cell in line] for line in group.lines]
        tables.append(_fitted(group.condition, group.columns, lines, (*DETAILS, *metrics, "training", "paper"), width))
    if result["tests"]:
        lines = [[Text(text) for text in line] for line in lines_of_tests(result)]
        tables.append(_fitted("tests", TEST_COLUMNS, lines, ("statistic", "n"), width, left=2))
    return tables


def _fitted(
    title: str, columns: Sequence[str], lines: list[list[Text]], spare: Sequence[str], width: int, left: int = 1
) -> Table:
    """Table of ``width`` characters, without as many ``spare`` columns as that takes; the first ``left`` may fold."""
    cells = {name: [line[i] for line in lines] for i, name in enumerate(columns)}
    widths = {name: max(map(cell_len, [*map(str, cells[name]), *name.split()])) for name in columns}
    names = columns[:left]
    folded = {name: min(widths[name], NARROWEST) for name in names}
    gone: list[str] = []
    for name in (None, *spare):
        if name in widths:
            gone.append(name)
        kept = [column for column in columns if column not in gone]
        room = width - 1 - sum(3 + (widths | folded)[column] for column in kept)  # a border and two spaces each
        if room >= 0:
            break
    for name in names:  # what is left goes to the names, the first ones first
        more = min(max(room, 0), widths[name] - folded[name])
        folded[name], room = folded[name] + more, room - more
    caption = Text(f"in the report: {', '.join(c for c in columns if c in gone)}") if gone else None
    table = Table(title=Text(title, style="italic"), title_justify="left", caption=caption, caption_justify="left")
    for name in kept:
        justify: JustifyMethod = "left" if name in names else "right"
        table.add_column(Text(name), justify=justify, overflow="fold", width=(widths | folded)[name])
    for line in zip(*(cells[name] for name in kept), strict=True):
        table.add_row(*line)
    return table


def markdown_tables(result: Mapping[str, Any]) -> str:
    """Format one result as Markdown: its command, a table per condition, the tests and the notes."""
    check_result(result)
    facts = [f"preset {result['preset']}", f"seed {format_number(result['seed'])}"]
    facts += [format_duration(result["seconds"]), describe_machine(result["machine"])]
    blocks = [f"```\n{command_of(result).replace('```', '')}\n```", escape_markdown(" · ".join(facts)) + "."]
    for group in groups(result):
        blocks += [f"**{escape_markdown(group.condition)}**", _markdown_group(group)]
    if result["tests"]:
        lines = [[escape_markdown(text) for text in line] for line in lines_of_tests(result)]
        blocks += ["**Tests**", markdown_table(TEST_COLUMNS, lines, left=2)]
    if result.get("notes"):
        blocks.append("\n".join(f"- {escape_markdown(str(note))}" for note in result["notes"]))
    return "\n\n".join(blocks) + "\n"


def condition_table(result: Mapping[str, Any], condition: str) -> str | None:
    """Format the table of one condition as Markdown; None if the result has no such condition."""
    rows = [row for row in result["table"] if row["condition"] == condition]
    return _markdown_group(_group(condition, rows)) if rows else None


def _markdown_group(group: Group) -> str:
    marks = {False: "", True: "**"}
    lines = [
        [f"{marks[cell.best]}{escape_markdown(cell.text)}{marks[cell.best]}" for cell in line] for line in group.lines
    ]
    return markdown_table(group.columns, lines, left=1)


def markdown_table(columns: Sequence[str], lines: Iterable[Sequence[str]], left: int) -> str:
    """Format a Markdown table; the first ``left`` columns are aligned left, the others right."""
    rule = [":---" if i < left else "---:" for i in range(len(columns))]
    rows = [[escape_markdown(column) for column in columns], rule, *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def escape_markdown(text: str) -> str:
    """Escape text for a Markdown cell: no column bars, HTML, emphasis or line breaks."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    for mark in "|*_`[]":
        text = text.replace(mark, "\\" + mark)
    # Keep the "<" of P values such as "< 0.0001"; no HTML tag starts with a space.
    return text.replace("&lt; ", "< ")
