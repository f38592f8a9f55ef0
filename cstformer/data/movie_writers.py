"""Write frames to files: npz, TIFF, Zarr, NWB, mp4, or components in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from cstformer.data.movie_formats import file_kind
from cstformer.data.movie_stores import MARK, create_movie, write_frames
from cstformer.data.nwb_files import write_nwb
from cstformer.data.svd_files import spatial_components, write_svd
from cstformer.errors import CSTError
from cstformer.system.atomic import atomic_path
from cstformer.system.extras import need
from cstformer.system.targets import check_replaceable

NEEDS = {".npz": "numpy", ".tif": "tifffile", ".tiff": "tifffile", ".zarr": "zarr", ".nwb": "pynwb", ".mp4": "av"}
"""Suffixes of movies, and the module that writes them."""
SMALLEST_SIDE = 256  # pixels of a film; smaller frames are enlarged by a whole factor
FILM_RATES = 5.0, 60.0  # frames per second that look like motion; a film has its own clock only between these


def write_movie(
    path: str | os.PathLike[str],
    frames: Float[np.ndarray, "T H W *C"],
    times: Float[np.ndarray, " T"],
    source: str | os.PathLike[str] | None = None,
    description: str = "",
    components: str | os.PathLike[str] | None = None,
    derivative: bool = False,
) -> None:
    """Write a movie (T, H, W) or (T, H, W, C) with the times of its frames, atomically; `load_movie` reads it back.

    Parameters
    ----------
    path : `.npz` (values, times); `.tif` (float32, axes and labels of ImageJ; BigTIFF above 4 GB); `.zarr`, a group
        that xarray reads; `.nwb`, a new file with the frames in a processing module; `.mp4`, grey frames to look at,
        whose range of values becomes 0 to 255 (channels side by side); or a name without a suffix, a new folder with
        `U.npy`, `SVT.npy` and `times.npy`.
    times : seconds, in the order of the frames.
    source : the file that the frames come from; NWB takes the session from it.
    description : what the frames are; kept in NWB.
    components : folder with the U on which frames are projected, for a folder; ``source`` by default.
    derivative : the frames are derivatives in time, from which no mean frame is subtracted before the projection.
    """
    if frames.ndim not in (3, 4) or times.shape != frames.shape[:1]:
        raise CSTError(f"frames must be (T, H, W[, C]) with T times, got {frames.shape} and {times.shape}")
    check_target(path, source, components)
    target, kind = Path(path), Path(path).suffix.lower()
    if kind == "":
        U, mean = spatial_components(Path(components or source or ""))
        write_svd(target, frames, times, U, None if derivative else mean)
        return
    with atomic_path(target) as temporary:
        if kind == ".npz":
            np.savez(temporary, values=frames, times=times)
        elif kind == ".nwb":
            write_nwb(temporary, frames, times, None if source is None else Path(source), description)
        elif kind == ".mp4":
            _write_film(temporary, frames, times)
        else:
            create_movie(temporary, frames.shape, times, len(frames), str(frames.dtype))
            write_frames(temporary, 0, frames)


def check_target(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str] | None,
    components: str | os.PathLike[str] | None = None,
) -> None:
    """Refuse a name to which `write_movie` cannot write, or at which it would replace other data."""
    target, kind = Path(path), Path(path).suffix.lower()
    if kind not in (*NEEDS, ""):
        raise CSTError(f"{path}: frames are written as {', '.join(NEEDS)}, or to a folder with U.npy and SVT.npy")
    need(NEEDS.get(kind, "numpy"), for_what=f"{path}: writing {kind}")
    if kind == ".zarr":
        check_replaceable(target, MARK)
    if source is not None and target.resolve() == Path(source).resolve():
        raise CSTError(f"{path} is the file that the frames come from; choose another name")
    if kind == "" and file_kind(components or source or "") != "svd":
        raise CSTError(
            f"{path}: a folder with U.npy and SVT.npy is written if the frames come from such a folder or from a model "
            f"of modes; write {', '.join(NEEDS)} instead"
        )
    if kind == "" and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CSTError(f"{path} exists already; choose a new folder for U.npy and SVT.npy")


def _write_film(path: Path, frames: Float[np.ndarray, "T H W *C"], times: Float[np.ndarray, " T"]) -> None:
    """H.264, or MPEG-4 where no such encoder exists, at the rate of the frames if that looks like motion."""
    from fractions import Fraction

    import av

    steps = np.diff(times)
    rate = 1 / float(np.median(steps)) if len(steps) and np.median(steps) > 0 else 25.0
    rate = rate if FILM_RATES[0] <= rate <= FILM_RATES[1] else 25.0
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    grey = _grey(frames)
    with av.open(str(path), "w", format="mp4") as film:
        stream: Any = film.add_stream(codec, rate=Fraction(rate).limit_denominator(1000))
        stream.height, stream.width = grey.shape[1:]
        stream.pix_fmt = "yuv420p"
        for picture in grey:
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="gray")))
        film.mux(stream.encode())


def _grey(frames: Float[np.ndarray, "T H W *C"]) -> UInt8[np.ndarray, "T h w"]:
    """Frames from black, the smallest value, to white; missing pixels black; channels side by side; sides even."""
    wide = frames if frames.ndim == 3 else np.concatenate(np.moveaxis(frames, -1, 0), axis=2)
    low, high = np.nanmin(wide), np.nanmax(wide)
    scaled = np.nan_to_num((wide - low) / (high - low if high > low else 1.0))
    grey = np.rint(255 * scaled).astype(np.uint8)
    factor = max(1, -(-SMALLEST_SIDE // min(grey.shape[1:])))
    grey = grey.repeat(factor, axis=1).repeat(factor, axis=2)
    return np.pad(grey, ((0, 0), *((0, side % 2) for side in grey.shape[1:])))
