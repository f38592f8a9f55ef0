r"""Truncated Taylor series along directions: the arithmetic behind every derivative of the model.

A quantity :math:`u` that depends on a query coordinate :math:`x` is carried as the coefficients of

.. math:: u(x + s\,\delta) = u_0 + u_1 s + \dots + u_k s^k + O(s^{k+1}),

for one or several directions :math:`\delta` at once. :math:`u_0` does not depend on the direction and is stored
once, so ``D`` directions to order ``k`` need ``J = 1 + k·D`` coefficients. They are stacked on the first axis,
order by order: ``[u_0, u_1 of every direction, u_2 of every direction, …]``. One pass through the model then
gives all orders, linear layers see one larger matrix product, and only first-order backward is ever needed.

Coefficient j is a derivative over a factorial, :math:`u_j = \frac{1}{j!} \frac{d^j}{ds^j} u(x + s\,\delta)`;
`derivatives.py` turns coefficients into partial derivatives. A plain tensor is a series of order 0. The rules
themselves are in `recurrences.py`, fast versions with their own backward in `kernels.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor import kernels, recurrences

# The switches of the kernels, for callers that use this module alone.
from cstformer.taylor.kernels import compiled_kernels as compiled_kernels
from cstformer.taylor.kernels import matrix_products as matrix_products


@dataclass(frozen=True)
class Series:
    """Taylor coefficients of a tensor, stacked on the first axis.

    Attributes
    ----------
    coefs : Tensor, shape (1 + order·directions, ...)
        ``coefs[0]`` is the value itself.
    order : int
        Highest power kept.
    directions : int
        How many directions are carried side by side.

    Examples
    --------
    The series of exp(x + s) at x = 0 has coefficients 1/j!:

    >>> x = Series(torch.tensor([[0.0], [1.0], [0.0]]), order=2)
    >>> exp(x).coefs.flatten().tolist()
    [1.0, 1.0, 0.5]
    """

    coefs: Tensor
    order: int = 0
    directions: int = 1

    @property
    def value(self) -> Tensor:
        """The order-0 coefficient, shape (...)."""
        # The gradient of a squeezed tensor is a view, that of a selected one a copy among zeros.
        return self.coefs.squeeze(0) if self.order == 0 else self.coefs[0]

    @property
    def orders(self) -> recurrences.Split:
        """Coefficients by order: (1, ...) for order 0, then (directions, ...) for each order above."""
        return recurrences.Split(self.coefs, self.order, self.directions)

    def at(self, j: int) -> Tensor:
        """Coefficients of order ``j``: (1, ...) for j = 0, which all directions share, else (directions, ...)."""
        return self.orders[j]

    def map(self, linear: Callable[[Tensor], Tensor]) -> Series:
        """Apply a linear map that leaves the first axis alone (reshape, transpose, sum, …)."""
        return Series(linear(self.coefs), self.order, self.directions)

    def lift(self, like: Series) -> Series:
        """The same constant as a series of ``like``'s order: zeros above order 0."""
        if self.order == like.order:
            return self
        zeros = self.coefs.new_zeros((like.order * like.directions, *self.coefs.shape[1:]))
        return Series(torch.cat([self.coefs, zeros]), like.order, like.directions)

    def __add__(self, other: Series) -> Series:
        a, b = (self, other) if self.order >= other.order else (other, self)
        if a.order == b.order:
            return Series(a.coefs + b.coefs, a.order, a.directions)
        # b is a constant: it changes the value, and broadcasts the shape of the higher orders.
        value, *higher = a.orders
        shape = torch.broadcast_shapes(value.shape[1:], b.value.shape)
        return _stack([value + b.at(0), *(x.expand(len(x), *shape) for x in higher)], a)

    def __mul__(self, other: Series) -> Series:
        return _product(self, other, torch.mul)

    def __matmul__(self, other: Series) -> Series:
        return _product(self, other, torch.matmul)


def constant(x: Tensor) -> Series:
    """A tensor as a series of order 0."""
    return Series(x.unsqueeze(0))


