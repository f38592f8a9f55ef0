"""``cst data make``: generate a data set whose noise-free truth is known."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer.cli.common import Parser, add_command, add_group, add_overwrite
from cstformer.errors import CSTError

_SPIRALS = """\
Generate the paper's spirals: two-dimensional curves that solve an integral
equation. The defaults imitate the published file, including its noise and the
errors of its solver."""
_SPIRALS_EXAMPLES = """\
examples:
  20 of the 100 points of each curve, with noise
    cst data make spirals --observed 20 --noise 0.1 --out curves.npz
  the same, each curve at times of its own
    cst data make spirals --observed 20 --noise 0.1 --irregular --out curves.csv"""
_NAVIER_STOKES = """\
Solve the two-dimensional Navier-Stokes equations for random initial fields
and store the vorticity, as in the data set of the Fourier neural operator.

If interrupted, run the same command again to continue. The numbers do not
depend on the number of workers."""
_NAVIER_STOKES_EXAMPLES = """\
examples:
  cst data make navier-stokes --samples 100 --until 20 --out flow.zarr
  cst data make navier-stokes --workers 8 --out flow.zarr"""
_CALCIUM = """\
Simulate a widefield calcium recording with two wavelengths: neural activity,
hemodynamics, bleaching and shot noise. The true activity is known."""
_CALCIUM_EXAMPLES = """\
example:
  cst data make calcium --minutes 2 --size 128 --out raw.zarr
