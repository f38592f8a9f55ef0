"""``cst evaluate``: is CST any good on your file? It beside simple rivals, on samples that none of them has seen."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cstformer.cli.common import add_columns, add_command, add_windows, columns
from cstformer.cli.fit import add_settings, in_windows, read_settings
from cstformer.errors import CSTError
from cstformer.training.settings import PRESETS

if TYPE_CHECKING:
    from cstformer.baselines.evaluation import Evaluation

_ABOUT = """\
Compare CST with linear interpolation, a cubic spline, a Gaussian process and
the last value on your own samples.

A quarter of the samples is held out; no model trains on them. Of each, up to
half of the points are hidden, or single cells where your data miss cells, and
every model predicts the same hidden cells. Errors are compared sample by
sample: "+30% (+10% to +50%)" means that the squared error of a rival is 30 %
larger than that of CST, with a 95 % bootstrap interval over samples. Windows of
one recording are alike, so that their interval is too narrow. The last line
says how many of the hidden cells the 90 % intervals of CST cover."""
_EXAMPLES = """\
examples:
  curves of a table, with five minutes of training
    cst evaluate curves.csv --max-minutes 5
  one long recording, in windows of 2 time units
    cst evaluate recording.csv --window 2.0 --max-minutes 5
  patients whose age and site are known
    cst evaluate patients.csv --covariates age,site --out patients.png"""


def add(commands: Any) -> None:
    """Declare the options of ``cst evaluate``."""
    parser = add_command(commands, "evaluate", "compare CST with simple rivals on your file", run, _ABOUT, _EXAMPLES)
    formats = "npz, csv, csv.gz, tsv, parquet, xlsx, nc, zarr"
    parser.add_argument("file", metavar="FILE", help=f"samples ({formats}), at least five")
    parser.add_argument("--out", default="evaluation.png", metavar="FILE", help="figure (default evaluation.png)")
    parser.add_argument(
        "--held-out", type=float, default=0.25, metavar="SHARE", help="share of the samples held out (default 0.25)"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings; options given here override it")
    parser.add_argument("--preset", default="default", help=f"settings to start from: {', '.join(PRESETS)}")
    add_columns(parser, known=True)
    add_windows(parser, "cut a long recording into windows")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Train, compare, print the table, write the figure."""
    settings = read_settings(args)

    from cstformer.baselines.evaluation import evaluate
    from cstformer.data.movie_files import is_movie
    from cstformer.data.samples import Samples
    from cstformer.models.cst import CST
    from cstformer.report.style import check_figure_path, save_figure

    check_figure_path(args.out)
    if is_movie(args.file):
        raise CSTError(f"{args.file} is a movie; evaluate compares models of curves and points. Try `cst run video`")
    samples = in_windows(Samples.load(args.file, **columns(args)), args)
    model = CST(**settings)
    result = evaluate(model, samples, held_out=args.held_out, seed=model.seed, progress=not args.quiet)
    hidden = int(result.truth.observed.sum())
    print(f"trained on {result.trained} samples, asked for {hidden} hidden cells of {len(result.truth)} others")
    print(f"\n{comparison(result)}\n\n{result.advice()}\n{coverage(result)}")
    save_figure(figure(result), args.out)
    print(f"wrote {args.out}")
    return 0


def comparison(result: Evaluation) -> str:
    """A line for each model; a measure of theirs is a column here."""
    one = len(result.sd) == 1  # one channel has a unit; several are compared in standard deviations
    unit = result.truth.units.get(result.truth.value_names[0], "") if one else "sd"
    lines = [["model", f"RMSE [{unit}]" if unit else "RMSE", "R²", "squared error vs CST", "CST closer in"]]
    for name, answers in result.answers.items():
        against = ["", ""]
        if name != result.first:
            more, low, high = result.difference(name)
            against = [f"{more:+.0%} ({low:+.0%} to {high:+.0%})", f"{result.closer(name)} of {len(result.truth)}"]
        error = answers.rmse * (float(result.sd[0]) if one else 1.0)
        lines.append([name, f"{error:.3g}", f"{answers.r2:.3f}", *against])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def coverage(result: Evaluation) -> str:
    """How many of the hidden cells the model's own intervals cover."""
    from cstformer.baselines.evaluation import COVERED

    found, level = result.answers[result.first].coverage, result.answers[result.first].level
    few = f"{COVERED:.0%} intervals need 9 held-out training samples (--validation)."
    if found is None:
        return f"{result.first} has no intervals; {few}"
    more = "." if level == COVERED else f"; {few}"
    return f"Intervals of {result.first} at {level:.0%} cover {found:.1%} of the hidden cells{more}"


def figure(result: Evaluation) -> Any:
    """The errors of all models; of curves also the sample with the median error, by CST and its best rival."""
    from cstformer.report.evaluation_plots import plot_evaluation
    from cstformer.report.sample_plots import time_grid

    errors = {name: answers.error for name, answers in result.answers.items()}
    middle = int(errors[result.first].argsort()[len(result.truth) // 2])
    context, hidden = result.context[middle], result.truth[middle]
    if context.d > 1:
        return plot_evaluation(errors, context, hidden, {}, context.coords)
    at = time_grid(context, hidden)
    drawn = (result.first, result.best_rival())
    curves = {name: result.answers[name].model.predict(context, at, extrapolate=True) for name in drawn}
    return plot_evaluation(errors, context, hidden, curves, at)
