"""``cst data``: describe a file, generate a data set, preprocess a recording."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from cstformer.cli import make_data, preprocess_calcium
from cstformer.cli.common import add_columns, add_command, add_group, columns, text_format
from cstformer.cli.movies import add_movie, is_recording, movie_options, preprocess_command

LONG = 200
"""Points of a single sample from which on the next command cuts it into windows."""
_ABOUT = """\
Describe a file of samples, a movie or a file of queries: how many samples and
points, which coordinates, values and covariates, their ranges and units, what
is missing; and the command to use next."""
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
    from cstformer.datasets.navier_stokes_reader import Solutions, is_navier_stokes

    if is_navier_stokes(args.file):
        print(Solutions(args.file).describe())
    elif is_movie(args.file) or (_is_grid(args.file) and _is_gridded_movie(args)):
        print(_describe_movie(args))
    elif (queries := _describe_queries(args)) is not None:
        print(queries)
    else:
        print(_describe_samples(args))
    return 0


def _is_grid(path: str) -> bool:
    from cstformer.data.table_files import file_suffix

    return file_suffix(path) in (".nc", ".zarr") and Path(path).exists()


def _is_gridded_movie(args: argparse.Namespace) -> bool:
    """Whether a NetCDF file or a Zarr group has an array of frames, and neither samples nor a choice of columns."""
    from cstformer.data.grids import is_gridded_movie

    chosen = args.coords or args.values or args.covariates
    return not chosen and (args.key is not None or is_gridded_movie(Path(args.file)))


def _describe_queries(args: argparse.Namespace) -> str | None:
    """What is in a file of queries, which has coordinates and no values; None for other files."""
    import numpy as np

    from cstformer.data.queries import query_coordinates

    if args.values or not Path(args.file).exists():
        return None
    found = query_coordinates(args.file, text_format(args), columns(args).get("group"))
    if found is None:
        return None
    tell = lambda x: f"{x:.6g}" if isinstance(x, float) else np.datetime_as_string(x, unit="s")  # noqa: E731
    ranges = [f"coordinate {name}: {tell(np.nanmin(x))} to {tell(np.nanmax(x))}" for name, x in found.items()]
    count = len(next(iter(found.values())))
    ask = f"cst predict MODEL CONTEXT --at {shlex.quote(args.file)} --out answers.csv"
    return "\n".join([f"{count} queries: coordinates without values", *ranges, f"next: {ask}"])


def _describe_samples(args: argparse.Namespace) -> str:
    """What is in a file of samples, and the command that trains on it."""
    import numpy as np

    from cstformer.data.samples import Samples

    samples = Samples.load(args.file, **columns(args))
    words = ["cst", "fit", args.file, "--out", "model"]
    for option in ("coords", "values", "sample", "covariates", "calendar", "separator", "decimal", "missing"):
        if text := getattr(args, option):
            words += [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]
    here = np.unique(samples.coords[0, samples.point_observed[0], 0])
    if len(samples) == 1 and samples.d == 1 and len(here) > LONG:  # one recording: windows of about 30 points
        words += ["--window", f"{30 * np.median(np.diff(here)):.2g}"]
    return f"{samples.describe()}\nnext: {shlex.join(words)}"


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
    key = f" --key {args.key}" if args.key else ""
    return f"{text}\nnext: cst fit {shlex.quote(args.file)} --out model{key} --patch 8,8 --window 10 --stride 5"


def _describe_array(args: argparse.Namespace, key: str | None) -> tuple[str, int]:
    """What is in a movie, and its number of colours; the values are those of a hundred frames."""
    import numpy as np

    from cstformer.data.clocks import describe_clock
    from cstformer.data.movie_files import one_colour, open_movie
    from cstformer.data.unread import check_frames

    options = movie_options(args)
    movie, times = one_colour(*open_movie(args.file, key), *(options[name] for name in ("channel", "times", "rate")))
    check_frames(args.file, movie)
    some = np.unique(np.linspace(0, len(movie) - 1, 100).round().astype(int))
    frames = (movie[int(i)] for i in some)  # one at a time: a hundred may be gigabytes
    ranges = [(np.nanmin(frame), np.nanmax(frame)) for frame in frames if not np.isnan(frame).all()]
    where = "" if len(some) == len(movie) else f" in {len(some)} frames"
    size = f"{len(movie)} frames of {' × '.join(map(str, movie.shape[1:]))} ({movie.dtype})"
    low, high = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else (np.nan, np.nan)
    values = f"values {low:.4g} to {high:.4g}{where}"
    return f"movie of {size}, {describe_clock(times)}\n{values}", movie.shape[3] if movie.ndim == 4 else 1
