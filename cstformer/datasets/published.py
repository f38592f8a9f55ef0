"""Where published data files lie: in the folder that the environment variable ``CST_DATA`` names."""

from __future__ import annotations

import os
from pathlib import Path

from cstformer.errors import CSTError


def published_file(name: str, file: str, source: str) -> Path:
    """Path of a data file below ``CST_DATA``; a `CSTError` of one sentence if it is not there.

    Parameters
    ----------
    name : of the data set, for the message
    file : path below the folder, e.g. ``"ett/ETTh1.csv"``
    source : where the file can be downloaded
    """
    path = Path(os.environ.get("CST_DATA", ""), file)
    if "CST_DATA" not in os.environ or not path.is_file():
        raise CSTError(f"{name} needs {file} in the folder that CST_DATA names; get it from {source}")
    return path
