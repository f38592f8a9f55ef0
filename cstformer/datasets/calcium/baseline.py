r"""ΔF/F: the slow baseline of a fluorescence trace, and the change relative to it.

The paper describes "a low-pass filter with 100 taps and a cutoff of 0.001 Hz". At 10 Hz a hundred taps span ten
seconds, so no such filter can separate 0.001 Hz from 0.01 Hz: the windowed sinc with these numbers is in effect a
ten-second Hamming window, with −3 dB at 0.066 Hz and half the amplitude at 0.091 Hz. Both readings are implemented:

- ``smooth`` (default) has its cutoff at 0.001 Hz. The b that minimises Σ (b − F)² + λ Σ (third difference of b)² is F
  filtered by 1 / (1 + λ (2 sin πf)⁶), with f in cycles per step and without a phase; λ makes the gain one half at the
  cutoff. It is solved on means over a hundredth of the cutoff's period and interpolated by a cubic spline. The ends
  need no padding, and a parabola, which ten minutes of bleaching nearly are, passes into the baseline unchanged.
- ``literal`` is the filter of a hundred taps, centred. At the ends, the taps inside are rescaled to sum to one.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline
from scipy.linalg import solveh_banded
from scipy.signal import firwin, oaconvolve

from cstformer.errors import CSTError, unknown

BASELINES = ("smooth", "literal")


def baseline(
    traces: Float[np.ndarray, "T ..."], rate: float, kind: str = "smooth", cutoff: float = 0.001, taps: int = 100
) -> Float[np.ndarray, "T ..."]:
    """Slow part of each trace along the first axis; ``cutoff`` is in Hz, ``taps`` only affects ``literal``.

    >>> line = np.linspace(5.0, 4.0, 6000)
    >>> bool(np.allclose(baseline(line, rate=10.0), line))
    True
    """
    if kind not in BASELINES:
        raise unknown("baseline", kind, BASELINES)
    if not 0 < cutoff < rate / 2:
        raise CSTError(f"cutoff={cutoff:g} Hz must lie between 0 and half the frame rate, {rate / 2:g} Hz")
    flat = traces.reshape(len(traces), -1)
    if kind == "literal":
        kernel = firwin(taps, cutoff, fs=rate).astype(flat.dtype)
        inside = oaconvolve(np.ones(len(flat), flat.dtype), kernel, mode="full")
        first = (taps - 1) // 2
        slow = oaconvolve(flat, kernel[:, None], mode="full", axes=0)[first : first + len(flat)]
        return (slow / inside[first : first + len(flat), None]).reshape(traces.shape)
    edges = _edges(len(flat), rate, cutoff)
    if len(edges) < 5:
        return np.broadcast_to(flat.mean(axis=0), flat.shape).reshape(traces.shape)
    means = np.add.reduceat(flat.astype(np.float64), edges[:-1], axis=0) / np.diff(edges)[:, None]
    lost = ~np.isfinite(means).all(axis=0)
    means[:, lost] = 0
    spline = CubicSpline((edges[:-1] + edges[1:] - 1) / 2, _smooth(means, cutoff * (edges[1] - edges[0]) / rate))
    slow = spline(np.arange(len(flat))).astype(flat.dtype)
    slow[:, lost] = np.nan
    return slow.reshape(traces.shape)


def _edges(count: int, rate: float, cutoff: float) -> np.ndarray:
    """Edges of the averaged pieces, each a hundredth of the cutoff's period or at most a quarter of the recording."""
    length = min(max(1, int(rate / (100 * cutoff))), max(1, count // 4))
    return np.linspace(0, count, count // length + 1).round().astype(int)


def _smooth(y: Float[np.ndarray, "n pixels"], cutoff: float) -> Float[np.ndarray, "n pixels"]:
    """Smooth the columns; ``cutoff`` is in cycles per row.

    Computes (I + λ DᵀD)⁻¹ y, with D the third differences, as y − Dᵀ (I/λ + D Dᵀ)⁻¹ D y. The matrix in brackets has
    three diagonals on each side and stays well-conditioned for a huge λ.
    """
    bands = np.repeat([[20.0], [-15.0], [6.0], [-1.0]], len(y) - 3, axis=1)  # D Dᵀ from the diagonal down
    bands[0] += (2 * np.sin(np.pi * min(cutoff, 0.5))) ** 6
    bent = solveh_banded(bands[: len(y) - 3], np.diff(y, n=3, axis=0), lower=True)
    padded = np.pad(bent, ((3, 3), (0, 0)))
    return y + np.diff(padded, n=3, axis=0)


def delta_f(
    traces: Float[np.ndarray, "T ..."], rate: float, kind: str = "smooth", cutoff: float = 0.001, taps: int = 100
) -> Float[np.ndarray, "T ..."]:
    """ΔF/F = (F − baseline) / baseline of each trace; NaN where the baseline is not positive.

    >>> wave = 100 * (1 + 0.05 * np.sin(np.arange(6000)))
    >>> round(float(delta_f(wave, rate=10.0)[1000:5000].max()), 3)
    0.05
    """
    return relative_change(traces, baseline(traces, rate, kind, cutoff, taps))


def relative_change(traces: Float[np.ndarray, "T ..."], slow: Float[np.ndarray, "T ..."]) -> Float[np.ndarray, "T ..."]:
    """(F − baseline) / baseline; NaN where the baseline is not positive.

    >>> relative_change(np.array([2.0, 3.0]), np.array([1.0, 0.0])).tolist()
    [1.0, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(slow > 0, traces / slow - 1, np.nan).astype(traces.dtype)


def response(
    frequency: float, rate: float, kind: str = "smooth", cutoff: float = 0.001, taps: int = 100, seconds: float = 1e4
) -> float:
    """Measured gain of the baseline for a sine of this frequency, away from the ends.

    >>> round(response(0.001, rate=1.0), 2), round(response(0.0656, rate=10.0, kind="literal"), 2)
    (0.5, 0.71)
    """
    t = np.arange(int(seconds * rate)) / rate
    inner = slice(len(t) // 4, 3 * len(t) // 4)
    waves = np.exp(2j * np.pi * frequency * t)
    slow = baseline(np.column_stack([waves.real, waves.imag]), rate, kind, cutoff, taps)
    return float(np.abs(np.vdot(waves[inner], slow[inner] @ np.array([1, 1j]))) / len(waves[inner]))
