"""Answers of a movie that are written as they come, as Zarr or TIFF, so that neither movie need fit into memory.

The unit of work is a block of times: its windows are read, answered and written. Blocks do not depend on each other, so
that this process or the workers of a Dask cluster may answer them. Unfinished work is kept in a folder beside the
output, ``OUT.unfinished``:

| name | contents |
|---|---|
| ``question.json`` | the question, and a digest of all that the answer depends on |
| ``frames.zarr`` or ``frames.tif`` | the answer so far; with intervals also ``frames_low`` and ``frames_high`` |
| ``coefficients.npz`` | of the recording, if the model is one of spatial modes |
| ``done/`` | an empty file for each finished block |

The same question continues there. The last step moves the answer to its place.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.modes import Modes
from cstformer.data.movie_files import one_colour, open_movie
from cstformer.data.movie_stores import create_movie, write_frames
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.answers import BOUNDS
from cstformer.models.cst import CST
from cstformer.models.model_files import DESCRIPTION, MODES
from cstformer.models.movie_answers import ModeAnswers, MovieAnswers, PatchAnswers
from cstformer.system.atomic import atomic_path, move_into_place
from cstformer.system.blocks import block_bar, computed
from cstformer.system.files import readable
from cstformer.system.memory import keep_freed_memory
from cstformer.system.versions import versions

QUESTION, DONE, SERIES = "question.json", "done", "coefficients.npz"
FEW = 8
"""Frames of the recording that the digest takes account of, besides its size and its times."""


@dataclass(frozen=True)
class MovieQuestion:
    """Which frames are asked, of which model and recording; all that a process needs to answer."""

    model: str
    """Model directory."""
    context: str
    """File of the recording."""
    at: Sequence[float]
    """Times of the frames."""
    index: Sequence[int]
    """Order of the derivative along each axis."""
    level: float | None = None
    """Of intervals, if bounds are asked too."""
    key: str | None = None
    channel: int | None = None
    times: Sequence[float] | None = None
    rate: float | None = None

    def open_movie(self) -> tuple[Any, np.ndarray | None]:
        """The recording (T, H, W[, C]), unread, and its times."""
        return one_colour(*open_movie(self.context, self.key), self.channel, self.times, self.rate)

    def answers(self, series: Path | None = None) -> MovieAnswers:
        """Load the model and open the recording; a model of modes needs the coefficients of the whole recording.

        ``series`` is a file for these: it is read if it exists, and written otherwise.
        """
        model, folder = CST.load(self.model), Path(self.model) / MODES
        if not folder.is_dir():
            return PatchAnswers(model, *self.open_movie(), tuple(self.index), self.level)
        modes = Modes.load(folder)
        if series is not None and series.exists():
            found = Samples.load(series)
        else:
            found = modes.coefficients(*self.open_movie())
            if series is not None:
                found.save(series)
        return ModeAnswers(model, modes, found, self.index[0], self.level)

    def digest(self) -> str:
        """Hash of all that the answer depends on; where the files lie does not matter."""
        asked = asdict(replace(self, model="", context="")) | {"versions": versions()}
        found = hashlib.sha256(json.dumps(asked, default=list).encode())
        found.update((Path(self.model) / DESCRIPTION).read_bytes())
        movie, times = self.open_movie()
        found.update(repr((movie.shape, str(movie.dtype), None if times is None else times.tolist())).encode())
        with readable(self.context, "a movie"):
            for i in np.unique(np.linspace(0, len(movie) - 1, FEW).astype(int)):
                found.update(np.ascontiguousarray(movie[int(i)]).tobytes())
        return found.hexdigest()


def answer_movie(
    question: MovieQuestion,
    out: Path,
    *,
    scheduler: str | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> tuple[int, ...]:
    """Write the answer to a question piece by piece; continue where an earlier call was stopped.

    Parameters
    ----------
    out : `.zarr` or `.tif`; bounds of intervals go to ``NAME_low`` and ``NAME_high`` beside it.
    scheduler : address of a Dask cluster to compute on; its workers must see the same files.
    overwrite : discard unfinished work on another question.
    progress : show a bar on standard error.

    Returns
    -------
    Shape (len(at), H, W[, C]) of the answer.
    """
    question = replace(question, model=os.path.abspath(question.model), context=os.path.abspath(question.context))
    folder, digest = unfinished(out), question.digest()
    _claim(folder, question, digest, out, overwrite)
    answers, at, block = _opened(str(folder), digest)
    count = len(at)
    missing = [k for k in range(-(-count // block)) if not (folder / DONE / str(k)).exists()]
    todo = sum(min(block, count - k * block) for k in missing)
    try:
        with block_bar("frames", count, count - todo, progress) as advance:
            for done in computed(functools.partial(_answer_block, str(folder), digest), missing, scheduler=scheduler):
                advance(done)
        # The frames themselves come last: while they are missing, the same command goes on.
        for end in BOUNDS[answers.parts - 1 :: -1]:
            part = folder / f"frames{end}{out.suffix}"
            if part.exists():
                move_into_place(part, out.with_name(out.stem + end + out.suffix))
    except OSError as error:
        raise CSTError(f"cannot write {out}: {error.strerror or error}; the same command goes on later") from error
    shutil.rmtree(folder)
    _opened.cache_clear()
    return (count, *answers.frame)


def unfinished(out: Path) -> Path:
    """The folder that holds unfinished work on an output."""
    return out.with_name(f"{out.name}.unfinished").absolute()


def _claim(folder: Path, question: MovieQuestion, digest: str, out: Path, overwrite: bool) -> None:
    """Make the folder with an empty answer, all at once; if it exists, check that it is of the same question."""
    if folder.exists():
        if not (folder / QUESTION).is_file():
            raise CSTError(f"{folder} is a folder with other data; it is left as it is, choose another output")
        kept = _read(folder)
        if kept["digest"] == digest:
            _write(folder, question, digest, kept["block"])  # the files may have moved
            return
        if not overwrite:
            raise CSTError(
                f"{folder} holds unfinished work on another question, or the recording or the model has changed; "
                "give --overwrite to begin anew, or delete it"
            )
        shutil.rmtree(folder)
    with atomic_path(folder) as temporary:
        (temporary / DONE).mkdir(parents=True)
        answers = question.answers(temporary / SERIES)
        at = answers.checked(question.at)
        _write(temporary, question, digest, answers.block)
        dtype = "float64" if answers.model.precision == "float64" else "float32"
        for end in BOUNDS[: answers.parts]:
            create_movie(temporary / f"frames{end}{out.suffix}", (len(at), *answers.frame), at, answers.block, dtype)


def _answer_block(folder: str, digest: str, number: int) -> int:
    """Answer and write a block; it is marked as finished last."""
    keep_freed_memory()
    answers, at, block = _opened(folder, digest)
    times = at[number * block : (number + 1) * block]
    for end, frames in zip(BOUNDS, answers(times), strict=False):
        write_frames(next(Path(folder).glob(f"frames{end}.*")), number * block, frames)
    (Path(folder) / DONE / str(number)).touch()
    return len(times)


@functools.lru_cache(maxsize=1)
def _opened(folder: str, digest: str) -> tuple[MovieAnswers, np.ndarray, int]:
    """What answers the question of a folder, its times, and the size of a block; once in a process."""
    kept = _read(Path(folder))
    question = MovieQuestion(**kept["question"])
    return question.answers(Path(folder) / SERIES), np.asarray(question.at, dtype=float), kept["block"]


def _write(folder: Path, question: MovieQuestion, digest: str, block: int) -> None:
    kept = {"digest": digest, "block": block, "question": asdict(question)}
    with atomic_path(folder / QUESTION) as temporary:
        temporary.write_text(json.dumps(kept, default=list))


def _read(folder: Path) -> dict[str, Any]:
    with readable(folder / QUESTION, "a question") as path:
        return json.loads(path.read_text())
