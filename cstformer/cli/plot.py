"""``cst plot``: a picture of a file, or of what a model makes of it."""

from __future__ import annotations

import argparse
from typing import Any

from cstformer.cli.common import add_columns, add_command, columns
from cstformer.errors import unknown

_ABOUT = """\
Draw the first four samples of a file: their points and, with --model, the
model's curves through them beside those of a rival."""
_EXAMPLES = """\
examples:
  the points of a table
    cst plot curves.csv --out curves.png
  what a model makes of them, beside a spline
    cst plot curves.csv --model model --rivals cubic --out curves.png
  three samples and one channel, chosen by name
    cst plot patients.csv --samples 132539,132540,132541 --channels HR --out heart.png"""


def add(commands: Any) -> None:
    """Declare the options of ``cst plot``."""
    parser = add_command(commands, "plot", "draw your samples and a model's curves", run, _ABOUT, _EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="samples of curves (npz, csv[.gz], tsv, parquet, xlsx, nc, zarr)")
    parser.add_argument("--out", required=True, metavar="PNG", help="figure to write")
    parser.add_argument("--model", metavar="MODEL", help="directory written by `cst fit`")
    parser.add_argument(
        "--rivals",
        metavar="A,B",
        help="with --model: rivals without training, such as linear,cubic (default: the Gaussian process of the model)",
    )
    parser.add_argument("--samples", metavar="A,B", help="ids of the samples to draw (default: the first four)")
    parser.add_argument("--channels", metavar="A,B", help="channels to draw (default: the first six)")
    add_columns(parser, known=True)


def run(args: argparse.Namespace) -> int:
    """Draw, and write the figure."""
    from cstformer.baselines import BASELINES
    from cstformer.data.samples import Samples
    from cstformer.models.answers import read_context
    from cstformer.models.cst import CST
    from cstformer.report.style import check_figure_path, save_figure

    check_figure_path(args.out)
    channels = args.channels.split(",") if args.channels else None
    names = args.rivals.split(",") if args.rivals else []
    for name in names:
        if name not in BASELINES:
            raise unknown("rival", name, BASELINES)
    model = CST.load(args.model) if args.model else None
    given = columns(args)
    samples = Samples.load(args.file, **given) if model is None else read_context(model, args.file, **given)
    if args.samples:
        by_name = {str(name): i for i, name in enumerate(samples.sample_ids)}
        for name in args.samples.split(","):
            if name not in by_name:
                raise unknown("sample", name, by_name)
        samples = samples[[by_name[name] for name in args.samples.split(",")]]
    if model is None:
        figure = samples.plot(channels)
    else:
        rivals = [BASELINES[name]().fit(samples) for name in names] if names else None
        figure = model.plot(samples, rivals=rivals, channels=channels)
    save_figure(figure, args.out)
    print(f"wrote {args.out}")
    return 0
