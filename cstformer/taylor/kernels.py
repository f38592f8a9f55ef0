r"""Fused Taylor steps: linear layers, exp, GELU and LayerNorm on stacked coefficients, with hand-written backward.

Autograd through the recurrences would store every intermediate product of every order. A fused step stores its input
(or output) alone and computes in cache-sized pieces or, if asked, in one compiled loop.

The backward passes rest on one identity. For y = f(x) elementwise, :math:`\partial y_j / \partial x_i` is the
coefficient j − i of the series f'(x). With the gradients :math:`\bar y`,

.. math:: \bar x_i = \sum_{j \ge i} \bar y_j \, f'(x)_{j-i},

which is `adjoint_product(y̅, f'(x))`.

Tensors are coefficient stacks (J, ...) with J = 1 + order·directions, as `Series.coefs` holds them; `Series` in
`series.py` wraps these functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor import recurrences
from cstformer.taylor.recurrences import Split, add, adjoint_product, compose, gelu_derivatives, product, stack

# Sizes set the speed only; on a CPU. The results differ by rounding at most.
_MANY = 2**12  # rows (all axes but the last) above which `linear` transposes its weight first
_CHUNK = 2**15  # numbers of one coefficient per piece: 128 KB in float32, so that a few temporaries stay in the cache
_compiling = ContextVar("compiling", default=False)
_products_in: ContextVar[torch.dtype | None] = ContextVar("products_in", default=None)


@contextmanager
def matrix_products(dtype: torch.dtype | None) -> Iterator[None]:
    """Run the matrix products of linear layers, forward and backward, in this dtype; None leaves them alone."""
    token = _products_in.set(dtype)
    try:
        yield
    finally:
        _products_in.reset(token)


def products_in_lower_precision() -> bool:
    """Whether `matrix_products` is in force with a dtype."""
    return _products_in.get() is not None


@contextmanager
def compiled_kernels(on: bool = True) -> Iterator[None]:
    """Compile the fused steps with `torch.compile`: much faster on wide layers, after a warm-up of some seconds.

    With gradients GELU and the exponentials of attention are compiled, since they take most of the time there; without,
    exp and LayerNorm as well.
    """
    token = _compiling.set(on)
    try:
        yield
    finally:
        _compiling.reset(token)


def compiling() -> bool:
    """Whether `compiled_kernels` is in force."""
    return _compiling.get()


@functools.cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as one compiled loop for tensors (J, ...) of any sizes, without autograd."""
    fast = torch.compile(kernel, dynamic=True)

    def call(*args: Any) -> Any:
        # Strides and requires_grad are part of the compiler's guards: without them, only sizes vary, and those are
        # dynamic, so each order and number of directions is compiled once.
        return fast(*(a.detach().contiguous() if isinstance(a, Tensor) else a for a in args))

    return call


def _apply_kernel(
    kernel: Callable[..., Tensor], order: int, directions: int, *coefs: Tensor, compiles: bool = True, stacks: int = 1
) -> Tensor:
    """Run an elementwise kernel on tensors (J, ...): compiled if that is on, otherwise piece by piece.

    It returns as many stacks of J coefficients, one after the other: (stacks·J, ...).
    """
    flat = [c.reshape(len(c), -1) for c in coefs]  # (J, numbers)
    shape = (stacks * len(coefs[0]), *coefs[0].shape[1:])
    if compiles and _compiling.get():
        return compiled(kernel)(order, directions, *flat).view(shape)
    out = flat[0].new_empty(shape[0], flat[0].shape[1])
    for first in range(0, out.shape[1], _CHUNK):
        piece = slice(first, first + _CHUNK)
        out[:, piece] = kernel(order, directions, *(c[:, piece] for c in flat))
    return out.view(shape)


# Linear layers: X Wᵀ on every coefficient, the bias on the value alone.


