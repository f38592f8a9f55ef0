"""Frames to patch tokens and back: a movie (T, H, W, C) becomes `Samples` with coordinates (t, row, col)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cstformer.data.samples import Samples, as_floats
from cstformer.errors import CSTError, unknown
from cstformer.system.files import MAX_BYTES, check_bytes, check_tiff, npy_header, npz_headers, read_npz, readable
from cstformer.system.zarr_files import open_zarr


@dataclass(frozen=True)
class PatchLayout:
    """How patches of size `patch` tile frames of size `frame`; the last row and column may stick out.

    Pixel i has its centre at coordinate i, so a patch of 8 rows that starts at 0 has its centre at 3.5.

    >>> layout = PatchLayout(frame=(5, 4), patch=(2, 4), channels=1)
    >>> layout.padded, layout.grid, layout.c, layout.centres.tolist()
    ((6, 4), (3, 1), 8, [[0.5, 1.5], [2.5, 1.5], [4.5, 1.5]])
    """

    frame: tuple[int, int]
    """Height and width of a frame in pixels."""
    patch: tuple[int, int]
    """Height and width of a patch in pixels."""
    channels: int = 1
    """Values a pixel."""
    periodic: bool = False
    """Whether a frame continues at its opposite edge; it is then made of whole patches."""

    def __post_init__(self) -> None:
        for name in ("frame", "patch"):
            size = _pair(name, getattr(self, name))
            object.__setattr__(self, name, size)
        if not _is_count(self.channels):
            raise CSTError(f"channels must be a positive integer, got {self.channels!r}")
        if not isinstance(self.periodic, bool):
            raise CSTError(f"periodic must be True or False, got {self.periodic!r}")
        if self.periodic and self.padded != self.frame:
            raise CSTError(f"periodic frames {self.frame} must be whole patches; choose a patch that divides them")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return (-(-self.frame[0] // self.patch[0]), -(-self.frame[1] // self.patch[1]))

    @property
    def padded(self) -> tuple[int, int]:
        """Frame size rounded up to whole patches."""
        return (self.grid[0] * self.patch[0], self.grid[1] * self.patch[1])

    @property
    def c(self) -> int:
        """Values a token."""
        return self.patch[0] * self.patch[1] * self.channels

    @property
    def centres(self) -> Float[np.ndarray, "patches 2"]:
        """Patch centres (row, col) in pixels, row by row."""
        row, col = (np.arange(g) * p + (p - 1) / 2 for g, p in zip(self.grid, self.patch, strict=True))
        return np.stack(np.meshgrid(row, col, indexing="ij"), axis=-1).reshape(-1, 2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        periodic = {"periodic": True} if self.periodic else {}
        return {"frame": list(self.frame), "patch": list(self.patch), "channels": self.channels, **periodic}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PatchLayout:
        """Inverse of `to_dict`."""
        if set(data) - {"periodic"} != {"frame", "patch", "channels"}:
            raise CSTError(f"a patch layout has frame, patch, channels and perhaps periodic, got {sorted(data)}")
        frame, patch = _pair("frame", data["frame"]), _pair("patch", data["patch"])
        return cls(frame, patch, data["channels"], data.get("periodic", False))


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) > 0


def _pair(name: str, size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence | np.ndarray) or len(size) != 2 or not all(map(_is_count, size)):
        raise CSTError(f"{name} must be two positive integers (height, width), got {size!r}")
    return int(size[0]), int(size[1])


def frames_to_samples(
    movie: ArrayLike,
    patch: tuple[int, int] = (8, 8),
    window: int | None = None,
    stride: int | None = None,
    times: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    time_unit: str | None = None,
    cover: bool = False,
    periodic: bool = False,
) -> Samples:
    """Cut frames into patch tokens at coordinates (t, row, col), ordered by time, then patch row and column.

    Parameters
    ----------
    movie : (T, H, W), (T, H, W, C) or (N, T, H, W, C). NaN pixels are unobserved.
    patch : height and width of a patch; what it adds beyond the frame is unobserved.
    window, stride : in frames; cut each movie into samples whose time is relative to their first frame, which
        goes to `origin`. `stride` is `window` by default. Windows with no observed pixel are left out.
    times : (T,) increasing; 0, 1, 2... by default.
    mask : (H, W) bool, True where a pixel exists.
    time_unit : unit of `times`; "frame" when there are no times.
    cover : add one last window that ends at the last frame, if none does.
    periodic : the frames continue at their opposite edges; they must be whole patches.

    Returns
    -------
    Samples with values (N, T * rows * cols, P0 * P1 * C); a token with no observed pixel is padding.

    Examples
    --------
    >>> s = frames_to_samples(np.arange(16.0).reshape(2, 2, 4), patch=(2, 2))
    >>> s.coords[0].tolist()
    [[0.0, 0.5, 0.5], [0.0, 0.5, 2.5], [1.0, 0.5, 0.5], [1.0, 0.5, 2.5]]
    >>> s.values[0, 1].tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    frames = as_floats("movie", movie)
    if frames.ndim not in (3, 4, 5) or 0 in frames.shape:
        raise CSTError(f"movie must be (T, H, W), (T, H, W, C) or (N, T, H, W, C), got shape {frames.shape}")
    frames = frames[..., None] if frames.ndim == 3 else frames
    frames = frames[None] if frames.ndim == 4 else frames
    N, T, H, W, channels = frames.shape
    layout = PatchLayout((H, W), patch, channels, periodic)
    clock = _clock(times, T)
    if mask is not None:
        exists = np.asarray(mask)
        if exists.shape != (H, W) or exists.dtype != bool:
            raise CSTError(f"mask must be bool of shape {(H, W)}, got {exists.dtype} of shape {exists.shape}")
        frames = np.where(exists[..., None], frames, np.nan)
    edge = ((0, 0), (0, 0), (0, layout.padded[0] - H), (0, layout.padded[1] - W), (0, 0))
    (rows, cols), (P0, P1) = layout.grid, layout.patch
    tokens = np.pad(frames, edge, constant_values=np.nan).reshape(N, T, rows, P0, cols, P1, channels)
    tokens = tokens.transpose(0, 1, 2, 4, 3, 5, 6).reshape(N, T, rows * cols, layout.c)

    coords = frame_queries(layout, clock).reshape(T, rows * cols, 3)
    ids: list[int | str] = list(range(N))
    origin = np.zeros((N, 3))
    if window is None:
        if stride is not None:
            raise CSTError(f"stride={stride} needs a window; pass window= as well")
        coords = np.broadcast_to(coords, (N, *coords.shape))
    else:
        starts = window_starts(T, window, window if stride is None else stride, cover)
        pick = starts[:, None] + np.arange(window)
        relative = coords[pick]
        relative[..., 0] -= clock[starts, None, None]
        coords = np.broadcast_to(relative, (N, *relative.shape)).reshape(-1, *relative.shape[1:])
        tokens = tokens[:, pick].reshape(-1, window, rows * cols, layout.c)
        ids = [f"{i}@{clock[start]:.12g}" for i in range(N) for start in starts]
        origin = np.zeros((len(ids), 3))
        origin[:, 0] = np.tile(clock[starts], N)
        some = ~np.isnan(tokens).all(axis=(1, 2, 3))
        if not some.any():
            raise CSTError("movie has no observed pixel; check its NaN and the mask")
        coords, tokens, origin = coords[some], tokens[some], origin[some]
        ids = [i for i, keep in zip(ids, some, strict=True) if keep]
    unit = time_unit or ("frame" if times is None else "")
    return Samples(
        coords.reshape(len(ids), -1, 3),
        tokens.reshape(len(ids), -1, layout.c),
        coord_names=("t", "row", "col"),
        sample_ids=ids,
        units={"t": unit, "row": "pixel", "col": "pixel"},
        origin=origin,
        layout=layout,
    )


