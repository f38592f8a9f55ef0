"""What the subcommands share: the parser with one-line errors, and the reading of option values."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import Any, NoReturn

from cstformer.errors import CSTError


class Parser(argparse.ArgumentParser):
    """ArgumentParser that reports an error in one line and keeps the line breaks of its texts."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print one line on standard error and exit with code 2."""
        if message.endswith("expected one argument"):
            message += "; write a value that begins with a minus sign as --option=-1"
        self.exit(2, f"cst: error: {message} (see `{self.prog} --help`)\n")


def add_command(
    commands: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int], about: str, examples: str = ""
) -> Parser:
    """Add a subcommand that calls ``run``; ``summary`` stands in the list of commands, ``about`` in its own help."""
    parser: Parser = commands.add_parser(name, help=summary, description=about, epilog=examples)
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_group(commands: Any, name: str, summary: str, title: str, metavar: str) -> Any:
    """Add a command that only holds subcommands, and return what they are added to."""
    parser: Parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    return parser.add_subparsers(title=title, required=True, metavar=metavar)


def unknown_option(option: str, parser: Parser) -> CSTError:
    """Error for an option that the command does not have, with the nearest one that it has."""
    known = sorted(o for o in parser._option_string_actions if o.startswith("--"))
    near = difflib.get_close_matches(option.split("=")[0], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return CSTError(f"unknown option {option}{hint} (see `{parser.prog} --help`)")


def add_columns(parser: Parser, known: bool = False) -> None:
    """Add --coords and --values, which choose what to read from a table or a grid; if asked, what is known besides."""
    parser.add_argument("--coords", metavar="A,B", help="coordinate columns of a table, or dimensions of a grid")
    parser.add_argument("--values", metavar="A,B", help="value columns of a table, or variables of a grid")
    if known:
        parser.add_argument(
            "--covariates",
            metavar="A,B",
            help="columns that are constant in each sample and known everywhere, such as age,site; text becomes "
            "categories",
        )
        parser.add_argument(
            "--calendar",
            metavar="A,B",
            help="what the model sees of dates: hour (of the day), weekday, day (of the year)",
        )


def columns(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `Samples.load` from --coords, --values, --covariates and --calendar."""
    names = ("coords", "values", "covariates", "calendar")
    return {name: getattr(args, name).split(",") for name in names if getattr(args, name, None)}


def whole_numbers(text: str, option: str, count: int | None = None, meaning: str = "") -> tuple[int, ...]:
    """Read integers separated by commas.

    >>> whole_numbers("8,8", "--patch", 2)
    (8, 8)
    """
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or (count is not None and len(numbers) != count):
        how_many = "" if count is None else f"{count} "
        raise CSTError(
            f"{option} {text}: give {how_many}whole numbers separated by commas{meaning and f' ({meaning})'}"
        )
    return numbers