then:
  cst data preprocess-calcium raw.zarr --out clean.zarr"""
_SIMULATION = ("minutes", "size", "noise", "hemodynamics", "dropped", "jitter", "seed")


def add(commands: Any) -> None:
    """Declare ``cst data make`` and its data sets."""
    sets = add_group(commands, "make", "generate a data set", "data sets", "SET")
    _add_spirals(sets)
    _add_navier_stokes(sets)
    _add_calcium(sets)


def _add_spirals(sets: Any) -> None:
    summary = "the paper's integral-equation spirals"
    parser = add_command(sets, "spirals", summary, run_spirals, _SPIRALS, _SPIRALS_EXAMPLES)
    parser.add_argument("--out", required=True, metavar="FILE", help="npz, csv, tsv, parquet, nc or zarr")
    parser.add_argument("--curves", type=int, default=500, metavar="N", help="number of curves (default 500)")
    parser.add_argument("--points", type=int, default=100, metavar="N", help="points of each curve (default 100)")
    parser.add_argument("--observed", type=int, metavar="N", help="points to keep of each curve (default: all)")
    parser.add_argument("--irregular", action="store_true", help="choose the kept points of each curve at random")
    parser.add_argument(
        "--noise", type=float, default=0.0, metavar="SD", help="additional Gaussian noise (default 0; the paper: 0.1)"
    )
    parser.add_argument(
        "--observation-noise",
        type=float,
        default=0.02,
        metavar="SD",
        help="Gaussian noise of the published file (default 0.02)",
    )
    parser.add_argument(
        "--no-monte-carlo", action="store_true", help="leave out the Monte-Carlo errors of the published solver"
    )
    parser.add_argument(
        "--converged", action="store_true", help="solve to convergence, instead of the published 5 + 1 updates"
    )
    add_overwrite(parser)
    _add_seed(parser)


def run_spirals(args: argparse.Namespace) -> int:
    """Generate spirals."""
    import numpy as np

    from cstformer.data.grids import OURS
    from cstformer.data.samples import Samples
    from cstformer.datasets.spirals import irregular_indices, make_spirals, regular_indices
    from cstformer.system.targets import check_output

    check_output(args.out, OURS, overwrite=args.overwrite)
    keep = args.observed or args.points
    if not args.noise >= 0:
        raise CSTError(f"--noise {args.noise:g}: must be at least 0")
    if not 2 <= keep <= args.points:
        raise CSTError(f"--observed {keep}: keep between 2 and --points {args.points} points")
    made = make_spirals(
        args.curves,
        args.points,
        args.seed,
        observation_noise=args.observation_noise,
        monte_carlo_noise=not args.no_monte_carlo,
        converged=args.converged,
    )
    # A generator of its own, so that --noise does not change the curves.
    values = made.values + args.noise * np.random.default_rng([args.seed, 1]).normal(size=made.values.shape)
    if args.irregular:
        index = irregular_indices(args.curves, args.points, keep, args.seed)  # (N, keep)
    else:
        index = np.tile(regular_indices(args.points, keep), (args.curves, 1))
    kept = np.take_along_axis(values, index[..., None], 1)  # (N, keep, 2)
    samples = Samples(made.times[index], kept, coord_names=["t"], value_names=["y1", "y2"])
    samples.save(args.out)
    print(f"wrote {args.out}: {samples}")
    return 0


def _add_navier_stokes(sets: Any) -> None:
    summary = "vorticity of two-dimensional flow"
    parser = add_command(sets, "navier-stokes", summary, run_navier_stokes, _NAVIER_STOKES, _NAVIER_STOKES_EXAMPLES)
    parser.add_argument("--out", required=True, metavar="FILE", help="Zarr directory, such as flow.zarr")
    parser.add_argument("--samples", type=int, default=5000, metavar="N", help="number of solutions (default 5000)")
    parser.add_argument("--until", type=float, default=50.0, metavar="TIME", help="last time (default 50)")
    parser.add_argument("--every", type=float, default=1.0, metavar="TIME", help="time between frames (default 1)")
    parser.add_argument("--size", type=int, default=64, metavar="N", help="grid points along each axis (default 64)")
    parser.add_argument(
        "--amplitude",
        default="2021",
        help="of the initial field: 2021 (default; standard deviation 0.262) or current (0.185), "
        "as in the scripts of the published set",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    add_cluster(parser)
    _add_seed(parser)


def run_navier_stokes(args: argparse.Namespace) -> int:
    """Solve the Navier-Stokes equations."""
    from cstformer.datasets.navier_stokes import Law, make_navier_stokes

    law = Law(args.samples, args.until, args.every, args.size, args.amplitude, args.seed)
    made = make_navier_stokes(args.out, law, jobs=args.workers, scheduler=args.scheduler, progress=not args.quiet)
    print(f"wrote {args.out}: {law.samples} solutions at {len(law.times)} times, {made} of them now")
    return 0


def _add_calcium(sets: Any) -> None:
    summary = "a simulated widefield calcium recording"
    parser = add_command(sets, "calcium", summary, run_calcium, _CALCIUM, _CALCIUM_EXAMPLES)
    parser.add_argument("--out", required=True, metavar="FILE", help="Zarr directory, such as raw.zarr")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="T", help="length (default 10)")
    parser.add_argument("--size", type=int, default=512, metavar="N", help="rows and columns (default 512)")
    parser.add_argument("--noise", type=float, default=1.0, metavar="X", help="factor on the shot noise (default 1)")
    parser.add_argument(
        "--hemodynamics",
        type=float,
        default=0.012,
        metavar="SD",
        help="standard deviation of vasomotion in ΔF/F (default 0.012)",
    )
    parser.add_argument(
        "--dropped", type=float, default=0.0, metavar="X", help="fraction of dropped frames (default 0)"
    )
    parser.add_argument(
        "--jitter",
        type=float,
        default=0.0,
        metavar="X",
        help="largest delay of a frame, as a fraction of the time between two frames (default 0)",
    )
    add_overwrite(parser)
    add_cluster(parser)
    _add_seed(parser)


def run_calcium(args: argparse.Namespace) -> int:
    """Simulate a widefield calcium recording."""
    from cstformer.datasets.calcium.reading import require

    require("dask", "zarr")  # before the simulator imports them, for an error that says what to install
    from cstformer.datasets.calcium.simulator import MARK, CalciumSimulation
    from cstformer.system.targets import check_output

    check_output(args.out, MARK, overwrite=args.overwrite)
    made = CalciumSimulation(**{name: getattr(args, name) for name in _SIMULATION})
    made.save(args.out, progress=not args.quiet, scheduler=args.scheduler)
    if not args.quiet:
        print(f"wrote {args.out}, {len(made.stimuli)} stimuli\n{made.recording().describe()}")
        print(f"next: cst data preprocess-calcium {args.out} --out clean.zarr")
    return 0


def add_cluster(parser: Parser) -> None:
    """Add --scheduler and --quiet, for long computations."""
    parser.add_argument("--scheduler", metavar="ADDRESS", help="compute on a Dask cluster, such as tcp://10.0.0.1:8786")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar and no summary")


def _add_seed(parser: Parser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default 0)")
