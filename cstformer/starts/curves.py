r"""Starts of points: interpolants of the observed values of a sample, which put a first value on each query.

======== ====================================================== ==========================
start    curves (d = 1)                                         smoothness
======== ====================================================== ==========================
linear   straight lines, the paper's                            C0
hermite  cubic Hermite with three-point slopes                  C1
cubic    natural cubic spline                                   C2
smooth   Gaussian-process regression fitted on training samples C0 to C∞, as the data are
======== ====================================================== ==========================

In d > 1 dimensions the first three become the polyharmonic splines of the same smoothness (in one dimension those of r
and r³ *are* straight lines and the natural cubic spline); ``smooth`` is the same in any dimension. Outside the bounding
box of the observed coordinates a start is constant: it takes its value at the nearest point of the box, since a
polynomial continued beyond its knots soon leaves the range of the data. All starts return Taylor series along the
directions of the query.

Shapes: J Taylor coefficients, B samples, n observed points (knots), m queries, d axes, c channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.starts.gaussian_process import Kernel, KernelRows, posterior_weights
from cstformer.taylor import series
from cstformer.taylor.series import Series

Start = Callable[[Series], Series]
"""From query coordinates (J, B, m, d) to initial values (J, B, m, c)."""

Coords = Float[Tensor, "B n d"]
Values = Float[Tensor, "B n c"]
Exists = Bool[Tensor, "B n"]
Step = Float[Tensor, "B i 1"]
"""One number for each of the i = n − 1 intervals between knots."""
Interval = Float[Tensor, "B i c"]
PiecesOf = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From lengths and secants of the intervals, and which of them exist, to the coefficients a_1, a_2, a_3."""


def make_start(
    name: str, coords: Coords, values: Values, observed: Bool[Tensor, "B n c"], kernel: Kernel | None = None
) -> Start:
    """Interpolate each sample of a batch.

    Parameters
    ----------
    name : one of `STARTS`
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
    own = name == "smooth" and kernel is not None and bool(kernel.channels)  # channels differ in more than their points
    if not own and bool((observed == observed[..., :1]).all()):
        rows = None if kernel is None else kernel.rows(coords.double())
        return _one_mask(name, coords, values, observed[..., 0], rows)
    return _by_channel(name, coords, values, observed, kernel)


# Channels of one batch are grouped by how many points they have; a group is padded to its longest. Upper ends of the
# groups: most channels of a clinical table have a few points, a few have many.
_GROUPS = (8, 32, 128)


def _by_channel(
    name: str, coords: Coords, values: Values, observed: Bool[Tensor, "B n c"], kernel: Kernel | None
) -> Start:
    """Start for channels that are observed at different points: each is a problem of its own, of its own points only.

    The B·c problems are solved in `channel_groups`. A channel without any point starts at 0.
    """
    batch, _, c = values.shape
    y = values.transpose(1, 2).flatten(0, 1)  # (B·c, n)
    parts: list[tuple[Tensor, Tensor, Start]] = []
    for row, point, exists in channel_groups(observed):
        sample = row // c
        rows = None if kernel is None else kernel.rows(coords.double(), row % c)
        inner = _one_mask(name, coords[sample[:, None], point], y[row[:, None], point][..., None], exists, rows)
        parts.append((row, sample, inner))

    empty = (~observed.any(1)).flatten().nonzero()[:, 0]
    place = torch.cat([*(row for row, _, _ in parts), empty]).argsort()  # of each problem among the parts

    def start(x: Series) -> Series:
        solved = [inner(_samples(x, sample)).coefs[..., 0] for _, sample, inner in parts]  # (J, problems, m) each
        zeros = values.new_zeros(len(x.coefs), len(empty), x.coefs.shape[2])
        y = torch.cat([*solved, zeros], 1)[:, place]
        return Series(y.unflatten(1, (batch, c)).transpose(2, 3), x.order, x.directions)  # (J, B, m, c)

    return start


def channel_groups(observed: Bool[Tensor, "B n c"], empty: bool = False) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Channels of samples in groups of a similar number of points, each padded to its longest.

    Returns, for each group of P problems: ``row`` (P,), which is sample · c + channel; ``point`` (P, n'), the observed
    points in their order and then padding; and ``exists`` (P, n'). Channels without points are left out unless
    ``empty`` asks for them.

    >>> seen = torch.tensor([[[True, False], [False, False], [True, False]]])
    >>> [x.tolist() for x in channel_groups(seen)[0]]
    [[0], [[0, 2]], [[True, True]]]
    """
    exists = observed.transpose(1, 2).flatten(0, 1)  # (B·c, n)
    count = exists.sum(1)
    group = torch.bucketize(count, torch.tensor(_GROUPS, device=count.device))  # 8 points still belong to the first
    found = []
    for number in range(len(_GROUPS) + 1):
        row = ((group == number) & (count >= (0 if empty else 1))).nonzero()[:, 0]
        if len(row):
            longest = max(1, int(count[row].max()))
            point = exists[row].to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
            found.append((row, point, exists[row[:, None], point]))
    return found


