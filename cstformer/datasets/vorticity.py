r"""Two-dimensional incompressible flow on a torus, in vorticity form, by a pseudo-spectral method.

    ∂w/∂t + u ∂w/∂x + v ∂w/∂y = ν Δw + f,     u = ∂ψ/∂y,  v = −∂ψ/∂x,  −Δψ = w

on [0, Lx) × [0, Ly), periodic. With p = v² − u² and q = uv the advection is ∂²p/∂x∂y + (∂²/∂x² − ∂²/∂y²) q, so
that a right-hand side takes four FFTs of real fields: two inverse ones for u and v, two forward ones for p and q
(C. Basdevant, 1983). Two flows share each complex FFT, one as its real and one as its imaginary part; everything but
the products u², v², uv is linear and does not mix them. Waves of |k| ≤ (N − 1) // 3 along an axis of N points are kept;
their products are free of aliasing (the 2/3 rule).

Time stepping is the classical Runge–Kutta method of order four for e^{νk²t} ŵ, which treats diffusion exactly. It is
written in increments, with e^z − 1 in place of e^z: a float32 factor near one would make the same rounding error at
every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Complex, Float
from numpy.typing import ArrayLike
from torch import Tensor

from cstformer.data.arrays import as_floats
from cstformer.errors import CSTError

CHECK_EVERY = 10  # steps between two checks of the CFL condition
Forcing = Tensor | Callable[[float], Tensor] | None


def solve(
    initial: Float[Tensor, "*batch nx ny"],
    times: ArrayLike,
    *,
    viscosity: float,
    step: float,
    forcing: Forcing = None,
    lengths: tuple[float, float] = (1.0, 1.0),
    start: float = 0.0,
) -> Float[Tensor, "*batch T nx ny"]:
    """Solve for the vorticity at ``times``, given the vorticity ``initial`` at time ``start``.

    Parameters
    ----------
    initial : float32 or float64, on any device; the result has the same precision and device. Waves beyond the 2/3
        rule are dropped.
    times : (T,) increasing, not before ``start``; they need not be multiples of ``step``.
    viscosity : ν ≥ 0.
    step : longest time step; each interval between two times is divided into equal steps. A step at which the method
        would amplify a wave is refused.
    forcing : f, (nx, ny) or of the shape of ``initial``; or a function of the time that returns it.
    lengths : (Lx, Ly).

    Examples
    --------
    >>> x = torch.arange(16, dtype=torch.float64) / 16
    >>> w = torch.sin(2 * torch.pi * x)[:, None].expand(16, 16)  # a shear flow, which only decays
    >>> later = solve(w, [0.5, 1.0], viscosity=0.1, step=0.1)
    >>> (later[:, 4, 0] * torch.exp(0.4 * torch.pi**2 * torch.tensor([0.5, 1.0]))).round(decimals=6).tolist()
    [1.0, 1.0]
    """
    torus = Torus.of(initial, lengths)
    if not (math.isfinite(viscosity) and viscosity >= 0):
        raise CSTError(f"viscosity must be a number of at least 0, got {viscosity}")
    if not (math.isfinite(step) and step > 0):
        raise CSTError(f"step must be a positive number, got {step}")
    clock = as_floats("times", times)
    if clock.ndim != 1 or not len(clock) or not (np.diff(clock) > 0).all() or not start <= clock[0]:
        raise CSTError(f"times must be numbers that increase from start={start:g} on, got {clock.tolist()}")
    if not math.isfinite(clock[-1] - start):
        raise CSTError(f"times and start must be finite, got {clock.tolist()} and {start}")
    if not initial.isfinite().all():
        raise CSTError("initial has values that are not finite; a flow starts from finite vorticity")

    w = torus.to_waves(initial)
    force = _forcing(forcing, torus, initial.shape)
    frames, now = [], start
    method = _RungeKutta(torus, viscosity, step)
    for then in clock.tolist():
        count = math.ceil((then - now) / step - 1e-9)
        h = (then - now) / max(count, 1)
        if count and abs(h - method.h) > 1e-9 * h:
            method = _RungeKutta(torus, viscosity, h)
        for i in range(count):
            if i % CHECK_EVERY == 0:
                method.check(w, now + i * h)
            w = method.advance(w, now + i * h, force)
        frames.append(torus.to_points(w, initial.shape))
        now = then
    if not frames[-1].isfinite().all():
        raise CSTError(f"the flow is not finite at time {now:g}; choose a step below {step:g}")
    return torch.stack(frames, dim=-3)


def velocity(
    vorticity: Float[Tensor, "*batch nx ny"], lengths: tuple[float, float] = (1.0, 1.0)
) -> tuple[Float[Tensor, "*batch nx ny"], Float[Tensor, "*batch nx ny"]]:
    """Velocity (u, v) with v_x − u_y = vorticity and u_x + v_y = 0; the mean vorticity is ignored.

    No periodic flow has a mean vorticity other than zero.

    >>> x = torch.arange(12, dtype=torch.float64)[:, None] / 12
    >>> u, v = velocity(2 * torch.pi * torch.cos(2 * torch.pi * x).expand(12, 12))
    >>> u.abs().max().item() < 1e-15, v[3, 0].item()  # v = sin 2πx
    (True, 1.0)
    """
    torus = Torus.of(vorticity, lengths)
    u, v = torus.to_velocity * torus.to_waves(vorticity)
    return torus.to_points(u, vorticity.shape), torus.to_points(v, vorticity.shape)


def tendency(
    vorticity: Float[Tensor, "*batch nx ny"],
    *,
    viscosity: float,
    forcing: Tensor | None = None,
    lengths: tuple[float, float] = (1.0, 1.0),
) -> Float[Tensor, "*batch nx ny"]:
    """∂w/∂t = f − u·∇w + ν Δw, for the waves that the solver keeps.

    >>> x = torch.arange(12, dtype=torch.float64)[:, None] / 12
    >>> w = torch.cos(2 * torch.pi * x).expand(12, 12)  # a shear flow, which only decays
    >>> (tendency(w, viscosity=0.5)[0, 0] / (2 * torch.pi**2)).round(decimals=9).item()
    -1.0
    """
    torus = Torus.of(vorticity, lengths)
    w = torus.to_waves(vorticity)
    change = torus.change(w, _forcing(forcing, torus, vorticity.shape)(0.0))
    return torus.to_points(change - torus.tensor(viscosity * (torus.kx**2 + torus.ky**2)) * w, vorticity.shape)


class Torus:
    """Points and waves of [0, Lx) × [0, Ly), with the Fourier symbols of the equation.

    Fourier coefficients are those of pairs of flows: flow i of the first half + √−1 · flow i of the second half. They
    are zero for waves that are not kept.
    """

    def __init__(
        self, shape: tuple[int, int], lengths: tuple[float, float], dtype: torch.dtype, device: torch.device
    ) -> None:
        if min(shape) < 4:
            raise CSTError(f"the grid must have at least 4 × 4 points, got {shape[0]} × {shape[1]}")
        if len(lengths) != 2 or not all(math.isfinite(L) and L > 0 for L in lengths):
            raise CSTError(f"lengths must be two positive numbers (Lx, Ly), got {lengths}")
        self.dtype, self.device = dtype, device
        number = [torch.fft.fftfreq(n, 1 / n, dtype=torch.float64) for n in shape]
        kept = [k.abs() <= (n - 1) // 3 for k, n in zip(number, shape, strict=True)]
        mask = kept[0][:, None] & kept[1]
        self.kx = 2 * math.pi / lengths[0] * number[0][:, None] * mask
        self.ky = 2 * math.pi / lengths[1] * number[1] * mask
        k2 = self.kx**2 + self.ky**2
        inverse = torch.where(k2 > 0, 1 / k2, 0.0)
        self.mask = self.tensor(mask)
        self.to_velocity = self.tensor(torch.stack([1j * self.ky * inverse, -1j * self.kx * inverse])[:, None])
        self.of_p, self.of_q = self.tensor(self.kx * self.ky), self.tensor(self.kx**2 - self.ky**2)

    @classmethod
    def of(cls, field: Tensor, lengths: tuple[float, float]) -> Torus:
        """Torus of a field (..., nx, ny)."""
        if not isinstance(field, Tensor) or field.dtype not in (torch.float32, torch.float64) or field.ndim < 2:
            kind = f"{field.dtype} {tuple(field.shape)}" if isinstance(field, Tensor) else type(field).__name__
            raise CSTError(f"a vorticity must be a float32 or float64 tensor (..., nx, ny), got {kind}")
        if 0 in field.shape:
            raise CSTError(f"a vorticity must not be empty, got shape {tuple(field.shape)}")
        return cls((field.shape[-2], field.shape[-1]), lengths, field.dtype, field.device)

    def tensor(self, symbol: Tensor) -> Tensor:
        """A Fourier symbol as complex numbers in the precision and on the device of the torus."""
        return symbol.to(self.dtype.to_complex()).to(self.device)

    def to_waves(self, field: Float[Tensor, "*batch nx ny"]) -> Complex[Tensor, "pairs nx ny"]:
        """Fourier coefficients of pairs of flows; an odd last flow is paired with a flow at rest."""
        flows = field.reshape(-1, *field.shape[-2:])
        half = (len(flows) + 1) // 2
        rest = flows.new_zeros(2 * half - len(flows), *field.shape[-2:])
        return torch.fft.fft2(torch.complex(flows[:half], torch.cat([flows[half:], rest]))) * self.mask

    def to_points(self, waves: Complex[Tensor, "pairs nx ny"], shape: torch.Size) -> Float[Tensor, "*batch nx ny"]:
        """Inverse of `to_waves`; ``shape`` is the shape of the fields."""
        pairs = torch.fft.ifft2(waves)
        return torch.cat([pairs.real, pairs.imag])[: math.prod(shape[:-2])].reshape(shape)

    def velocity(self, w: Complex[Tensor, "pairs nx ny"]) -> Float[Tensor, "2 pairs nx ny 2"]:
        """Velocity u and v at the points; the last axis holds the two flows of a pair."""
        return torch.view_as_real(torch.fft.ifft2(w * self.to_velocity))

    def change(
        self, w: Complex[Tensor, "pairs nx ny"], force: Complex[Tensor, "#pairs nx ny"]
    ) -> Complex[Tensor, "pairs nx ny"]:
        """Right-hand side without diffusion, f − u·∇w."""
        u, v = self.velocity(w)
        p, q = torch.fft.fft2(torch.view_as_complex(torch.stack([(v - u) * (v + u), u * v])))
        return torch.addcmul(torch.addcmul(force, self.of_p, p), self.of_q, q)


class _RungeKutta:
    """One step of length h of dw/dt = f(t) − u·∇w − νk²w: Runge–Kutta of order four with an integrating factor."""

    def __init__(self, torus: Torus, viscosity: float, h: float) -> None:
        self.torus, self.h = torus, h
        self.rate = -viscosity * (torus.kx**2 + torus.ky**2)
        self.half_less_one, self.whole_less_one = (torus.tensor(torch.expm1(c * h * self.rate)) for c in (0.5, 1.0))
        half, whole = torch.exp(h / 2 * self.rate), torch.exp(h * self.rate)
        self.of_first, self.of_middle = torus.tensor(h / 6 * whole), torus.tensor(h / 3 * half)
        self.to_second, self.to_fourth = torus.tensor(h / 2 * half), torus.tensor(h * half)

    def advance(self, w: Tensor, t: float, forcing: Callable[[float], Tensor]) -> Tensor:
        """Vorticity at time t + h."""
        h, change = self.h, self.torus.change
        middle = forcing(t + h / 2)
        half = torch.addcmul(w, self.half_less_one, w)
        decay = self.whole_less_one * w
        a = change(w, forcing(t))
        b = change(torch.addcmul(half, self.to_second, a), middle)
        c = change(torch.add(half, b, alpha=h / 2), middle)
        d = change(w + torch.addcmul(decay, self.to_fourth, c), forcing(t + h))
        increment = torch.addcmul(torch.addcmul(decay, self.of_first, a), self.of_middle, b + c)
        return w + torch.add(increment, d, alpha=h / 6)

    def check(self, w: Tensor, t: float) -> None:
        """Refuse a step that amplifies a wave: the Courant–Friedrichs–Lewy condition, with viscosity.

        A wave k carried by a frozen velocity u turns by the angle y = h k·u in a step, and the method multiplies it
        by |1 + iy − y²/2 − iy³/6 + y⁴/24| e^{−νk²h}. Without viscosity that is at most 1 up to y = √8.
        """
        speeds = self.torus.velocity(w).detach().abs()
        u, v, both = (float(s.max()) for s in (*speeds, speeds.sum(0)))
        if not math.isfinite(both):
            raise CSTError(f"the flow is not finite at time {t:g}; choose a step below {self.h:g}")
        kx, ky = self.torus.kx.abs(), self.torus.ky.abs()
        turn = torch.minimum(kx * u + ky * v, torch.maximum(kx, ky) * both)

        def growth(h: float) -> float:
            y = h * turn
            return float((torch.hypot(1 - y**2 / 2 + y**4 / 24, y - y**3 / 6) * torch.exp(h * self.rate)).max())

        if growth(self.h) > 1 + 1e-9:
            safe = self.h
            while growth(safe) > 1 + 1e-9:
                safe *= 0.98
            raise CSTError(
                f"step={self.h:g} is too long at time {t:g}, where the flow is as fast as {max(u, v):.3g}: a wave "
                f"would grow by a factor of {growth(self.h):.3g} a step; choose {safe:.2g} or less (CFL condition)"
            )


def _forcing(forcing: Forcing, torus: Torus, shape: torch.Size) -> Callable[[float], Tensor]:
    """The forcing in Fourier space as a function of the time; a field is transformed once."""

    def waves(field: Tensor) -> Tensor:
        if not isinstance(field, Tensor) or field.shape not in (shape, shape[-2:]):
            given = tuple(field.shape) if isinstance(field, Tensor) else type(field).__name__
            raise CSTError(f"forcing must be a tensor {tuple(shape[-2:])} or {tuple(shape)}, got {given}")
        if not field.isfinite().all():
            raise CSTError("forcing has values that are not finite; a flow needs a finite force")
        one = field.to(torus.dtype).to(torus.device)
        # One force acts on both flows of a pair.
        return torus.to_waves(one.expand(2, *one.shape) if one.ndim == 2 else one)

    if callable(forcing):
        return lambda t: waves(forcing(t))
    constant = waves(torch.zeros(shape[-2:]) if forcing is None else forcing)
    return lambda t: constant