def linear(coefs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(J, ..., in) → (J, ..., out) with weight (out, in) and bias (out,)."""
    low = _products_in.get()
    if low is not None:
        y = F.linear(coefs.to(low), weight.to(low)).to(coefs.dtype)
        return y if bias is None else torch.cat([y[:1] + bias, y[1:]])
    if not torch.is_grad_enabled() and coefs[..., 0].numel() > _MANY:
        # On many rows the product is faster when the small matrix is stored transposed, (in, out).
        out = (coefs.flatten(0, -2) @ weight.T.contiguous()).view(*coefs.shape[:-1], -1)
        if bias is not None:
            out[0] += bias
        return out
    if bias is None or len(coefs) == 1:
        return F.linear(coefs, weight, bias)
    return _Linear.apply(coefs, weight, bias)


class _Linear(torch.autograd.Function):
    """One product for all orders; adding the bias in place saves a copy of the output."""

    @staticmethod
    def forward(ctx, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(coefs, weight)
        out = F.linear(coefs, weight)
        out[0] += bias
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor):
        coefs, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # (J·rows, out)
        for_input = gradient @ weight if ctx.needs_input_grad[0] else None
        return for_input, rows.T @ coefs.flatten(0, -2), gradient[0].flatten(0, -2).sum(0)


# Exponential. exp' = exp, so backward needs the output alone.


def exp(coefs: Tensor, order: int, directions: int) -> Tensor:
    """Coefficients of exp(x), (J, ...)."""
    if torch.is_grad_enabled():
        return _Exp.apply(coefs, order, directions)
    return _apply_kernel(_exp_value, order, directions, coefs)


def _exp_value(order: int, directions: int, x: Tensor) -> Tensor:
    return stack(recurrences.exp(Split(x, order, directions)))


def _exp_gradient(order: int, directions: int, out: Tensor, gradient: Tensor) -> Tensor:
    return stack(adjoint_product(Split(gradient, order, directions), Split(out, order, directions)))


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


# GELU. Backward composes x with g', whose scaled derivatives are (m + 1)·g⁽ᵐ⁺¹⁾/(m + 1)!.


def gelu(coefs: Tensor, order: int, directions: int) -> Tensor:
    """Coefficients of GELU(x), (J, ...)."""
    return _Gelu.apply(coefs, order, directions)


def gelu_coefs(order: int, directions: int, x: Tensor) -> Tensor:
    """Coefficients of GELU(x) without autograd, for steps that have a backward of their own."""
    return _apply_kernel(_gelu_value, order, directions, x)


def gelu_and_gradient(order: int, directions: int, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of GELU(x), and the gradient for x from the gradient for them."""
    value, for_x = _apply_kernel(_gelu_both, order, directions, x, gradient, stacks=2).chunk(2)
    return value, for_x


def _gelu_value(order: int, directions: int, x: Tensor) -> Tensor:
    return stack(compose(Split(x, order, directions), gelu_derivatives(x[0], order)))


def _gelu_gradient(order: int, directions: int, x: Tensor, gradient: Tensor) -> Tensor:
    return stack(_gelu_adjoint(gelu_derivatives(x[0], order + 1), Split(x, order, directions), gradient))


def _gelu_both(order: int, directions: int, x: Tensor, gradient: Tensor) -> Tensor:
    scaled, parts = gelu_derivatives(x[0], order + 1), Split(x, order, directions)
    return stack([*compose(parts, scaled[:-1]), *_gelu_adjoint(scaled, parts, gradient)])


def _gelu_adjoint(scaled: list[Tensor], x: Split, gradient: Tensor) -> list[Tensor]:
    slope = compose(x, [(m + 1) * scaled[m + 1] for m in range(len(x))])
    return adjoint_product(Split(gradient, x.order, x.directions), slope)


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
        return _apply_kernel(_gelu_gradient, order, directions, coefs, gradient), None, None


# LayerNorm: y = weight·c·r + bias with c = x − mean(x), r = (v + ε)^(−1/2), v = mean(c²), means over the last axis.


def layer_norm(coefs: Tensor, weight: Tensor, bias: Tensor, eps: float, order: int, directions: int) -> Tensor:
    """Coefficients of LayerNorm(x) over the last axis, (J, ..., width)."""
    if torch.is_grad_enabled():
        return _LayerNorm.apply(coefs, weight, bias, eps, order, directions)
    # The compiler makes one loop of the textbook form; without it the form with the fewest passes is faster.
    kernel = compiled(plain_norm) if _compiling.get() else _norm_alone
    return kernel(order, directions, eps, coefs.flatten(1, -2), weight, bias).view_as(coefs)


def plain_norm(order: int, directions: int, eps: float, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm of (J, rows, width), as its formula says."""
    centred = coefs - coefs.mean(-1, keepdim=True)
    c = Split(centred, order, directions)
    variance = [v.mean(-1, keepdim=True) for v in product(c, c)]
    scale = recurrences.power([variance[0] + eps, *variance[1:]], -0.5)
    out = stack(product(c, scale)) * weight
    return torch.cat([out[:1] + bias, out[1:]])


def _norm_alone(order: int, directions: int, eps: float, coefs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    out = _norm_value(order, directions, eps, coefs)[0] * weight
    out[0] += bias
    return out


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
        rows = gradient.flatten(1, -2)  # (J, rows, width)
        total = _norm_gradient(order, directions, rows * weight, centred, scale)
        for_weight = (rows * normal).sum((0, 1))
        return total.view_as(gradient), for_weight, rows[0].sum(0), None, None, None


def _norm_value(order: int, directions: int, eps: float, coefs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The products c·r and c, each (J, rows, width), and r (J, rows, 1), in few passes over the rows.

    The variance is symmetric in its two factors, v_j = Σ_i c_i·c_{j−i}, so each pair i < j − i is computed once and
    counted twice. Means of products are inner products (`vecdot`), which never store the product.
    """
    centred = coefs - coefs.mean(-1, keepdim=True)
    c = Split(centred, order, directions)
    variance = []
    for j in range(order + 1):
        pairs = ((i, j - i) for i in range(j // 2 + 1))
        variance.append(add((1 + (a < b)) * torch.linalg.vecdot(c[a], c[b]) for a, b in pairs))  # (1 or D, rows)
    v = [x.unsqueeze(-1) / coefs.shape[-1] for x in variance]  # (1 or D, rows, 1)
    r = recurrences.power([v[0] + eps, *v[1:]], -0.5)
    normal = centred * r[0]  # c_j·r_0 for all j; the other terms of the Cauchy product are added in place
    for j, part in enumerate(Split(normal, order, directions)):
        for i in range(1, j + 1):
            part.addcmul_(c[j - i], r[i])
    return normal, centred, stack(r)


def _norm_gradient(order: int, directions: int, gradient: Tensor, centred: Tensor, scale: Tensor) -> Tensor:
    """Gradient for the input of `_norm_value`, from the gradient g for c·r.

    By the chain rule, with r' = −½ r³ as a function of v, and v = mean(c²):

        r̅ = Σ over the width of adjoint(g, c),   v̅ = adjoint(r̅, −½ r³),   c̅ = adjoint(g, r) + adjoint(v̅, 2 c / width).

    The −½ and the 2 / width are joined in `slope`. Since c = x − mean(x), x̅ = c̅ − mean(c̅).
    """
    g, c, r = (Split(x, order, directions) for x in (gradient, centred, scale))
    inner = {(j, i): torch.linalg.vecdot(g[j], c[i]) for j in range(order + 1) for i in range(j + 1)}
    for_scale = [add(inner[j, j].sum(0, keepdim=True) for j in range(order + 1))]
    for_scale += [add(inner[j, j - i] for j in range(i, order + 1)) for i in range(1, order + 1)]
    slope = [(-1 / centred.shape[-1]) * a for a in product(product(r, r), r)]
    for_variance = adjoint_product([a.unsqueeze(-1) for a in for_scale], slope)  # (1 or D, rows, 1)
    total = gradient * r[0]  # the terms j = i of adjoint(g, r); all others are added in place
    parts = Split(total, order, directions)
    for a, b, first in ((g, r, 1), (for_variance, c, 0)):
        for j in range(order + 1):
            for i in range(j - first + 1):
                if i or directions == 1:
                    parts[i].addcmul_(a[j], b[j - i])
                else:  # the value is shared: sum over the directions
                    parts[0].add_((a[j] * b[j]).sum(0, keepdim=True))
    return total - total.mean(-1, keepdim=True)
