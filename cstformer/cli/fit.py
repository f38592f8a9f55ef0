"""``cst fit``: train a model on a file. Every setting of `CST` is an option."""

from __future__ import annotations

import argparse
import difflib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cstformer.cli.common import Parser, add_columns, add_command, add_windows, columns, in_options, whole_numbers
from cstformer.cli.movies import FORMATS, add_movie, movie_options, refuse_two_colours
from cstformer.errors import CSTError, CSTWarning
from cstformer.training.settings import PRESETS, check_settings, preset, setting_fields

if TYPE_CHECKING:
    from cstformer.data.lazy import LazyFrames
    from cstformer.data.modes import Modes
    from cstformer.data.samples import Samples
    from cstformer.models.cst import CST

_ABOUT = """\
Train a model on a file and save it to a directory.

The file holds samples (time series, curves, points in space) or a movie. A
movie is cut into patches, and each patch is a token; or, with --modes, each
frame is a token: the coefficients of a few spatial modes, which
`cst predict` turns into frames again. Dates become a time axis in hours. The
model remembers columns, covariates, calendar and windows, so that `cst predict` and
`cst explore` read a file in the same way. If training is interrupted, run
the same command again: it continues from the last saved state, the file
MODEL.training, which is removed when all steps are done."""
_EXAMPLES = """\
examples:
  curves of a table, for at most five minutes
    cst fit curves.csv --out model --max-minutes 5
  one long recording, cut into overlapping windows of 2 time units
    cst fit recording.nc --out model --window 2.0 --stride 1.0
  patients whose age and site are known, at times with a daily rhythm
    cst fit patients.csv --out model --covariates age,site --calendar hour
  patients in a column `subject` of a table with semicolons, -999 where nothing was measured
    cst fit wards.csv --out model --sample subject --separator ";" --missing=-999
  a movie, in windows of 10 frames
    cst fit movie.tif --out model --patch 8,8 --window 10 --stride 5
  a movie as a series of spatial modes, in windows of 32 frames
    cst fit cortex.zarr --out model --modes auto
  a widefield recording of wfield: U.npy and SVTcorr.npy in a folder
    cst fit results/ --out model --patch 16,16
  frames with gaps and jitter, at the times of the camera's pulses
    cst fit movie.tif --times pulses.csv --out model
  settings from a file, one of them changed
    cst fit curves.csv --out model --config settings.yaml --layers 2"""


