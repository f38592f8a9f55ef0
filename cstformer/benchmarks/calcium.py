"""Hemodynamic correction: speed against a plain loop over patches, and growth with the number of frames."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cstformer.benchmarks.stopwatch import best_seconds
from cstformer.datasets.calcium.hemodynamics import RIM, TILE, noise_variance, remove_hemodynamics


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds and megapixels (pixels × frames) per second."""
    side, counts = (24, [500, 1000, 2000]) if quick else (48, [1500, 3000, 6000])
    movies = {count: _movies(count, side) for count in counts}
    works = {f"{n} frames": (lambda n=n: remove_hemodynamics(*movies[n])) for n in counts}
    seconds = best_seconds(works, rounds=2)
    rows: list[dict[str, Any]] = [
        {"case": f"{n} frames of {side} × {side}", "seconds": s, "megapixels a second": n * side**2 / s / 1e6}
        for n, s in zip(counts, seconds.values(), strict=True)
    ]
    slope = float(np.polyfit(np.log(counts), np.log(list(seconds.values())), 1)[0])
    part = [movie[:, :TILE, :TILE] for movie in movies[counts[-1]]]  # for the loop: all frames, fewer pixels
    started = time.perf_counter()
    loop_over_patches(*part)
    loop = (time.perf_counter() - started) / TILE**2
    faster = loop * side**2 / seconds[f"{counts[-1]} frames"]
    return [
        *rows,
        {"case": "slope of log time against log frames", "slope": slope},
        {"case": "plain loop over patches", "megapixels a second": counts[-1] / loop / 1e6, "times slower": faster},
    ]


def loop_over_patches(
    signal: Float[np.ndarray, "T H W"], control: Float[np.ndarray, "T H W"], mask: Bool[np.ndarray, "H W"] | None = None
) -> Float[np.ndarray, "T H W"]:
    """The same estimate as `remove_hemodynamics`, as a plain loop over patches."""
    count, height, width = signal.shape
    exists = np.ones((height, width), bool) if mask is None else mask
    out = np.full(signal.shape, np.nan)
    for row, col in np.argwhere(exists):
        near = np.zeros_like(exists)
        near[max(row - RIM, 0) : row + RIM + 1, max(col - RIM, 0) : col + RIM + 1] = True
        region = np.zeros_like(exists)
        top, left = row // TILE * TILE, col // TILE * TILE
        region[max(top - RIM, 0) : top + TILE + RIM, max(left - RIM, 0) : left + TILE + RIM] = True
        noise = [
            noise_variance(np.atleast_2d(np.cov(m[:, region & exists].T, bias=True)), count) for m in (signal, control)
        ]
        y1, y2 = (m[:, near & exists].T - m[:, near & exists].mean(axis=0)[:, None] for m in (signal, control))
        s1, s2, s12 = y1 @ y1.T / count, y2 @ y2.T / count, y1 @ y2.T / count
        values, vectors = np.linalg.eigh(s2)
        kept = values > noise[1] * (1 + np.sqrt(9 / count)) ** 2
        inverse = (vectors[:, kept] / (values[kept] - noise[1])) @ vectors[:, kept].T
        values, vectors = np.linalg.eigh(s1 - noise[0] * np.eye(len(s1)) - s12 @ inverse @ s12.T)
        s_x = (vectors * np.maximum(values, 0)) @ vectors.T
        s_y = np.block([[s1, s12], [s12.T, s2]])
        s_xy = np.concatenate([s_x, np.zeros_like(s_x)], axis=1)
        estimate = s_xy @ np.linalg.inv(s_y + 1e-9 * np.trace(s_y) * np.eye(len(s_y))) @ np.concatenate([y1, y2])
        centre = np.count_nonzero((near & exists)[:row]) + np.count_nonzero((near & exists)[row, :col])
        out[:, row, col] = estimate[centre]
    return out


def _movies(count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Make two channels that share smooth hemodynamics, each with its own noise."""
    rng = np.random.default_rng(0)
    shared = np.cumsum(rng.normal(scale=0.1, size=(count, 1, 1)), axis=0)
    noise = rng.normal(size=(2, count, side, side))
    return (shared + noise[0]).astype(np.float32), (shared + noise[1]).astype(np.float32)