def _clock(times: ArrayLike | None, T: int) -> np.ndarray:
    """Check the times (T,) of the frames."""
    if times is None:
        return np.arange(T, dtype=np.float64)
    clock = as_floats("times", times)
    if clock.shape != (T,) or not np.isfinite(clock).all() or (np.diff(clock) <= 0).any():
        raise CSTError(f"times must be {T} finite increasing numbers, one a frame, got shape {clock.shape}")
    return clock


def window_starts(T: int, window: int, stride: int, cover: bool = False) -> np.ndarray:
    """First frames of the windows that fit into T frames; `cover` adds a last one that ends at frame T - 1.

    >>> window_starts(11, 4, 3).tolist(), window_starts(11, 4, 3, cover=True).tolist()
    ([0, 3, 6], [0, 3, 6, 7])
    """
    for name, number in (("window", window), ("stride", stride)):
        if not _is_count(number):
            raise CSTError(f"{name} must be a positive number of frames, got {number!r}")
    if window > T:
        raise CSTError(f"window={window} is longer than the movie of {T} frames; choose at most {T}")
    starts = np.arange(0, T - window + 1, stride)
    return np.append(starts, T - window) if cover and starts[-1] != T - window else starts


def frame_queries(layout: PatchLayout, times: ArrayLike) -> Float[np.ndarray, "tokens 3"]:
    """Coordinates (T * rows * cols, 3) to ask for whole frames at any `times` (T,); `stitch` the answer.

    >>> frame_queries(PatchLayout((2, 4), (2, 2)), [0.25]).tolist()
    [[0.25, 0.5, 0.5], [0.25, 0.5, 2.5]]
    """
    clock = np.atleast_1d(as_floats("times", times))
    centres = layout.centres
    return np.column_stack([np.repeat(clock, len(centres)), np.tile(centres, (len(clock), 1))])


