"""The flow solver against the plain scheme of the literature, on the Navier–Stokes data: error and time.

The plain scheme takes forward Euler steps of 10⁻⁴ for advection and Crank–Nicolson for diffusion, with complex FFTs of
one flow each. It is timed over a few steps, and its time is scaled to one time unit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cstformer.benchmarks.stopwatch import Work, best_seconds
from cstformer.datasets.navier_stokes import AMPLITUDES, BLOCK, VISCOSITY, Law, forcing, initial_vorticity, solutions
from cstformer.datasets.vorticity import solve
from cstformer.system.memory import keep_freed_memory

PLAIN_STEP = 1e-4
PLAIN_BATCH = 20


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure the largest relative error at t = 20, the seconds per time unit of one flow, and the speed-up."""
    keep_freed_memory()
    count, units, steps = (2, 1, 20) if quick else (10, 5, 100)
    rows = []
    for amplitude in AMPLITUDES:
        law = Law(until=20.0, every=20.0, amplitude=amplitude)
        flows = np.stack([initial_vorticity(i, law) for i in range(PLAIN_BATCH)])
        seconds = best_seconds(_works(torch.as_tensor(flows, dtype=torch.float32), law.step, units, steps))
        each = {
            "ours": seconds["ours"] / (BLOCK * units),
            "plain": seconds["plain"] / (PLAIN_BATCH * steps * PLAIN_STEP),
        }
        rows.append(
            {
                "case": f"ours, float32, steps of {law.step:g}, amplitude {amplitude}",
                "relative error at t = 20": _error(law, count),
                "seconds a time unit": each["ours"],
                "times faster": each["plain"] / each["ours"],
            }
        )
        case = f"plain, float32, steps of {PLAIN_STEP:g}, amplitude {amplitude}"
        rows.append({"case": case, "seconds a time unit": each["plain"]})
    return rows


def _works(flows: Tensor, step: float, units: int, steps: int) -> dict[str, Work]:
    """The timed work: a block for ``units`` time units with our solver, all flows for ``steps`` plain steps."""
    force, plain = torch.as_tensor(forcing(flows.shape[-1])), Plain(flows, PLAIN_STEP)
    return {
        "ours": lambda: solve(flows[:BLOCK], [units], viscosity=VISCOSITY, step=step, forcing=force),
        "plain": lambda: plain.run(steps),
    }


def _error(law: Law, count: int) -> float:
    """Largest relative L2 error at the last time, against float64 and steps of 1/40 (whose own error is 10⁻⁹)."""
    fine = Law(until=law.until, every=law.every, amplitude=law.amplitude, step=1 / 40)
    (_, w), (_, truth) = solutions(range(count), law), solutions(range(count), fine, dtype="float64")
    return float((np.linalg.norm(w - truth, axis=(2, 3)) / np.linalg.norm(truth, axis=(2, 3))).max())


class Plain:
    """The plain scheme for flows (B, N, N) on the unit torus, with the forcing of the data set."""

    def __init__(self, w: Tensor, step: float) -> None:
        n = w.shape[-1]
        k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
        kx, ky = torch.broadcast_tensors(2 * math.pi * k[:, None], 2 * math.pi * k)
        k2 = kx**2 + ky**2
        inverse = torch.where(k2 > 0, 1 / k2, 0.0)
        kind = w.dtype.to_complex()
        self.step = step
        self.u, self.v, self.x, self.y = ((1j * s).to(kind) for s in (ky * inverse, -kx * inverse, kx, ky))
        self.mask = ((k.abs()[:, None] <= n / 3) & (k.abs() <= n / 3)).to(w.dtype)
        self.before, self.after = ((1 + sign * step / 2 * VISCOSITY * k2).to(w.dtype) for sign in (-1, 1))
        self.force = torch.fft.fft2(torch.as_tensor(forcing(n))).to(kind)
        self.waves = torch.fft.fft2(w.to(kind))

    def run(self, steps: int) -> Tensor:
        """Vorticity (B, N, N) after ``steps`` steps from the initial field."""
        w = self.waves
        for _ in range(steps):
            u, v, x, y = (torch.fft.ifft2(symbol * w).real for symbol in (self.u, self.v, self.x, self.y))
            advection = self.mask * torch.fft.fft2((u * x + v * y).to(w.dtype))
            w = (self.before * w + self.step * (self.force - advection)) / self.after
        return torch.fft.ifft2(w).real