def add(commands: Any) -> None:
    """Declare the options of ``cst fit``."""
    parser = add_command(commands, "fit", "train a model on your file", run, _ABOUT, _EXAMPLES)
    parser.add_argument(
        "train",
        metavar="TRAIN",
        help=f"samples (npz, csv, tsv, csv.gz, parquet, xlsx, nc, zarr) or a movie ({FORMATS}, nc)",
    )
    parser.add_argument("--out", required=True, metavar="MODEL", help="directory to save the model to")
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings; options given here override it")
    parser.add_argument("--preset", default="default", help=f"settings to start from: {', '.join(PRESETS)}")
    add_columns(parser, known=True)
    parser.add_argument(
        "--strict", action="store_true", help="stop where samples would be left out or points averaged with a warning"
    )
    parser.add_argument("--patch", metavar="H,W", help="read TRAIN as a movie; rows, columns of a patch (default 8,8)")
    parser.add_argument(
        "--modes",
        metavar="K",
        help="read TRAIN as a movie and train on the coefficients of its first K spatial modes; auto: as many as "
        "predict held-out pixels best",
    )
    add_windows(
        parser,
        "cut a long recording into windows of this length, in coordinate units; for a movie, in frames "
        "(default 10, with --modes 32)",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar and no summary")
    add_movie(parser)
    add_settings(parser)


def add_settings(parser: Parser) -> None:
    """Add an option for every setting of the model; `read_settings` reads them."""
    group = parser.add_argument_group("settings of the model and its training")
    for name, field in setting_fields().items():
        choices = f" [{', '.join(field.metadata['choices'])}]" if field.metadata["choices"] else ""
        text = f"{field.metadata['help']}{choices} (default {field.default})".replace("%", "%%")
        kind = str(field.type).replace(" | ", "|").replace("tuple[float, ...]", "float,…").upper()
        group.add_argument(_option(name), dest=f"setting_{name}", metavar=kind, help=text)


def run(args: argparse.Namespace) -> int:
    """Train, save, and say how it went."""
    settings = read_settings(args)

    from cstformer.data.checks import check_training
    from cstformer.data.samples import Samples
    from cstformer.models.cst import CST
    from cstformer.models.mode_intervals import calibrate_modes
    from cstformer.models.model_files import check_target
    from cstformer.system.processes import is_first
    from cstformer.system.targets import check_sources
    from cstformer.training.disturbance import root_mean_square

    state = Path(f"{Path(args.out).absolute()}.training")
    model = CST(**settings)
    if not is_first():  # torchrun or SLURM started several processes: the first one prints and saves
        model.fit(_training_samples(args)[0], state=state)
        return 0
    out = check_target(args.out)
    check_sources(out, (args.train, args.config, args.times))
    with warnings.catch_warnings():
        if args.strict:
            warnings.simplefilter("error", CSTWarning)
        samples, modes = _training_samples(args)
        if args.strict and isinstance(samples, Samples):
            check_training(samples)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not args.quiet:
        if modes is not None:
            print(f"{modes.rank_} spatial modes explain {modes.explained_.sum():.0%} of the variance")
        print(f"fitting {samples}")
    with warnings.catch_warnings():
        if not args.quiet:  # the sentence below says it
            warnings.filterwarnings("ignore", ".*reached, best weights kept", CSTWarning)
        model.fit(samples, state=state, progress=not args.quiet)
    if modes is not None and isinstance(samples, Samples):
        calibrate_modes(model, modes, *_movie(args, (8, 8), 1, 1), samples)  # read again: training needs the memory
    _save(model, modes, out)
    if model.report_.ended not in ("interrupted", "cap"):
        state.unlink(missing_ok=True)
    if not args.quiet:
        print(in_options(model.report_.sentence(model.run_), args.parser))
        if model.report_.trials:
            unit = {"noise": " × the estimate"}
            chosen = ", ".join(f"{name}={value}{unit.get(name, '')}" for name, value in model.report_.chosen.items())
            print(f"chosen by {len(model.report_.trials)} short trials: {chosen}")
        print(
            f"estimated noise: {root_mean_square(model.kind_.noises):.3g} of the values' standard deviation; "
            f"{model.n_parameters_:,} weights; saved to {args.out}"
        )
        if model.report_.ended == "cap":
            print(
                f"{args.out}.training keeps the state of the training: run the same command with a larger "
                "--max-minutes to continue, or delete it"
            )
    if model.report_.ended == "interrupted":
        print(
            f"cst: interrupted; best weights saved, run the same command again to continue from {args.out}.training",
            file=sys.stderr,
        )
        return 130
    return 0


def _save(model: CST, modes: Modes | None, out: Path) -> None:
    """Write the model, and the modes inside its folder, both or none."""
    from cstformer.models.model_files import MODES
    from cstformer.system.atomic import atomic_path

    if modes is None:
        model.save(out)
        return
    with atomic_path(out) as folder:
        model.save(folder)
        modes.save(folder / MODES)


def _training_samples(args: argparse.Namespace) -> tuple[Samples | LazyFrames, Modes | None]:
    """What the model trains on, and with --modes the modes of the movie."""
    from cstformer.data.movie_files import is_movie
    from cstformer.data.samples import Samples

    if args.modes is not None:
        return _movie_modes(args)
    if args.patch is not None or is_movie(args.train):
        return _movie_samples(args), None
    return in_windows(Samples.load(args.train, **columns(args)), args), None


def in_windows(samples: Samples, args: argparse.Namespace) -> Samples:
    """The samples, cut as --window and --stride say, or with coordinates that --relative lets begin at 0."""
    if args.relative:
        if args.window is not None:
            raise CSTError("--relative and --window: times of windows are relative already; give one of them")
        from cstformer.data.windows import from_beginning

        return from_beginning(samples)
    if args.window is not None:
        return samples.windows(args.window, args.window / 2 if args.stride is None else args.stride)
    if args.stride is not None:
        raise CSTError("--stride needs --window, the length of a window")
    return samples


def _movie_samples(args: argparse.Namespace) -> Samples | LazyFrames:
    """Windows of patch tokens."""
    from cstformer.data.lazy import LazyFrames
    from cstformer.data.patches import frames_to_samples

    height, width = whole_numbers(args.patch or "8,8", "--patch", 2, "rows and columns of a patch")
    window, stride = _movie_window(args, 10)
    movie, times = _movie(args, (height, width), window, stride)
    if isinstance(movie, LazyFrames):
        return movie
    return frames_to_samples(movie, (height, width), min(window, len(movie)), stride, times=times)


def _movie_modes(args: argparse.Namespace) -> tuple[Samples, Modes]:
    """Windows of coefficients of spatial modes, and the modes."""
    from cstformer.data.modes import Modes

    if args.patch is not None:
        raise CSTError("--patch and --modes are two ways to read a movie; give one of them")
    if args.modes != "auto" and not args.modes.isdigit():
        raise CSTError(f"--modes {args.modes}: give a number of modes, or auto")
    window, stride = _movie_window(args, 32)
    movie, times = _movie(args, (8, 8), 1, 1)
    modes = Modes("auto" if args.modes == "auto" else int(args.modes)).fit(movie)
    window = min(window, modes.SVT_.shape[1])
    return modes.coefficients(movie, times, window, stride), modes


def _movie_window(args: argparse.Namespace, default: int) -> tuple[int, int]:
    """Length of a window of a movie, and the step between windows, in frames."""
    for option, number in (("--window", args.window), ("--stride", args.stride)):
        if number is not None and not (number >= 1 and number.is_integer()):
            raise CSTError(f"{option} {number:g}: give a whole number of frames, at least 1")
    window = default if args.window is None else int(args.window)
    return window, max(1, window // 2) if args.stride is None else int(args.stride)


def _movie(args: argparse.Namespace, patch: tuple[int, int], window: int, stride: int) -> tuple[Any, Any]:
    """The frames and their times; of a large file that is read piece by piece, `LazyFrames` and None."""
    from cstformer.data.lazy import lazy_movie
    from cstformer.data.movie_files import load_movie

    if args.covariates or args.calendar or args.relative:
        raise CSTError("--covariates, --calendar and --relative are for samples in tables and grids; TRAIN is a movie")
    options = movie_options(args)
    lazy = lazy_movie(args.train, patch, window, stride, **options)
    if lazy is not None:
        refuse_two_colours(args.train, lazy.layout.channels, args)
        return lazy, None
    movie, times = load_movie(args.train, **options)
    refuse_two_colours(args.train, movie.shape[3] if movie.ndim == 4 else 1, args)
    return movie, times


def read_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Settings from --preset, overridden by --config, overridden by the options."""
    settings = preset(args.preset)
    known = setting_fields()
    if args.config:
        # YAML reads 1e-3 and inf as text; parse_setting reads them as the command line does.
        config = _read_config(args.config)
        settings |= {k: parse_setting(k, v) if isinstance(v, str) and k in known else v for k, v in config.items()}
    for name in known:
        text = getattr(args, f"setting_{name}")
        if text is not None:
            settings[name] = parse_setting(name, text)
    check_settings(settings)
    return settings


def parse_setting(name: str, text: str) -> Any:
    """Read the value of a setting from text.

    >>> parse_setting("order", "3"), parse_setting("mu", "auto"), parse_setting("p", "inf")
    (3, 'auto', inf)
    >>> parse_setting("channel_weights", "1,2.5")
    [1.0, 2.5]
    """
    kind = str(setting_fields()[name].type)
    if "None" in kind and text.lower() == "none":
        return None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise CSTError(f"{_option(name)} {text}: give true or false")
        return text.lower() == "true"
    if "tuple" in kind:
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            raise CSTError(f"{_option(name)} {text}: give numbers separated by commas, e.g. 1,2,1") from None
    for number in (int, float):
        if number.__name__ in kind:
            try:
                return number(text)
            except ValueError:
                continue
    choices = setting_fields()[name].metadata["choices"]
    if kind == "str" or ("str" in kind and difflib.get_close_matches(text, choices)):  # checked later
        return text
    wanted = kind.replace(" | ", " or ").replace("str", " or ".join(choices))
    raise CSTError(f"{_option(name)} {text}: expected {wanted}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_config(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CSTError(f"cannot read --config {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise CSTError(f"--config {path}: write one 'setting: value' per line")
    return {str(name).replace("-", "_"): value for name, value in content.items()}
