"""Spatial and temporal components of a movie, as wfield and its relatives keep them: ``U.npy`` and ``SVT.npy``.

| file | shape | contents |
|---|---|---|
| ``U.npy`` | (H, W, K), or (H W, K) beside ``frames_average.npy`` | spatial components |
| ``SVT.npy`` | (K, T) | temporal components; with two colours, their columns alternate |
| ``SVTcorr.npy`` | (K, T) | temporal components after the removal of hemodynamics |
| ``frames_average.npy`` | (C, H, W), optional | mean frame of each colour |
| ``info.json`` | optional | ``frame_rate`` of a colour in Hz, ``n_channels`` |
| ``times.npy`` | (T,), optional | seconds of each column of ``SVT.npy``; ours |

The movie is U @ SVT: the change of fluorescence relative to the mean frame.
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
CLOCK = "times.npy"


def is_svd(path: Path) -> bool:
    """Whether this is a folder with components, or one of their files."""
    if path.is_dir():
        return any((path / name).is_file() for name in (SPATIAL, *TEMPORAL))
    return path.name in (SPATIAL, *TEMPORAL)


def read_svd(path: Path, key: str | None = None, base: float = 0.0) -> dict[str, Any]:
    """Frames ``base + U @ SVT`` (T, H, W[, C]), unread, by the name of the temporal components, and their times.

    ``key`` is ``SVT`` or ``SVTcorr``; by default the file that was named, else the corrected one if there is one.
    """
    folder = path if path.is_dir() else path.parent
    names = [Path(name).stem for name in TEMPORAL if (folder / name).is_file()]
    if not names or not (folder / SPATIAL).is_file():
        missing = "SVT.npy or SVTcorr.npy" if not names else SPATIAL
        raise CSTError(f"{path}: a movie of components needs U.npy and SVT.npy in one folder; {missing} is not there")
    key = key or (path.stem if path.name in TEMPORAL else names[0])
    if key not in names:
        raise unknown("temporal components", key, names)
    U, SVT = spatial_components(folder), _load(folder / f"{key}.npy", (2,))
    if U.shape[-1] != len(SVT):
        raise CSTError(
            f"{folder}: U.npy has {U.shape[-1]} components (its last axis), {key}.npy has {len(SVT)} (its first axis); "
            "they are of different decompositions"
        )
    colours, rate, _ = _about(folder)
    colours = 1 if key == "SVTcorr" else colours
    if SVT.shape[1] % colours:
        raise CSTError(f"{folder}: {key}.npy has {SVT.shape[1]} columns, no multiple of the {colours} colours")
    arrays: dict[str, Any] = {key: LowRankFrames(U, SVT.reshape(len(SVT), -1, colours), base)}
    if (folder / CLOCK).is_file():
        arrays["times"] = np.array(_load(folder / CLOCK, (1,)))
    elif rate:
        arrays["times"] = np.arange(SVT.shape[1]) / (rate * colours)
    return arrays


def spatial_components(path: Path) -> np.ndarray:
    """U (H, W, K) of a folder, or of the folder of a file in it."""
    folder = path if path.is_dir() else path.parent
    U = _load(folder / SPATIAL, (2, 3))
    if U.ndim == 3:
        return U
    frame = _about(folder)[2]
    if frame is None or math.prod(frame) != len(U):
        raise CSTError(
            f"{folder}: U.npy has shape {U.shape}, and nothing says how many rows and columns {len(U)} pixels are; "
            "save it as (H, W, K), or frames_average.npy beside it"
        )
    return U.reshape(*frame, -1)


def write_svd(path: Path, frames: np.ndarray, times: np.ndarray, U: np.ndarray) -> None:
    """Write ``U.npy`` (H, W, K), ``SVT.npy`` (K, T) and ``times.npy`` (T,) to a new folder.

    SVT is the least-squares solution of U @ SVT = frames over the pixels at which both are numbers. What no combination
    of the components can show is lost.
    """
    if frames.shape[1:] != U.shape[:2]:
        raise CSTError(
            f"U.npy has frames of {U.shape[:2]}, the movie has {frames.shape[1:]}; give movies of one colour"
        )
    flat, still = U.reshape(-1, U.shape[2]), frames.reshape(len(frames), -1)
    seen = np.isfinite(flat).all(axis=1) & np.isfinite(still).all(axis=0)
    SVT = np.linalg.lstsq(flat[seen].astype(np.float64), still[:, seen].T, rcond=None)[0]
    with atomic_path(path) as temporary:
        temporary.mkdir()
        np.save(temporary / SPATIAL, U)
        np.save(temporary / "SVT.npy", SVT.astype(np.float32))
        np.save(temporary / CLOCK, times)


def _load(path: Path, axes: tuple[int, ...]) -> np.ndarray:
    """Numbers of an `.npy` file, whose size is checked first."""
    with readable(path, "components"):
        with path.open("rb") as stream:
            shape, dtype = npy_header(path, stream, path.stem)
        if len(shape) not in axes or dtype.kind not in "fiu" or 0 in shape:
            wanted = {SPATIAL: "(H, W, K) or (pixels, K)", CLOCK: "(T,)"}.get(path.name, "(K, T)")
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
