r"""The *start*: the value first put on a query, computed from the observed values only.

======== ====================================================== ==========
start    curves (d = 1)                                         smoothness
======== ====================================================== ==========
linear   straight lines, the paper's                            C0
hermite  cubic Hermite with three-point slopes                  C1
cubic    natural cubic spline                                   C2
smooth   Gaussian-process regression fitted on training samples C∞
======== ====================================================== ==========

In d > 1 dimensions the first three become the polyharmonic splines of the same smoothness (for curves, r and r³
*are* straight lines and the natural cubic spline); ``smooth`` is the same in any dimension. Outside the box of the
observed coordinates a start is held constant. All of them return Taylor series along the query's directions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cstformer.starts.gaussian_process import Kernel, posterior_weights
from cstformer.taylor import series
from cstformer.taylor.series import Series

STARTS = ("linear", "hermite", "cubic", "smooth")
Start = Callable[[Series], Series]


def make_start(kind: str, coords: Tensor, values: Tensor, observed: Tensor, kernel: Kernel | None = None) -> Start:
    """Interpolate each sample of a batch.

    Parameters
    ----------
    kind : one of `STARTS`
    coords : Tensor (B, n, d)
    values : Tensor (B, n, c)
    observed : Tensor (B, n, c) of bool
    kernel : Kernel, for ``smooth``

    Returns
    -------
    A function from query coordinates (J, B, m, d) to values (J, B, m, c). A channel that a sample never observed
    starts at 0, the mean of standardised values.

    Examples
    --------
    >>> t, y = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[0.0], [2.0]]])
    >>> start = make_start("linear", t, y, torch.ones(1, 2, 1, dtype=torch.bool))
    >>> start(series.constant(torch.tensor([[[0.25], [3.0]]]))).value.flatten().tolist()
    [0.5, 2.0]
    """
    batch, n, c = values.shape
    same = bool((observed == observed[..., :1]).all())
    if same:
        return _one_mask(kind, coords, values, observed[..., 0], kernel)
    # Channels observed at different points are separate problems: fold them into the batch.
    fold = lambda x: x.transpose(1, 2).reshape(batch * c, n, 1)  # noqa: E731
    inner = _one_mask(kind, coords.repeat_interleave(c, 0), fold(values), fold(observed)[..., 0], kernel)

    def start(x: Series) -> Series:
        y = inner(x.map(lambda k: k.repeat_interleave(c, 1)))  # (J, B·c, m, 1)
        return y.map(lambda k: k.squeeze(-1).unflatten(1, (batch, c)).transpose(2, 3))

    return start


def _one_mask(kind: str, coords: Tensor, values: Tensor, mask: Tensor, kernel: Kernel | None) -> Start:
    """Start for channels that share their observed points: mask (B, n)."""
    if kind == "smooth":
        assert kernel is not None, "the smooth start needs a fitted kernel"
        inner = _gaussian_process(coords, values, mask, kernel)
    elif coords.shape[-1] == 1:
        inner = _piecewise(kind, coords[..., 0], values, mask)
    else:
        inner = _polyharmonic(kind, coords, values, mask)
    far = torch.finfo(coords.dtype).max
    low = coords.masked_fill(~mask[..., None], far).amin(1, keepdim=True)  # (B, 1, d)
    high = coords.masked_fill(~mask[..., None], -far).amax(1, keepdim=True)

    def start(x: Series) -> Series:
        value = x.value
        inside = (value >= low) & (value <= high)
        held = torch.minimum(torch.maximum(value, low.clamp(max=far / 2)), high).unsqueeze(0)
        held = torch.where(mask.any(1)[:, None, None], held, torch.zeros_like(held))
        if x.order:
            held = torch.cat([held, x.coefs[1:] * inside])
        return inner(Series(held, x.order, x.directions))

    return start


def _gaussian_process(coords: Tensor, values: Tensor, mask: Tensor, kernel: Kernel) -> Start:
    # In float64: where the data are nearly noise-free the weights are large and cancel.
    knots = coords.double()
    weights = posterior_weights(kernel, knots, values.double(), mask)

    def start(x: Series) -> Series:
        return kernel.covariance(x.map(Tensor.double), knots).map(lambda k: (k @ weights).to(values.dtype))

    return start


def _piecewise(kind: str, t: Tensor, y: Tensor, mask: Tensor) -> Start:
    """Piecewise cubics on sorted knots: t (B, n), y (B, n, c), mask (B, n)."""
    order = t.masked_fill(~mask, torch.inf).argsort(dim=1, stable=True)
    count = mask.sum(1, keepdim=True)  # (B, 1)
    # Slots past the last observed point repeat it: their intervals have no length and are never entered.
    slot = torch.arange(t.shape[1], device=t.device).minimum((count - 1).clamp_min(0))
    order = order.gather(1, slot)
    t = t.gather(1, order)
    y = (y * mask[..., None]).gather(1, order[..., None].expand_as(y))
    if t.shape[1] == 1:
        return lambda x: Series(_constant_tail(y.expand(-1, x.coefs.shape[2], -1), x), x.order, x.directions)
    step = (t[:, 1:] - t[:, :-1])[..., None]
    real = step > 0
    step = torch.where(real, step, torch.ones_like(step))
    secant = (y[:, 1:] - y[:, :-1]) / step
    cubic = _PIECES[kind](step, secant, real)  # three of (B, n-1, c): coefficients of (t - t_i)^1..3
    pieces = torch.stack([y[:, :-1], *(torch.where(real, a, torch.zeros_like(a)) for a in cubic)], 2)

    def start(x: Series) -> Series:
        at = x.value[..., 0].contiguous()  # (B, m)
        piece = (torch.searchsorted(t, at, right=True) - 1).minimum((count - 2).clamp_min(0)).clamp_min(0)
        a = pieces.gather(1, piece[..., None, None].expand(-1, -1, *pieces.shape[2:])).unbind(2)  # 4 × (B, m, c)
        local = series.shift(x, -t.gather(1, piece)[..., None])
        s = local.value
        derivatives = [
            a[0] + s * (a[1] + s * (a[2] + s * a[3])),
            a[1] + s * (2 * a[2] + s * 3 * a[3]),
            a[2] + s * 3 * a[3],
            a[3],
        ]
        derivatives += [torch.zeros_like(a[0])] * (x.order - 3)
        return series.compose(local, derivatives[: x.order + 1])

    return start


def _constant_tail(value: Tensor, x: Series) -> Tensor:
    return torch.cat([value.unsqueeze(0), value.new_zeros((len(x.coefs) - 1, *value.shape))])


def _linear_pieces(step: Tensor, secant: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return secant, torch.zeros_like(secant), torch.zeros_like(secant)


def _hermite_pieces(step: Tensor, secant: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes of the parabola through three neighbours; at the ends the secant's."""
    before, after = secant[:, :-1], secant[:, 1:]
    h0, h1 = step[:, :-1], step[:, 1:]
    inner = torch.where(real[:, 1:], (h1 * before + h0 * after) / (h0 + h1), before)
    slope = torch.cat([secant[:, :1], inner, secant[:, -1:]], 1)
    left, right = slope[:, :-1], slope[:, 1:]
    return left, (3 * secant - 2 * left - right) / step, (left + right - 2 * secant) / step**2


