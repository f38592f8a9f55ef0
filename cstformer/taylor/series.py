r"""Truncated Taylor series along directions: the arithmetic behind every derivative of the model.

A quantity :math:`u` that depends on a query coordinate :math:`x` is carried as the coefficients of

.. math:: u(x + s\,\delta) = u_0 + u_1 s + \dots + u_k s^k + O(s^{k+1}),

for one or several directions :math:`\delta` at once. :math:`u_0` does not depend on the direction and is stored
once, so ``D`` directions to order ``k`` need ``1 + k·D`` coefficients. They are stacked on the first axis,
order by order: ``[u_0, u_1 of every direction, u_2 of every direction, …]``. One pass through the model then
gives all orders, linear layers see one larger matrix product, and only first-order backward is ever needed.

The rules (Griewank & Walther, *Evaluating Derivatives*, ch. 13): products convolve (Cauchy), exponentials,
powers and compositions follow recurrences in the order. A plain tensor is a series of order 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


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
        return self.coefs[0]

    def at(self, j: int) -> Tensor:
        """Coefficients of order ``j``: (1, ...) for j = 0, which all directions share, else (directions, ...)."""
        if j == 0:
            return self.coefs[:1]
        return self.coefs[1 + (j - 1) * self.directions : 1 + j * self.directions]

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
        return _stack([a.at(0) + b.at(0), *(_expand(a.at(j), b.value) for j in range(1, a.order + 1))], a)

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
    first = directions.to(x).reshape(n, *(1,) * (x.dim() - 1), x.shape[-1]).expand(n, *x.shape)
    rest = x.new_zeros(((order - 1) * n, *x.shape))
    return Series(torch.cat([x.unsqueeze(0), first, rest]), order, n)


def linear(x: Series, weight: Tensor, bias: Tensor | None = None) -> Series:
    """X Wᵀ + b: one matrix product for all orders; the bias belongs to the value alone."""
    low = _products_in.get()
    if low is not None:
        y = x.map(lambda c: F.linear(c.to(low), weight.to(low)).to(c.dtype))
        return y if bias is None else shift(y, bias)
    if not torch.is_grad_enabled() and x.coefs[..., 0].numel() > _MANY:
        # Of many rows the product is faster with the small matrix the right way round.
        out = (x.coefs.flatten(0, -2) @ weight.T.contiguous()).view(*x.coefs.shape[:-1], -1)
        if bias is not None:
            out[0] += bias
        return Series(out, x.order, x.directions)
    if bias is None or x.order == 0:
        return x.map(lambda c: F.linear(c, weight, bias))
    return Series(_Linear.apply(x.coefs, weight, bias), x.order, x.directions)


def add_to(fresh: Series, x: Series) -> Series:
    """Add x to a series that nobody else holds: in its place where no gradient needs it."""
    if torch.is_grad_enabled() or fresh.order != x.order:
        return x + fresh
    return fresh.map(lambda c: c.add_(x.coefs))


def concatenate(parts: Sequence[Series], dim: int) -> Series:
    """Join series along ``dim`` (counted without the coefficient axis, or negative)."""
    like = max(parts, key=lambda part: part.order)
    axis = dim if dim < 0 else dim + 1
    return Series(torch.cat([part.lift(like).coefs for part in parts], axis), like.order, like.directions)


def compose(x: Series, derivatives: Sequence[Tensor]) -> Series:
    """f(x) from the scaled derivatives f⁽ᵐ⁾(x₀)/m! of an elementwise f, m = 0..order (Faà di Bruno)."""
    out = [derivatives[0].unsqueeze(0)]
    if x.order == 0:
        return Series(out[0])
    # powers[m][j]: coefficient j of (x - x_0)^m, which starts at order m.
    powers: list[dict[int, Tensor]] = [{}, {j: x.at(j) for j in range(1, x.order + 1)}]
    for m in range(2, x.order + 1):
        last = powers[-1]
        powers.append({j: _sum(x.at(i) * last[j - i] for i in range(1, j - m + 2)) for j in range(m, x.order + 1)})
    out += [_sum(derivatives[m] * powers[m][j] for m in range(1, j + 1)) for j in range(1, x.order + 1)]
    return _stack(out, x)


def exp(x: Series) -> Series:
    """Exponential: j·e_j = Σ_{i=1..j} i·x_i·e_{j−i}."""
    if x.order == 0:
        return x.map(torch.exp)
    if torch.is_grad_enabled():
        return Series(_Exp.apply(x.coefs, x.order, x.directions), x.order, x.directions)
    return Series(_apply_kernel(_exp_value, x.order, x.directions, x.coefs), x.order, x.directions)


def plain_exp(x: Series) -> Series:
    """`exp` step by step, for the fused one and its tests."""
    out = [x.at(0).exp()]
    for j in range(1, x.order + 1):
        out.append(_sum((i / j) * x.at(i) * out[j - i] for i in range(1, j + 1)))
    return _stack(out, x)


def power(x: Series, exponent: float) -> Series:
    """x^a for x₀ > 0: j·x₀·r_j = Σ_{i=1..j} (a·i − (j − i))·x_i·r_{j−i}."""
    out = [x.at(0) ** exponent]
    for j in range(1, x.order + 1):
        terms = ((exponent * i - (j - i)) / j * x.at(i) * out[j - i] for i in range(1, j + 1))
        out.append(_sum(terms) / x.at(0))
    return _stack(out, x)


def log(x: Series) -> Series:
    """Logarithm for x₀ > 0: j·x₀·l_j = j·x_j − Σ_{i=1..j−1} i·l_i·x_{j−i}."""
    out = [x.at(0).log()]
    for j in range(1, x.order + 1):
        top = x.at(j)
        for i in range(1, j):
            top = top - (i / j) * out[i] * x.at(j - i)
        out.append(top / x.at(0))
    return _stack(out, x)


def divide(x: Series, y: Series) -> Series:
    """X / y: r_j = (x_j − Σ_{i=1..j} y_i·r_{j−i}) / y₀."""
    out = [x.at(0) / y.at(0)]
    like = x if x.order >= y.order else y
    for j in range(1, like.order + 1):
        top = x.at(j) if x.order else torch.zeros_like(out[0])
        for i in range(1, j + 1 if y.order else 1):
            top = top - y.at(i) * out[j - i]
        out.append(top / y.at(0))
    return _stack(out, like)


def sin_cos(x: Series) -> tuple[Series, Series]:
    """Sine and cosine of a series."""
    s, c = x.value.sin(), x.value.cos()
    cycle = [s, c, -s, -c]
    scaled = [(cycle[m % 4] / math.factorial(m), cycle[(m + 1) % 4] / math.factorial(m)) for m in range(x.order + 1)]
    return compose(x, [a for a, _ in scaled]), compose(x, [b for _, b in scaled])


def gelu(x: Series) -> Series:
    """GELU, x·Φ(x) with the exact normal distribution function."""
    if x.order == 0:
        return x.map(F.gelu)
    return Series(_Gelu.apply(x.coefs, x.order, x.directions), x.order, x.directions)


def plain_gelu(x: Series) -> Series:
    """`gelu` step by step, for the fused one and its tests."""
    return compose(x, gelu_derivatives(x.value, x.order))


def gelu_derivatives(x: Tensor, order: int) -> list[Tensor]:
    """g⁽ᵐ⁾(x)/m! of g = x·Φ for m = 0..order, from g⁽ᵐ⁾ = x·Φ⁽ᵐ⁾ + m·Φ⁽ᵐ⁻¹⁾ and Hermite polynomials."""
    normal = torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    cdf = [0.5 + 0.5 * torch.erf(x * math.sqrt(0.5)), normal]  # cdf[m]: the m-th derivative of Φ
    hermite = [torch.ones_like(x), x]
    for m in range(2, order + 1):
        cdf.append((-1) ** (m - 1) * hermite[m - 1] * normal)
        hermite.append(x * hermite[m - 1] - (m - 1) * hermite[m - 2])
    derivatives = [x * cdf[0]]
    derivatives += [(x * cdf[m] + m * cdf[m - 1]) / math.factorial(m) for m in range(1, order + 1)]
    return derivatives


def sigmoid(x: Series) -> Series:
    """Logistic function s; its derivatives are polynomials of s, by s' = s − s²."""
    s = x.value.sigmoid()
    polynomial, derivatives = [0.0, 1.0], [s]
    for m in range(1, x.order + 1):
        slope = [k * a for k, a in enumerate(polynomial)]  # coefficient k: of s^k in s·p'(s)
        polynomial = [a - b for a, b in zip([*slope, 0.0], [0.0, *slope], strict=True)]
        derivatives.append(_sum(a / math.factorial(m) * s**k for k, a in enumerate(polynomial) if a))
    return compose(x, derivatives)


