"""`Modes`: spatial modes of a movie. Frames become a few coefficients in time, and coefficients become frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.data.frame_matrix import FrameMatrix, open_frames
from cstformer.data.layout import is_count
from cstformer.data.low_rank import (
    best_rank,
    held_out_errors,
    residual_inflation,
    residual_squares,
    truncated_svd,
)
from cstformer.data.patches import frame_clock, window_starts
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.system.atomic import atomic_path
from cstformer.system.files import read_npy, readable

FORMAT = 1
"""Version of the folder that `Modes.save` writes."""
ARRAYS = ("U", "SVT", "mean", "mask", "residual", "scores")
"""Arrays of the folder, each a file NAME.npy; only U is needed."""


class Modes:
    r"""Spatial modes of a movie, by a truncated singular value decomposition.

    A frame is approximated by the mean frame plus a sum of K orthonormal modes,

    .. math:: y(t, x) \approx \bar y(x) + \sum_k U_k(x)\, a_k(t),

    so that a movie becomes a series of K coefficients. The decomposition reads blocks of frames, and neither the movie
    nor a covariance of its pixels has to fit in memory.

    Missing values: a pixel is left out where ``mask`` is False and where it is NaN in more than half of the frames.
    Other missing values count as the pixel's mean in `fit`. `coefficients` fits a frame to the pixels that it has; a
    frame with less than half of the pixels is missing itself.

    Parameters
    ----------
    rank : int or "auto"
        Number of modes K. "auto" chooses the number that predicts held-out tiles of pixels in held-out frames best.
    max_rank : int
        Largest number that "auto" may choose.
    seed : int
        Of the random start of the decomposition.

    Attributes
    ----------
    rank_ : int
        Number of modes.
    U_ : array (H, W[, C], K)
        The modes, 0 at pixels that are left out.
    SVT_ : array (K, T)
        Coefficients of the frames of `fit`, NaN where a frame is missing.
    mean_ : array (H, W[, C])
        The mean frame, NaN at pixels that are left out.
    mask_ : array (H, W) of bool
        Pixels that are kept.
    explained_ : array (K,)
        Share of the variance over time that each mode explains.
    errors_ : array or None
        With rank "auto": held-out error of 0, 1, 2... modes, relative to none.
    residual_ : array (H, W[, C]) or None
        Variance of each pixel that the modes leave out, in frames that they were not fitted to; None for modes of other
        tools, which do not say it.
    inflation_ : float
        The factor in `residual_` that stands for new frames: in those of `fit` the modes leave out less.
    scores_ : array (2, M) or None
        Errors of pixels over their standard deviation in held-out windows, and the numbers of these windows:
        `calibrate_modes` puts them here, and intervals of pixels need them.

    Examples
    --------
    >>> t, row = np.arange(40), np.arange(8)
    >>> frames = 3.0 + np.cos(0.3 * t)[:, None, None] * np.outer(np.sin(row), np.cos(row))
    >>> modes = Modes().fit(frames)
    >>> modes.rank_, modes.explained_.round(6).tolist()
    (1, [1.0])
    >>> series = modes.coefficients(frames, times=0.1 * t, time_unit="s")
    >>> series
    Samples(1 samples of 40 points, coordinates t, values mode_1)
    >>> np.allclose(modes.frames(series.values[0]), frames)
    True
    """

    residual_: np.ndarray | None
    scores_: np.ndarray | None

    def __init__(self, rank: int | str = "auto", *, max_rank: int = 100, seed: int = 0):
        self.rank, self.max_rank, self.seed = rank, max_rank, seed

    def __repr__(self) -> str:
        fitted = f", {self.rank_} modes of {self.mask_.sum()} pixels" if hasattr(self, "U_") else ""
        return f"Modes(rank={self.rank!r}{fitted})"

    def fit(self, frames: Any, mask: ArrayLike | None = None) -> Self:
        """Find the modes.

        Parameters
        ----------
        frames : movie (T, H, W) or (T, H, W, C)
            An array of NumPy, Dask or Zarr; `LazyFrames`; or a path. Arrays on disk are read block by block.
        mask : (H, W) bool, optional
            True where a pixel exists, such as inside the cortex.
        """
        if self.rank != "auto" and not is_count(self.rank):
            raise CSTError(f"rank must be 'auto' or a positive integer, got {self.rank!r}")
        if not is_count(self.max_rank):
            raise CSTError(f"max_rank must be a positive integer, got {self.max_rank!r}")
        source, _ = open_frames(frames)
        matrix = FrameMatrix.of(source, mask)
        rank, self.errors_ = self.rank, None
        if rank == "auto":
            self.errors_ = held_out_errors(matrix, source.shape[1:3], self.max_rank, self.seed)
            rank = best_rank(self.errors_)
        if int(rank) > min(matrix.shape):
            raise CSTError(f"rank={rank} is more than the {min(matrix.shape)} that {matrix.shape} frames × values have")
        _, s, vectors = truncated_svd(matrix, int(rank), self.seed)
        # The sign of a mode is free: make its largest entry positive.
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), np.arange(len(s))])
        total = sum(float(np.square(x, dtype=np.float64).sum()) for _, x in matrix.blocks())
        flat = np.zeros((int(np.prod(source.shape[1:])), len(s)))
        flat[matrix.columns] = vectors
        mean = np.full(len(flat), np.nan)
        mean[matrix.columns] = matrix.mean
        self._set(flat.reshape(*source.shape[1:], len(s)), mean.reshape(source.shape[1:]))
        self.explained_ = np.square(s) / total if total > 0 else np.zeros(len(s))
        self.SVT_ = self._series(source).T
        self.inflation_ = residual_inflation(matrix, vectors, self.seed)
        squares, counts = residual_squares(matrix, vectors)
        variance = np.full(len(flat), np.nan)
        variance[matrix.columns] = self.inflation_ * squares / counts
        self.residual_ = variance.reshape(source.shape[1:])
        return self

    def coefficients(
        self,
        frames: Any,
        times: ArrayLike | None = None,
        window: int | None = None,
        stride: int | None = None,
        time_unit: str | None = None,
    ) -> Samples:
        """Coefficients of the modes in each frame, as samples with one channel for each mode.

        Parameters
        ----------
        frames : movie of the same frame size, as in `fit`
        times : (T,) increasing; those of the file by default, else 0, 1, 2...
        window : int, optional
            Cut the series into windows of this many frames, with times relative to the first frame of each, as
            `frames_to_samples` does.
        stride : int, optional
            Frames from the beginning of a window to that of the next; `window` by default.
        time_unit : unit of `times`; "frame" when there are no times.

        Returns
        -------
        Samples with coordinates (N, n, 1) and values (N, n, K), named mode_1, mode_2, … They have the unit of the
        frames, since modes are numbers without a unit. A missing frame is a point that was not observed.
        """
        source, known = open_frames(frames)
        known = known if times is None else times  # type: ignore[assignment]
        clock, series = frame_clock(known, source.shape[0]), self._series(source)
        length = len(clock) if window is None else window
        if window is None and stride is not None:
            raise CSTError(f"stride={stride} needs a window; pass window= as well")
        starts = window_starts(len(clock), length, length if stride is None else stride)
        starts = starts[[bool(np.isfinite(series[i : i + length]).any()) for i in starts]]
        if len(starts) == 0:
            raise CSTError("frames has no frame with half of the pixels of the modes; check its NaN")
        index = starts[:, None] + np.arange(length)
        first = np.zeros(1) if window is None else clock[starts]
        return Samples(
            (clock[index] - first[:, None])[..., None],
            series[index],
            coord_names=("t",),
            value_names=[f"mode_{k + 1}" for k in range(self.rank_)],
            sample_ids=None if window is None else [f"0@{t:.12g}" for t in first],
            units={"t": time_unit or ("frame" if known is None else "")},
            origin=first[:, None],
        )

    def frames(self, values: ArrayLike, derivative: bool = False) -> Float[np.ndarray, "... H W C?"]:
        """Frames (..., H, W[, C]) from coefficients (..., K); pixels that are left out are NaN.

        With ``derivative``, the values are derivatives of coefficients in time: frames are linear in them, and the mean
        frame, which is constant, is not added.
        """
        a = self._checked_values(values)
        out = np.tensordot(a, self.U_, (-1, -1))
        return out + (np.where(np.isnan(self.mean_), np.nan, 0.0) if derivative else self.mean_)

    def frames_sd(self, sd: ArrayLike, residual: bool = False) -> Float[np.ndarray, "... H W C?"]:
        """Standard deviation of each pixel, √(Σ_k U_k² sd_k²), from that of independent coefficients (..., K).

        With ``residual`` the variance that the modes leave out is added, as a new observation has it.
        """
        variance = np.tensordot(np.square(self._checked_values(sd)), np.square(self.U_), (-1, -1))
        if residual:
            if self.residual_ is None:
                raise CSTError("these modes do not say what they leave out; use Modes().fit(frames) on the frames")
            variance += self.residual_
        return np.where(np.isnan(self.mean_), np.nan, np.sqrt(variance))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder, atomically: `U.npy` (H, W[, C], K) and `SVT.npy` (K, T) as wfield has them, and the rest.

        The rest is `mean.npy` and `residual.npy` (H, W[, C]), `mask.npy` (H, W), `scores.npy` (2, M) where there are
        scores, and `modes.json`.
        """
        self._fitted()
        arrays = {name: getattr(self, f"{name}_") for name in ARRAYS}
        about = {
            "format": FORMAT,
            "explained": self.explained_.tolist(),
            "seed": self.seed,
            "inflation": self.inflation_,
        }
        inside = {f.name for f in Path(folder).iterdir()} if Path(folder).is_dir() else set()
        if inside and ("modes.json" not in inside or inside - {f"{name}.npy" for name in ARRAYS} - {"modes.json"}):
            raise CSTError(f"{folder} is a folder with other data; it is left as it is, choose another place for modes")
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            for name, array in arrays.items():
                if array is not None:
                    np.save(temporary / f"{name}.npy", array, allow_pickle=False)
            (temporary / "modes.json").write_text(json.dumps(about, indent=1))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder that `save` wrote, or one with `U.npy` and perhaps `SVT.npy` from elsewhere.

        Without `mean.npy` the mean frame is 0, as that of ΔF/F; without `mask.npy` all pixels are kept whose modes are
        numbers other than 0. What the modes explain is then unknown, NaN.
        """
        with readable(folder, "a folder of modes") as path:
            found = {n: read_npy(path / f"{n}.npy") for n in ARRAYS if n == "U" or (path / f"{n}.npy").exists()}
            about = json.loads(text.read_text()) if (text := path / "modes.json").exists() else {}
            if about.get("format", FORMAT) != FORMAT:
                raise CSTError(f"modes.json has format {about['format']!r}, this version reads {FORMAT}; upgrade")
            modes = cls(seed=about.get("seed", 0))
            modes._take(found, about)
        return modes

    def _take(self, found: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        """Check what was read, and keep it."""
        U = as_floats("U", found["U"])
        if U.ndim not in (3, 4) or 0 in U.shape:
            raise CSTError(f"U.npy must be (H, W, K) or (H, W, C, K), got shape {U.shape}")
        mean = as_floats("mean", found.get("mean", np.zeros(U.shape[:-1])))
        SVT = as_floats("SVT", found.get("SVT", np.zeros((U.shape[-1], 0))))
        mask = found.get("mask", (U != 0).reshape(*U.shape[:2], -1).any(-1))
        explained = np.asarray(about.get("explained", [np.nan] * U.shape[-1]), dtype=float)
        sizes = mean.shape == U.shape[:-1], mask.shape == U.shape[:2], explained.shape == U.shape[-1:]
        if not all(sizes) or SVT.ndim != 2 or len(SVT) != U.shape[-1]:
            raise CSTError(f"U {U.shape}, SVT {SVT.shape}, mean {mean.shape} and mask {mask.shape} do not fit together")
        finite = (np.isfinite(U).all(-1) & np.isfinite(mean)).reshape(*U.shape[:2], -1).all(-1)
        inside = (mask.astype(bool) & finite)[..., *(None,) * (U.ndim - 3)]  # (H, W[, 1])
        if not inside.any():
            raise CSTError("U.npy has no pixel with modes; check its NaN and the mask")
        self._set(np.where(inside[..., None], U, 0.0), np.where(inside, mean, np.nan))
        self.rank, self.errors_, self.explained_, self.SVT_ = self.rank_, None, explained, SVT
        self.residual_, self.scores_ = found.get("residual"), found.get("scores")
        self.inflation_ = float(about.get("inflation", 1.0))
        if self.residual_ is not None and self.residual_.shape != mean.shape:
            raise CSTError(f"residual.npy must be {mean.shape}, as the mean frame is, got {self.residual_.shape}")
        if self.scores_ is not None and (self.scores_.ndim != 2 or len(self.scores_) != 2):
            raise CSTError(f"scores.npy must be (2, M), scores and numbers of windows, got {self.scores_.shape}")

    def _set(self, U: np.ndarray, mean: np.ndarray) -> None:
        self.U_, self.mean_, self.rank_ = U, mean, U.shape[-1]
        self.residual_, self.scores_, self.inflation_ = None, None, 1.0
        self.mask_: Bool[np.ndarray, "H W"] = ~np.isnan(mean.reshape(*mean.shape[:2], -1)).any(-1)

    def _series(self, source: Any) -> Float[np.ndarray, "T K"]:
        """Least-squares coefficients of each frame, NaN for frames with less than half of the kept values."""
        self._fitted()
        if tuple(source.shape[1:]) != self.mean_.shape:
            raise CSTError(f"frames have shape {source.shape[1:]}; the modes are those of {self.mean_.shape}")
        mean = self.mean_.reshape(-1)
        columns = np.flatnonzero(~np.isnan(mean))
        matrix = FrameMatrix(source, np.arange(source.shape[0]), columns, mean[columns])
        vectors = self.U_.reshape(len(mean), -1)[columns]  # (P, K)
        gram = vectors.T @ vectors  # the identity, but for modes from elsewhere
        out = np.empty((source.shape[0], self.rank_))
        for rows, x in matrix.raw_blocks():
            missing = ~np.isfinite(x)
            right = np.where(missing, 0, x - matrix.mean) @ vectors
            out[rows] = np.linalg.solve(gram, right.T).T
            for i in np.flatnonzero(missing.any(1)):
                lost = vectors[missing[i]]
                few = 2 * len(lost) > len(vectors)
                # A mode that lives in the missing pixels alone cannot be seen: lstsq gives it 0, its mean.
                fitted = np.nan if few else np.linalg.lstsq(gram - lost.T @ lost, right[i], rcond=1e-6)[0]
                out[rows.start + i] = fitted
        return out

    def _checked_values(self, values: ArrayLike) -> np.ndarray:
        self._fitted()
        a = as_floats("values", values)
        if a.ndim == 0 or a.shape[-1] != self.rank_:
            raise CSTError(f"values must be (..., {self.rank_}), one for each mode, got shape {a.shape}")
        return a

    def _fitted(self) -> None:
        if not hasattr(self, "U_"):
            raise CSTError("these Modes are not fitted yet; call fit(frames) or Modes.load(folder) first")
