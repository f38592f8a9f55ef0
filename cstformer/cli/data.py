"""``cst data``: describe a file, generate a data set, preprocess a recording."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer.cli import make_data, preprocess_calcium
from cstformer.cli.common import add_columns, add_command, add_group, columns
from cstformer.cli.movies import add_movie, is_recording, movie_options, preprocess_command

_ABOUT = """\
Describe a file of samples or a movie: how many samples and points, which
coordinates, values and covariates, their ranges and units, what is missing."""
_EXAMPLES = """\
examples:
  cst data show curves.csv
  cst data show table.csv --coords when --values voltage,current
  cst data show patients.csv --covariates age,site
  cst data show movie.tif
  cst data show cortex_2_540_640_uint16.dat --times pulses.csv"""


def add(commands: Any) -> None:
    """Declare ``cst data`` and its subcommands."""
    kinds = add_group(commands, "data", "describe, generate or preprocess data files", "commands", "COMMAND")
    show = add_command(kinds, "show", "describe a file", run, _ABOUT, _EXAMPLES)
    show.add_argument("file", metavar="FILE", help="samples or a movie, of any kind that `cst fit` reads")
    add_columns(show, known=True)
    add_movie(show)
    make_data.add(kinds)
    preprocess_calcium.add(kinds)


def run(args: argparse.Namespace) -> int:
    """Describe a file."""
    from cstformer.data.movie_files import is_movie
    from cstformer.data.samples import Samples
    from cstformer.datasets.navier_stokes_reader import Solutions, is_navier_stokes

    if is_navier_stokes(args.file):
        print(Solutions(args.file).describe())
    elif is_movie(args.file):
        print(_describe_movie(args))
    else:
        print(Samples.load(args.file, **columns(args)).describe())
    return 0


def _describe_movie(args: argparse.Namespace) -> str:
    from cstformer.data.movie_files import movie_names

    names = [args.key] if args.key else movie_names(args.file)
    if len(names) < 2:
        text, colours = _describe_array(args, args.key)
    else:
        told = [_describe_array(args, name) for name in names]
        text = "\n".join(f"{name}: {about}" for name, (about, _) in zip(names, told, strict=True))
        colours = len(names)
    if colours == 2 and is_recording(args.file):
        return f"{text}\nnext: {preprocess_command(args.file)}"
    return f"{text}\nnext: cst fit {args.file} --out model --patch 8,8 --window 10 --stride 5"


def _describe_array(args: argparse.Namespace, key: str | None) -> tuple[str, int]:
    """What is in a movie, and its number of colours; the values are those of a hundred frames."""
    import numpy as np

    from cstformer.data.clocks import describe_clock
    from cstformer.data.movie_files import one_colour, open_movie

    options = movie_options(args)
    movie, times = one_colour(*open_movie(args.file, key), *(options[name] for name in ("channel", "times", "rate")))
    some = np.unique(np.linspace(0, len(movie) - 1, 100).round().astype(int))
    read = np.stack([movie[int(i)] for i in some])
    where = "" if len(some) == len(movie) else f" in {len(some)} frames"
    size = f"{len(movie)} frames of {' × '.join(map(str, movie.shape[1:]))} ({movie.dtype})"
    values = f"values {np.nanmin(read):.4g} to {np.nanmax(read):.4g}{where}"
    return f"movie of {size}, {describe_clock(times)}\n{values}", movie.shape[3] if movie.ndim == 4 else 1