def _samples(x: Series, index: Tensor) -> Series:
    return x.map(lambda c: c[:, index])


def _one_mask(name: str, coords: Coords, values: Values, exists: Exists, kernel: KernelRows | None) -> Start:
    """Start for channels that are observed at the same points."""
    return constant_outside(STARTS[name](coords, values, exists, kernel), coords, exists)


def constant_outside(inner: Start, coords: Coords, exists: Exists) -> Start:
    """A start that takes its value at the nearest point of the box of the observed coordinates outside of this box."""
    far = torch.finfo(coords.dtype).max
    low = coords.masked_fill(~exists[..., None], far).amin(1, keepdim=True)  # (B, 1, d)
    high = coords.masked_fill(~exists[..., None], -far).amax(1, keepdim=True)

    def start(x: Series) -> Series:
        value = x.value  # (B, m, d)
        inside = (value >= low) & (value <= high)
        # low = far > high = −far in a sample without points: keep the sums finite here, and ask at 0 below.
        held = torch.minimum(torch.maximum(value, low.clamp(max=far / 2)), high).unsqueeze(0)
        held = torch.where(exists.any(1)[:, None, None], held, torch.zeros_like(held))
        if x.order:  # along an axis on which a query lies outside, the start does not change
            held = torch.cat([held, x.coefs[1:] * inside])
        return inner(Series(held, x.order, x.directions))

    return start


def _gaussian_process(coords: Coords, values: Values, exists: Exists, kernel: KernelRows | None) -> Start:
    """Posterior mean k(x, X) (K + σ²I)⁻¹ y, in float64: for nearly noise-free data the weights are large and cancel."""
    assert kernel is not None, "the smooth start needs a fitted kernel"
    knots = coords.double()
    weights = posterior_weights(kernel, knots, values.double(), exists)  # (B, n, c)

    def start(x: Series) -> Series:
        return kernel.covariance(x.map(Tensor.double), knots).map(lambda k: (k @ weights).to(values.dtype))

    return start


def _spline(pieces_of: PiecesOf, power: tuple[float, bool]) -> StartMaker:
    """Piecewise cubics in one dimension, a polyharmonic spline of the same smoothness in more."""

    def make(coords: Coords, values: Values, exists: Exists, kernel: KernelRows | None) -> Start:
        if coords.shape[-1] == 1:
            return _piecewise(pieces_of, coords[..., 0], values, exists)
        return _polyharmonic(*power, coords, values, exists)

    return make