def stitch(values: ArrayLike, layout: PatchLayout) -> Float[np.ndarray, "N T H W C"]:
    """Frames (N, T, H, W, C) from values (N, T * rows * cols, c) in the token order of `frame_queries`."""
    tokens = as_floats("values", values)
    (rows, cols), (P0, P1), (H, W) = layout.grid, layout.patch, layout.frame
    if tokens.ndim != 3 or tokens.shape[2] != layout.c or tokens.shape[1] % (rows * cols):
        raise CSTError(f"values must be (N, T * {rows * cols}, {layout.c}) for this layout, got shape {tokens.shape}")
    frames = tokens.reshape(len(tokens), -1, rows, cols, P0, P1, layout.channels).transpose(0, 1, 2, 4, 3, 5, 6)
    return frames.reshape(*frames.shape[:2], *layout.padded, layout.channels)[:, :, :H, :W]


def samples_to_frames(
    samples_or_values: Samples | ArrayLike, layout: PatchLayout | None = None
) -> Float[np.ndarray, "N T H W C"]:
    """Inverse of `frames_to_samples`; unobserved pixels are NaN. Plain values are handed to `stitch`.

    Tokens out of frame order (sorted, cut by `windows`) are put back by their coordinates; frames are then
    the distinct times of each sample.
    """
    if not isinstance(samples_or_values, Samples):
        if layout is None:
            raise CSTError("layout is needed to turn plain values into frames; pass samples.layout")
        return stitch(samples_or_values, layout)
    samples = samples_or_values
    layout = layout or samples.layout
    if layout is None or samples.d != 3 or samples.c != layout.c:
        raise CSTError(f"{samples} holds no patch tokens of layout {layout}; make it by frames_to_samples")
    real, size, (rows, cols) = samples.point_observed, np.array(layout.patch), layout.grid
    place = (samples.coords[..., 1:] - (size - 1) / 2) / size
    cell = np.rint(place).astype(np.int64)
    fits = (np.abs(place - cell) < 1e-6).all(axis=-1) & (cell >= 0).all(axis=-1) & (cell < (rows, cols)).all(axis=-1)
    if not fits[real].all():
        raise CSTError("samples have tokens off the patch grid; predict at frame_queries(layout, times) instead")
    token = cell[..., 0] * cols + cell[..., 1]
    index = np.broadcast_to(np.arange(samples.n), real.shape)
    if samples.n % (rows * cols) == 0 and (token == index % (rows * cols))[real].all():
        frame = index // (rows * cols)
    else:
        frame = np.zeros(real.shape, dtype=np.int64)
        for i, here in enumerate(real):
            frame[i, here] = np.unique(samples.coords[i, here, 0], return_inverse=True)[1]
    out = np.full((len(samples), frame.max() + 1, rows * cols, layout.c), np.nan)
    sample = np.nonzero(real)[0]
    out[sample, frame[real], token[real]] = np.where(samples.observed, samples.values, np.nan)[real]
    return stitch(out.reshape(len(samples), -1, layout.c), layout)


