"""Options of the commands that read a movie: which array of the file, which colour, and when the frames were taken."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from cstformer.cli.common import Parser
from cstformer.errors import CSTError

FORMATS = "tif or a folder of tif, nwb, dat of wfield, folder with U.npy and SVT.npy, npz, npy, zarr, h5"
"""The files of movies, for help."""


def add_movie(parser: Parser) -> None:
    """Add --key, --channel, --times and --rate."""
    group = parser.add_argument_group("reading a movie (only what the file does not say itself)")
    group.add_argument("--key", metavar="NAME", help="array or NWB series that is the movie; SVT or SVTcorr")
    group.add_argument("--channel", metavar="N", help="colour to read, from 0, if the movie has several; or all")
    group.add_argument(
        "--times",
        metavar="FILE",
        help="times of the frames in seconds (csv, txt, npy): one per frame, or one per raw frame of alternating "
        "colours; or the camera's counter in a column `frame`, with --rate",
    )
    group.add_argument("--rate", type=float, metavar="HZ", help="frames per second, if the file has no times")


def movie_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `load_movie` and `LazyFrames` from the options."""
    from cstformer.data.clocks import load_times

    channel = args.channel if args.channel not in (None, "all") else None
    if channel is not None and not channel.isdigit():
        raise CSTError(f"--channel {args.channel}: give a number from 0, or all")
    return {
        "key": args.key,
        "channel": None if channel is None else int(channel),
        "times": None if args.times is None else load_times(args.times, args.rate),
        "rate": args.rate,
    }


def is_recording(path: str) -> bool:
    """Whether a file is of a kind in which two colours are two lamps that took turns."""
    from cstformer.data.movie_files import CAMERA_KINDS
    from cstformer.data.movie_formats import file_kind

    return file_kind(path) in CAMERA_KINDS


def preprocess_command(path: str) -> str:
    """What to type in order to remove the hemodynamics from a recording of two colours."""
    return (
        f"cst data preprocess-calcium {shlex.quote(str(path))} "
        "--wavelengths 470,405 --signal 470 --control 405 --out clean.zarr"
    )


def refuse_two_colours(path: str, channels: int, args: argparse.Namespace) -> None:
    """Refuse to train on two lamps that took turns, unless the user chose a colour or all."""
    if args.channel is None and channels == 2 and is_recording(path):
        raise CSTError(
            f"{path} has two colours; remove the hemodynamics first ({preprocess_command(path)}), "
            "or train on one colour as it is: --channel 0 or 1, or on both: --channel all"
        )
