"""``cst data preprocess-calcium``: from the raw frames of a widefield recording to z-scored neural activity."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from cstformer.cli.common import add_command, add_overwrite, whole_numbers
from cstformer.cli.make_data import add_cluster
from cstformer.cli.movies import FORMATS
from cstformer.errors import CSTError

if TYPE_CHECKING:
    import numpy as np

_ABOUT = """\
Preprocess a widefield calcium recording: bin and crop the frames, compute
ΔF/F, remove hemodynamics with the control colour, z-score each pixel.

The command must know three things. Give only what RAW does not say itself:
  colours  --signal NM is the calcium signal. --control NM is the colour that
           shows hemodynamics alone. If the lamps take turns, --wavelengths
           gives their order. With one colour there is no control:
           --signal 470 --correction none.
  clock    --times FILE has the seconds of each raw frame (TTL pulses), or
           --rate HZ. Every frame keeps its own time; dropped frames stay
           missing.
  cortex   --mask auto finds the bright region."""
_EXAMPLES = """\
examples:
  one colour, no control
    cst data preprocess-calcium movie.tif --signal 470 --correction none --rate 30 --out clean.zarr
  GCaMP: blue and violet frames in turn, 60 raw frames per second
    cst data preprocess-calcium raw.tif --wavelengths 470,405 --signal 470 --control 405 --rate 60 --out clean.zarr
  jRCaMP1b as in the paper: 575 nm and 395 nm, the defaults
    cst data preprocess-calcium frames/ --wavelengths 575,395 --rate 20 --out clean.zarr
  NWB with a series for each colour, which knows wavelengths and times
    cst data preprocess-calcium recording.nwb --signal 470 --control 405 --out clean.zarr
  find the cortex, and store 10 principal components as well
    cst data preprocess-calcium raw.zarr --out clean.zarr --mask auto --components 10
then:
  cst fit clean.zarr --patch 23,16 --window 10 --out model"""


def add(commands: Any) -> None:
    """Declare the options of ``cst data preprocess-calcium``."""
    summary = "preprocess a widefield calcium recording"
    parser = add_command(commands, "preprocess-calcium", summary, run, _ABOUT, _EXAMPLES)
    parser.add_argument("raw", metavar="RAW", help=f"{FORMATS}, mat (v7.3)")
    parser.add_argument("--out", required=True, metavar="FILE", help="Zarr directory to write")
    reading = parser.add_argument_group("reading RAW (only what the file does not say itself)")
    reading.add_argument(
        "--key", metavar="NAME", help="array or NWB series with the frames; A,B if each of two colours has its own"
    )
    reading.add_argument(
        "--wavelengths", metavar="A,B", help="colours in nm, in the order of the frames (or of --key), such as 470,405"
    )
    reading.add_argument("--rate", type=float, metavar="HZ", help="raw frames per second, all colours together")
    reading.add_argument(
        "--times",
        metavar="FILE",
        help="seconds of each raw frame (csv, txt, npy), or the camera's counter in a column `frame`, with --rate",
    )
    reading.add_argument("--pixel-mm", type=float, metavar="MM", help="side of a raw pixel in mm")
    reading.add_argument("--stimuli", metavar="FILE", help="table with the columns start, stop, contrast")
    steps = parser.add_argument_group("processing")
    steps.add_argument("--signal", type=int, default=575, metavar="NM", help="colour of the signal (default 575)")
    steps.add_argument("--control", type=int, default=395, metavar="NM", help="colour of the control (default 395)")
    steps.add_argument("--bin", type=int, default=2, metavar="N", help="average squares of N × N pixels (default 2)")
    steps.add_argument(
        "--crop",
        metavar="T,B,L,R",
        help="pixels to cut from top, bottom, left, right after binning (default: 32,40,24,24 if frames are "
        "256 × 256, else none)",
    )
    steps.add_argument("--mask", help="auto, none, or an .npy of bool (default: the mask of RAW)")
    steps.add_argument("--baseline", default="smooth", help="smooth (default) or literal (the paper's 100 taps)")
    steps.add_argument(
        "--cutoff", type=float, default=0.001, metavar="HZ", help="cut-off frequency of the baseline (default 0.001)"
    )
    steps.add_argument(
        "--correction", default="estimator", help="estimator (default), regression, or none, which needs no control"
    )
    steps.add_argument("--components", type=int, default=0, metavar="K", help="also store K principal components")
    add_overwrite(parser)
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Preprocess a recording."""
    from cstformer.data.clocks import load_times
    from cstformer.datasets.calcium.reading import open_recording, read_stimuli, require

    require("dask", "zarr")  # before the next line imports them, for an error that says what to install
    from cstformer.datasets.calcium.preprocess import MARK, Preprocessing, preprocess
    from cstformer.system.targets import check_output

    check_output(args.out, MARK, (args.raw, args.times, args.stimuli, args.mask), args.overwrite)
    settings = Preprocessing(
        signal=args.signal,
        control=args.control,
        binning=args.bin,
        crop=_crop(args.crop),
        baseline=args.baseline,
        cutoff=args.cutoff,
        correction=args.correction,
        components=args.components,
    )
    recording = open_recording(
        args.raw,
        key=args.key,
        wavelengths=None if args.wavelengths is None else whole_numbers(args.wavelengths, "--wavelengths"),
        only=args.signal if args.correction == "none" else None,
        rate=args.rate,
        times=None if args.times is None else load_times(args.times, args.rate),
        pixel_mm=args.pixel_mm,
        stimuli=None if args.stimuli is None else read_stimuli(args.stimuli),
    )
    _check_colours(args, list(recording.channels))
    if not args.quiet:
        print(recording.describe())
    options = {"progress": not args.quiet, "scheduler": args.scheduler}
    done = preprocess(recording, args.out, settings, mask=_mask(args.mask), **options)
    if not args.quiet:
        size = f"{done['frames']} frames of {done['height']} × {done['width']} at {done['rate']:.4g} Hz"
        print(f"wrote {args.out}: {size}, {done['pixels']} pixels of cortex, {done['dropped']} frames missing")
    return 0


