"""``cst predict``: values or derivatives of a trained model at any coordinates."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cstformer.cli.common import add_columns, add_command, add_overwrite, columns, text_format, whole_numbers
from cstformer.cli.make_data import add_cluster
from cstformer.cli.movies import add_movie, movie_options
from cstformer.errors import CSTError

if TYPE_CHECKING:
    import numpy as np

    from cstformer.models.cst import CST

_ABOUT = """\
Predict values or derivatives at any coordinates.

The model reads the observed points of CONTEXT, which may be samples that it
has never seen, and predicts at the coordinates of QUERY. CONTEXT is read as
the training file was, with the same columns and covariates; where its times are dates,
QUERY may give dates, and the answers have them too. A model that was fitted
with --modes reads a movie and answers with frames."""
_EXAMPLES = """\
examples:
  at three times, for every sample of the file
    cst predict model curves.csv --at 0.1,0.25,0.5 --out answers.csv
  at the coordinates of a table; its column `sample`, if any, picks the sample
    cst predict model curves.csv --at queries.csv --out answers.csv
  at dates, or on a regular clock between two
    cst predict model rooms.csv --at 2024-05-01T12:00,2024-05-01T18:00 --out answers.csv
    cst predict model rooms.csv --at 2024-05-01T12:00:2024-05-03:30min --out answers.csv
  the first derivative
    cst predict model curves.npz --at queries.npz --derivative 1 --out slopes.npz
  values and the bounds of 90 % intervals, in the columns NAME_low and NAME_high
    cst predict model curves.csv --at 0.1,0.25,0.5 --interval 0.9 --out answers.csv
  frames of a movie, also between the recorded ones
    cst predict model movie.tif --at 0,0.5,1 --out frames.tif
  how fast they change, by a model that was fitted with --modes
    cst predict model movie.tif --at 0,0.5,1 --derivative 1 --out slopes.npz
  a recording larger than memory, on two machines; the same command goes on if it was stopped
    cst predict model movie.zarr --at 0:600:0.05 --out frames.zarr --scheduler tcp://10.0.0.1:8786
  a recording with dropped frames on a regular clock: from 0 to 600 s, every 0.05 s
    cst predict model recording.nwb --at 0:600:0.05 --out answer.nwb"""


MOST_TIMES = 10_000_000
"""Coordinates that a range of ``--at`` may have."""
_WAYS = "give a file with coordinates, numbers or dates separated by commas, or START:STOP:STEP"
_DATE = r"\d{4}-\d{2}-\d{2}(?:T\d{2}(?::\d{2}){0,2}(?:Z|[+-]\d{2}(?::?\d{2})?)?)?"


def add(commands: Any) -> None:
    """Declare the options of ``cst predict``."""
    parser = add_command(commands, "predict", "predict values or derivatives anywhere", run, _ABOUT, _EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="directory written by `cst fit`")
    parser.add_argument("context", metavar="CONTEXT", help="file with the observed points, or a movie")
    parser.add_argument(
        "--at",
        required=True,
        metavar="QUERY",
        help="file with coordinates; or, for one axis or the times of a movie, numbers or dates separated by "
        "commas, or START:STOP:STEP",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="npz, csv, tsv, parquet, nc or zarr; for a movie zarr or tif (written piece by piece, in little memory), "
        "npz, nwb (in a processing module), mp4 (to look at), or a new folder for U.npy and SVT.npy if CONTEXT or "
        "MODEL has modes",
    )
    parser.add_argument("--derivative", metavar="K,…", help="order along each coordinate axis, such as 1 or 1,0,0")
    parser.add_argument(
        "--interval",
        type=float,
        metavar="LEVEL",
        help="add bounds that a new observation lies between with this probability, such as 0.9: columns NAME_low and "
        "NAME_high (npz: lower and upper; movies: two more files, FILE_low and FILE_high)",
    )
    parser.add_argument(
        "--extrapolate",
        action="store_true",
        help="answer queries beyond the training domain by more than a tenth of its extent: there the start holds the "
        "value of the nearest observed point, and the network has learned nothing",
    )
    add_columns(parser)
    add_overwrite(parser)
    add_cluster(parser)
    add_movie(parser)


def run(args: argparse.Namespace) -> int:
    """Predict, and write the answers to a file."""
    from cstformer.data.checks import extrapolation
    from cstformer.data.movie_files import is_movie
    from cstformer.models.cst import CST
    from cstformer.models.model_files import MODES
    from cstformer.taylor.derivatives import check_multi_index

    model = CST.load(args.model)
    d = model.network_.architecture.d
    index = (0,) * d
    if args.derivative:
        index = check_multi_index(whole_numbers(args.derivative, "--derivative"), d)
        if args.interval is not None:
            raise CSTError("--interval is for values; for derivatives Python has derivative(..., return_std=True)")
    # A model of frames takes any grid file as a movie; other models read it as samples.
    frames = model.layout_ is not None or (Path(args.model) / MODES).is_dir()
    movie = frames and (is_movie(args.context) or args.context.endswith((".nc", ".zarr")))
    with extrapolation(args.extrapolate):
        shape = _predict_movie(model, args, index) if movie else _predict_samples(model, args, index)
    if not args.quiet:
        print(f"wrote {args.out}: {' × '.join(map(str, shape))} values")
    return 0


def _check_output(args: argparse.Namespace, target: Path, mark: str) -> None:
    from cstformer.system.targets import check_output

    check_output(target, mark, (args.model, args.context, args.at, args.times), args.overwrite)


def _predict_movie(model: CST, args: argparse.Namespace, index: tuple[int, ...]) -> tuple[int, ...]:
    """Write frames (m, H, W[, C]) and their times; return their shape."""
    from cstformer.data.movie_stores import MARK, STREAMED
    from cstformer.data.movie_writers import check_target, write_movie
    from cstformer.models.answers import BOUNDS
    from cstformer.models.model_files import MODES
    from cstformer.models.streaming import MovieQuestion, answer_movie

    modes = Path(args.model) / MODES if model.layout_ is None else None
    out = Path(args.out)
    streamed = out.suffix.lower() in STREAMED
    if modes is not None and args.interval is not None and not out.suffix:
        raise CSTError(f"{out}: bounds are not sums of modes; write them as .npz, .tif, .zarr or .nwb")
    if args.scheduler is not None and not streamed:
        raise CSTError(f"--scheduler: a cluster writes {', '.join(STREAMED)}, not {out}")
    targets = [out] if args.interval is None else [out.with_name(out.stem + end + out.suffix) for end in BOUNDS]
    for target in targets:
        _check_output(args, target, MARK)
        check_target(target, args.context, modes)
    at = read_times(args.at)
    question = MovieQuestion(args.model, args.context, at.tolist(), index, args.interval, **movie_options(args))
    if streamed:
        options = {"scheduler": args.scheduler, "overwrite": args.overwrite, "progress": not args.quiet}
        return answer_movie(question, out, **options)
    parts = question.answers().in_memory(at)
    slope = any(index)
    about = f"Frames of a continuous spatiotemporal transformer{f' (derivative {args.derivative})' if slope else ''}."
    for target, frames in zip(targets, parts, strict=True):
        write_movie(target, frames, at, args.context, about, modes, slope)
    return parts.shape[1:]


def _predict_samples(model: CST, args: argparse.Namespace, index: tuple[int, ...]) -> tuple[int, ...]:
    """Write the answers as samples; return the shape (N, m, c) of their values."""
    import numpy as np

    from cstformer.data.grids import OURS
    from cstformer.data.queries import load_queries, table_queries
    from cstformer.data.sample_files import check_target, write_samples
    from cstformer.models.answers import beside_bounds, predict_intervals, predict_samples, read_context

    if args.scheduler is not None:
        raise CSTError("--scheduler is for movies; samples are answered here")
    _check_output(args, Path(args.out), OURS)
    check_target(args.out)
    context = read_context(model, args.context, **columns(args))
    inline = _numbers(args.at)
    if inline is None and (dates := _dates(args.at)):
        import pandas as pd

        coords, exists = table_queries(pd.DataFrame({context.coord_names[0]: dates}), context, f"--at {args.at}")
    elif inline is None:
        if "," in args.at or not Path(args.at).exists():
            raise CSTError(f"--at {args.at}: there is no such file; {_WAYS}")
        coords, exists = load_queries(args.at, context, text_format(args))
    elif context.d == 1:
        coords = np.broadcast_to(inline[:, None], (len(context), len(inline), 1))  # (N, m, 1)
        exists = np.ones(coords.shape[:2], dtype=bool)
    else:
        raise CSTError(f"--at {args.at}: the context has {context.d} coordinate axes; give a file with coordinates")
    if args.interval is None:
        answer = predict_samples(model, context, coords, exists, index)
        answer.save(args.out)
        return answer.values.shape
    answer, lower, upper = predict_intervals(model, context, coords, exists, args.interval)
    if args.out.lower().endswith(".npz"):
        write_samples(answer, args.out, lower=lower, upper=upper)
    else:
        beside_bounds(answer, lower, upper).save(args.out)
    return answer.values.shape


def read_times(text: str) -> np.ndarray:
    """Read times (m,) from ``0,0.5,1``, or from a file with times or coordinates."""
    import numpy as np

    from cstformer.data.arrays import as_floats
    from cstformer.data.table_files import TABLES, file_suffix, read_table
    from cstformer.data.tables import TIME_NAMES
    from cstformer.system.files import read_npz

    path = Path(text)
    if (inline := _numbers(text)) is not None:
        return inline
    if path.suffix == ".npz":
        arrays = read_npz(path)
        key = next((k for k in ("times", "t", "time", "coords") if k in arrays), None)
        if key is None:
            raise CSTError(f"{path} has no key 'times' but {', '.join(arrays)}; save the times as times=")
        times = as_floats(f"{key} of {path}", arrays[key])
        # Coordinates (..., 3) of (time, row, column): predict the whole frame at each of their times.
        return times if times.ndim == 1 else np.unique(times.reshape(-1, times.shape[-1])[:, 0])
    if file_suffix(path) in TABLES:
        table = read_table(path)
        names = [str(c).split("[")[0].strip().casefold() for c in table.columns]  # "time [s]" → "time"
        column = next((i for i, name in enumerate(names) if name in TIME_NAMES | {"times"}), 0)
        return as_floats(f"column {table.columns[column]!r} of {path}", table.iloc[:, column])
    raise CSTError(
        f"--at {text}: give numbers separated by commas, or a file (npz, csv, tsv, parquet), or START:STOP:STEP"
    )


def _dates(text: str) -> list[str]:
    """ISO dates of ``2024-05-01,2024-05-02T06:00``, or of a range with a step such as 6h; none in other texts."""
    from datetime import datetime

    import pandas as pd

    if found := re.fullmatch(f"({_DATE}):({_DATE}):(.+)", text):
        start, stop, step = found.groups()
        try:
            every = f"{step}h" if _numbers(step) is not None else re.sub("d$", "D", step)
            freq = pd.Timedelta(every)
            if freq > pd.Timedelta(0):
                _check_count(text, (pd.Timestamp(stop) - pd.Timestamp(start)) / freq)
            dates = pd.date_range(start, stop, freq=freq)
        except CSTError:
            raise
        except (ValueError, TypeError, AssertionError):  # two time zones are an assertion of pandas
            dates = pd.DatetimeIndex([])
        if len(dates) < 2:
            raise CSTError(f"--at {text}: give START:STOP:STEP with a step such as 6h or 30min that fits between them")
        return [date.isoformat() for date in dates]
    words = text.split(",")
    try:
        return words if datetime.fromisoformat(words[0]) else []
    except ValueError:
        return []


def _check_count(text: str, count: float) -> None:
    """Refuse a range of more coordinates than anybody wants, before it takes memory."""
    if count > MOST_TIMES:
        raise CSTError(f"--at {text}: more than {MOST_TIMES:,} coordinates; give a larger step")


def _numbers(text: str) -> np.ndarray | None:
    """Numbers of ``0,0.5,1`` or ``0:1:0.5``; None if the text is something else, such as the name of a file."""
    import numpy as np

    try:
        if text.count(":") == 2:
            start, stop, step = (float(word) for word in text.split(":"))
            if not 0 < step <= stop - start < float("inf"):
                raise CSTError(f"--at {text}: give START:STOP:STEP with a positive step that fits between them")
            _check_count(text, (stop - start) / step)
            # The last one counts as reached if only rounding keeps it from being so.
            return start + step * np.arange(int((stop - start) / step * (1 + 1e-12) + 1e-9) + 1)
        return np.array([float(word) for word in text.split(",")])
    except ValueError as error:
        if isinstance(error, CSTError):
            raise
        return None
