"""``cst data``: describe a file, generate a data set, preprocess a recording."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer.cli import make_data, preprocess_calcium
from cstformer.cli.common import add_columns, add_command, add_group, columns

_ABOUT = """\
Describe a file of samples or a movie: how many samples and points, which
coordinates, values and covariates, their ranges and units, what is missing."""
_EXAMPLES = """\
examples:
  cst data show curves.csv
  cst data show table.csv --coords when --values voltage,current
  cst data show patients.csv --covariates age,site
  cst data show movie.tif"""


def add(commands: Any) -> None:
    """Declare ``cst data`` and its subcommands."""
    kinds = add_group(commands, "data", "describe, generate or preprocess data files", "commands", "COMMAND")
    show = add_command(kinds, "show", "describe a file", run, _ABOUT, _EXAMPLES)
    show.add_argument("file", metavar="FILE", help="samples or a movie, of any kind that `cst fit` reads")
    add_columns(show, known=True)
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
        print(_describe_movie(args.file))
    else:
        print(Samples.load(args.file, **columns(args)).describe())
    return 0


def _describe_movie(path: str) -> str:
    import numpy as np

    from cstformer.data.movie_files import load_movie

    movie, times = load_movie(path)
    clock = "no times" if times is None else f"times {times[0]:g} to {times[-1]:g}"
    return (
        f"movie of {len(movie)} frames of {' × '.join(map(str, movie.shape[1:]))} ({movie.dtype}), {clock}\n"
        f"values {np.nanmin(movie):.4g} to {np.nanmax(movie):.4g}\n"
        f"next: cst fit {path} --out model --patch 8,8 --window 10 --stride 5"
    )
