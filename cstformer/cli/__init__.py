"""The ``cst`` command: one file for each subcommand.

Each file has ``add(commands)``, which declares the options, and ``run(args)``, which does the work and returns the exit
code. Files import numerical libraries inside ``run`` only, so that ``cst --help`` answers at once. Bad input ends with
exit code 2 and one line on standard error.
"""

from __future__ import annotations

import sys
import warnings

from cstformer import __version__
from cstformer.cli import bench, data, evaluate, explore, fit, models, plot, predict, report, run
from cstformer.cli.common import Parser, in_options, unknown_option
from cstformer.errors import CSTError, CSTWarning
from cstformer.system.extras import missing, need
from cstformer.system.output import lost_output, use_lossy_output

COMMANDS = (fit, predict, evaluate, plot, data, run, report, explore, bench, models)
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
    use_lossy_output()
    args, extra = build_parser().parse_known_args(argv)
    tell = lambda message: in_options(str(message), args.parser)  # noqa: E731
    shown: set[str] = set()  # rivals repeat what the first model warned of

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if (text := tell(message)) not in shown:
            shown.add(text)
            print(f"cst: warning: {text}", file=sys.stderr)

    warnings.showwarning = show
    try:
        if extra:
            raise unknown_option(extra[0], args.parser)
        if getattr(args, "scheduler", None) is not None:
            need("distributed", for_what="--scheduler")  # before a command makes its output
        code = args.run(args)
        if reason := lost_output():
            print(f"cst: warning: standard output was lost ({reason})", file=sys.stderr)
        return code
    except CSTWarning as error:
        print(f"cst: error: {tell(error)} (--strict makes this warning an error)", file=sys.stderr)
        return 2
    except (CSTError, OSError) as error:
        print(f"cst: error: {tell(error)}", file=sys.stderr)
        return 2
    except MemoryError:
        print("cst: error: there is not enough memory; read fewer samples or a smaller part", file=sys.stderr)
        return 2
    except ImportError as error:
        remedy = missing(error, "this command")
        if remedy is None:
            raise
        print(f"cst: error: {remedy}", file=sys.stderr)
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
