"""The ``cst`` command: one file for each subcommand.

Each file has ``add(commands)``, which declares the options, and ``run(args)``, which does the work and returns the exit
code. Files import numerical libraries inside ``run`` only, so that ``cst --help`` answers at once. Bad input ends with
exit code 2 and one line on standard error.
"""

from __future__ import annotations

import sys
import warnings

from cstformer import __version__
from cstformer.cli import bench, data, explore, fit, models, predict, report, run
from cstformer.cli.common import Parser, unknown_option
from cstformer.errors import CSTError

COMMANDS = (fit, predict, data, run, report, explore, bench, models)
"""Modules of the subcommands, in the order of ``cst --help``."""

_DESCRIPTION = """\
Continuous Spatiotemporal Transformer: learn continuous dynamics from noisy,
sparse, irregular samples, then predict values and derivatives at any
coordinate."""
_EPILOG = """\
first steps:
  cst data make spirals --curves 50 --observed 20 --out curves.csv
  cst data show curves.csv
  cst fit curves.csv --out model --max-minutes 5
  cst predict model curves.csv --at 0.25,0.5 --out answers.csv

`cst COMMAND --help` explains a command and shows examples."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 success, 2 bad input, 130 interrupted."""
    warnings.showwarning = lambda message, *_, **__: print(f"cst: warning: {message}", file=sys.stderr)
    args, extra = build_parser().parse_known_args(argv)
    try:
        if extra:
            raise unknown_option(extra[0], args.parser)
        return args.run(args)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        return 0
    except (CSTError, OSError) as error:
        print(f"cst: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cst: interrupted; completed work is saved, run the same command again to continue", file=sys.stderr)
        return 130


def build_parser() -> Parser:
    """Return the parser of ``cst`` with all subcommands."""
    parser = Parser(prog="cst", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"cstformer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser
