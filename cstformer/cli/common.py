"""What the subcommands share: the parser with one-line errors, and the reading of option values."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
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
    """Add the options that say how to read a table or a grid; if asked, what is known besides."""
    parser.add_argument("--coords", metavar="A,B", help="coordinate columns of a table, or dimensions of a grid")
    parser.add_argument("--values", metavar="A,B", help="value columns of a table, or variables of a grid")
    parser.add_argument(
        "--sample",
        metavar="NAME",
        help="column that names the samples of a table (default sample, if there is one); none: one sample",
    )
    parser.add_argument("--separator", metavar="MARK", help="between the cells of a text table: , ; tab or space")
    parser.add_argument("--decimal", choices=[".", ","], help="decimal mark of a text table")
    parser.add_argument(
        "--missing", metavar="A,B", help="words or numbers that mean a missing value, such as --missing=-999"
    )
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


def add_windows(parser: Parser, window: str) -> None:
    """Add --window, --stride and --relative; ``window`` is the help of the first."""
    parser.add_argument("--window", type=float, metavar="LENGTH", help=window)
    parser.add_argument("--stride", type=float, metavar="STEP", help="step between windows (default: half a window)")
    parser.add_argument(
        "--relative",
        action="store_true",
        help="the first coordinate, such as time, counts from the first point of each sample; for samples on clocks "
        "of their own. The model remembers it: --at and answers of `cst predict` count so too",
    )


def add_overwrite(parser: Parser) -> None:
    """Add --overwrite, for commands that write folders."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a folder that an earlier call of this command wrote"
    )


SEPARATORS = {"tab": "\t", "\\t": "\t", "space": r"\s+", "comma": ",", "semicolon": ";"}


def text_format(args: argparse.Namespace) -> Any:
    """The format of text tables from --separator, --decimal and --missing."""
    from cstformer.data.table_files import TextFormat

    separator = None if args.separator is None else SEPARATORS.get(args.separator, args.separator)
    if separator is not None and len(separator) != 1 and separator not in SEPARATORS.values():
        raise CSTError(f"--separator {args.separator}: give one character, or tab or space")
    return TextFormat(separator, args.decimal, args.missing.split(",") if args.missing else ())


def columns(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `Samples.load` from the options of `add_columns`."""
    names = ("coords", "values", "covariates", "calendar")
    chosen: dict[str, Any] = {name: getattr(args, name).split(",") for name in names if getattr(args, name, None)}
    if args.sample is not None:
        chosen["group"] = False if args.sample == "none" else args.sample
    return chosen | {"form": text_format(args)}


def in_options(message: str, parser: Parser) -> str:
    """A message about arguments of Python in terms of the options of a command.

    >>> parser = Parser(prog="cst")
    >>> add_columns(parser)
    >>> in_options("no column 'a'; say group='b', group=False, coords=[...] or values= (--values)", parser)
    "no column 'a'; say --sample b, --sample none, --coords or --values"
    """
    message = re.sub(r"\b\w+= \((--[\w-]+)\)", r"\1", message)  # both are named
    message = re.sub(r" in \w+= (?=')", " ", message)  # unknown column in values= 'x'
    message = re.sub(r"\bgroup=(?:'([^']*)'|False)", lambda m: f"--sample {shlex.quote(m[1] or 'none')}", message)
    message = message.replace("samples.windows(length, stride) (--window)", "--window")

    def option(match: re.Match[str]) -> str:
        name = "--sample" if match[1] == "group" else f"--{match[1].replace('_', '-')}"
        if name not in parser._option_string_actions:
            return match[0]
        value = (match[2] or "").strip("'")
        return name if value in ("", "[...]", "True") else f"{name} {shlex.quote(value)}"

    return re.sub(r"(?<![\w.-])([a-z_]+)=(\[[^\]]*\]|'[^']*'|[\w.-]*\w)?", option, message)


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
