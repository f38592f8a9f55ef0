r"""Long recordings, read in windows of the length that a model was trained on; the answers of the windows are blended.

Windows overlap. At a query x the answer is the average of the answers :math:`f_k` of all windows that reach it,

.. math:: y(x) = \sum_k W_k(x)\, f_k(x), \qquad W_k = w_k / \sum_j w_j, \qquad w_k = (u_k (1 - u_k))^6,

where :math:`u_k` runs from 0 to 1 over the training domain of window k. The weights are largest in the middle of a
window, where the model sees points on both sides, and five times continuously differentiable where a window begins or
ends. Derivatives are those of y, by the product rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from numpy.polynomial import Polynomial

from cstformer.data.samples import Samples
from cstformer.data.windows import covering_starts, cut, places
from cstformer.errors import CSTError
from cstformer.models.reader import Reader
from cstformer.taylor.derivatives import MultiIndex

if TYPE_CHECKING:
    from cstformer.models.cst import CST
    from cstformer.models.model import Model

Ask = Callable[[Samples, np.ndarray, list[MultiIndex]], list[np.ndarray]]
"""Maps windows (W, …), queries (W, m, d) and multi-indices to the partial derivatives (W, m, c) of each."""

BUMP = Polynomial([0.0, 1.0, -1.0]) ** 6
"""Weight of a window before normalisation, as a function of u in [0, 1]."""


def is_recording(model: Model, context: Samples) -> bool:
    """Whether a model was trained on windows and the context was not cut into windows yet."""
    return model.names_.get("window") is not None and context.window is None


def blended(
    model: Model,
    context: Samples,
    queries: Float[np.ndarray, "N m d"],
    wanted: Sequence[MultiIndex],
    ask: Ask,
    bound: bool = False,
) -> list[Float[np.ndarray, "N m c"]]:
    r"""Partial derivatives of the blended answers at queries of whole recordings.

    With ``bound``, ``ask`` gives standard deviations, and so do we. Errors of windows that share points depend on each
    other in an unknown way, so this is the largest standard deviation that their sum can have,
    :math:`\operatorname{sd} \sum_i c_i X_i \le \sum_i |c_i| \operatorname{sd} X_i`, with equality if all errors agree.
    """
    axis = int(model.names_["window"][2])
    pairs = _pairs(model, context, queries, max(q[axis] for q in wanted))
    lower = {q: [(*q[:axis], j, *q[axis + 1 :]) for j in range(q[axis], -1, -1)] for q in wanted}
    indices = sorted({q for orders in lower.values() for q in orders})
    answers = dict(zip(indices, _ask_windows(pairs, indices, ask), strict=True))  # each (P, c)
    weights = np.abs(pairs.weights) if bound else pairs.weights
    out = []
    for q in wanted:
        # Leibniz: D^n (W f) = Σ_j binomial(n, j) D^j W · D^(n−j) f
        terms = (math.comb(q[axis], j) * weights[j, :, None] * answers[f] for j, f in enumerate(lower[q]))
        y = np.zeros((queries.shape[0] * queries.shape[1], answers[q].shape[-1]))
        np.add.at(y, pairs.query, sum(terms))
        out.append(y.reshape(*queries.shape[:2], -1))
    return out


class RecordingReader(Reader):
    """A model and whole recordings, with the answers of a `Reader`; windows are encoded when they are asked."""

    def __init__(self, model: CST, context: Samples):
        self.model, self.context = model, context.merged().sorted()
        self.network, self.scaling = model.network_, model.scaling_

    @property
    def domain(self) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
        """Corners of the box of the recordings, in the user's units."""
        points = self.context.coords[self.context.point_observed]
        return points.min(0), points.max(0)

    def partials(
        self, at: Float[np.ndarray, "m d"], indices: Sequence[Sequence[int]]
    ) -> list[Float[np.ndarray, "N m c"]]:
        """Partial derivatives at these coordinates, in the user's units; order 0 is the value."""
        return self.model.derivatives(self.context, np.asarray(at), indices, extrapolate=True)

    def attention(self, at: Float[np.ndarray, "m d"]) -> np.ndarray:
        """Refuse: each window has its own attention."""
        raise CSTError("attention is that within a window; pass context.windows(length, stride)")


@dataclass(frozen=True)
class Pairs:
    """P pairs of a query and a window that answers it.

    Attributes
    ----------
    windows : Samples, W of them
    window : (P,), sorted; query : (P,), number of the query among all N · m
    at : (P, d), coordinates relative to the window
    weights : (order + 1, P), the weight and its derivatives along the axis of the windows
    """

    windows: Samples
    window: Int[np.ndarray, " P"]
    query: Int[np.ndarray, " P"]
    at: Float[np.ndarray, "P d"]
    weights: Float[np.ndarray, "J P"]