def _piecewise(pieces_of: PiecesOf, t: Float[Tensor, "B n"], y: Values, exists: Exists) -> Start:
    """Cubic pieces on sorted knots: with s = t − t_i on interval i, y(t) = y_i + a_1 s + a_2 s² + a_3 s³."""
    order = t.masked_fill(~exists, torch.inf).argsort(dim=1, stable=True)
    count = exists.sum(1, keepdim=True)  # (B, 1)
    # Slots past the last observed point repeat it: their intervals have no length and are never entered.
    slot = torch.arange(t.shape[1], device=t.device).minimum((count - 1).clamp_min(0))  # (B, n)
    order = order.gather(1, slot)
    t = t.gather(1, order)
    y = (y * exists[..., None]).gather(1, order[..., None].expand_as(y))
    if t.shape[1] == 1:  # one knot: a constant
        return lambda x: series.constant(y.expand(-1, x.coefs.shape[2], -1)).lift(x)
    step = (t[:, 1:] - t[:, :-1])[..., None]  # (B, n-1, 1)
    real = step > 0
    step = torch.where(real, step, torch.ones_like(step))
    secant = (y[:, 1:] - y[:, :-1]) / step
    cubic = pieces_of(step, secant, real)  # a_1, a_2, a_3, each (B, n-1, c)
    pieces = torch.stack([y[:, :-1], *(torch.where(real, a, torch.zeros_like(a)) for a in cubic)], 2)  # (B, n-1, 4, c)

    def start(x: Series) -> Series:
        at = x.value[..., 0].contiguous()  # (B, m)
        piece = (torch.searchsorted(t, at, right=True) - 1).minimum((count - 2).clamp_min(0)).clamp_min(0)
        a = pieces.gather(1, piece[..., None, None].expand(-1, -1, *pieces.shape[2:])).unbind(2)  # 4 × (B, m, c)
        local = series.shift(x, -t.gather(1, piece)[..., None])
        s = local.value  # (B, m, 1)
        derivatives = [  # of the cubic, over m!
            a[0] + s * (a[1] + s * (a[2] + s * a[3])),
            a[1] + s * (2 * a[2] + s * 3 * a[3]),
            a[2] + s * 3 * a[3],
            a[3],
        ]
        derivatives += [torch.zeros_like(a[0])] * (x.order - 3)
        return series.compose(local, derivatives[: x.order + 1])

    return start


# Each of the following returns a_1, a_2, a_3 from the lengths h of the intervals, their secants and whether they exist.
Pieces = tuple[Interval, Interval, Interval]


def _linear_pieces(step: Step, secant: Interval, real: Bool[Tensor, "B i 1"]) -> Pieces:
    return secant, torch.zeros_like(secant), torch.zeros_like(secant)


def _hermite_pieces(step: Step, secant: Interval, real: Bool[Tensor, "B i 1"]) -> Pieces:
    """Cubic Hermite pieces whose slope at a knot is that of the parabola through it and its two neighbours.

    With the lengths h_0, h_1 and the secants p_0, p_1 before and after the knot, the slope is
    (h_1 p_0 + h_0 p_1) / (h_0 + h_1). At both ends it is that of the secant.
    """
    before, after = secant[:, :-1], secant[:, 1:]
    h0, h1 = step[:, :-1], step[:, 1:]
    inner = torch.where(real[:, 1:], (h1 * before + h0 * after) / (h0 + h1), before)
    slope = torch.cat([secant[:, :1], inner, secant[:, -1:]], 1)  # (B, n, c)
    left, right = slope[:, :-1], slope[:, 1:]
    return left, (3 * secant - 2 * left - right) / step, (left + right - 2 * secant) / step**2


def _natural_pieces(step: Step, secant: Interval, real: Bool[Tensor, "B i 1"]) -> Pieces:
    """Natural cubic spline, by its second derivatives M_i at the knots.

    They solve h_{i−1} M_{i−1} + 2 (h_{i−1} + h_i) M_i + h_i M_{i+1} = 6 (p_i − p_{i−1}) with M = 0 at both ends, p the
    secants: a tridiagonal system, solved for the whole batch by the Thomas algorithm.
    """
    size = secant.shape[1]
    # Forward: M_i = sides[i] − ratios[i]·M_{i+1}.
    ratios, sides = [torch.zeros_like(step[:, 0])], [torch.zeros_like(secant[:, 0])]
    for i in range(1, size):
        h0, h1 = step[:, i - 1], step[:, i]
        # Where the next interval does not exist, knot i is the last one and M_i = 0 (natural end).
        pivot = 2 * (h0 + h1) - h0 * ratios[-1]
        ratios.append(torch.where(real[:, i], h1 / pivot, torch.zeros_like(pivot)))
        side = (6 * (secant[:, i] - secant[:, i - 1]) - h0 * sides[-1]) / pivot
        sides.append(torch.where(real[:, i], side, torch.zeros_like(side)))
    # Backward, from M_n = 0.
    later = torch.zeros_like(secant[:, 0])
    reverse = [later]
    for i in range(size - 1, 0, -1):
        later = sides[i] - ratios[i] * later
        reverse.append(later)
    reverse.append(torch.zeros_like(later))  # M_0 = 0
    second = torch.stack(reverse[::-1], 1)  # (B, n, c)
    left, right = second[:, :-1], second[:, 1:]
    return secant - step * (2 * left + right) / 6, left / 2, (right - left) / (6 * step)


