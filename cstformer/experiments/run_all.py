"""``cst run all``: every experiment in a folder of its own, and one page with all of them.

Finished experiments are not run again. One that cannot run, e.g. because its data are missing, is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cstformer.errors import CSTError, unknown
from cstformer.experiments.base import run_experiment
from cstformer.experiments.registry import load_experiment
from cstformer.report.page import results_in, write_overview
from cstformer.report.results_page import write_results_md
from cstformer.report.tables import load_result


def run_all(
    names: Sequence[str],
    preset: str,
    out: Path,
    seed: int = 0,
    markdown: Path | None = None,
    quiet: bool = False,
) -> dict[str, str]:
    """Run each experiment in ``out/name``; return the reasons of those that could not run, by name.

    ``markdown`` is a file for all tables, such as RESULTS.md. It and the page ``out/report.html`` are written after
    each experiment, so that an interrupted run has them too.
    """
    experiments = {name: load_experiment(name) for name in names}
    if not any(preset in experiment.presets for experiment in experiments.values()):
        raise unknown("preset", preset, dict.fromkeys(p for e in experiments.values() for p in e.presets))
    missing: dict[str, str] = {}
    console = Console(stderr=True)
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, experiment) in enumerate(experiments.items(), 1):
        if not quiet:
            console.rule(f"{name} ({number} of {len(experiments)})", align="left")
        try:
            run_experiment(experiment, preset, out / name, seed, quiet=quiet)
        except CSTError as error:
            missing[name] = str(error)
            console.print(f"{name} was not run: {error}", style="yellow", highlight=False, markup=False)
        write_overview(out, missing)
        if markdown is not None and (runs := results_in(out)):
            write_results_md([load_result(run) for run in runs], markdown)
    return missing