def _pairs(model: Model, context: Samples, queries: Float[np.ndarray, "N m d"], order: int) -> Pairs:
    """Choose the windows and the weights for each query."""
    length, stride, axis = model.names_["window"]
    low, extent = float(model.scaling_.low[axis]), float(model.scaling_.span[axis])
    window = (length, stride, int(axis))
    starts = [covering_starts(places(context, i, axis)[0], window, low, low + extent) for i in range(len(context))]
    windows, row, begin = cut(context, starts, window)
    # A window with a single point says little; where a recording has others, they answer.
    enough = windows.point_observed.sum(1) > 1
    enough |= ~np.isin(row, row[enough])
    m, chosen = queries.shape[1], []
    for i in range(len(context)):
        mine = np.flatnonzero((row == i) & enough)
        chosen.append(_reaching(queries[i, :, axis], mine, begin[mine] + low, extent, i * m))
    which, query = (np.concatenate(part) for part in zip(*chosen, strict=True))
    by_window = np.argsort(which, kind="stable")
    which, query = which[by_window], query[by_window]
    used, which = np.unique(which, return_inverse=True)
    at = queries.reshape(-1, queries.shape[-1])[query]
    at[:, axis] -= begin[used][which]
    u = (at[:, axis] - low) / extent
    return Pairs(windows[used], which, query, at, _weights(u, query, queries.shape[0] * m, order, extent))


def _reaching(
    x: Float[np.ndarray, " m"],
    windows: Int[np.ndarray, " k"],
    begin: Float[np.ndarray, " k"],
    extent: float,
    first: int,
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Windows and queries, numbered from ``first``, in pairs: all windows that reach a query, or else the nearest."""
    low, high = np.searchsorted(begin, x - extent, side="right"), np.searchsorted(begin, x)
    distance = lambda k: np.maximum(begin[k] - x, x - begin[k] - extent)  # noqa: E731
    before, behind = np.maximum(low - 1, 0), np.minimum(low, len(begin) - 1)
    nearest = np.where(distance(before) <= distance(behind), before, behind)
    low, high = np.where(high > low, low, nearest), np.where(high > low, high, nearest + 1)
    query = np.repeat(np.arange(len(x)), high - low)
    offset = np.arange(len(query)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    return windows[low[query] + offset], first + query


def _weights(
    u: Float[np.ndarray, " P"], query: Int[np.ndarray, " P"], count: int, order: int, extent: float
) -> Float[np.ndarray, "J P"]:
    """Normalised weights of pairs and their derivatives up to ``order``, from places u in the windows.

    With Taylor coefficients w_j of the bump and S_j of the sum over windows, W S = w gives
    W_j = (w_j − Σ_{i=1..j} S_i W_{j−i}) / S_0.
    """
    inside = (u > 0) & (u < 1)
    bumps = [np.where(inside, BUMP.deriv(j)(u) / math.factorial(j), 0.0) for j in range(order + 1)]
    sums = [np.bincount(query, w, count)[query] for w in bumps]
    lost = sums[0] == 0  # no window reaches the query but the nearest
    equal = 1 / np.bincount(query, minlength=count)[query]
    found: list[np.ndarray] = []
    for j, w in enumerate(bumps):
        higher = sum((sums[i] * found[j - i] for i in range(1, j + 1)), np.zeros_like(u))
        found.append(np.where(lost, 0.0 if j else equal, (w - higher) / np.where(lost, 1.0, sums[0])))
    return np.stack([W * math.factorial(j) / extent**j for j, W in enumerate(found)])


def _ask_windows(pairs: Pairs, indices: list[MultiIndex], ask: Ask) -> list[Float[np.ndarray, "P c"]]:
    """Answers of all pairs; windows with similar numbers of queries are asked together, because they are padded."""
    count = np.bincount(pairs.window)
    first = np.cumsum(count) - count
    size = np.ceil(np.log2(count)).astype(int)
    out: list[np.ndarray] = []
    for s in np.unique(size):
        rows = np.flatnonzero(size == s)
        column = np.arange(count[rows].max())
        real = column < count[rows, None]
        place = first[rows, None] + np.where(real, column, 0)  # behind its own queries, a window repeats its first
        answers = ask(pairs.windows[rows], pairs.at[place], indices)
        out = out or [np.empty((len(pairs.query), y.shape[-1])) for y in answers]
        for y, answer in zip(out, answers, strict=True):
            y[place[real]] = answer[real]
    return out
