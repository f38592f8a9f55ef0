"""Steps of preprocessing: binning, cropping, resampling, z-scores, masks and principal components of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cstformer.datasets.calcium.recording import Channel
from cstformer.errors import CSTError
from cstformer.system.files import check_bytes


def bin_pixels(frames: np.ndarray, factor: int) -> Float[np.ndarray, "T h w"]:
    """Average squares of ``factor`` × ``factor`` pixels.

    >>> bin_pixels(np.arange(8).reshape(1, 2, 4), 2).tolist()
    [[[2.5, 4.5]]]
    """
    count, height, width = frames.shape
    if height % factor or width % factor:
        raise CSTError(f"binning={factor} does not divide frames of {height} × {width} pixels; choose another")
    squares = frames.reshape(count, height // factor, factor, width // factor, factor)
    return squares.mean(axis=(2, 4), dtype=np.float32)


def crop(frames: np.ndarray, margins: tuple[int, int, int, int]) -> np.ndarray:
    """Remove rows and columns: top, bottom, left, right; the last two axes are the pixels."""
    top, bottom, left, right = margins
    return frames[..., top : frames.shape[-2] - bottom, left : frames.shape[-1] - right]


def regular_clock(channel: Channel) -> Float[np.ndarray, " T"]:
    """Evenly spaced times from the first frame to the last; the channel's own if they are even within 1 % of a step.

    >>> regular_clock(Channel(np.zeros((4, 1, 1)), np.array([0.0, 0.1, 0.2, 0.4]))).round(3).tolist()
    [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    times = channel.times
    count = int(np.rint((times[-1] - times[0]) / channel.step)) + 1
    check_bytes("the clock of the recording", 16 * count)
    clock = np.linspace(times[0], times[-1], count)
    return times if count == len(times) and np.abs(clock - times).max() < 0.01 * channel.step else clock


def resample(frames: Float[np.ndarray, "n ..."], times: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """Frames at the times ``clock``: linear between ``times``, constant beyond them.

    >>> resample(np.array([[0.0], [2.0]]), np.array([0.5, 1.5]), np.array([0.0, 1.0])).ravel().tolist()
    [0.0, 1.0]
    """
    if np.array_equal(times, clock):
        return frames
    right = np.clip(np.searchsorted(times, clock), 1, len(times) - 1)
    share = np.clip((clock - times[right - 1]) / (times[right] - times[right - 1]), 0, 1).astype(frames.dtype)
    share = share.reshape(-1, *[1] * (frames.ndim - 1))
    out = frames[right - 1] * (1 - share)
    out += frames[right] * share
    return out


def z_score(
    frames: Float[np.ndarray, "T ..."],
) -> tuple[Float[np.ndarray, "T ..."], np.ndarray, np.ndarray]:
    """Pixels scaled to mean 0 and standard deviation 1 over time, and both statistics; NaN for a constant pixel.

    >>> scores, mean, sd = z_score(np.array([[1.0, 2.0], [3.0, 2.0]]))
    >>> scores.tolist(), mean.tolist(), sd.tolist()
    ([[-1.0, nan], [1.0, nan]], [2.0, 2.0], [1.0, 0.0])
    """
    mean, sd = frames.mean(axis=0), frames.std(axis=0)
    return (frames - mean) / np.where(sd > 0, sd, np.nan), mean, sd


def brightness_mask(image: Float[np.ndarray, "H W"]) -> Bool[np.ndarray, "H W"]:
    """Bright region of a mean frame: above Otsu's threshold of log brightness, without small islands and holes."""
    from scipy import ndimage

    log = np.log(np.maximum(image, np.finfo(np.float32).tiny))
    level = np.sort(log[np.isfinite(image) & (image > 0)])
    if len(level) < 2 or level[0] == level[-1]:
        raise CSTError("the mean frame has no bright and dark part; pass a mask, or mask='none'")
    count = np.arange(1, len(level))
    total = np.cumsum(level)
    below, above = total[:-1] / count, (total[-1] - total[:-1]) / (len(level) - count)
    cut = int(np.argmax(count * (len(level) - count) * (above - below) ** 2))
    parts, found = ndimage.label(log > level[cut])
    size = ndimage.sum_labels(np.ones_like(log), parts, np.arange(1, found + 1))
    large = np.isin(parts, 1 + np.flatnonzero(size >= 0.1 * size.max()))
    return ndimage.binary_fill_holes(large)


def principal_components(frames: Any, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (T, k), components (k, H, W) and explained share (k,) of the variance of Dask frames; NaN counts as 0."""
    import dask.array as da

    flat = da.nan_to_num(frames.rechunk({1: -1, 2: -1}).reshape(len(frames), -1))
    if not 0 < count <= min(flat.shape):
        raise CSTError(f"components={count} must be between 1 and {min(flat.shape)}, the number of frames or pixels")
    u, s, v = da.linalg.svd_compressed(flat, k=count, n_power_iter=3, seed=seed)
    u, s, v, power = da.compute(u, s, v, (flat.astype(np.float64) ** 2).sum())
    return u * s, v.reshape(count, *frames.shape[1:]), s**2 / power
