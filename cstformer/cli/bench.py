"""``cst bench``: measure speed and memory on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer import benchmarks
from cstformer.cli.common import add_command

_ABOUT = """\
Measure speed and memory on this machine. Each benchmark compares the package
with a plain reference, or one size with another, in the same run."""
_EXAMPLES = """\
examples:
  cst bench --quick
  cst bench --only step,queries --out bench.json
  cst bench --only scaling --figure scaling.png --out bench.json"""


def add(commands: Any) -> None:
    """Declare the options of ``cst bench``."""
    parser = add_command(commands, "bench", "measure speed and memory", run, _ABOUT, _EXAMPLES)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, about two minutes in all")
    parser.add_argument("--only", metavar="A,B", help=f"only these of {', '.join(benchmarks.BENCHMARKS)}")
    parser.add_argument("--out", metavar="FILE", help="JSON file; results of other benchmarks in it are kept")
    parser.add_argument("--markdown", metavar="FILE", help="also write all tables to this file")
    parser.add_argument("--figure", metavar="FILE", help="also draw the benchmark `scaling` as PNG")


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmarks one after another."""
    from rich.console import Console

    from cstformer.experiments.base import machine
    from cstformer.report.benchmarks import (
        console_benchmark,
        read_benchmarks,
        write_benchmarks,
        write_benchmarks_md,
    )
    from cstformer.system.versions import versions

    names = benchmarks.chosen(args.only.split(",") if args.only else None)
    rows = read_benchmarks(args.out) if args.out else []
    command = "cst bench --quick" if args.quick else "cst bench"
    facts = {"command": command, "versions": versions(), "machine": machine()}
    console = Console()
    for name in names:
        with console.status(f"measuring: {name}"):
            measured = benchmarks.run_benchmark(name, args.quick)
        console.print(console_benchmark(name, measured))
        rows = [row for row in rows if row["benchmark"] != name] + measured
        if args.out:  # after each benchmark, so that an interruption loses nothing
            write_benchmarks(args.out, rows, facts)
    if args.markdown:
        write_benchmarks_md(args.markdown, rows, facts)
    if args.figure:
        from cstformer.report.scaling import scaling_figure
        from cstformer.report.style import save_figure

        save_figure(scaling_figure([row for row in rows if row["benchmark"] == "scaling"]), args.figure)
    for written in filter(None, (args.out, args.markdown, args.figure)):
        print(f"wrote {written}")
    return 0
