r"""Intervals of the pixels of a movie, from a model of the coefficients of its spatial modes.

A new observation of a pixel is :math:`y = \bar y + \sum_k U_k a_k + r`, with the coefficients :math:`a_k` of its frame
and the residual r that the modes leave out. The model predicts :math:`\hat a_k` with the variance :math:`v_k` of an
observed coefficient (`calibration`), and the modes know the variance :math:`\rho` of r in new frames
(`Modes.residual_`). With independent coefficients the error of the pixel has the variance

.. math:: v = \sum_k U_k^2\, v_k + \rho.

Scores :math:`|y - \hat y| / \sqrt v` at hidden frames of held-out windows say how many :math:`\sqrt v` wide an interval
is, the same number for all pixels. They make up for coefficients that depend on each other. The modes have seen the
held-out windows, so that r is too small there; it is multiplied by the root of `Modes.inflation_`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from cstformer.data.frame_matrix import FrameMatrix, open_frames
from cstformer.data.holding_out import hold_out
from cstformer.data.modes import Modes
from cstformer.data.patches import frame_clock
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.calibration import FINE, MAX_SAMPLES, MAX_SCORES, folds
from cstformer.models.conformal import check_level, fewest_samples, quantile
from cstformer.models.intervals import with_sd

if TYPE_CHECKING:
    from cstformer.models.cst import CST


def frame_bounds(
    model: CST, modes: Modes, context: Samples, queries: Float[np.ndarray, "N m 1"], level: float
) -> Float[np.ndarray, "3 N m H W C?"]:
    """Frames, and lower and upper bounds of new observations of their pixels."""
    factor = _factor(modes, level)
    values, sd = with_sd(model, context, queries, (0,), noise=True)
    frames, half = modes.frames(values), factor * modes.frames_sd(sd, residual=True)
    return np.stack([frames, frames - half, frames + half])


def calibrate_modes(model: CST, modes: Modes, movie: Any, times: np.ndarray | None, series: Samples) -> Modes:
    """Compare pixels of the windows that `fit` held out with their predictions, and keep the scores in the modes.

    Parameters
    ----------
    model : CST that was fitted to the series
    modes : Modes that were fitted to the movie
    movie, times : as in `Modes.coefficients`
    series : windows of coefficients, from `Modes.coefficients`

    Returns
    -------
    The same modes. They have no scores if the model has no held-out windows.
    """
    modes.scores_ = None
    training, held = hold_out(series, model.run_.validation, model.seed)
    if bool(torch.isin(held, training).any()) or model.calibration_ is None or modes.residual_ is None:
        return modes
    windows = series[held[:MAX_SAMPLES].numpy()]
    source, known = open_frames(movie)
    clock = frame_clock(known if times is None else times, source.shape[0])
    window, point, answers, variances = _hidden_frames(model, windows)
    moment = windows.coords[window, point, 0] + windows.origin[window, 0]
    number = np.searchsorted((clock[1:] + clock[:-1]) / 2, moment)  # of the frame
    per_frame = -(-MAX_SCORES // windows.n)
    mean = modes.mean_.reshape(-1)
    kept = np.flatnonzero(~np.isnan(mean))
    pixel = kept[np.random.default_rng(model.seed).integers(len(kept), size=(len(number), per_frame))]  # (M, p)
    U = modes.U_.reshape(len(mean), -1)[pixel]  # (M, p, K)
    true = windows.values[window, point]
    # What the model misses, and what the modes miss, as much as they would in a new frame.
    residual = _pixels(source, number, pixel) - mean[pixel] - np.einsum("mpk,mk->mp", U, true)
    error = np.einsum("mpk,mk->mp", U, true - answers) + np.sqrt(modes.inflation_) * residual
    variance = np.einsum("mpk,mk->mp", U**2, variances) + modes.residual_.reshape(-1)[pixel]
    scores = np.abs(error) / np.sqrt(np.maximum(variance, np.finfo(float).tiny))
    seen = np.isfinite(scores)
    modes.scores_ = np.stack([scores[seen], np.broadcast_to(window[:, None], seen.shape)[seen]]) if seen.any() else None
    return modes


def _factor(modes: Modes, level: float) -> float:
    """Half width of an interval over the standard deviation of a pixel."""
    check_level(level)
    if modes.scores_ is None:
        raise CSTError(
            "these modes have no scores of held-out windows: version 0.1.0 did not keep them, and fewer than five "
            "windows or validation=0 give none; fit the model again (cst fit MOVIE --modes), or call calibrate_modes"
        )
    scores, window = modes.scores_
    factor = quantile(scores, window.astype(int), level)
    if np.isinf(factor):
        raise CSTError(
            f"an interval of level {level:g} needs {fewest_samples(level)} held-out windows, but "
            f"{len(np.unique(window))} were there; choose a lower level, or fit with a larger validation "
            "(--validation) or shorter windows (--window)"
        )
    return factor


def _hidden_frames(model: CST, windows: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Hide each inner frame once, in folds: window and point (M,), coefficients and their variances (M, K)."""
    generator = torch.Generator().manual_seed(model.seed)
    fold = folds(model._batch(windows), FINE, 0.0, generator)[..., 0].cpu().numpy()  # (N, n)
    parts = []
    for k in range(int(fold.max()) + 1):
        hidden = fold == k
        order = np.argsort(~hidden, axis=1, kind="stable")[:, : hidden.sum(1).max()]  # hidden points come first
        context = windows.replace(observed=windows.observed & ~hidden[..., None])
        values, sd = with_sd(model, context, np.take_along_axis(windows.coords, order[..., None], 1), (0,), noise=True)
        window, column = np.nonzero(np.take_along_axis(hidden, order, 1))
        parts.append((window, order[window, column], values[window, column], sd[window, column] ** 2))
    window, point, values, variances = (np.concatenate(x) for x in zip(*parts, strict=True))
    return window, point, values, variances


def _pixels(source: Any, number: np.ndarray, pixel: np.ndarray) -> Float[np.ndarray, "M p"]:
    """Recorded values of pixels (M, p) of frames (M,), in one pass over the movie; NaN where missing."""
    rows, place = np.unique(number, return_inverse=True)
    size = int(np.prod(source.shape[1:]))
    out = np.empty(pixel.shape)
    for block, x in FrameMatrix(source, rows, np.arange(size), np.zeros(size)).raw_blocks():
        mine = (place >= block.start) & (place < block.stop)
        out[mine] = np.take_along_axis(x[place[mine] - block.start], pixel[mine], 1)
    return out