def layer_norm(x: Series, weight: Tensor, bias: Tensor, eps: float) -> Series:
    """LayerNorm over the last axis."""
    if x.order == 0:
        return x.map(lambda c: F.layer_norm(c, c.shape[-1:], weight, bias, eps))
    if torch.is_grad_enabled():
        y = _LayerNorm.apply(x.coefs, weight, bias, eps, x.order, x.directions)
    else:
        kernel = _compiled(_plain_norm) if _compiling.get() else _norm_alone
        y = kernel(x.order, x.directions, eps, x.coefs.flatten(1, -2), weight, bias).view_as(x.coefs)
    return Series(y, x.order, x.directions)


def plain_layer_norm(x: Series, weight: Tensor, bias: Tensor, eps: float) -> Series:
    """`layer_norm` step by step, for the tests of the fused one."""
    centred, scale = _standardise(x, eps)
    return scale_shift(centred * scale, weight, bias)


def shift(x: Series, amount: Tensor | float) -> Series:
    """Add a constant to the value."""
    return _stack([x.at(0) + amount, x.coefs[1:]], x)


def scale_shift(x: Series, weight: Tensor, bias: Tensor) -> Series:
    """Elementwise affine map with constants: the scale meets every order, the shift only the value."""
    return shift(x.map(lambda c: c * weight), bias)