def _natural_pieces(step: Tensor, secant: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Natural cubic spline: second derivatives from the tridiagonal system (Thomas algorithm over the batch)."""
    size = secant.shape[1]
    ratios, sides = [torch.zeros_like(step[:, 0])], [torch.zeros_like(secant[:, 0])]
    for i in range(1, size):
        h0, h1 = step[:, i - 1], step[:, i]
        # Where the next interval does not exist, knot i is the last one and M_i = 0 (natural end).
        pivot = 2 * (h0 + h1) - h0 * ratios[-1]
        ratios.append(torch.where(real[:, i], h1 / pivot, torch.zeros_like(pivot)))
        side = (6 * (secant[:, i] - secant[:, i - 1]) - h0 * sides[-1]) / pivot
        sides.append(torch.where(real[:, i], side, torch.zeros_like(side)))
    later = torch.zeros_like(secant[:, 0])
    reverse = [later]
    for i in range(size - 1, 0, -1):
        later = sides[i] - ratios[i] * later
        reverse.append(later)
    reverse.append(torch.zeros_like(later))  # M_0 = 0
    second = torch.stack(reverse[::-1], 1)  # (B, n, c)
    left, right = second[:, :-1], second[:, 1:]
    return secant - step * (2 * left + right) / 6, left / 2, (right - left) / (6 * step)


_PIECES = {"linear": _linear_pieces, "hermite": _hermite_pieces, "cubic": _natural_pieces}


# Polyharmonic splines: exponent of r, whether the polynomial tail has a slope. At a data point r is C0, r² log r (the
# thin plate, stored as exponent 2) is C1: its second derivatives grow like log r, and r³ is C2: its third derivatives
# jump. All of it holds at distances well above the softening, which rounds the tip of r off so that series exist there.
_POLYHARMONIC = {"linear": (1.0, False), "hermite": (2.0, True), "cubic": (3.0, True)}
_SOFTENING = 1e-3


def _polyharmonic(kind: str, coords: Tensor, values: Tensor, mask: Tensor) -> Start:
    """Scattered data in d > 1: Σ_j w_j φ(|x − x_j|) + polynomial, with r² + ε² in place of r²."""
    exponent, slope = _POLYHARMONIC[kind]
    sign = -1.0 if exponent < 2 else 1.0  # makes φ conditionally positive definite

    def phi(x: Series) -> Series:
        square = (x * x).map(lambda c: c.sum(-1, keepdim=True))
        cross = x.map(lambda c: -2 * c @ coords.transpose(-1, -2))
        r2 = series.shift(square + cross, (coords * coords).sum(-1)[:, None, :])
        rounding = (r2.value.clamp_min(0) - r2.value).detach()  # r² is not negative, whatever the rounding says
        r2 = series.shift(r2, rounding + _SOFTENING**2)
        if exponent == 2:
            return (r2 * series.log(r2)).map(lambda c: 0.5 * c)
        return series.power(r2, exponent / 2).map(lambda c: sign * c)

    def tail(x: Series) -> Series:
        one = series.constant(torch.ones_like(x.value[..., :1]))
        return series.concatenate([one, x], -1) if slope else one.lift(x)

    batch, n, _ = values.shape
    polynomial = tail(series.constant(coords)).value * mask[..., None]  # (B, n, q)
    q = polynomial.shape[-1]
    pair = mask[:, :, None] & mask[:, None, :]
    eye = torch.eye(n, dtype=values.dtype, device=values.device)
    kernel = phi(series.constant(coords)).value * pair + eye * (~mask)[:, :, None]
    system = values.new_zeros(batch, n + q, n + q)
    system[:, :n, :n] = kernel
    system[:, :n, n:] = polynomial
    system[:, n:, :n] = polynomial.transpose(1, 2)
    # Too few points for the tail, or all on a line: a tiny weight picks the smallest polynomial.
    system[:, n:, n:] = -1e-6 * torch.eye(q, dtype=values.dtype, device=values.device)
    right = torch.cat([values * mask[..., None], values.new_zeros(batch, q, values.shape[-1])], 1)
    weights = torch.linalg.solve(system.double(), right.double()).to(values.dtype)

    def start(x: Series) -> Series:
        basis = series.concatenate([phi(x).map(lambda k: k * mask[:, None, :]), tail(x)], -1)
        return basis.map(lambda k: k @ weights)

    return start
