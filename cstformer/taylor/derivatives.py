r"""Which directions to follow, and how partial derivatives come out of them.

Along a direction :math:`\delta` the Taylor coefficient of order j mixes all partials of that order,

.. math:: u_j(\delta) = \sum_{|q| = j} \frac{\delta^q}{q!} D^q u,
          \qquad \delta^q = \prod_a \delta_a^{q_a}, \quad q! = \prod_a q_a!, \quad |q| = \sum_a q_a.

This is a linear system for the partials :math:`D^q u`, one equation for each direction. With the
:math:`\binom{d+k-1}{k}` lattice directions :math:`\delta = q/k, |q| = k`, it can be solved for every partial of order
at most k, mixed ones included (Griewank, Utke & Walther, *Mathematics of Computation* 69, 2000). Where only pure
partials are asked for, such as :math:`\partial^2 u / \partial t^2`, the axes themselves are enough, and cheaper.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cstformer.errors import CSTError
from cstformer.taylor.series import Series

MultiIndex = tuple[int, ...]


def multi_indices(d: int, order: int) -> list[MultiIndex]:
    """All multi-indices of d axes with total order exactly ``order``.

    >>> multi_indices(2, 2)
    [(2, 0), (1, 1), (0, 2)]
    """
    if d == 1:
        return [(order,)]
    return [(first, *rest) for first in range(order, -1, -1) for rest in multi_indices(d - 1, order - first)]


def up_to(d: int, order: int) -> list[MultiIndex]:
    """All multi-indices with 1 ≤ total order ≤ ``order``: the terms of the Sobolev loss.

    >>> up_to(1, 3)
    [(1,), (2,), (3,)]
    """
    return list(itertools.chain.from_iterable(multi_indices(d, j) for j in range(1, order + 1)))


MAX_ORDER = 12
"""Highest total order of a derivative. Taylor coefficients grow like factorials, and float32 has seven digits."""


def check_multi_index(index: Sequence[int] | int, d: int) -> MultiIndex:
    """The multi-index as a tuple; raises `CSTError` if it does not have d non-negative entries of a moderate sum."""
    index = (index,) if isinstance(index, int) else tuple(index)
    if len(index) != d or any(not isinstance(i, int) or i < 0 for i in index):
        raise CSTError(
            f"derivative {index} does not fit {d} coordinate axes; give one non-negative order per axis, "
            f"e.g. {(1,) + (0,) * (d - 1)} for the first derivative along the first axis"
        )
    if sum(index) > MAX_ORDER:
        raise CSTError(f"derivative {index} has order {sum(index)}; orders up to {MAX_ORDER} are computed")
    return index


@dataclass(frozen=True)
class DerivativePlan:
    """Directions to carry and the weights that turn their coefficients into partial derivatives.

    Attributes
    ----------
    order : int
        Highest total order among the asked-for indices.
    directions : Tensor, shape (D, d)
    weights : dict from multi-index to Tensor of shape (D,)
        D^q u = Σ_δ weights[q][δ] · u_{|q|}(δ).
    """

    order: int
    directions: Tensor
    weights: dict[MultiIndex, Tensor]

    def partial(self, series: Series, index: MultiIndex) -> Tensor:
        """D^q from a series along these directions; order 0 is the value itself."""
        j = sum(index)
        if j == 0:
            return series.value
        weights = self.weights[index].to(series.coefs)
        if len(weights) == 1:
            return series.at(j)[0] * weights[0]
        return torch.tensordot(weights, series.at(j), dims=1)


def plan(d: int, indices: Sequence[MultiIndex]) -> DerivativePlan:
    """The cheapest set of directions for these multi-indices.

    >>> plan(3, [(1, 0, 0), (2, 0, 0)]).directions.tolist()   # one axis: one direction
    [[1.0, 0.0, 0.0]]
    >>> len(plan(3, up_to(3, 2)).directions)                  # all partials to order 2: C(4, 2)
    6
    """
    order = max((sum(q) for q in indices), default=0)
    pure = all(sum(i > 0 for i in q) <= 1 for q in indices)
    axes = [a for a in range(d) if any(q[a] for q in indices)] or [0]  # an axis without derivatives costs nothing
    if pure:
        local = torch.eye(len(axes), dtype=torch.float64)  # (D, axes)
    else:
        local = torch.tensor(multi_indices(len(axes), order), dtype=torch.float64) / order
    directions = torch.zeros(len(local), d, dtype=torch.float64)
    directions[:, axes] = local
    weights = {}
    for q in indices:
        if sum(q) == 0:
            continue
        if pure:  # along an axis u_j = D^q u / j!
            row = torch.zeros(len(local), dtype=torch.float64)
            row[next(i for i, a in enumerate(axes) if q[a])] = math.factorial(sum(q))
        else:
            row = _solve(local, tuple(q[a] for a in axes))
        weights[tuple(q)] = row
    return DerivativePlan(order, directions, weights)


def _solve(directions: Tensor, q: MultiIndex) -> Tensor:
    """Weights (D,) of the coefficients of order |q| along the directions (D, axes) that give D^q.

    The system has the entries δ^p / p!, one row for each direction and one column for each p with |p| = |q|. Below the
    highest order it has more rows than columns; the pseudo-inverse picks the solution of least norm.
    """
    same_order = multi_indices(directions.shape[1], sum(q))
    factorials = [math.prod(math.factorial(i) for i in p) for p in same_order]
    powers = [[math.prod(x**i for x, i in zip(row, p, strict=True)) for p in same_order] for row in directions.tolist()]
    system = torch.tensor(powers, dtype=torch.float64) / torch.tensor(factorials, dtype=torch.float64)
    return torch.linalg.pinv(system)[same_order.index(q)]