# Fused steps with their own backward. The adjoint of "multiply by the series b" is `adjoint_product(·, b)`, and
# since the derivative of f(x) by x_i is the series of f′(x) shifted by i, the adjoint of an elementwise f is
# `adjoint_product(·, f′(x))`: backward needs the input alone, and nothing in between is stored.


def adjoint_product(gradient: Series, b: Series) -> Series:
    """Gradient with respect to a of the Cauchy product a·b: a̅_i = Σ_{j ≥ i} y̅_j·b_{j−i}."""
    order = gradient.order
    products = (gradient.at(j) * b.at(j) for j in range(order + 1))
    value = _sum(p if gradient.directions == 1 else p.sum(0, keepdim=True) for p in products)
    out = [value]
    for i in range(1, order + 1):
        out.append(_sum(gradient.at(j) * b.at(j - i) for j in range(i, order + 1)))
    return _stack(out, gradient)


_MANY = 2**12  # rows from which turning a weight matrix pays
_CHUNK = 2**15  # numbers per coefficient handled at once: what a few temporaries need to stay in the cache
_compiling = ContextVar("compiling", default=False)
_products_in: ContextVar[torch.dtype | None] = ContextVar("products_in", default=None)


@contextmanager
def matrix_products(dtype: torch.dtype | None) -> Iterator[None]:
    """Do the products of linear layers, and those of their backward, in this format; all else stays as it is."""
    token = _products_in.set(dtype)
    try:
        yield
    finally:
        _products_in.reset(token)


def products_in_lower_precision() -> bool:
    """Whether `matrix_products` has chosen a format of its own."""
    return _products_in.get() is not None


@contextmanager
def compiled_kernels(on: bool = True) -> Iterator[None]:
    """Let `torch.compile` make one loop of a fused step: many times faster on wide layers, after a warm-up.

    With gradients only GELU, which takes most of the time there; without, exp and LayerNorm as well.
    """
    token = _compiling.set(on)
    try:
        yield
    finally:
        _compiling.reset(token)


