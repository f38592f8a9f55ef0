"""``cst report``: the HTML page of a run, from its results on disk."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cstformer.cli.common import add_command
from cstformer.errors import CSTError
from cstformer.experiments.registry import EXPERIMENTS

_ABOUT = """\
Write report.html into the directory of a run: one self-contained page with
its tables, tests and figures. `cst run` does so too; use this command after
an upgrade, or to collect the tables of several runs.

With --site, keep the numbers of the RUNs in the folder results/ of a checkout
of cstformer, and make RESULTS.md and the numbers in README.md and docs/ from
all that is kept there."""
_EXAMPLES = """\
examples:
  cst report runs/spirals-default
  cst report runs/spirals-default runs/video-default --markdown RESULTS.md
  cst report runs/all-default --site .
  cst report --site ."""


def add(commands: Any) -> None:
    """Declare the options of ``cst report``."""
    parser = add_command(commands, "report", "write the HTML report of a run", run, _ABOUT, _EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="directory written by `cst run`, also by `cst run all`")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables of all RUNs to this file")
    parser.add_argument("--site", metavar="DIR", help="keep results in DIR/results and make the pages of DIR from them")


def run(args: argparse.Namespace) -> int:
    """Write the pages, and the tables if asked."""
    from cstformer.report.page import results_in, write_overview, write_report
    from cstformer.report.results_page import write_results_md
    from cstformer.report.tables import load_result

    if not args.runs and not args.site:
        raise CSTError("give at least one RUN, or --site DIR")
    runs: list[Path] = []
    for folder in map(Path, args.runs):
        inside = [] if (folder / "result.json").exists() else results_in(folder)  # the runs of `cst run all`
        for each in inside or [folder]:
            print(f"wrote {write_report(each)}")
        if inside:
            print(f"wrote {write_overview(folder)}")
        runs += inside or [folder]
    if args.markdown:
        print(f"wrote {write_results_md([load_result(each) for each in runs], args.markdown)}")
    if args.site:
        from cstformer.report.site import keep_result, write_site

        for path in [keep_result(each, Path(args.site)) for each in runs]:
            print(f"wrote {path}")
        for path in write_site(Path(args.site), {name: f"cst run {name}" for name in EXPERIMENTS}):
            print(f"wrote {path}")
    return 0
