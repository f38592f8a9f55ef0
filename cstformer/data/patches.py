"""Frames to patch tokens and back: a movie (T, H, W, C) becomes `Samples` with coordinates (t, row, col)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats, check_size
from cstformer.data.layout import PatchLayout, is_count
from cstformer.data.samples import Samples
from cstformer.errors import CSTError


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
    patch : height and width of a patch; pixels that it adds beyond the frame are unobserved.
    window : int, optional
        Cut each movie into windows of this many frames. The times of a window are relative to its first frame, whose
        time goes to `origin`. Windows without an observed pixel are dropped.
    stride : int, optional
        Frames from the beginning of a window to that of the next; `window` by default.
    times : (T,) increasing; 0, 1, 2... by default.
    mask : (H, W) bool, True where a pixel exists.
    time_unit : unit of `times`; "frame" when there are no times.
    cover : add a last window that ends at the last frame, if none does.
    periodic : the frames continue at their opposite edges; they must be whole patches.

    Returns
    -------
    Samples with values (N, T * rows * cols, P0 * P1 * C); a token without an observed pixel is padding.

    Examples
    --------
    >>> s = frames_to_samples(np.arange(16.0).reshape(2, 2, 4), patch=(2, 2))
    >>> s.coords[0].tolist()
    [[0.0, 0.5, 0.5], [0.0, 0.5, 2.5], [1.0, 0.5, 0.5], [1.0, 0.5, 2.5]]
    >>> s.values[0, 1].tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    frames = _frames(movie, mask)
    N, T, H, W, channels = frames.shape
    layout = PatchLayout((H, W), patch, channels, periodic)
    clock = frame_clock(times, T)
    check_size(N, T * len(layout.centres), 3, layout.c)
    tokens = _tokens(frames, layout)  # (N, T, patches, c)
    if window is None:
        if stride is not None:
            raise CSTError(f"stride={stride} needs a window; pass window= as well")
        relative, first = np.broadcast_to(clock, (N, T)), np.zeros(N)
        ids: list[int | str] = list(range(N))
    else:
        starts = window_starts(T, window, window if stride is None else stride, cover)
        check_size(N * len(starts), window * len(layout.centres), 3, layout.c)
        index = starts[:, None] + np.arange(window)  # (windows, window)
        relative = np.tile(clock[index] - clock[starts, None], (N, 1))  # (N * windows, window)
        first = np.tile(clock[starts], N)
        tokens = tokens[:, index].reshape(-1, window, *tokens.shape[2:])  # (N * windows, window, patches, c)
        some = ~np.isnan(tokens).all(axis=(1, 2, 3))
        if not some.any():
            raise CSTError("movie has no observed pixel; check its NaN and the mask")
        names = [f"{i}@{clock[start]:.12g}" for i in range(N) for start in starts]
        ids = [name for name, keep in zip(names, some, strict=True) if keep]
        tokens, relative, first = tokens[some], relative[some], first[some]
    unit = time_unit or ("frame" if times is None else "")
    return Samples(
        _token_coords(layout, relative),
        tokens.reshape(len(ids), -1, layout.c),
        coord_names=("t", "row", "col"),
        sample_ids=ids,
        units={"t": unit, "row": "pixel", "col": "pixel"},
        origin=np.column_stack([first, np.zeros((len(first), 2))]),
        layout=layout,
    )


def _frames(movie: ArrayLike, mask: ArrayLike | None) -> Float[np.ndarray, "N T H W C"]:
    """Frames as float64 with all five axes, NaN where the mask is False."""
    frames = as_floats("movie", movie)
    if frames.ndim not in (3, 4, 5) or 0 in frames.shape:
        raise CSTError(f"movie must be (T, H, W), (T, H, W, C) or (N, T, H, W, C), got shape {frames.shape}")
    frames = frames[..., None] if frames.ndim == 3 else frames
    frames = frames[None] if frames.ndim == 4 else frames
    if mask is None:
        return frames
    exists, size = np.asarray(mask), frames.shape[2:4]
    if exists.shape != size or exists.dtype != bool:
        raise CSTError(f"mask must be bool of shape {size}, got {exists.dtype} of shape {exists.shape}")
    return np.where(exists[..., None], frames, np.nan)


def _tokens(frames: Float[np.ndarray, "N T H W C"], layout: PatchLayout) -> Float[np.ndarray, "N T patches c"]:
    """Pixels of each patch, NaN beyond the frame. Inverse of `stitch`."""
    (rows, cols), (P0, P1), (H, W) = layout.grid, layout.patch, layout.frame
    edge = ((0, 0), (0, 0), (0, layout.padded[0] - H), (0, layout.padded[1] - W), (0, 0))
    padded = np.pad(frames, edge, constant_values=np.nan)
    patches = padded.reshape(*frames.shape[:2], rows, P0, cols, P1, layout.channels)
    return patches.transpose(0, 1, 2, 4, 3, 5, 6).reshape(*frames.shape[:2], rows * cols, layout.c)


def _token_coords(layout: PatchLayout, times: Float[np.ndarray, "N T"]) -> Float[np.ndarray, "N tokens 3"]:
    """`frame_queries` for each row of times."""
    centres = layout.centres
    coords = np.empty((*times.shape, len(centres), 3))
    coords[..., 0], coords[..., 1:] = times[..., None], centres
    return coords.reshape(len(times), -1, 3)


def frame_clock(times: ArrayLike | None, T: int) -> Float[np.ndarray, " T"]:
    """Check the times of the frames; 0, 1, 2... if there are none."""
    if times is None:
        return np.arange(T, dtype=np.float64)
    clock = as_floats("times", times)
    if clock.shape != (T,) or not np.isfinite(clock).all() or (np.diff(clock) <= 0).any():
        raise CSTError(f"times must be {T} finite increasing numbers, one per frame, got shape {clock.shape}")
    return clock


def window_starts(T: int, window: int, stride: int, cover: bool = False) -> np.ndarray:
    """First frames of the windows that fit into T frames; `cover` adds a last window that ends at frame T - 1.

    >>> window_starts(11, 4, 3).tolist(), window_starts(11, 4, 3, cover=True).tolist()
    ([0, 3, 6], [0, 3, 6, 7])
    """
    for name, number in (("window", window), ("stride", stride)):
        if not is_count(number):
            raise CSTError(f"{name} must be a positive number of frames, got {number!r}")
    if window > T:
        raise CSTError(f"window={window} is longer than the movie of {T} frames; choose at most {T}")
    starts = np.arange(0, T - window + 1, stride)
    return np.append(starts, T - window) if cover and starts[-1] != T - window else starts


def frame_queries(layout: PatchLayout, times: ArrayLike) -> Float[np.ndarray, "tokens 3"]:
    """Coordinates (T * rows * cols, 3) that ask for whole frames at `times` (T,); `stitch` turns answers into frames.

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
    """Inverse of `frames_to_samples`; unobserved pixels are NaN. Plain values are passed to `stitch`.

    Tokens out of frame order (sorted, or cut by `windows`) are placed by their coordinates; the frames are then the
    distinct times of each sample.
    """
    if not isinstance(samples_or_values, Samples):
        if layout is None:
            raise CSTError("layout is needed to turn plain values into frames; pass samples.layout")
        return stitch(samples_or_values, layout)
    samples = samples_or_values
    layout = layout or samples.layout
    if layout is None or samples.d != 3 or samples.c != layout.c:
        raise CSTError(f"{samples} holds no patch tokens of layout {layout}; make it by frames_to_samples")
    exists, size, (rows, cols) = samples.point_observed, np.array(layout.patch), layout.grid
    place = (samples.coords[..., 1:] - layout.half) / size  # in patches, (N, n, 2)
    cell = np.rint(place).astype(np.int64)
    fits = (np.abs(place - cell) < 1e-6).all(axis=-1) & (cell >= 0).all(axis=-1) & (cell < (rows, cols)).all(axis=-1)
    if not fits[exists].all():
        raise CSTError("samples have tokens off the patch grid; predict at frame_queries(layout, times) instead")
    token = cell[..., 0] * cols + cell[..., 1]
    index = np.broadcast_to(np.arange(samples.n), exists.shape)
    if samples.n % (rows * cols) == 0 and (token == index % (rows * cols))[exists].all():
        frame = index // (rows * cols)
    else:
        frame = np.zeros(exists.shape, dtype=np.int64)
        for i, here in enumerate(exists):
            frame[i, here] = np.unique(samples.coords[i, here, 0], return_inverse=True)[1]
    out = np.full((len(samples), frame.max() + 1, rows * cols, layout.c), np.nan)
    sample = np.nonzero(exists)[0]
    out[sample, frame[exists], token[exists]] = np.where(samples.observed, samples.values, np.nan)[exists]
    return stitch(out.reshape(len(samples), -1, layout.c), layout)