@functools.cache
def _compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    fast = torch.compile(kernel, dynamic=True)

    def call(*args: Any) -> Any:
        # Tensors that differ in nothing but their sizes need no second compilation.
        return fast(*(a.detach().contiguous() if isinstance(a, Tensor) else a for a in args))

    return call


def _apply_kernel(
    kernel: Callable[..., Tensor], order: int, directions: int, *coefs: Tensor, compiles: bool = True
) -> Tensor:
    """An elementwise kernel on (J, ...) tensors: compiled, or a cache-sized piece at a time."""
    flat = [c.reshape(len(c), -1) for c in coefs]
    if compiles and _compiling.get():
        return _compiled(kernel)(order, directions, *flat).view_as(coefs[0])
    out = torch.empty_like(flat[0])
    for first in range(0, out.shape[1], _CHUNK):
        piece = slice(first, first + _CHUNK)
        out[:, piece] = kernel(order, directions, *(c[:, piece] for c in flat))
    return out.view_as(coefs[0])


def _gelu_value(order: int, directions: int, x: Tensor) -> Tensor:
    return plain_gelu(Series(x, order, directions)).coefs


def _gelu_gradient(order: int, directions: int, x: Tensor, gradient: Tensor) -> Tensor:
    scaled = gelu_derivatives(x[0], order + 1)
    slope = compose(Series(x, order, directions), [(m + 1) * scaled[m + 1] for m in range(order + 1)])
    return adjoint_product(Series(gradient, order, directions), slope).coefs


def gelu_coefs(order: int, directions: int, x: Tensor) -> Tensor:
    """Coefficients of GELU from those of x, (J, ...); autograd does not see through it."""
    return _apply_kernel(_gelu_value, order, directions, x)


def gelu_gradient(order: int, directions: int, x: Tensor, gradient: Tensor) -> Tensor:
    """Gradient for x from that for the coefficients of GELU."""
    return _apply_kernel(_gelu_gradient, order, directions, x, gradient)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, coefs: Tensor, order: int, directions: int) -> Tensor:
        ctx.save_for_backward(coefs)
        ctx.shape = order, directions
        return gelu_coefs(order, directions, coefs)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (coefs,) = ctx.saved_tensors
        order, directions = ctx.shape
        return gelu_gradient(order, directions, coefs, gradient), None, None


def _exp_value(order: int, directions: int, x: Tensor) -> Tensor:
    return plain_exp(Series(x, order, directions)).coefs


def _exp_gradient(order: int, directions: int, out: Tensor, gradient: Tensor) -> Tensor:
    return adjoint_product(Series(gradient, order, directions), Series(out, order, directions)).coefs


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, coefs: Tensor, order: int, directions: int) -> Tensor:
        out = _apply_kernel(_exp_value, order, directions, coefs, compiles=False)
        ctx.save_for_backward(out)
        ctx.shape = order, directions
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (out,) = ctx.saved_tensors
        return _apply_kernel(_exp_gradient, *ctx.shape, out, gradient, compiles=False), None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(coefs, weight)
        out = F.linear(coefs, weight)
        out[0] += bias
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        coefs, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        for_input = gradient @ weight if ctx.needs_input_grad[0] else None
        return for_input, rows.T @ coefs.flatten(0, -2), gradient[0].flatten(0, -2).sum(0)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, coefs: Tensor, weight: Tensor, bias: Tensor, eps: float, order: int, directions: int) -> Tensor:
        normal, centred, scale = _norm_value(order, directions, eps, coefs.flatten(1, -2))
        ctx.save_for_backward(normal, centred, scale, weight)
        ctx.shape = order, directions
        out = normal * weight
        out[0] += bias
        return out.view_as(coefs)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        normal, centred, scale, weight = ctx.saved_tensors
        order, directions = ctx.shape
        rows = gradient.flatten(1, -2)
        total = _norm_gradient(order, directions, rows * weight, centred, scale)
        for_weight = (rows * normal).sum((0, 1))
        return total.view_as(gradient), for_weight, rows[0].sum(0), None, None, None


