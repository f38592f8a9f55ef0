r"""Simulated series of coupled oscillators: a data set with gaps whose truth is known.

Each sample is a ring of unit masses :math:`x_1 … x_c`, each held by a spring of its own and tied to its neighbours:

.. math:: \ddot x = -K x, \qquad K = \mathrm{diag}(ω_1^2, …, ω_c^2) + κ L

where :math:`L` is the Laplacian of the ring. Frequencies :math:`ω_i`, coupling :math:`κ`, positions and velocities are
drawn for each sample. With :math:`K = V Λ V^⊤` the motion is known in closed form,

.. math:: x(t) = V \left( \cos(\sqrt{Λ} t) V^⊤ x(0) + \sin(\sqrt{Λ} t) Λ^{-1/2} V^⊤ \dot x(0) \right).

Positions are recorded with white noise, and a share of the cells is removed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.data.samples import Samples
from cstformer.datasets.gaps import PARTS, GapTask, check_part, remove_cells

UNTIL = 10.0  # seconds
FREQUENCY = (0.2, 0.5)  # Hz, of an uncoupled mass
COUPLING = (1.0, 6.0)  # 1/s²; the fastest mode of four masses then takes about a second
VELOCITY = 2.0  # sd of the first velocities, near ω times the sd of the first positions, which is 1
NOISE = 0.05  # sd of the noise


def ring_motion(
    t: Float[np.ndarray, " n"],
    frequencies: Float[np.ndarray, "N c"],
    coupling: Float[np.ndarray, " N"],
    position: Float[np.ndarray, "N c"],
    velocity: Float[np.ndarray, "N c"],
) -> Float[np.ndarray, "N n c"]:
    """Positions of the masses at times ``t``, from frequencies in Hz and the state at time 0.

    >>> still, one = np.zeros((1, 3)), np.ones((1, 3))
    >>> ring_motion(np.array([0.0, 0.5, 1.0]), 0.5 * one, np.array([4.0]), one, still)[0, :, 0].round(9).tolist()
    [1.0, 0.0, -1.0]
    """
    c = frequencies.shape[1]
    laplacian = 2 * np.eye(c) - np.roll(np.eye(c), 1, axis=0) - np.roll(np.eye(c), -1, axis=0)
    stiffness = np.square(2 * np.pi * frequencies)[..., None] * np.eye(c) + coupling[:, None, None] * laplacian
    squares, modes = np.linalg.eigh(stiffness)  # (N, c), (N, c, c)
    omega = np.sqrt(squares)
    start, speed = (np.einsum("nij,ni->nj", modes, x) for x in (position, velocity))
    angle = omega[:, None] * t[:, None]  # (N, n, c)
    motion = np.cos(angle) * start[:, None] + np.sin(angle) * (speed / omega)[:, None]
    return np.einsum("nij,ntj->nti", modes, motion)


def oscillator_task(
    share: float = 0.5,
    part: str = "test",
    seed: int = 0,
    train: int = 300,
    scored: int = 100,
    points: int = 48,
    channels: int = 4,
) -> GapTask:
    """Rings of oscillators with a share of their cells removed; errors are measured against the noise-free motion.

    Parameters
    ----------
    share : of the cells that are removed
    part : ``test`` and ``validation`` score different rings
    seed : of everything random
    train, scored : numbers of samples
    points, channels : times of a sample, from 0 to `UNTIL`, and masses of a ring
    """
    check_part(part)
    t = np.linspace(0, UNTIL, points)
    names = [f"x{i + 1}" for i in range(channels)]
    labels: dict[str, Any] = {"coord_names": ["t"], "value_names": names, "units": {"t": "s"}}
    kept, _, _ = _recorded(t, train, channels, share, np.random.default_rng([seed, 0]))
    stream = np.random.default_rng([seed, 1 + PARTS.index(part)])
    given, clean, removed = _recorded(t, scored, channels, share, stream)
    at = np.tile(t[:, None], (scored, 1, 1))
    return GapTask(Samples(t, kept, **labels), Samples(t, given, **labels), at, clean, removed)


def _recorded(
    t: np.ndarray, count: int, channels: int, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy values with gaps, the noise-free motion, and the removed cells, (count, n, channels) each."""
    shape = (count, channels)
    clean = ring_motion(
        t,
        rng.uniform(*FREQUENCY, shape),
        rng.uniform(*COUPLING, count),
        rng.normal(size=shape),
        VELOCITY * rng.normal(size=shape),
    )
    kept, removed = remove_cells(clean + NOISE * rng.normal(size=clean.shape), share, rng)
    return kept, clean, removed