def straight_line(x: Tensor, directions: Tensor, order: int) -> Series:
    """The coordinates x + s·δ: shape (1 + order·D, ..., d) from x (..., d) and directions (D, d).

    >>> straight_line(torch.zeros(1, 2), torch.eye(2), order=1).coefs.squeeze(1).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    if order == 0:
        return constant(x)
    n = len(directions)
    first = directions.to(x).reshape(n, *(1,) * (x.dim() - 1), x.shape[-1]).expand(n, *x.shape)  # (D, ..., d)
    rest = x.new_zeros(((order - 1) * n, *x.shape))  # a straight line has no curvature
    return Series(torch.cat([x.unsqueeze(0), first, rest]), order, n)


def linear(x: Series, weight: Tensor, bias: Tensor | None = None) -> Series:
    """X Wᵀ + b: one matrix product for all orders; the bias belongs to the value alone."""
    return x.map(lambda c: kernels.linear(c, weight, bias))


def shift(x: Series, amount: Tensor | float) -> Series:
    """Add a constant to the value."""
    if x.order == 0:
        return x.map(lambda c: c + amount)
    return _stack([x.at(0) + amount, x.coefs[1:]], x)


def add_to(fresh: Series, x: Series) -> Series:
    """Sum of two series; without gradients it overwrites ``fresh``, which no other code may hold."""
    if torch.is_grad_enabled() or fresh.order != x.order:
        return x + fresh
    return fresh.map(lambda c: c.add_(x.coefs))


def concatenate(parts: Sequence[Series], dim: int) -> Series:
    """Join series along ``dim`` (counted without the coefficient axis, or negative)."""
    like = max(parts, key=lambda part: part.order)
    axis = dim if dim < 0 else dim + 1
    return Series(torch.cat([part.lift(like).coefs for part in parts], axis), like.order, like.directions)


def compose(x: Series, derivatives: Sequence[Tensor]) -> Series:
    """f(x) from the scaled derivatives f⁽ᵐ⁾(x_0)/m! of an elementwise f, m = 0..order (Faà di Bruno)."""
    return _stack(recurrences.compose(x.orders, derivatives), x)


def exp(x: Series) -> Series:
    """Exponential."""
    if x.order == 0:
        return x.map(recurrences.exponential)
    return x.map(lambda c: kernels.exp(c, x.order, x.directions))


def power(x: Series, exponent: float) -> Series:
    """X to a real power, for x_0 > 0."""
    return _stack(recurrences.power(x.orders, exponent), x)


def log(x: Series) -> Series:
    """Logarithm, for x_0 > 0."""
    return _stack(recurrences.log(x.orders), x)


def divide(x: Series, y: Series) -> Series:
    """Quotient x / y; either may be a constant."""
    return _stack(recurrences.divide(x.orders, y.orders), x if x.order >= y.order else y)


def sin_cos(x: Series) -> tuple[Series, Series]:
    """Sine and cosine of a series; their derivatives repeat after four: s, c, −s, −c."""
    s, c = x.value.sin(), x.value.cos()
    cycle = [s, c, -s, -c]
    scaled = [(cycle[m % 4] / math.factorial(m), cycle[(m + 1) % 4] / math.factorial(m)) for m in range(x.order + 1)]
    return compose(x, [a for a, _ in scaled]), compose(x, [b for _, b in scaled])


def sinh(x: Series) -> Series:
    """Hyperbolic sine; its derivatives are cosh and sinh in turn.

    >>> sinh(Series(torch.tensor([[0.0], [1.0], [0.0], [0.0]]), order=3)).coefs.flatten().tolist()  # s + s³/6
    [0.0, 1.0, 0.0, 0.1666666716337204]
    """
    turns = x.value.sinh(), x.value.cosh()
    return compose(x, [turns[m % 2] / math.factorial(m) for m in range(x.order + 1)])


def gelu(x: Series) -> Series:
    """GELU, x·Φ(x) with the exact normal distribution function."""
    if x.order == 0:
        return x.map(F.gelu)
    return x.map(lambda c: kernels.gelu(c, x.order, x.directions))


def sigmoid(x: Series) -> Series:
    """Logistic function s. From s' = s − s² every derivative is a polynomial p_m(s), and p_{m+1} = p_m'·(s − s²)."""
    s = x.value.sigmoid()
    polynomial, derivatives = [0.0, 1.0], [s]  # p_0(s) = s, by increasing powers
    for m in range(1, x.order + 1):
        slope = [k * a for k, a in enumerate(polynomial)]  # s·p'(s): coefficient k of s^k
        polynomial = [a - b for a, b in zip([*slope, 0.0], [0.0, *slope], strict=True)]  # (1 − s)·s·p'(s)
        derivatives.append(recurrences.add(a / math.factorial(m) * s**k for k, a in enumerate(polynomial) if a))
    return compose(x, derivatives)


def layer_norm(x: Series, weight: Tensor, bias: Tensor, eps: float) -> Series:
    """LayerNorm over the last axis."""
    if x.order == 0:
        return x.map(lambda c: F.layer_norm(c, c.shape[-1:], weight, bias, eps))
    return x.map(lambda c: kernels.layer_norm(c, weight, bias, eps, x.order, x.directions))


def _product(a: Series, b: Series, times: Callable[[Tensor, Tensor], Tensor]) -> Series:
    """Cauchy product for any bilinear ``times``; with a constant it is one product for all orders."""
    if a.order == 0 or b.order == 0:
        like = a if b.order == 0 else b
        return Series(times(a.coefs, b.coefs), like.order, like.directions)
    return _stack(recurrences.product(a.orders, b.orders, times), a)


def _stack(orders: Sequence[Tensor], like: Series) -> Series:
    return Series(recurrences.stack(orders), like.order, like.directions)