def _norm_value(order: int, directions: int, eps: float, coefs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of (J, rows, width) without its affine map, the centred input and its scale (J, rows, 1).

    As few passes over the rows as can be: sums are inner products, products are added in place.
    """
    centred = coefs - coefs.mean(-1, keepdim=True)
    c = Series(centred, order, directions)
    variance = []
    for j in range(order + 1):
        pairs = ((i, j - i) for i in range(j // 2 + 1))
        variance.append(_sum((1 + (a < b)) * torch.linalg.vecdot(c.at(a), c.at(b)) for a, b in pairs))
    squares = _stack(variance, c).map(lambda v: v.unsqueeze(-1) / coefs.shape[-1])
    scale = power(shift(squares, eps), -0.5)
    normal = Series(centred * scale.at(0), order, directions)
    for j in range(1, order + 1):
        for i in range(1, j + 1):
            normal.at(j).addcmul_(c.at(j - i), scale.at(i))
    return normal.coefs, centred, scale.coefs


def _norm_alone(order: int, directions: int, eps: float, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = _norm_value(order, directions, eps, coefs)[0] * weight
    out[0] += bias
    return out


def _plain_norm(order: int, directions: int, eps: float, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return plain_layer_norm(Series(coefs, order, directions), weight, bias, eps).coefs


def _norm_gradient(order: int, directions: int, gradient: Tensor, centred: Tensor, scale: Tensor) -> Tensor:
    """Gradient for the input of `_norm_value` from that for its first answer."""
    g, c, r = (Series(x, order, directions) for x in (gradient, centred, scale))
    # y = c·r, r = (v + ε)^{-1/2}, v = mean(c²): r′ = −½ r³.
    products = {(j, i): torch.linalg.vecdot(g.at(j), c.at(i)) for j in range(order + 1) for i in range(j + 1)}
    for_scale = [_sum(products[j, j].sum(0, keepdim=True) for j in range(order + 1))]
    for_scale += [_sum(products[j, j - i] for j in range(i, order + 1)) for i in range(1, order + 1)]
    slope = (r * r * r).map(lambda a: (-1 / centred.shape[-1]) * a)
    for_variance = adjoint_product(_stack(for_scale, g).map(lambda a: a.unsqueeze(-1)), slope)
    total = Series(gradient * r.at(0), order, directions)
    for a, b, first in ((g, r, 1), (for_variance, c, 0)):
        for j in range(order + 1):
            for i in range(j - first + 1):
                if i or directions == 1:
                    total.at(i).addcmul_(a.at(j), b.at(j - i))
                else:
                    total.at(0).add_((a.at(j) * b.at(j)).sum(0, keepdim=True))
    return total.coefs - total.coefs.mean(-1, keepdim=True)


def _standardise(x: Series, eps: float) -> tuple[Series, Series]:
    """X − mean and (variance + ε)^{-1/2} over the last axis."""
    centred = x.map(lambda c: c - c.mean(-1, keepdim=True))
    variance = (centred * centred).map(lambda c: c.mean(-1, keepdim=True))
    return centred, power(shift(variance, eps), -0.5)


def _product(a: Series, b: Series, times: Callable[[Tensor, Tensor], Tensor]) -> Series:
    """Cauchy product for any bilinear ``times``."""
    if a.order == 0 or b.order == 0:
        like = a if b.order == 0 else b
        return Series(times(a.coefs, b.coefs), like.order, like.directions)
    return _stack(
        [_sum(times(a.at(i), b.at(j - i)) for i in range(j + 1)) for j in range(a.order + 1)],
        a,
    )


def _stack(orders: Sequence[Tensor], like: Series) -> Series:
    return Series(torch.cat(list(orders)) if len(orders) > 1 else orders[0], like.order, like.directions)


def _sum(terms) -> Tensor:
    total = None
    for term in terms:
        total = term if total is None else total + term
    assert total is not None
    return total


def _expand(tail: Tensor, value: Tensor) -> Tensor:
    return tail.expand(len(tail), *torch.broadcast_shapes(tail.shape[1:], value.shape))