# ε in r² + ε², in units of the domain: rounds off the tip of r, where no Taylor series exists. The smoothness above
# holds at distances well above it. Interpolants differ from those of r by up to 2 % (r) and 0.1 % (the others).
_SOFTENING = 1e-3
_RIDGE = 1e-6  # where points do not determine the polynomial (too few, or on a line) it selects the smallest one


def _polyharmonic(exponent: float, slope: bool, coords: Coords, values: Values, exists: Exists) -> Start:
    r"""Polyharmonic splines of scattered data in d > 1 dimensions.

    .. math:: y(x) = \sum_j w_j\, \varphi\bigl(\sqrt{|x - x_j|^2 + \varepsilon^2}\bigr) + P(x)\, v,
              \qquad \begin{pmatrix} \Phi & P \\ P^T & 0 \end{pmatrix}
              \begin{pmatrix} w \\ v \end{pmatrix} = \begin{pmatrix} y \\ 0 \end{pmatrix}

    with φ(r) = r^exponent (r² log r for exponent 2), :math:`\Phi_{ij} = \varphi(x_i - x_j)` and the polynomials
    P(x) = [1], or [1 | x] with ``slope``.
    """
    sign = -1.0 if exponent < 2 else 1.0  # makes φ conditionally positive definite

    def phi(x: Series) -> Series:
        """φ at the distances to all points: (J, B, m, d) → (J, B, m, n)."""
        square = (x * x).map(lambda c: c.sum(-1, keepdim=True))
        cross = x.map(lambda c: -2 * c @ coords.transpose(-1, -2))
        r2 = series.shift(square + cross, (coords * coords).sum(-1)[:, None, :])  # |x|² − 2 x·x_j + |x_j|²
        rounding = (r2.value.clamp_min(0) - r2.value).detach()  # the three terms cancel near a point: keep r² ≥ 0
        r2 = series.shift(r2, rounding + _SOFTENING**2)
        if exponent == 2:
            return (r2 * series.log(r2)).map(lambda c: 0.5 * c)  # r² log r = ½ r² log r²
        return series.power(r2, exponent / 2).map(lambda c: sign * c)

    def polynomial(x: Series) -> Series:
        """P: (J, B, m, d) → (J, B, m, 1 or 1 + d)."""
        one = series.constant(torch.ones_like(x.value[..., :1]))
        return series.concatenate([one, x], -1) if slope else one.lift(x)

    batch, n, _ = values.shape
    terms = polynomial(series.constant(coords)).value * exists[..., None]  # (B, n, q)
    q = terms.shape[-1]
    pair = exists[:, :, None] & exists[:, None, :]
    eye = torch.eye(n, dtype=values.dtype, device=values.device)
    system = values.new_zeros(batch, n + q, n + q)
    system[:, :n, :n] = phi(series.constant(coords)).value * pair + eye * (~exists)[:, :, None]  # padding: identity
    system[:, :n, n:] = terms
    system[:, n:, :n] = terms.transpose(1, 2)
    system[:, n:, n:] = -_RIDGE * torch.eye(q, dtype=values.dtype, device=values.device)
    right = torch.cat([values * exists[..., None], values.new_zeros(batch, q, values.shape[-1])], 1)
    weights = torch.linalg.solve(system.double(), right.double()).to(values.dtype)  # [w | v] (B, n + q, c)

    def start(x: Series) -> Series:
        basis = series.concatenate([phi(x).map(lambda k: k * exists[:, None, :]), polynomial(x)], -1)
        return basis.map(lambda k: k @ weights)

    return start


StartMaker = Callable[[Coords, Values, Exists, KernelRows | None], Start]
# At a data point r is C0; r² log r (the thin plate, power 2) is C1, since its second derivatives grow like log r; r³ is
# C2, since its third derivatives jump. The flag says whether the polynomial has linear terms.
STARTS: dict[str, StartMaker] = {
    "linear": _spline(_linear_pieces, (1.0, False)),
    "hermite": _spline(_hermite_pieces, (2.0, True)),
    "cubic": _spline(_natural_pieces, (3.0, True)),
    "smooth": _gaussian_process,
}
"""Starts of points by name: from coordinates, values, existence and the fitted kernel to the start of a batch whose
channels share their observed points. The caller keeps queries inside the bounding box."""
