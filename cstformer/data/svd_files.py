"""Spatial and temporal components of a movie, as wfield and its relatives keep them: ``U.npy`` and ``SVT.npy``.

| file | shape | contents |
|---|---|---|
| ``U.npy`` | (H, W, K), or (H W, K) beside ``frames_average.npy`` | spatial components |
| ``SVT.npy`` | (K, T) | temporal components; with two colours, their columns alternate |
| ``SVTcorr.npy`` | (K, T) | temporal components after the removal of hemodynamics |
| ``frames_average.npy`` | (C, H, W), optional | mean frame of each colour |
| ``info.json`` | optional | ``frame_rate`` of a colour in Hz, ``n_channels`` |
| ``mean.npy`` | (H, W), optional | mean frame that `Modes.save` adds |
| ``times.npy`` | (T,), optional | seconds of each column of ``SVT.npy``, which `write_movie` adds |

The movie is ``mean + U @ SVT``; without ``mean.npy`` it is U @ SVT, the change of fluorescence relative to the mean.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.unread import LowRankFrames
from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.files import check_bytes, npy_header, readable

SPATIAL = "U.npy"
TEMPORAL = ("SVTcorr.npy", "SVT.npy")
"""In the order of preference: what was corrected comes first."""
CLOCK, MEAN = "times.npy", "mean.npy"


def is_svd(path: Path) -> bool:
    """Whether this is a folder with components, or one of their files."""
    if path.is_dir():
        return any((path / name).is_file() for name in (SPATIAL, *TEMPORAL))
    return path.name in (SPATIAL, *TEMPORAL)


def read_svd(path: Path, key: str | None = None, base: float = 0.0) -> dict[str, Any]:
    """Frames ``base + U @ SVT`` (T, H, W[, C]), unread, by the name of the temporal components, and their times.

    ``base`` stands for the mean frame if there is no ``mean.npy``. ``key`` is ``SVT`` or ``SVTcorr``; by default the
    file that was named, else the corrected one if there is one.
    """
    folder = path if path.is_dir() else path.parent
    names = [Path(name).stem for name in TEMPORAL if (folder / name).is_file()]
    if not names or not (folder / SPATIAL).is_file():
        missing = "SVT.npy or SVTcorr.npy" if not names else SPATIAL
        raise CSTError(f"{path}: a movie of components needs U.npy and SVT.npy in one folder; {missing} is not there")
    key = key or (path.stem if path.name in TEMPORAL else names[0])
    if key not in names:
        raise unknown("temporal components", key, names)
    (U, mean), SVT = spatial_components(folder), _load(folder / f"{key}.npy", (2,))
    if U.shape[-1] != len(SVT):
        raise CSTError(
            f"{folder}: U.npy has {U.shape[-1]} components (its last axis), {key}.npy has {len(SVT)} (its first axis); "
            "they are of different decompositions"
        )
    colours, rate, _ = _about(folder)
    colours = 1 if key == "SVTcorr" else colours
    if SVT.shape[1] % colours:
        raise CSTError(f"{folder}: {key}.npy has {SVT.shape[1]} columns, no multiple of the {colours} colours")
    still = base if mean is None else mean if colours == 1 else mean[..., None]
    arrays: dict[str, Any] = {key: LowRankFrames(U, SVT.reshape(len(SVT), -1, colours), still)}
    if (folder / CLOCK).is_file():
        arrays["times"] = np.array(_load(folder / CLOCK, (1,)))
    elif rate:
        arrays["times"] = np.arange(SVT.shape[1]) / (rate * colours)
    return arrays


def spatial_components(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """U (H, W, K), and the mean frame (H, W) if there is one, of a folder or of the folder of a file in it."""
    folder = path if path.is_dir() else path.parent
    U = _load(folder / SPATIAL, (2, 3))
    if U.ndim == 2:
        frame = _about(folder)[2]
        if frame is None or math.prod(frame) != len(U):
            raise CSTError(
                f"{folder}: U.npy has shape {U.shape}, and nothing says how many rows and columns {len(U)} pixels are; "
                "save it as (H, W, K), or frames_average.npy beside it"
            )
        U = U.reshape(*frame, -1)
    mean = _load(folder / MEAN, (2,)) if (folder / MEAN).is_file() else None
    if mean is not None and mean.shape != U.shape[:2]:
        raise CSTError(f"{folder}: U.npy has frames of {U.shape[:2]}, mean.npy of {mean.shape}")
    return U, mean


def write_svd(path: Path, frames: np.ndarray, times: np.ndarray, U: np.ndarray, mean: np.ndarray | None) -> None:
    """Write ``U.npy`` (H, W, K), ``SVT.npy`` (K, T), ``times.npy`` (T,) and perhaps ``mean.npy`` to a new folder.

    SVT is the least-squares solution of mean + U @ SVT = frames over the pixels at which all are numbers. What no
    combination of the components can show is lost.
    """
    if frames.shape[1:] != U.shape[:2]:
        raise CSTError(
            f"U.npy has frames of {U.shape[:2]}, the movie has {frames.shape[1:]}; give movies of one colour"
        )
    change = frames if mean is None else frames - mean
    flat, change = U.reshape(-1, U.shape[2]), change.reshape(len(frames), -1)
    seen = np.isfinite(flat).all(axis=1) & np.isfinite(change).all(axis=0)
    SVT = np.linalg.lstsq(flat[seen].astype(np.float64), change[:, seen].T, rcond=None)[0]
    with atomic_path(path) as temporary:
        temporary.mkdir()
        np.save(temporary / SPATIAL, U)
        np.save(temporary / "SVT.npy", SVT.astype(np.float32))
        np.save(temporary / CLOCK, times)
        if mean is not None:
            np.save(temporary / MEAN, mean)


def _load(path: Path, axes: tuple[int, ...]) -> np.ndarray:
    """Numbers of an `.npy` file, whose size is checked first."""
    with readable(path, "components"):
        with path.open("rb") as stream:
            shape, dtype = npy_header(path, stream, path.stem)
        if len(shape) not in axes or dtype.kind not in "fiu" or 0 in shape:
            wanted = {SPATIAL: "(H, W, K) or (pixels, K)", CLOCK: "(T,)", MEAN: "(H, W)"}.get(path.name, "(K, T)")
            raise CSTError(f"{path} must hold numbers of shape {wanted}, it has {dtype} of shape {shape}")
        check_bytes(path, math.prod(shape) * dtype.itemsize)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _about(folder: Path) -> tuple[int, float | None, tuple[int, int] | None]:
    """Number of colours, frames per second of a colour, and rows and columns of a frame, where the folder says so."""
    colours, rate, frame = 1, None, None
    average, info = folder / "frames_average.npy", folder / "info.json"
    if average.is_file():
        with readable(average, "a mean frame"), average.open("rb") as stream:
            shape, _ = npy_header(average, stream, "frames_average")
        frame = (shape[-2], shape[-1]) if len(shape) in (2, 3) else None
        colours = shape[0] if len(shape) == 3 and 0 < shape[0] <= 4 else 1
    if info.is_file():
        with readable(info, "JSON"):
            check_bytes(info, info.stat().st_size, 2**20)
            told = json.loads(info.read_text())
            colours = int(told.get("n_channels", colours))
            rate = float(told.get("frame_rate", 0))
            if not (colours >= 1 and 0 <= rate < math.inf):
                raise CSTError(f"{info}: n_channels {colours} and frame_rate {rate} must be positive numbers")
    return colours, rate or None, frame
