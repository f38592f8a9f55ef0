"""``cst data make calcium`` and ``cst data preprocess-calcium``: their options, and what they do."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from cstformer.errors import CSTError

_EXAMPLES = """examples:
  cst data preprocess-calcium recording.nwb --out clean.zarr
  cst data preprocess-calcium frames/ --wavelengths 575,395 --rate 20 --out clean.zarr    (folder of TIFF files)
  cst data preprocess-calcium raw.zarr --out clean.zarr --mask auto --components 10
then:
  cst fit clean.zarr --patch 23,16 --window 10 --out model"""


def add_make(sets: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Options of ``cst data make calcium``."""
    parser = command(sets, "calcium", "a simulated two-channel widefield recording whose truth is known", make)
    parser.add_argument("--out", required=True, metavar="FILE", help="Zarr folder, e.g. raw.zarr")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the camera (default 512)")
    parser.add_argument("--noise", type=float, default=1.0, help="times the shot noise (default 1)")
    parser.add_argument("--hemodynamics", type=float, default=0.012, help="sd of vasomotion in dF/F (default 0.012)")
    parser.add_argument("--dropped", type=float, default=0.0, help="part of the frames that are lost (default 0)")
    parser.add_argument("--seed", type=int, default=0)
    _add_common(parser)


def make(args: argparse.Namespace) -> int:
    """Write a simulated recording."""
    from cstformer.datasets.calcium.reading import require

    require("dask", "zarr")
    from cstformer.datasets.calcium.simulator import CalciumSimulation

    names = ("minutes", "size", "noise", "hemodynamics", "dropped", "seed")
    made = CalciumSimulation(**{name: getattr(args, name) for name in names})
    made.save(args.out, progress=not args.quiet, scheduler=args.scheduler)
    if not args.quiet:
        print(f"wrote {args.out}, {len(made.stimuli)} stimuli\n{made.recording().describe()}")
        print(f"next: cst data preprocess-calcium {args.out} --out clean.zarr")
    return 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheduler", metavar="ADDRESS", help="compute on this Dask cluster, e.g. tcp://10.0.0.1:8786")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def add_preprocess(kinds: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Options of ``cst data preprocess-calcium``."""
    text = "clean a widefield recording: bin, dF/F, hemodynamics, z-score"
    parser = command(kinds, "preprocess-calcium", text, preprocess, _EXAMPLES)
    parser.add_argument("raw", metavar="RAW", help="nwb, tif, folder of tif, h5, mat (v7.3), zarr, npz or npy")
    parser.add_argument("--out", required=True, metavar="FILE", help="Zarr folder to write")
    parser.add_argument("--key", help="name of the array or NWB series with the frames")
    parser.add_argument(
        "--wavelengths", metavar="A,B", help="order of the lamps in nm, first frame first, e.g. 575,395"
    )
    parser.add_argument("--rate", type=float, help="frames a second of the camera, where RAW has no times")
    parser.add_argument("--pixel-mm", type=float, help="side of a raw pixel in mm, where RAW does not say")
    parser.add_argument("--stimuli", metavar="FILE", help="table with the columns start, stop, contrast")
    parser.add_argument("--signal", type=int, default=575, help="wavelength of the signal (default 575)")
    parser.add_argument("--control", type=int, default=395, help="wavelength of the control (default 395)")
    parser.add_argument("--bin", type=int, default=2, help="average squares of so many pixels a side (default 2)")
    parser.add_argument("--crop", metavar="T,B,L,R", help="pixels off each side (default: 32,40,24,24 from 256 x 256)")
    parser.add_argument("--mask", metavar="X", help="auto, none, or an .npy of bool (default: RAW's own)")
    parser.add_argument("--baseline", default="smooth", help="smooth (default) or literal (the paper's 100 taps)")
    parser.add_argument("--cutoff", type=float, default=0.001, help="of the baseline in Hz (default 0.001)")
    parser.add_argument("--correction", default="estimator", help="estimator (default), regression or none")
    parser.add_argument("--components", type=int, default=0, metavar="K", help="also store K principal components")
    _add_common(parser)


def preprocess(args: argparse.Namespace) -> int:
    """Clean a recording."""
    from cstformer.datasets.calcium.reading import open_recording, read_stimuli, require

    require("dask", "zarr")
    from cstformer.datasets.calcium import preprocess as chain

    settings = chain.Preprocessing(
        signal=args.signal,
        control=args.control,
        binning=args.bin,
        crop=None if args.crop is None else _four(args.crop),
        baseline=args.baseline,
        cutoff=args.cutoff,
        correction=args.correction,
        components=args.components,
    )
    recording = open_recording(
        args.raw,
        key=args.key,
        wavelengths=None if args.wavelengths is None else _whole(args.wavelengths, "--wavelengths"),
        rate=args.rate,
        pixel_mm=args.pixel_mm,
        stimuli=None if args.stimuli is None else read_stimuli(args.stimuli),
    )
    if not args.quiet:
        print(recording.describe())
    options = {"progress": not args.quiet, "scheduler": args.scheduler}
    done = chain.preprocess(recording, args.out, settings, mask=_mask(args.mask), **options)
    if not args.quiet:
        size = f"{done['frames']} frames of {done['height']} × {done['width']} at {done['rate']:.4g} Hz"
        print(f"wrote {args.out}: {size}, {done['pixels']} pixels of cortex, {done['filled']} dropped frames filled")
    return 0


def _mask(text: str | None) -> Any:
    import numpy as np

    from cstformer.system.files import readable

    if text is None or not text.endswith(".npy"):
        return text
    with readable(text, "a mask") as source:
        return np.load(source, allow_pickle=False)


def _whole(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError:
        raise CSTError(f"{option} {text}: give whole numbers with commas between them") from None


def _four(text: str) -> tuple[int, int, int, int]:
    numbers = _whole(text, "--crop")
    if len(numbers) != 4:
        raise CSTError(f"--crop {text}: give four numbers, pixels off top, bottom, left, right")
    return numbers
