r"""Modes of frames: low rank in space, a Gaussian process in time for each mode.

A frame is the mean frame plus K modes :math:`U_k` times coefficients :math:`a_k(t)`. A truncated singular value
decomposition of the training frames (`data.low_rank`) finds the space of the modes. Observed coefficients are those of
least squares, :math:`a_k + n_k`. Noise of neighbouring pixels that is correlated adds up in some modes and cancels in
others, so each mode has its own noise variance. The fit of its kernel in time finds it, since the noise is what changes
faster than any process between frames. The best linear estimate of :math:`a_k(t)` is then Gaussian-process regression
with the kernel of the mode.

Singular vectors are ordered by variance, of the noise as well, and a fast and a slow process share them. One process
for each of them is then not the best estimate. `persistent` therefore turns to the combinations that persist most from
frame to frame (min/max autocorrelation factors, Switzer & Green 1984). These are uncorrelated with each other at the
same time and from frame to frame. Rhythms, slow activity and noise that are mixed in singular vectors become modes of
their own. The modes are then no longer orthogonal.

Where pictures travel, many modes are needed, and `waves` has fewer numbers to estimate; `choosing` compares both.

Shapes: N or B samples, T frames, H × W pixels, C channels, K modes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.data.frame_matrix import FrameMatrix
from cstformer.data.low_rank import best_rank, held_out_errors, truncated_svd
from cstformer.errors import CSTError
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kernel_fit import SMOOTHNESS, fit_channels, fit_kernel, log_likelihood
from cstformer.starts.time_posterior import narrow_variance
from cstformer.system.described import number

MAX_RANK = 32  # largest rank that is considered, before it is multiplied by GENEROUS
# Times as many modes as predict held-out pixels: the kernels shrink modes of little signal, where a projection would
# keep their noise. R² against the noise-free signal of two simulated cortices, at frames and between them: 0.7657 and
# 0.7714 with 16 modes, 0.7652 and 0.7707 with 10; straight lines instead of the process: 0.7621 and 0.7710, 0.7634 and
# 0.7711.
GENEROUS = 2
FASTEST = 2.0  # shortest lengthscale, in distances between frames: what changes faster cannot be interpolated
KERNEL_NUMBERS = 2000  # coefficients of a mode that its kernel is fitted to
KERNEL_SAMPLES = 100  # samples whose frames are hidden for `narrow`
# Pairs of successive frames for each mode, below which modes are not turned: with few, noise persists by chance.
PAIRS = 20
TURN_RIDGE = 1e-6  # of the mean variance of a coefficient, added to all: modes without variance have no persistence
GRAM_RIDGE = 1e-12  # keeps modes that are nearly the same apart
JUDGES = 8  # modes, the first ones, that choose the smoothness


@dataclass(frozen=True, eq=False)
class FrameModes:
    """Modes of a set of frames and the kernels of their coefficients in time, in the units of their values."""

    mean: Float[Tensor, "H W C"]
    vectors: Float[Tensor, "K H W C"]
    """Modes of norm 1; 0 at pixels that were never observed."""
    scale: Float[Tensor, " K"]
    """Standard deviation of the observed coefficients."""
    kernel: Kernel
    """Covariance in time of the coefficients over ``scale``; its ``channels`` are the modes."""
    narrow: float = 0.0
    """Low posterior variance of a pixel of a hidden training frame."""

    @property
    def shares(self) -> Float[Tensor, " K"]:
        """Mean square over the pixels of each mode times ``scale``: variance of a pixel for one of a coefficient."""
        return (self.vectors.square().flatten(1).mean(1) * self.scale**2).double()

    def coefficients(self, frames: Float[Tensor, "*n H W C"]) -> Float[Tensor, "*n K"]:
        """Coefficients of least squares, over ``scale``."""
        flat = (frames - self.mean.to(frames)).flatten(-3)
        return flat @ self._filters.to(frames).T / self.scale.to(frames)

    @functools.cached_property
    def _filters(self) -> Float[Tensor, "K P"]:
        """Pseudo-inverse of the modes: the modes themselves where they are orthonormal."""
        flat = self.vectors.flatten(1).double()
        gram = flat @ flat.T
        ridge = GRAM_RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return torch.linalg.solve(gram + ridge, flat)

    def describe(self) -> dict[str, Any]:
        """A dict for JSON of what `tensors` does not hold."""
        return {"kernel": dataclasses.asdict(self.kernel), "narrow": self.narrow}

    def tensors(self) -> dict[str, Tensor]:
        """What a file of tensors keeps."""
        return {name: getattr(self, name) for name in ("mean", "vectors", "scale")}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], about: dict[str, Any]) -> FrameModes:
        """The inverse of `tensors` and `describe`."""
        mean, vectors, scale = (tensors[name].double() for name in ("mean", "vectors", "scale"))
        modes = cls(
            mean,
            vectors,
            scale,
            Kernel.from_description(about["kernel"]),
            number("narrow of the modes", about["narrow"], 0),
        )
        if modes.vectors.shape[1:] != modes.mean.shape or modes.scale.shape != modes.vectors.shape[:1]:
            raise ValueError("modes do not fit together")
        return modes


def fit_modes(
    times: Float[Tensor, "N T"],
    frames: Float[Tensor, "N T H W C"],
    exists: Bool[Tensor, "N T"],
    seed: int = 0,
    rank: int | None = None,
    without: Float[Tensor, "M H W C"] | None = None,
    turned: bool = True,
) -> FrameModes:
    """Fit modes and kernels to noisy frames; no clean frames are needed.

    Parameters
    ----------
    times : scaled to [0, 1]
    frames : with missing pixels filled
    exists : False for the padding of samples with fewer frames
    seed : of the decomposition and of the samples that the kernels are fitted to
    rank : number of modes; by default `GENEROUS` times the one that predicts held-out pixels best
    without : frames that are left out of the decomposition, wherever they occur
    turned : turn the singular vectors to the combinations that persist, where there are enough frames
    """
    height, width = frames.shape[2:4]
    matrix = FrameMatrix.of(distinct_frames(frames[exists], without))
    if rank is None:
        try:
            rank = GENEROUS * best_rank(held_out_errors(matrix, (height, width), MAX_RANK, seed))
        except CSTError:  # too few frames or pixels to hold any out
            rank = 1
    _, _, vectors = truncated_svd(matrix, min(rank, *matrix.shape), seed)
    mean, modes = frames.new_zeros(frames[0, 0].numel(), dtype=torch.float64), vectors.T
    mean[torch.as_tensor(matrix.columns)] = torch.as_tensor(matrix.mean)
    flat = mean.new_zeros(len(modes), len(mean))
    flat[:, torch.as_tensor(matrix.columns)] = torch.as_tensor(modes)
    shape = frames.shape[2:]
    one = torch.ones(len(modes), dtype=torch.float64)
    found = FrameModes(mean.reshape(shape), flat.reshape(-1, *shape), one, Kernel((1.0,), 1.0, 1.0, 1.0))
    series = found.coefficients(frames.double().cpu())  # (N, T, K)
    if turned:
        pictures = persistent(series, exists.cpu()) @ flat
        found = dataclasses.replace(found, vectors=pictures.reshape(found.vectors.shape))
        series = found.coefficients(frames.double().cpu())
    scale = series[exists.cpu()].square().mean(0).sqrt().clamp_min(1e-12)
    kernel = fit_mode_kernels(times.double().cpu(), series / scale, exists.cpu(), seed)
    found = dataclasses.replace(found, scale=scale, kernel=kernel)
    some = slice(0, KERNEL_SAMPLES)
    narrow = narrow_variance(kernel.channels, found.shares, times[some].double().cpu(), exists[some].cpu())
    return dataclasses.replace(found, narrow=narrow)


def persistent(series: Float[Tensor, "N T K"], exists: Bool[Tensor, "N T"]) -> Float[Tensor, "K K"]:
    r"""Combinations of orthonormal modes, one a row of norm 1, in the order in which their coefficients persist.

    With the covariance C of the coefficients a and that of successive ones, D, the weights r of a new coefficient
    r · a solve :math:`D r = \lambda C r`, and λ is its correlation from frame to frame. The frames that belong to the
    new coefficients are combinations of the modes with the rows of R⁻¹, where R has the weights as columns. The
    identity, where too few frames follow each other.
    """
    count = series.shape[-1]
    pair = exists[:, 1:] & exists[:, :-1]
    before, after = series[:, :-1][pair], series[:, 1:][pair]
    if len(before) < PAIRS * count:
        return torch.eye(count, dtype=series.dtype)
    every = series[exists]
    same, next_ = every.T @ every / len(every), before.T @ after / len(before)
    same = same + TURN_RIDGE * same.diagonal().mean() * torch.eye(count, dtype=same.dtype)
    whiten = torch.linalg.inv(torch.linalg.cholesky(same))
    turn = torch.linalg.eigh(whiten @ (next_ + next_.T) @ whiten.T / 2)[1].flip(1)
    pictures = torch.linalg.inv(whiten.T @ turn)
    return pictures / pictures.norm(dim=1, keepdim=True)


def fit_mode_kernels(
    times: Float[Tensor, "N T"], series: Float[Tensor, "N T K"], exists: Bool[Tensor, "N T"], seed: int
) -> Kernel:
    """Kernels in time of coefficients of variance 1: one smoothness for all, by likelihood, the rest for each mode."""
    steps = times.diff(dim=1)[exists[:, 1:]]
    shortest = min(0.5, FASTEST * float(steps.median())) if len(steps) else 0.5
    shared = fit_kernel(times[..., None], series, exists, seed, smoothness=SMOOTHNESS, shortest=shortest)

    def own(smoothness: float | None, count: int) -> Kernel:
        """Kernels of the first modes."""
        start, y = dataclasses.replace(shared, smoothness=smoothness), series[..., :count]
        seen = exists[..., None].expand_as(y)
        found = fit_channels(start, times[..., None], y, seen, seed, max_numbers=KERNEL_NUMBERS, shortest=shortest)
        return found if found.channels else dataclasses.replace(start, channels=(start,) * count)

    def score(kernel: Kernel) -> float:
        """Log likelihood of the first modes in some samples."""
        some = slice(0, 1 + KERNEL_NUMBERS // series.shape[1])
        pairs = zip(kernel.channels, series[some].split(1, -1), strict=False)
        return sum(log_likelihood(one, times[some][..., None], y, exists[some]) for one, y in pairs)

    # Not the smoothness of the shared kernel: modes of different lengthscales look rough together.
    first = min(JUDGES, series.shape[-1])
    smoothness = max((own(nu, first) for nu in SMOOTHNESS), key=score).smoothness
    return own(smoothness, series.shape[-1])


def distinct_frames(
    frames: Float[Tensor, "M H W C"], without: Float[Tensor, "L H W C"] | None = None
) -> Float[np.ndarray, "U H W C"]:
    """The frames, each once: windows that overlap have frames in common, whose noise would count as signal.

    >>> frames = torch.tensor([1.0, 2.0, 1.0, 3.0]).reshape(4, 1, 1, 1)
    >>> distinct_frames(frames, without=frames[1:2]).ravel().tolist()
    [1.0, 3.0]
    """
    every = frames.detach().cpu().numpy()
    known = set() if without is None else set(_digests(without.detach().cpu().numpy()))
    first = {key: i for i, key in reversed(list(enumerate(_digests(every))))}
    return every[sorted(i for key, i in first.items() if key not in known)]


def _digests(frames: np.ndarray) -> list[bytes]:
    return [hashlib.blake2b(x.tobytes(), digest_size=16).digest() for x in frames]
