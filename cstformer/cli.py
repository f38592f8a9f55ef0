"""The command ``cst``: every subcommand is a function, every setting of CST a flag.

Bad input ends with exit code 2 and one readable line. Heavy libraries are imported by the command that needs
them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from cstformer.errors import CSTError, unknown
from cstformer.experiments.registry import EXPERIMENTS

ALL = "all"


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with code 2."""
        if message.endswith("expected one argument"):
            message += "; a value that begins with a minus is written --option=-1"
        print(f"cst: error: {message} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    warnings.showwarning = lambda message, *_, **__: print(f"cst: warning: {message}", file=sys.stderr)
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    try:
        if extra:
            raise _unknown_option(extra[0], parser, args)
        return args.run(args) or 0
    except CSTError as error:
        print(f"cst: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cst: interrupted; finished work is on disk, run the same command to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        print(f"cst: error: {error}", file=sys.stderr)
        return 2


def build_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    from cstformer import __version__

    parser = Parser(
        prog="cst",
        description="Continuous Spatiotemporal Transformer: learn continuous dynamics from noisy, sparse, "
        "irregular samples, then ask for values and derivatives anywhere.",
        epilog="Start with: cst data show FILE; cst fit FILE --out model; "
        "cst predict model FILE --at queries.csv --out out.csv",
    )
    parser.add_argument("--version", action="version", version=f"cstformer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_predict(commands)
    _add_data(commands)
    _add_run(commands)
    _add_report(commands)
    _add_explore(commands)
    _add_bench(commands)
    _add_models(commands)
    return parser


def _unknown_option(option: str, parser: argparse.ArgumentParser, args: argparse.Namespace) -> CSTError:
    known = sorted(o for o in args.parser._option_string_actions if o.startswith("--"))
    near = difflib.get_close_matches(option.split("=")[0], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return CSTError(f"unknown option {option}{hint} (see `{args.parser.prog} --help`)")


def _command(commands, name: str, text: str, run, epilog: str = "") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run, parser=parser)
    parser.allow_abbrev = False
    return parser


# cst fit


def _add_fit(commands) -> None:
    from cstformer.training.settings import PRESETS, setting_fields

    parser = _command(
        commands,
        "fit",
        "train on your own file",
        _fit,
        "examples:\n  cst fit curves.csv --out model --max-minutes 5\n"
        "  cst fit recording.nc --out model --window 2.0 --stride 1.0      (one long recording)\n"
        "  cst fit movie.tif --out model --patch 8,8 --window 10 --stride 5   (frames)",
    )
    parser.add_argument(
        "train",
        metavar="TRAIN",
        help="npz, csv, tsv, parquet, nc or zarr samples; or a movie (tif, npz, npy, nc, zarr)",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="MODEL",
        help="directory of the model; an interrupted fit resumes there",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings; flags win over it")
    parser.add_argument("--preset", default="default", help=f"settings to start from: {', '.join(PRESETS)}")
    parser.add_argument("--coords", metavar="A,B", help="coordinate columns of a table, or dims of a grid")
    parser.add_argument("--values", metavar="A,B", help="value columns of a table, or variables of a grid")
    parser.add_argument(
        "--patch", metavar="H,W", help="treat TRAIN as a movie and cut frames into such patches (default 8,8)"
    )
    parser.add_argument(
        "--window",
        type=float,
        help="cut a long recording into windows: frames of a movie, else coordinate units",
    )
    parser.add_argument("--stride", type=float, help="step between windows (default: half a window)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    group = parser.add_argument_group("settings of the model and its training")
    for name, field in setting_fields().items():
        choices = f" [{', '.join(field.metadata['choices'])}]" if field.metadata["choices"] else ""
        default = str(field.default).replace("%", "%%")
        text = f"{field.metadata['help']}{choices} (default {default})".replace("%", "%%")
        group.add_argument(f"--{name.replace('_', '-')}", dest=f"setting_{name}", metavar="X", help=text)


def parse_setting(name: str, text: str) -> Any:
    """Read a setting from its text on the command line or in a file.

    >>> parse_setting("order", "3"), parse_setting("mu", "auto"), parse_setting("p", "inf")
    (3, 'auto', inf)
    """
    from cstformer.training.settings import setting_fields

    kind = str(setting_fields()[name].type)
    if "None" in kind and text.lower() == "none":
        return None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise CSTError(f"--{name.replace('_', '-')} {text}: say true or false")
        return text.lower() == "true"
    for number in (int, float):
        if number.__name__ in kind:
            try:
                return number(text)
            except ValueError:
                continue
    if "str" in kind:
        return text
    raise CSTError(f"--{name.replace('_', '-')} {text}: expected {kind.replace(' | ', ' or ')}")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    from cstformer.training.settings import check_settings, preset, setting_fields

    settings = preset(args.preset)
    known = setting_fields()
    if args.config:
        # YAML reads 1e-3 and inf as text: what is known gets the same reading as on the command line.
        config = _read_config(args.config)
        settings |= {k: parse_setting(k, v) if isinstance(v, str) and k in known else v for k, v in config.items()}
    for name in known:
        text = getattr(args, f"setting_{name}")
        if text is not None:
            settings[name] = parse_setting(name, text)
    check_settings(settings)
    return settings


def _read_config(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CSTError(f"cannot read --config {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise CSTError(f"--config {path} must hold 'setting: value' lines")
    return {str(k).replace("-", "_"): v for k, v in content.items()}


def _fit(args: argparse.Namespace) -> int:
    settings = _settings(args)

    from cstformer.models.cst import CST
    from cstformer.models.model_files import check_target
    from cstformer.system.processes import is_first

    if not is_first():  # torchrun or SLURM started several of us: one prints and saves
        CST(**settings).fit(_training_samples(args), state=_state_of(args.out))
        return 0
    out = check_target(args.out)
    samples = _training_samples(args)
    out.parent.mkdir(parents=True, exist_ok=True)
    state = _state_of(out)
    model = CST(**settings)
    if not args.quiet:
        print(f"fitting {samples}")
    model.fit(samples, state=state, progress=not args.quiet)
    model.save(out)
    if model.report_.ended not in ("interrupted", "cap"):
        state.unlink(missing_ok=True)
    if not args.quiet:
        print(model.report_.sentence(model))
        print(
            f"estimated noise {model.kernel_.noise:.3g} of the values' sd; "
            f"{model.n_parameters_:,} weights; saved to {args.out}"
        )
    if model.report_.ended == "interrupted":
        print("cst: interrupted; best weights so far saved, run the same command to go on", file=sys.stderr)
        return 130
    return 0


def _state_of(model: str | Path) -> Path:
    """File from which an interrupted fit goes on, beside the model."""
    path = Path(model).absolute()
    return path.with_name(path.name + ".training")


def _training_samples(args: argparse.Namespace):
    from cstformer.data.lazy import lazy_movie
    from cstformer.data.patches import frames_to_samples, is_movie, load_movie
    from cstformer.data.samples import Samples

    if args.patch is not None or is_movie(args.train):
        height, width = _numbers(args.patch or "8,8", "--patch", 2)
        for option, number in (("--window", args.window), ("--stride", args.stride)):
            if number is not None and not (number >= 1 and number.is_integer()):
                raise CSTError(f"{option} {number:g}: give a whole number of frames, at least 1")
        window = 10 if args.window is None else int(args.window)
        stride = max(1, window // 2) if args.stride is None else int(args.stride)
        if (lazily := lazy_movie(args.train, (height, width), window, stride)) is not None:
            return lazily
        movie, times = load_movie(args.train)
        return frames_to_samples(movie, (height, width), min(window, len(movie)), stride, times=times)
    samples = Samples.load(args.train, **_columns(args))
    if args.window is not None:
        samples = samples.windows(args.window, args.window / 2 if args.stride is None else args.stride)
    elif args.stride is not None:
        raise CSTError("--stride needs --window, the length of the pieces")
    return samples


def _columns(args: argparse.Namespace) -> dict[str, list[str]]:
    return {k: getattr(args, k).split(",") for k in ("coords", "values") if getattr(args, k, None)}


def _numbers(text: str, option: str, count: int | None = None) -> tuple[int, ...]:
    try:
        numbers = tuple(int(x) for x in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or (count and len(numbers) != count):
        raise CSTError(f"{option} {text}: give {count or 'some'} whole numbers with commas between them")
    return numbers


# cst predict


def _add_predict(commands) -> None:
    parser = _command(
        commands,
        "predict",
        "ask a trained model for values or derivatives anywhere",
        _predict,
        "examples:\n  cst predict model curves.csv --at queries.csv --out answers.csv\n"
        "  cst predict model curves.npz --at queries.npz --derivative 1 --out slopes.npz\n"
        "  cst predict model movie.tif --at 0,0.5,1 --out frames.npz      (movie: times)",
    )
    parser.add_argument("model", metavar="MODEL", help="directory written by `cst fit`")
    parser.add_argument("context", metavar="CONTEXT", help="the observed points (or the movie) to answer from")
    parser.add_argument(
        "--at",
        required=True,
        metavar="QUERY",
        help="file with coords, or numbers with commas (one axis, or the times of a movie)",
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="npz, csv, parquet, nc or zarr; a movie goes to npz"
    )
    parser.add_argument("--derivative", metavar="K,…", help="order along each axis, e.g. 1,0,0")
    parser.add_argument("--coords", metavar="A,B", help="coordinate columns of CONTEXT")
    parser.add_argument("--values", metavar="A,B", help="value columns of CONTEXT")
    parser.add_argument("--quiet", action="store_true", help="print nothing")


def _predict(args: argparse.Namespace) -> int:
    import numpy as np

    from cstformer.data.patches import is_movie, load_movie
    from cstformer.data.queries import load_queries
    from cstformer.data.samples import Samples
    from cstformer.models.answers import predict_movie, predict_samples
    from cstformer.models.cst import CST
    from cstformer.system.files import atomic_path
    from cstformer.taylor.derivatives import check_multi_index

    model = CST.load(args.model)
    d = model.network_.architecture.d
    text = args.derivative or ",".join("0" * d)
    index = check_multi_index(_numbers(text, "--derivative"), d)
    if model.layout_ is not None and (is_movie(args.context) or args.context.endswith((".nc", ".zarr"))):
        if not args.out.endswith(".npz"):
            raise CSTError(f"--out {args.out}: a predicted movie is written as .npz (values, times)")
        movie, times = load_movie(args.context)
        at = _times(args.at)
        frames = predict_movie(model, movie, times, at, index)
        with atomic_path(args.out) as temporary:
            np.savez(temporary, values=frames if movie.ndim == 4 else frames[..., 0], times=at)
        shape: tuple[int, ...] = frames.shape
    else:
        context = Samples.load(args.context, **_columns(args))
        inline = _inline(args.at)
        if inline is None:
            coords, real = load_queries(args.at, context)
        elif context.d != 1:
            raise CSTError(f"--at {args.at}: the context has {context.d} axes; give a file with their coordinates")
        else:
            coords = np.broadcast_to(inline[:, None], (len(context), len(inline), 1))
            real = np.ones(coords.shape[:2], dtype=bool)
        answer = predict_samples(model, context, coords, real, index)
        answer.save(args.out)
        shape = answer.values.shape
    if not args.quiet:
        print(f"wrote {args.out}: {' × '.join(map(str, shape))} values")
    return 0


def _inline(text: str):
    """Numbers from ``0,0.5,1``; None if the text is something else, such as a file."""
    import numpy as np

    try:
        return np.array([float(x) for x in text.split(",")])
    except ValueError:
        return None


def _times(text: str):
    """Read times from ``0,0.5,1`` or from a file with times or one coordinate column."""
    import numpy as np

    from cstformer.data.sample_files import TIME_NAMES, read_table
    from cstformer.data.samples import as_floats
    from cstformer.system.files import read_npz

    path = Path(text)
    if (inline := _inline(text)) is not None:
        return inline
    if path.suffix == ".npz":
        arrays = read_npz(path)
        key = next((k for k in ("times", "t", "time", "coords") if k in arrays), None)
        if key is None:
            raise CSTError(f"{path} has no key 'times' but {', '.join(arrays)}")
        times = as_floats(f"{key} of {path}", arrays[key])
        # Coordinates (…, t, row, col) ask for whole frames at their times.
        return times if times.ndim == 1 else np.unique(times.reshape(-1, times.shape[-1])[:, 0])
    if path.suffix in (".csv", ".tsv", ".parquet"):
        table = read_table(path)
        names = [str(c).split("[")[0].strip().casefold() for c in table.columns]
        column = next((i for i, name in enumerate(names) if name in TIME_NAMES | {"times"}), 0)
        return as_floats(f"column {table.columns[column]!r} of {path}", table.iloc[:, column])
    raise CSTError(f"--at {text}: neither a file (npz, csv, …) nor numbers with commas between them")


# cst data


def _add_data(commands) -> None:
    data = commands.add_parser("data", help="describe and make data files", description="describe and make data files")
    kinds = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    show = _command(kinds, "show", "describe a file of samples or a movie", _show)
    show.add_argument("file", metavar="FILE")
    show.add_argument("--coords", metavar="A,B", help="coordinate columns of a table, or dims of a grid")
    show.add_argument("--values", metavar="A,B", help="value columns of a table, or variables of a grid")
    make = kinds.add_parser("make", help="generate a data set", description="generate a data set")
    sets = make.add_subparsers(title="data sets", required=True, metavar="SET")
    _add_calcium(kinds, sets)
    spirals = _command(sets, "spirals", "the paper's integral-equation spirals", _make_spirals)
    spirals.add_argument("--out", required=True, metavar="FILE", help="npz, csv, parquet, nc or zarr")
    spirals.add_argument("--curves", type=int, default=500)
    spirals.add_argument("--points", type=int, default=100, help="points on the grid of each curve")
    spirals.add_argument("--observed", type=int, help="keep only so many points of each curve")
    spirals.add_argument("--irregular", action="store_true", help="each curve keeps its own points")
    spirals.add_argument("--seed", type=int, default=0)
    spirals.add_argument("--noise", type=float, default=0.0, help="further N(0, NOISE) on the values (the paper: 0.1)")
    spirals.add_argument("--observation-noise", type=float, default=0.02, help="noise of the published file")
    spirals.add_argument(
        "--no-monte-carlo", action="store_true", help="without the published solver's Monte-Carlo noise"
    )
    spirals.add_argument(
        "--converged", action="store_true", help="solve to convergence instead of the published 5 + 1 updates"
    )


def _add_calcium(kinds, sets) -> None:
    from cstformer.datasets.calcium import commands

    commands.add_preprocess(kinds, _command)
    commands.add_make(sets, _command)
    flow = _command(
        sets,
        "navier-stokes",
        "vorticity of the Navier-Stokes set of the Fourier neural operator",
        _make_navier_stokes,
        "An interrupted command goes on where it stopped; the numbers do not depend on the number of workers.",
    )
    flow.add_argument("--out", required=True, metavar="FILE", help="zarr")
    flow.add_argument("--samples", type=int, default=5000, help="number of solutions (default 5000)")
    flow.add_argument("--until", type=float, default=50.0, help="last time (default 50)")
    flow.add_argument("--every", type=float, default=1.0, help="time between snapshots (default 1)")
    flow.add_argument("--size", type=int, default=64, help="points along each axis (default 64)")
    flow.add_argument("--amplitude", default="2021", help="of the initial field: 2021 (sd 0.262) or current (sd 0.185)")
    flow.add_argument("--seed", type=int, default=0)
    flow.add_argument("--workers", type=int, help="processes (default: one a core)")
    flow.add_argument("--scheduler", metavar="ADDRESS", help="compute on this Dask cluster, e.g. tcp://10.0.0.1:8786")
    flow.add_argument("--quiet", action="store_true", help="no progress bar")


def _show(args: argparse.Namespace) -> int:
    import numpy as np

    from cstformer.data.patches import is_movie, load_movie
    from cstformer.data.samples import Samples
    from cstformer.datasets.navier_stokes_reader import Solutions, is_navier_stokes

    if is_navier_stokes(args.file):
        print(Solutions(args.file).describe())
        return 0
    if is_movie(args.file):
        movie, times = load_movie(args.file)
        clock = "no times" if times is None else f"times {times[0]:g} to {times[-1]:g}"
        print(f"movie of {len(movie)} frames of {' × '.join(map(str, movie.shape[1:]))} ({movie.dtype}), {clock}")
        print(f"values {np.nanmin(movie):.4g} to {np.nanmax(movie):.4g}")
        print(f"next: cst fit {args.file} --out model --patch 8,8 --window 10 --stride 5")
        return 0
    print(Samples.load(args.file, **_columns(args)).describe())
    return 0


def _make_spirals(args: argparse.Namespace) -> int:
    import numpy as np

    from cstformer.data.samples import Samples
    from cstformer.datasets.spirals import irregular_indices, make_spirals, regular_indices

    if not args.noise >= 0:
        raise CSTError(f"--noise {args.noise:g}: must be at least 0")
    made = make_spirals(
        args.curves,
        args.points,
        args.seed,
        observation_noise=args.observation_noise,
        monte_carlo_noise=not args.no_monte_carlo,
        converged=args.converged,
    )
    values = made.values + args.noise * np.random.default_rng([args.seed, 1]).normal(size=made.values.shape)
    keep = args.observed or args.points
    if not 2 <= keep <= args.points:
        raise CSTError(f"--observed {keep}: keep between 2 and --points {args.points} points")
    if args.irregular:
        index = irregular_indices(args.curves, args.points, keep, args.seed)
    else:
        index = np.tile(regular_indices(args.points, keep), (args.curves, 1))
    samples = Samples(
        made.times[index],
        np.take_along_axis(values, index[..., None], 1),
        coord_names=["t"],
        value_names=["y1", "y2"],
    )
    samples.save(args.out)
    print(f"wrote {args.out}: {samples}")
    return 0


def _make_navier_stokes(args: argparse.Namespace) -> int:
    from cstformer.datasets.navier_stokes import Law, make_navier_stokes

    law = Law(args.samples, args.until, args.every, args.size, args.amplitude, args.seed)
    made = make_navier_stokes(args.out, law, jobs=args.workers, scheduler=args.scheduler, progress=not args.quiet)
    print(f"wrote {args.out}: {law.samples} solutions at {len(law.times)} times, {made} of them now")
    return 0


# cst run, cst report


def _add_run(commands) -> None:
    parser = _command(
        commands,
        "run",
        "run an experiment of the paper",
        _run,
        f"experiments: {', '.join(EXPERIMENTS)}; all: each of them, and one page over all\n"
        "An interrupted run goes on where it stopped; rows that are done are not done again.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"{', '.join(EXPERIMENTS)} or all")
    parser.add_argument("--preset", default="default", help="smoke (seconds), default (two cores, an hour) or paper")
    parser.add_argument("--out", metavar="DIR", help="where results go (default runs/EXPERIMENT-PRESET)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables to a file (RESULTS.md)")
    parser.add_argument("--models", help="only these rows or rivals, with commas; `all`: every rival that applies")
    parser.add_argument("--devices", type=int, help="processes that train each CST together (default 1)")
    parser.add_argument("--strategy", help="what they keep: all weights (ddp, the default) or a share of them (fsdp)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def _run(args: argparse.Namespace) -> int:
    if args.experiment not in (*EXPERIMENTS, ALL):
        raise unknown("experiment", args.experiment, (*EXPERIMENTS, ALL))
    out = Path(args.out or f"runs/{args.experiment}-{args.preset}")
    models = None if args.models is None else args.models.split(",")
    markdown = None if args.markdown is None else Path(args.markdown)
    processes = {k: getattr(args, k) for k in ("devices", "strategy") if getattr(args, k) is not None}
    if args.experiment == ALL and processes:
        raise CSTError("--devices and --strategy are for one experiment; leave them out with `all`")
    if args.experiment == ALL:
        return _run_all(args, out, models, markdown)

    from cstformer.experiments.base import run_experiment
    from cstformer.experiments.registry import load_experiment
    from cstformer.report.tables import write_results_md
    from cstformer.training.settings import check_settings

    check_settings(processes)
    experiment = load_experiment(args.experiment)
    result = run_experiment(experiment, args.preset, out, args.seed, models, quiet=args.quiet, cst=processes)
    if markdown is not None:
        write_results_md([result], markdown)
    return 0


def _run_all(args: argparse.Namespace, out: Path, models: list[str] | None, markdown: Path | None) -> int:
    from cstformer.experiments.run_all import run_all

    if models is not None:
        raise CSTError("--models chooses rows of one experiment; leave it out with `all`")
    missing = run_all(EXPERIMENTS, args.preset, out, args.seed, markdown, args.quiet)
    for written in filter(None, (out / "report.html", markdown)):
        print(f"wrote {written}")
    if missing:
        raise CSTError(f"not run: {', '.join(missing)} (the reasons are above and in the report)")
    return 0


def _add_report(commands) -> None:
    parser = _command(commands, "report", "make the self-contained report.html of a run", _report)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="directories written by `cst run` (also of all)")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables of all RUNs to one file (RESULTS.md)")


def _report(args: argparse.Namespace) -> int:
    from cstformer.report.page import results_in, write_overview, write_report
    from cstformer.report.tables import load_result, write_results_md

    runs: list[Path] = []
    for run in map(Path, args.runs):
        inside = [] if (run / "result.json").exists() else results_in(run)
        for each in inside or [run]:
            print(f"wrote {write_report(each)}")
        if inside:
            print(f"wrote {write_overview(run)}")
        runs += inside or [run]
    if args.markdown:
        print(f"wrote {write_results_md([load_result(run) for run in runs], args.markdown)}")
    return 0


# cst explore


def _add_explore(commands) -> None:
    parser = _command(
        commands,
        "explore",
        "open the live explorer of a run or of a model in the browser",
        _explore,
        "examples:\n  cst explore runs/spirals-default\n  cst explore model --data curves.csv\n"
        "It listens on this computer alone. With another --address visitors need the token that is printed.",
    )
    parser.add_argument("source", metavar="RUN_OR_MODEL", help="directory written by `cst run` or `cst fit`")
    parser.add_argument("--data", metavar="FILE", help="samples or a movie to show a model of `cst fit` with")
    parser.add_argument("--address", default="127.0.0.1", help="where to listen (default 127.0.0.1, this computer)")
    parser.add_argument("--port", type=int, help="default 5006, or a free one if that is taken")
    parser.add_argument("--token", help="what visitors have to show; made by itself beyond this computer")
    parser.add_argument("--origin", metavar="HOST:PORT", action="append", default=[], help="of a proxy in between")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def _explore(args: argparse.Namespace) -> int:
    try:
        from cstformer.explorer.page import make_app
        from cstformer.explorer.server import make_server
    except ImportError as error:
        raise CSTError(f"the explorer needs {error.name}; pip install cstformer[explorer]") from None

    exhibits = _exhibits(Path(args.source), args.data)
    exhibits[0].samples  # noqa: B018  (now, and not while the browser waits)
    server, url = make_server(make_app(exhibits), args.address, args.port, args.token, tuple(args.origin))
    print(f"explorer: {url}\nCtrl-C ends it.", flush=True)
    server.start()
    if not args.no_browser:
        import webbrowser

        webbrowser.open(url)
    server.io_loop.start()
    server.stop()
    return 0


def _exhibits(source: Path, data: str | None):
    """Models to explore, and where their samples come from."""
    from cstformer.experiments.finished import runs_in, trained_models
    from cstformer.explorer.exhibits import Exhibit
    from cstformer.models.model_files import DESCRIPTION

    if (source / DESCRIPTION).is_file() or not runs_in(source):
        return [Exhibit.from_file(source, None if data is None else Path(data))]
    if data is not None:
        raise CSTError("--data goes with a model of `cst fit`; a run shows its own samples")
    return [Exhibit.of(t.label, t.folder, t.context, t.stimulus) for t in trained_models(source, EXPERIMENTS)]


def _add_bench(commands) -> None:
    parser = _command(
        commands,
        "bench",
        "measure speed and memory, as ratios within one run",
        _bench,
        "examples:\n  cst bench --quick\n  cst bench --only scaling --figure scaling.png --out scaling.json",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, about two minutes")
    parser.add_argument("--only", metavar="A,B", help="only these benchmarks")
    parser.add_argument("--out", metavar="FILE", help="also write the numbers as JSON, beside those that are there")
    parser.add_argument("--markdown", metavar="FILE", help="also write all tables as a page")
    parser.add_argument("--figure", metavar="FILE", help="also draw the benchmark 'scaling' as a PNG")


def _bench(args: argparse.Namespace) -> int:
    from rich.console import Console

    from cstformer.benchmarks import chosen, run_benchmark
    from cstformer.experiments.base import machine
    from cstformer.report import benchmarks
    from cstformer.system.versions import versions

    names = chosen(args.only.split(",") if args.only else None)
    rows = benchmarks.read_benchmarks(args.out) if args.out else []
    command = "cst bench --quick" if args.quick else "cst bench"
    facts = {"command": command, "versions": versions(), "machine": machine()}
    console = Console()
    for name in names:
        with console.status(f"measuring: {name}"):
            mine = run_benchmark(name, args.quick)
        console.print(benchmarks.console_benchmark(name, mine))
        rows = [row for row in rows if row["benchmark"] != name] + mine
        if args.out:  # what is measured stays measured
            benchmarks.write_benchmarks(args.out, rows, facts)
    if args.markdown:
        benchmarks.write_benchmarks_md(args.markdown, rows, facts)
    if args.figure:
        from cstformer.report.scaling import scaling_figure
        from cstformer.report.style import save_figure

        save_figure(scaling_figure([row for row in rows if row["benchmark"] == "scaling"]), args.figure)
    for written in filter(None, (args.out, args.markdown, args.figure)):
        print(f"wrote {written}")
    return 0


# cst models


def _add_models(commands) -> None:
    parser = _command(commands, "models", "the paper's parameter tables, ours next to the paper's", _models)
    parser.add_argument("--experiment", metavar="NAME", help="only spirals, video, navier-stokes or calcium")
    parser.add_argument("--cost", action="store_true", help="instead: what training on a long recording takes")
    parser.add_argument("--hours", type=float, default=100.0, help="with --cost: length of the recording (default 100)")
    parser.add_argument("--processes", type=int, default=1, help="with --cost: how many share a batch (default 1)")
    parser.add_argument("--strategy", default="ddp", help="with --cost: ddp or fsdp (default ddp)")
    parser.add_argument("--speed", type=float, help="with --cost: 10⁹ operations a second that a process sustains")


def _models(args: argparse.Namespace) -> int:
    from rich.console import Console

    from cstformer.experiments.parameters import cost_table, parameter_tables
    from cstformer.training.settings import check_settings

    if args.cost:
        check_settings({"strategy": args.strategy})
        numbers = (args.hours, args.processes, args.strategy, args.speed)
        Console().print(cost_table(args.experiment or "calcium", *numbers))
        return 0
    for table in parameter_tables(args.experiment):
        Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
