r"""Rules for the coefficients of truncated Taylor series, order by order.

A series :math:`x(s) = x_0 + x_1 s + \dots + x_k s^k` is a sequence of tensors here, and ``x[j]`` holds order j: shape
(1, ...) for j = 0, which all directions share, and (D, ...) above. A constant has one item. Elementwise products
broadcast the shared value over the directions, so the rules need not mention them.

Each function follows from comparing the powers of s on both sides of an identity (Griewank & Walther, *Evaluating
Derivatives*, 2nd ed., ch. 13). For y = exp(x), for example, y' = x' y, so :math:`j y_j = \sum_i i\, x_i y_{j-i}`. The
work is O(k²) elementwise products, where nested automatic differentiation needs O(2^k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Orders = Sequence[Tensor]
"""Coefficients by order: (1, ...), then (D, ...) for each order above 0."""


class Split(Sequence[Tensor]):
    """The stacked coefficients (1 + order·directions, ...), seen by order.

    Each access makes a new view. Under autograd every use of a coefficient then adds to the gradient of the stack on
    its own, in the order of the uses; sharing views would change that order, and with it the last digits of training.

    >>> [len(part) for part in Split(torch.zeros(7, 5), order=2, directions=3)]
    [1, 3, 3]
    """

    def __init__(self, coefs: Tensor, order: int, directions: int):
        self.coefs, self.order, self.directions = coefs, order, directions

    def __len__(self) -> int:
        return self.order + 1

    def __getitem__(self, j: Any) -> Any:
        if not 0 <= j <= self.order:
            raise IndexError(f"order {j} of a series of order {self.order}")
        return self.coefs[:1] if j == 0 else self.coefs[1 + (j - 1) * self.directions : 1 + j * self.directions]


def stack(orders: Sequence[Tensor]) -> Tensor:
    """The inverse of `Split`: (1 + order·D, ...)."""
    return torch.cat(list(orders)) if len(orders) > 1 else orders[0]


def product(a: Orders, b: Orders, times: Callable[[Tensor, Tensor], Tensor] = torch.mul) -> list[Tensor]:
    """Cauchy product y_j = Σ_{i=0..j} a_i·b_{j−i} of two series of one order, for any bilinear ``times``."""
    return [add(times(a[i], b[j - i]) for i in range(j + 1)) for j in range(len(a))]


def adjoint_product(gradient: Orders, b: Orders) -> list[Tensor]:
    """Gradient a̅ of a in the Cauchy product y = a·b, from the gradient y̅: a̅_i = Σ_{j ≥ i} y̅_j·b_{j−i}.

    The value a_0 is shared by all directions, so its gradient is summed over them.
    """
    top = len(gradient) - 1
    products = (gradient[j] * b[j] for j in range(top + 1))
    out = [add(p if len(p) == 1 else p.sum(0, keepdim=True) for p in products)]
    for i in range(1, top + 1):
        out.append(add(gradient[j] * b[j - i] for j in range(i, top + 1)))
    return out


def compose(x: Orders, derivatives: Sequence[Tensor]) -> list[Tensor]:
    """f(x) from the scaled derivatives f⁽ᵐ⁾(x_0)/m! of an elementwise f, m = 0..order (Faà di Bruno).

    With z = x − x_0, which starts at order 1: f(x)_j = Σ_{m=1..j} f⁽ᵐ⁾(x_0)/m! · (zᵐ)_j.
    """
    top = len(x) - 1
    # powers[m][j] is the coefficient j of z^m; it is zero below j = m.
    powers: list[dict[int, Tensor]] = [{}, {j: x[j] for j in range(1, top + 1)}]
    for m in range(2, top + 1):
        last = powers[-1]
        powers.append({j: add(x[i] * last[j - i] for i in range(1, j - m + 2)) for j in range(m, top + 1)})
    out = [derivatives[0].unsqueeze(0)]
    out += [add(derivatives[m] * powers[m][j] for m in range(1, j + 1)) for j in range(1, top + 1)]
    return out


LOG2_E = math.log2(math.e)


def exponential(x: Tensor) -> Tensor:
    """e^x as 2^(x log₂ e).

    Where e^x is too small for a normal number, `torch.exp` takes tens to hundreds of times as long on a CPU, and
    `torch.exp2` does not. Attention to far places and covariances of distant points are full of such numbers.

    >>> [round(y, 6) for y in exponential(torch.tensor([-math.inf, -200.0, 0.0, 1.0])).tolist()]
    [0.0, 0.0, 1.0, 2.718282]
    """
    return torch.exp2(x * LOG2_E)


def exp(x: Orders) -> list[Tensor]:
    """Exponential, from y' = x'·y: j·y_j = Σ_{i=1..j} i·x_i·y_{j−i}."""
    out = [exponential(x[0])]
    for j in range(1, len(x)):
        out.append(add((i / j) * x[i] * out[j - i] for i in range(1, j + 1)))
    return out


def power(x: Orders, exponent: float) -> list[Tensor]:
    """Power y = x^a for x_0 > 0, from x·y' = a·x'·y: j·x_0·y_j = Σ_{i=1..j} (a·i − (j − i))·x_i·y_{j−i}."""
    out = [x[0] ** exponent]
    for j in range(1, len(x)):
        terms = ((exponent * i - (j - i)) / j * x[i] * out[j - i] for i in range(1, j + 1))
        out.append(add(terms) / x[0])
    return out


def log(x: Orders) -> list[Tensor]:
    """Logarithm for x_0 > 0, from x·y' = x': j·x_0·y_j = j·x_j − Σ_{i=1..j−1} i·y_i·x_{j−i}."""
    out = [x[0].log()]
    for j in range(1, len(x)):
        top = x[j]
        for i in range(1, j):
            top = top - (i / j) * out[i] * x[j - i]
        out.append(top / x[0])
    return out


def divide(x: Orders, y: Orders) -> list[Tensor]:
    """Quotient r = x / y, from r·y = x: r_j = (x_j − Σ_{i=1..j} y_i·r_{j−i}) / y_0. Either may be a constant."""
    out = [x[0] / y[0]]
    for j in range(1, max(len(x), len(y))):
        top = x[j] if len(x) > 1 else torch.zeros_like(out[0])
        for i in range(1, j + 1 if len(y) > 1 else 1):
            top = top - y[i] * out[j - i]
        out.append(top / y[0])
    return out


def gelu_derivatives(x: Tensor, order: int) -> list[Tensor]:
    """g⁽ᵐ⁾(x)/m! of GELU, g(x) = x·Φ(x), for m = 0..order.

    By Leibniz g⁽ᵐ⁾ = x·Φ⁽ᵐ⁾ + m·Φ⁽ᵐ⁻¹⁾. Φ' is the normal density φ, and φ⁽ᵐ⁾ = (−1)ᵐ He_m φ with the probabilists'
    Hermite polynomials He_m = x·He_{m−1} − (m − 1)·He_{m−2}.
    """
    density = exponential(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    cdf = [0.5 + 0.5 * torch.erf(x * math.sqrt(0.5)), density]  # cdf[m] is Φ⁽ᵐ⁾
    hermite = [torch.ones_like(x), x]
    for m in range(2, order + 1):
        cdf.append((-1) ** (m - 1) * hermite[m - 1] * density)
        hermite.append(x * hermite[m - 1] - (m - 1) * hermite[m - 2])
    derivatives = [x * cdf[0]]
    derivatives += [(x * cdf[m] + m * cdf[m - 1]) / math.factorial(m) for m in range(1, order + 1)]
    return derivatives


def add(terms: Iterable[Tensor]) -> Tensor:
    """Sum of at least one tensor; unlike the built-in sum it does not begin at 0."""
    total = None
    for term in terms:
        total = term if total is None else total + term
    assert total is not None
    return total
