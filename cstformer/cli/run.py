"""``cst run``: run an experiment, or all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cstformer.cli.common import add_command
from cstformer.errors import CSTError, unknown
from cstformer.experiments.registry import EXPERIMENTS

ALL = "all"

_ABOUT = """\
Run an experiment of the paper, or imputation: train CST and its rivals, then
write tables, figures and report.html. `all` runs every experiment and adds an
overview page.

If interrupted, run the same command again: finished models are kept."""
_EXAMPLES = """\
examples:
  see in a minute whether everything works
    cst run spirals --preset smoke
  the full comparison, into runs/spirals-default
    cst run spirals
  two of the models
    cst run spirals --models CST,transformer
  everything, with the tables in one Markdown file
    cst run all --markdown RESULTS.md"""


def add(commands: Any) -> None:
    """Declare the options of ``cst run``."""
    parser = add_command(commands, "run", "run an experiment", run, _ABOUT, _EXAMPLES)
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"{', '.join(EXPERIMENTS)} or {ALL}")
    parser.add_argument(
        "--preset",
        default="default",
        help="smoke (seconds), default (about an hour on two cores, all of them in six) or paper; "
        "imputation has long, and quick and validation, which score validation samples",
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the results (default runs/EXPERIMENT-PRESET)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default 0)")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables to this file")
    parser.add_argument("--models", metavar="A,B", help="only these models; all: every model that fits the data")
    parser.add_argument("--devices", type=int, metavar="N", help="processes that train each CST together (default 1)")
    parser.add_argument("--strategy", help="with --devices: each process keeps all weights (ddp) or a share (fsdp)")
    parser.add_argument("--quiet", action="store_true", help="show no progress bars")


def run(args: argparse.Namespace) -> int:
    """Run one experiment or all of them."""
    if args.experiment not in (*EXPERIMENTS, ALL):
        raise unknown("experiment", args.experiment, (*EXPERIMENTS, ALL))
    out = Path(args.out or f"runs/{args.experiment}-{args.preset}")
    markdown = None if args.markdown is None else Path(args.markdown)
    return (_run_all if args.experiment == ALL else _run_one)(args, out, markdown)


def _run_one(args: argparse.Namespace, out: Path, markdown: Path | None) -> int:
    from cstformer.experiments.base import run_experiment
    from cstformer.experiments.registry import load_experiment
    from cstformer.report.results_page import write_results_md
    from cstformer.training.settings import check_settings

    models = None if args.models is None else args.models.split(",")
    processes = {name: getattr(args, name) for name in ("devices", "strategy") if getattr(args, name) is not None}
    check_settings(processes)
    experiment = load_experiment(args.experiment)
    result = run_experiment(experiment, args.preset, out, args.seed, models, quiet=args.quiet, cst=processes)
    if markdown is not None:
        write_results_md([result], markdown)
    return 0


def _run_all(args: argparse.Namespace, out: Path, markdown: Path | None) -> int:
    for name in ("devices", "strategy", "models"):
        if getattr(args, name) is not None:
            raise CSTError(f"--{name} is for one experiment; leave it out with `{ALL}`")

    from cstformer.experiments.run_all import run_all

    missing = run_all(EXPERIMENTS, args.preset, out, args.seed, markdown, args.quiet)
    for written in filter(None, (out / "report.html", markdown)):
        print(f"wrote {written}")
    if missing:
        raise CSTError(f"not run: {', '.join(missing)} (the reasons are above and in the report)")
    return 0