def join_windows(
    frames: Float[np.ndarray, "N T H W C"], starts: ArrayLike, length: int
) -> Float[np.ndarray, "length H W C"]:
    """One movie of `length` frames from windows that start at frames `starts` (N,); overlaps are averaged.

    NaN pixels do not count; a pixel that no window has is NaN.

    >>> two = np.array([[1.0, 2.0], [4.0, 5.0]]).reshape(2, 2, 1, 1, 1)
    >>> join_windows(two, [0, 1], length=4).ravel().tolist()
    [1.0, 3.0, 5.0, nan]
    """
    begin = as_floats("starts", starts)
    if frames.ndim != 5 or begin.shape != (len(frames),) or (begin != np.rint(begin)).any():
        raise CSTError(f"starts must be {len(frames)} whole frame numbers, got shape {begin.shape}")
    if (begin < 0).any() or (begin + frames.shape[1] > length).any():
        raise CSTError(f"length={length} is too short for windows of {frames.shape[1]} frames up to {begin.max():g}")
    total = np.zeros((length, *frames.shape[2:]))
    count = np.zeros_like(total)
    for start, part in zip(begin.astype(int), frames, strict=True):
        total[start : start + len(part)] += np.nan_to_num(part, nan=0.0)
        count[start : start + len(part)] += ~np.isnan(part)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def load_movie(
    path: str | os.PathLike[str], key: str | None = None, max_bytes: int = MAX_BYTES
) -> tuple[np.ndarray, np.ndarray | None]:
    """Movie (T, H, W) or (T, H, W, C) of a file, and the times of its frames if the file has them.

    TIFF stack, `.npy`, or the only three- or four-dimensional array (or the one called `key`) of an `.npz`,
    Zarr or NetCDF file. Times are a one-dimensional array `times`, `time` or `t` of length T; in NetCDF, and
    Zarr written by xarray, the coordinate of the first dimension (dates become hours since the first).
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _MOVIES:
        raise unknown("kind of movie file", suffix, _MOVIES)
    with readable(path, f"a {suffix} movie") as source:
        arrays, movie_key = _MOVIES[suffix](source, key, max_bytes), key
        if movie_key is None:
            candidates = [k for k, a in arrays.items() if a.ndim in (3, 4) and a.dtype.kind in "fiub"]
            if len(candidates) != 1:
                shapes = ", ".join(f"{k} {a.shape}" for k, a in arrays.items())
                raise CSTError(
                    f"{path} must have one array of shape (T, H, W[, C]), found {len(candidates)} "
                    f"in: {shapes}" + ("; choose one by key=" if candidates else "")
                )
            movie_key = candidates[0]
        if movie_key not in arrays:
            raise unknown(f"array in {path}", movie_key, arrays)
        movie = arrays[movie_key]
        if movie.ndim not in (3, 4):
            raise CSTError(f"{path}: {movie_key!r} has shape {movie.shape}; a movie is (T, H, W[, C])")
        times = next((arrays[k] for k in ("times", "time", "t") if k in arrays and k != movie_key), None)
        return movie, times if times is not None and times.shape == movie.shape[:1] else None


def _tiff(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    import tifffile

    check_tiff(path)
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        check_bytes(path, series.nbytes, max_bytes)
        axes, movie = series.axes, series.asarray()
    colour = next((axes.index(a) for a in "SC" if a in axes), None)
    if colour is not None and movie.ndim == 3:
        raise CSTError(f"{path} is one picture with colours {movie.shape}, not a movie; save a stack of frames")
    return {"movie": movie if colour is None else np.moveaxis(movie, colour, -1)}


def _npy(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    # A memory map is refused by NumPy when the file is shorter than its header says.
    mapped = np.load(path, allow_pickle=False, mmap_mode="r")
    check_bytes(path, mapped.nbytes, max_bytes)
    return {"movie": np.array(mapped)}


def _npz(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    return read_npz(path, max_bytes)


def _zarr(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    import zarr

    node = open_zarr(path)
    if isinstance(node, zarr.Array):
        check_bytes(path, node.nbytes, max_bytes)
        return {"movie": np.asarray(node[...])}
    try:
        return _xarray(path, key, max_bytes)
    except KeyError:  # a group without dimension names, not written by xarray
        arrays = dict(node.arrays())
        check_bytes(path, sum(a.nbytes for a in arrays.values()), max_bytes)
        return {name: np.asarray(array[...]) for name, array in arrays.items()}


def _xarray(path: Path, key: str | None, max_bytes: int) -> dict[str, np.ndarray]:
    from cstformer.data.sample_files import axis_numbers, open_xarray

    data = open_xarray(path, max_bytes)
    arrays = {str(name): data[name].values for name in data.data_vars}
    movies = [name for name in ([key] if key in arrays else arrays) if data[name].ndim in (3, 4)]
    if len(movies) == 1 and data[movies[0]].dims[0] in data.coords:
        arrays["times"] = axis_numbers(data, str(data[movies[0]].dims[0]))[0]
    return arrays


_MOVIES: dict[str, Callable[[Path, str | None, int], dict[str, np.ndarray]]] = {
    ".tif": _tiff,
    ".tiff": _tiff,
    ".npy": _npy,
    ".npz": _npz,
    ".zarr": _zarr,
    ".nc": _xarray,
}


def is_movie(path: str | os.PathLike[str], gridded: bool = False) -> bool:
    """Whether `path` is clearly a movie, from names and headers alone.

    True for TIFF, a Zarr array, and a `.npy` or `.npz` with a numeric array of 3 or 4 dimensions and no
    `coords`. A NetCDF file or Zarr group could be gridded samples as well: True only if `gridded` says so.
    """
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix in (".tif", ".tiff"):
        return True
    if suffix in (".npz", ".npy"):
        with readable(source, suffix):
            if suffix == ".npz":
                headers = npz_headers(source)
            else:
                with source.open("rb") as stream:
                    headers = {"movie": npy_header(source, stream, "movie")}
        numeric = any(len(shape) in (3, 4) and dtype.kind in "fiub" for shape, dtype in headers.values())
        return numeric and "coords" not in headers
    if suffix == ".zarr":
        meta = source / "zarr.json"
        with readable(source, "Zarr"):
            node = json.loads(meta.read_text()).get("node_type") if meta.exists() else None
        return gridded or node == "array" or (source / ".zarray").exists()
    return gridded and suffix == ".nc"
