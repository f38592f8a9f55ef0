"""``cst models``: sizes of the models next to the paper's, and what their training costs."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer.cli.common import add_command

_ABOUT = """\
Print the number of trainable parameters of each model next to the paper's.
With --cost, estimate what it takes to train CST on a long recording."""
_EXAMPLES = """\
examples:
  cst models --experiment spirals
  operations, memory and traffic for 100 hours of frames on 8 processes
    cst models --cost --experiment calcium --hours 100 --processes 8
  the same in hours, if a process sustains 200 GFLOP/s
    cst models --cost --hours 100 --processes 8 --speed 200"""


def add(commands: Any) -> None:
    """Declare the options of ``cst models``."""
    summary = "print model sizes and the cost of training"
    parser = add_command(commands, "models", summary, run, _ABOUT, _EXAMPLES)
    parser.add_argument("--experiment", metavar="NAME", help="only spirals, video, navier-stokes or calcium")
    cost = parser.add_argument_group("cost of training")
    cost.add_argument("--cost", action="store_true", help="estimate it (default experiment: calcium)")
    cost.add_argument("--hours", type=float, default=100.0, metavar="T", help="length of the recording (default 100)")
    cost.add_argument("--processes", type=int, default=1, metavar="N", help="processes that share a batch (default 1)")
    cost.add_argument(
        "--strategy", default="ddp", help="each process keeps all weights (ddp, default) or a share (fsdp)"
    )
    cost.add_argument("--speed", type=float, metavar="GFLOPS", help="10⁹ operations per second of one process")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    from rich.console import Console

    from cstformer.experiments.parameters import cost_table, parameter_tables
    from cstformer.training.settings import check_settings

    if args.cost:
        check_settings({"strategy": args.strategy})
        numbers = (args.hours, args.processes, args.strategy, args.speed)
        Console().print(cost_table(args.experiment or "calcium", *numbers))
        return 0
    for table in parameter_tables(args.experiment):
        Console().print(table)
    return 0
