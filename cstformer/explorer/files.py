"""Uploads and downloads of the explorer: uploads are parsed as data only, downloads are CSV or NetCDF."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.checks import from_model_epoch
from cstformer.data.movie_files import is_movie, load_movie
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.answers import read_context
from cstformer.models.cst import CST, MAX_TOKENS
from cstformer.models.recordings import is_recording
from cstformer.system.files import MAX_BYTES

UPLOADS = (".npz", ".npy", ".csv", ".tsv", ".tif", ".tiff", ".nwb")
MAX_UPLOAD = 50 * 2**20
"""Largest size of an uploaded file, in bytes."""
MAX_ARRAYS = 4 * MAX_UPLOAD
"""Largest size of the arrays that an uploaded archive may declare, in bytes."""


def read_upload(name: str, content: bytes, model: CST) -> Samples:
    """Samples for this model from an uploaded file. No code in it is run, and its name is not used as a path."""
    plain = Path(name.replace("\\", "/")).name
    suffix = Path(plain).suffix.lower()
    if suffix not in UPLOADS:
        raise CSTError(f"{plain or 'the file'} cannot be read here; upload one of {', '.join(UPLOADS)}")
    if len(content) > MAX_UPLOAD:
        raise CSTError(f"{plain} has {len(content) / 2**20:.0f} MB, more than the {MAX_UPLOAD / 2**20:.0f} MB allowed")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"upload{suffix}")
        path.write_bytes(content)
        try:
            return read_samples(path, model, MAX_ARRAYS)
        except CSTError as error:
            raise CSTError(str(error).replace(str(path), plain)) from error


def read_samples(path: Path, model: CST, max_bytes: int = MAX_BYTES, **columns: Any) -> Samples:
    """Samples from a file that fit the model; a movie is cut into windows of the length used in training.

    ``columns`` are arguments of `Samples.load`.
    """
    if is_movie(path, gridded=model.layout_ is not None):
        samples = movie_samples(*load_movie(path, max_bytes=max_bytes), model)
    else:
        samples = read_context(model, path, max_bytes=max_bytes, **columns)
        samples, _ = from_model_epoch(samples, samples.coords, model.names_)
    a = model.network_.architecture
    if (samples.d, samples.c) != (a.d, a.c):
        raise CSTError(
            f"{path} has {samples.d} coordinate axes and {samples.c} values per point; "
            f"this model was fitted with {a.d} and {a.c} ({', '.join(model.names_['coord_names'])})"
        )
    if samples.n > MAX_TOKENS and not is_recording(model, samples):
        raise CSTError(f"{path} has samples of {samples.n:,} points, more than the {MAX_TOKENS:,} a model can read")
    return samples if samples.layout == model.layout_ else samples.replace(layout=model.layout_)


def movie_samples(movie: np.ndarray, times: np.ndarray | None, model: CST) -> Samples:
    """Windows of a movie that overlap by half, with times as in the training data."""
    layout = model.layout_
    if layout is None:
        raise CSTError("this is a movie, and the model was fitted on points; give it samples with coords and values")
    shape = movie.shape[1:] if movie.ndim == 4 else (*movie.shape[1:], 1)
    if shape != (*layout.frame, layout.channels):
        raise CSTError(
            f"the movie has frames of {' × '.join(map(str, shape))}; "
            f"the model was fitted on {' × '.join(map(str, (*layout.frame, layout.channels)))}"
        )
    clock = np.arange(len(movie), dtype=float) if times is None else np.asarray(times, dtype=float)
    step = float(np.median(np.diff(clock))) if len(clock) > 1 else 1.0
    window = min(len(movie), max(1, round(float(model.scaling_.span[0]) / step) + 1))
    unit = model.names_["units"].get(model.names_["coord_names"][0])
    cut = frames_to_samples(
        movie, layout.patch, window, max(1, window // 2), clock, time_unit=unit, cover=True, periodic=layout.periodic
    )
    coords = cut.coords + np.where(cut.point_observed[..., None], [model.scaling_.low[0], 0, 0], 0.0)
    origin = cut.origin - [model.scaling_.low[0], 0, 0]
    return cut.replace(coords=coords, origin=origin)


def as_csv(samples: Samples) -> bytes:
    """Long table with one row per point."""
    return samples.to_frame().to_csv(index=False).encode()


def as_netcdf(samples: Samples) -> bytes:
    """NetCDF file that `Samples.load` reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "view.nc")
        samples.save(path)
        return path.read_bytes()


def buffer(content: bytes) -> io.BytesIO:
    """Wrap bytes in a file-like object."""
    return io.BytesIO(content)