def _check_colours(args: argparse.Namespace, found: list[int]) -> None:
    """Refuse colours that the recording does not have, with the command for those that it has."""
    wanted = [args.signal] if args.correction == "none" else [args.signal, args.control]
    missing = [nm for nm in wanted if nm not in found]
    if not missing:
        return
    # Controls are usually excited at shorter wavelengths: 405 nm for GCaMP, 395 nm for jRCaMP1b.
    signal = args.signal if args.signal in found else max(found)
    rest = [nm for nm in found if nm != signal]
    changes = {"signal": signal, **({"control": rest[0]} if rest else {"correction": "none"})}
    have, lack = (" and ".join(map(str, some)) for some in (found, missing))
    raise CSTError(
        f"{args.raw} has frames at {have} nm, none at {lack} nm; if {signal} nm is the signal, run: "
        f"{_command(args, changes)}"
    )


def _command(args: argparse.Namespace, changes: dict[str, Any]) -> str:
    """The command line of these arguments, with some of them changed."""
    words = [*args.parser.prog.split(), args.raw]
    for action in args.parser._actions:
        value = changes.get(action.dest, getattr(args, action.dest, None))
        if action.option_strings and (action.dest in changes or value not in (None, False, action.default)):
            words += [action.option_strings[-1], *([] if value is True else [str(value)])]
    return shlex.join(words)


def _crop(text: str | None) -> tuple[int, int, int, int] | None:
    if text is None:
        return None
    top, bottom, left, right = whole_numbers(text, "--crop", 4, "pixels to cut from top, bottom, left, right")
    return top, bottom, left, right


def _mask(text: str | None) -> np.ndarray | str | None:
    """Mask of an .npy file; other words are for `preprocess`."""
    import numpy as np

    from cstformer.system.files import readable

    if text is None or not text.endswith(".npy"):
        return text
    with readable(text, "a mask") as source:
        return np.load(source, allow_pickle=False)
