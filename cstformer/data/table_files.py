"""Tables in files: CSV and TSV, also compressed, Parquet and Excel, as pandas DataFrames.

Text files differ in their separator, their decimal mark and their word for a missing value. These are found from the
first lines of the file, unless they are given.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.grouping import Group
from cstformer.errors import CSTError
from cstformer.system.files import check_bytes, readable

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".xlsx")
"""Suffixes of tables; `.xlsx` is only read."""

MISSING = ("--", "---", "-", "?", ".", "missing", "Missing", "n.a.", "na", "NAN")
"""Words for a missing value, besides those of pandas (empty, NA, N/A, NaN, nan, null, None)."""

HEAD = 2**16  # bytes of a text file from which its format is found
MAX_UNPACKED = 2**30  # bytes of text that a compressed table may hold
_COMMA, _POINT = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?"), re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class TextFormat:
    """How a text file writes a table; None is found from the file.

    Attributes
    ----------
    separator : what stands between the cells of a row, such as ";"
    decimal : "." or ","
    missing : words or numbers that mean a missing value, besides the usual ones
    """

    separator: str | None = None
    decimal: str | None = None
    missing: Sequence[str] = ()


def file_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix in lower case, with the one before it if the file is compressed.

    >>> file_suffix("data/A.CSV"), file_suffix("b.csv.gz"), file_suffix("c.v2.npz")
    ('.csv', '.csv.gz', '.npz')
    """
    suffixes = Path(path).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:]).lower()


def read_table(path: str | os.PathLike[str], form: TextFormat | None = None, group: Group = None) -> Any:
    """DataFrame of a table; the column `sample` of a text file, or the one called ``group``, stays text."""
    suffix, form = file_suffix(path), form or TextFormat()
    with readable(path, f"a {suffix} table") as source:
        import pandas as pd

        if suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            about = read_metadata(source)  # a constant column takes almost no room in the file
            check_bytes(source, 8 * about.num_rows * about.num_columns)
            return _without(pd.read_parquet(source, engine="pyarrow"), form)
        if suffix == ".xlsx":
            import openpyxl  # noqa: F401  (its ImportError names the package; that of pandas does not)

            with zipfile.ZipFile(source) as archive:
                check_bytes(source, sum(info.file_size for info in archive.infolist()))
            return _without(pd.read_excel(source, engine="openpyxl", na_values=list(MISSING)), form)
        return _read_text(
            source, suffix, form, {"sample", "Sample", "SAMPLE", *([group] if isinstance(group, str) else [])}
        )


def _without(frame: Any, form: TextFormat) -> Any:
    """The table with missing values in the place of the words and numbers that mean so."""
    if not form.missing:
        return frame
    numbers = [float(word) for word in form.missing if _is_number(word)]
    return frame.replace([*form.missing, *numbers], np.nan)


def _is_number(word: str) -> bool:
    try:
        return float(word) == float(word)
    except ValueError:
        return False


def _read_text(path: Path, suffix: str, form: TextFormat, texts: set[str]) -> Any:
    """Read CSV or TSV in the given format, with what is missing of it found from the first lines."""
    import pandas as pd

    packed = suffix.endswith(".gz")
    with gzip.open(path) if packed else path.open("rb") as stream:
        head = stream.read(HEAD)
    encoding = _encoding(head)
    lines = [line for line in head.decode(encoding, errors="ignore").splitlines() if line.strip()]
    if len(head) == HEAD:
        lines = lines[:-1]  # it may be cut
    if not head.strip():
        raise CSTError(f"{path} is empty; give a table with a heading and a row for each point")
    separator = form.separator or _separator(lines, "\t" if suffix.startswith(".tsv") else ",")
    if separator != r"\s+":
        _check_rows(lines, separator)
    source: Any = path
    if packed:
        with gzip.open(path) as stream:
            text = stream.read(MAX_UNPACKED + 1)
        if len(text) > MAX_UNPACKED:
            raise CSTError(f"{path} holds more than {MAX_UNPACKED // 2**20} MB of text; unpack it first")
        source = io.BytesIO(text)
    # pandas before 3.1 reads every digit only when asked to; later versions warn about the option.
    version = tuple(map(int, pd.__version__.split(".")[:2]))
    exact: dict[str, Any] = {} if version >= (3, 1) else {"float_precision": "round_trip"}
    decimal = form.decimal or _decimal(lines, separator)
    frame = pd.read_csv(
        source,
        sep=separator,
        decimal=decimal,
        na_values=[*MISSING, *form.missing],
        dtype=dict.fromkeys(texts, str),
        encoding=encoding,
        skipinitialspace=True,
        low_memory=False,
        index_col=False,
        **exact,
    )
    if decimal == ",":  # a column with a word in it stays text, and so do its numbers
        for name in frame.columns[[kind.kind in "OT" for kind in frame.dtypes]]:
            column = frame[name].astype("string")
            numbers = column.str.fullmatch(_COMMA.pattern).fillna(False)
            frame[name] = frame[name].where(~numbers, column.str.replace(",", "."))
    return frame


def _encoding(head: bytes) -> str:
    """UTF-8, UTF-16 with its mark, or else the usual one of Windows, in which every byte is a character."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def _cells(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _separator(lines: list[str], usual: str) -> str:
    r"""The separator that gives the heading most cells; spaces if no other does, and the rows have as many words.

    >>> _separator(["t;u", "0,5;1,2"], ","), _separator(["t u", "0 1"], ","), _separator(["time [s]", "0"], ",")
    (';', '\\s+', ',')
    """
    if not lines:
        return usual
    found = max((usual, ",", ";", "\t", "|"), key=lambda separator: len(_cells(lines[0], separator)))
    if len(_cells(lines[0], found)) > 1 or len(lines) < 2:
        return found
    words = len(lines[0].split())
    return r"\s+" if words > 1 and all(len(line.split()) == words for line in lines[1:]) else usual


def _decimal(lines: list[str], separator: str) -> str:
    """A comma, if some cells are numbers with a comma and none is a number with a point."""
    if separator == ",":
        return "."
    cells = [c for line in lines[1:] for c in (line.split() if separator == r"\s+" else _cells(line, separator))]
    commas, points = (sum(bool(form.fullmatch(c.strip())) for c in cells) for form in (_COMMA, _POINT))
    return "," if commas and not points else "."


def _check_rows(lines: list[str], separator: str) -> None:
    """Refuse rows that are longer than the heading: pandas would drop their end."""
    if len(separator) > 1:
        return
    width = len(_cells(lines[0], separator)) if lines else 0
    for number, line in enumerate(lines[1:101], 1):
        cells = _cells(line, separator)
        if len(cells) > width and any(cell.strip() for cell in cells[width:]):
            raise CSTError(
                f"row {number} has {len(cells)} cells, but the heading has {width}; if commas are decimal marks, "
                "write the table with another separator, such as a semicolon"
            )
