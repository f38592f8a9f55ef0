"""``cst explore``: a live page in the browser for a run or a model."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cstformer.cli.common import add_columns, add_command, columns
from cstformer.errors import CSTError
from cstformer.system.extras import missing

if TYPE_CHECKING:
    from cstformer.explorer.exhibits import Exhibit

_ABOUT = """\
Open a live page in the browser: choose samples, move queries, and see the
model's values, derivatives and attention.

The page is served to this computer only. If you serve it to others with
--address, they need the token that is printed."""
_EXAMPLES = """\
examples:
  the models of an experiment
    cst explore runs/spirals-default
  your model, on your data
    cst explore model --data curves.csv
  on a server without a browser
    cst explore model --data curves.csv --address 0.0.0.0 --no-browser"""


def add(commands: Any) -> None:
    """Declare the options of ``cst explore``."""
    parser = add_command(commands, "explore", "look at a run or a model in the browser", run, _ABOUT, _EXAMPLES)
    parser.add_argument("source", metavar="RUN_OR_MODEL", help="directory written by `cst run` or `cst fit`")
    parser.add_argument("--data", metavar="FILE", help="samples or a movie for a model of `cst fit`")
    add_columns(parser)
    parser.add_argument("--address", default="127.0.0.1", help="address to serve (default 127.0.0.1, this computer)")
    parser.add_argument("--port", type=int, metavar="N", help="default 5006, or a free one if 5006 is taken")
    parser.add_argument("--token", help="secret that visitors must give (default: a random one beyond this computer)")
    parser.add_argument(
        "--origin", metavar="HOST:PORT", action="append", default=[], help="address of a proxy in front; repeatable"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> int:
    """Serve the explorer until Ctrl-C."""
    try:
        from cstformer.explorer.page import make_app
        from cstformer.explorer.server import make_server
    except ImportError as error:
        raise missing(error, "the explorer") or error from None

    exhibits = _exhibits(Path(args.source), args.data, columns(args))
    exhibits[0].samples  # noqa: B018  (read now: errors belong in the terminal, not in the browser)
    server, url = make_server(make_app(exhibits), args.address, args.port, args.token, tuple(args.origin))
    print(f"explorer: {url}\nPress Ctrl-C to stop.", flush=True)
    server.start()
    if not args.no_browser:
        webbrowser.open(url)
    server.io_loop.start()
    server.stop()
    return 0


def _exhibits(source: Path, data: str | None, columns: dict[str, Any]) -> list[Exhibit]:
    """Models to show, each with its samples."""
    from cstformer.experiments.finished import runs_in, trained_models
    from cstformer.explorer.exhibits import Exhibit
    from cstformer.models.model_files import DESCRIPTION

    if (source / DESCRIPTION).is_file() or not runs_in(source):
        return [Exhibit.from_file(source, None if data is None else Path(data), **columns)]
    if data is not None:
        raise CSTError("--data is for a model of `cst fit`; a run shows its own samples")
    return [Exhibit.of(t.label, t.folder, t.context, t.stimulus) for t in trained_models(source)]
