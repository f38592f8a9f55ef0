r"""Exact and Nyström softmax attention on Taylor series.

Shapes, with heads already split: queries q (J, B, h, m, f), keys k (J, B, h, n, f), values v (J, B, h, n, f_v), and
``exists`` (B, n), True where a key is a token and False where it is padding. J counts Taylor coefficients, B samples,
h heads, m queries, n keys and f features per head. A series of order 0 (J = 1) is the plain pass.

A sample without any key reads zeros, not NaN. Everywhere below that takes one step: the sum of its softmax weights,
which is 0, is replaced by 1 before dividing.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from cstformer.network.softmax_attention import softmax_attention
from cstformer.taylor import series
from cstformer.taylor.attention import softmax_sums
from cstformer.taylor.series import Series, constant

Exists = Bool[Tensor, "B n"]

# Plain passes on a CPU; speed and memory only.
_FUSE_FROM = 2**14  # queries × keys above which torch's fused kernel is faster than `plain_attention`
_KEEP = 2**24  # samples × heads × queries × keys up to which a training keeps the weights: 64 MB in float32 per layer


def exact_attention(q: Series, k: Series, v: Series, exists: Exists) -> Series:
    """softmax(q kᵀ / √f) v over the keys that exist: (J, B, h, m, f_v).

    Plain passes with gradients use `softmax_attention`, those without, and very large ones, torch's fused kernel or,
    if they are small, `plain_attention`. Passes with derivatives use `softmax_sums`.
    """
    if max(q.order, k.order, v.order) == 0:
        if torch.is_grad_enabled() and _own_backward(q.coefs, k.coefs):
            return constant(softmax_attention(q.value, k.value, v.value, exists))
        large = q.coefs.shape[-2] * k.coefs.shape[-2] > _FUSE_FROM
        return _fused_attention(q, k, v, exists) if large else plain_attention(q, k, v, exists)
    sums = softmax_sums(q.map(lambda c: c / math.sqrt(c.shape[-1])), k, v, exists)  # (J, B, h, m, f_v + 1)
    no_key = (~exists.any(-1)).to(sums.coefs)[:, None, None, None]  # (B, 1, 1, 1)
    return series.divide(sums.map(lambda c: c[..., :-1]), series.shift(sums.map(lambda c: c[..., -1:]), no_key))


def _own_backward(q: Tensor, k: Tensor) -> bool:
    """Whether `softmax_attention` can be used: not for the transforms of `torch.func`, which differentiate forward."""
    return math.prod(q.shape[:-1]) * k.shape[-2] <= _KEEP and not torch._C._are_functorch_transforms_active()


def _fused_attention(q: Series, k: Series, v: Series, exists: Exists) -> Series:
    # The kernel gives NaN for a row without any key: let it read all of them, then set its answer to zero.
    some = exists.any(-1)[:, None, None, None]  # (B, 1, 1, 1)
    all_some = bool(some.all())
    f, more = v.coefs.shape[-1], k.coefs.shape[-1] - v.coefs.shape[-1]
    value = F.pad(v.value, (0, more)) if more else v.value  # the kernel needs f_v = f; `Nearness` adds features to k
    y = F.scaled_dot_product_attention(q.value, k.value, value, exists[:, None, None, :] | ~some)
    return constant(y[..., :f] if all_some else y[..., :f] * some)


def plain_attention(q: Series, k: Series, v: Series, exists: Exists) -> Series:
    """`exact_attention` as its formula says."""
    weights, total = _softmax_parts(q, k, exists)
    return series.divide(weights @ v, total)


def exact_map(q: Series, k: Series, exists: Exists) -> Float[Tensor, "B h m n"]:
    """The attention map itself; its rows sum to one."""
    weights, total = _softmax_parts(constant(q.value), constant(k.value), exists)
    return (weights.coefs / total.coefs)[0]


def softmax(logits: Series) -> Series:
    """Softmax over the last axis; keys that do not exist have the logit −inf.

    >>> softmax(constant(torch.tensor([0.0, 0.0, -math.inf]))).value.tolist()
    [0.5, 0.5, 0.0]
    """
    if logits.order == 0:
        return logits.map(lambda c: c.softmax(-1))
    return series.divide(*_exponentials(logits))


def _softmax_parts(q: Series, k: Series, exists: Exists) -> tuple[Series, Series]:
    """Unnormalised softmax weights (J, B, h, m, n) and their sums (J, B, h, m, 1)."""
    scale = 1 / math.sqrt(q.coefs.shape[-1])
    logits = q.map(lambda c: c * scale) @ k.map(lambda c: c.transpose(-1, -2))
    value = logits.value.masked_fill(~exists[:, None, None, :], -math.inf).unsqueeze(0)
    return _exponentials(_with_value(logits, value))


def _exponentials(logits: Series) -> tuple[Series, Series]:
    """Exponentials over the last axis and their sums; keys that do not exist have the logit −inf."""
    # Subtracting the largest logit prevents overflow. It is a constant, so the softmax and its derivatives do not
    # change; where all logits are −inf it is replaced by 0, since −inf − (−inf) is NaN.
    top = logits.value.detach().amax(-1, keepdim=True)
    no_key = top.isneginf()
    weights = series.exp(_with_value(logits, logits.at(0) - top.masked_fill(no_key, 0)))
    return weights, series.shift(weights.map(lambda c: c.sum(-1, keepdim=True)), no_key.to(top))


def _with_value(x: Series, value: Tensor) -> Series:
    """The series with another value (1, ...)."""
    return Series(torch.cat([value, x.coefs[1:]]) if x.order else value, x.order, x.directions)


def nystrom_attention(q: Series, k: Series, v: Series, exists: Exists, landmarks: int, iterations: int) -> Series:
    r"""Nyström approximation of self-attention in O(n) time and memory (Xiong et al., AAAI 2021): (J, B, h, n, f_v).

    .. math:: \mathrm{softmax}(q \tilde k^T)\; \mathrm{softmax}(\tilde q \tilde k^T)^+\;
              \mathrm{softmax}(\tilde q k^T)\, v

    Landmarks :math:`\tilde q, \tilde k` are means over equal runs of the *existing* tokens, where the published code
    pads to a multiple of the landmarks. So padding changes nothing, and a sample with fewer tokens than landmarks uses
    one landmark per token. The n × n map is never formed.
    """
    left, core, right = _nystrom_factors(q, k, exists, landmarks, iterations)
    return left @ (core @ (right @ v))  # from the right: (l, f_v), (l, f_v), (n, f_v)


def nystrom_map(q: Series, k: Series, exists: Exists, landmarks: int, iterations: int) -> Float[Tensor, "B h n n"]:
    """The map that Nyström attention stands for, O(n²); for inspection only."""
    left, core, right = _nystrom_factors(constant(q.value), constant(k.value), exists, landmarks, iterations)
    return (left @ (core @ right)).value


def _nystrom_factors(
    q: Series, k: Series, exists: Exists, landmarks: int, iterations: int
) -> tuple[Series, Series, Series]:
    """The three factors (J, B, h, n, l), (J, B, h, l, l), (J, B, h, l, n), l landmarks."""
    average, landmark_exists = _landmark_means(exists, landmarks, q.coefs.dtype)  # (B, 1, l, n), (B, l)
    q_mean, k_mean = constant(average) @ q, constant(average) @ k  # (J, B, h, l, f)
    left = _normalised(q, k_mean, landmark_exists)
    middle = _normalised(q_mean, k_mean, landmark_exists)
    middle = middle.map(lambda c: c * landmark_exists[:, None, :, None])  # zero rows; its columns are zero already
    right = _normalised(q_mean, k, exists)
    return left, _pseudo_inverse(middle, iterations), right


def _normalised(q: Series, k: Series, exists: Exists) -> Series:
    return series.divide(*_softmax_parts(q, k, exists))


def _landmark_means(
    exists: Exists, landmarks: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "B 1 l n"], Bool[Tensor, "B l"]]:
    """Averaging matrix over equal runs of existing tokens, and which landmarks exist."""
    count = exists.sum(-1, keepdim=True)  # (B, 1)
    runs = count.clamp(max=landmarks)
    rank = exists.cumsum(-1) - 1  # (B, n): number of a token among those that exist
    run = torch.div(rank * runs, count.clamp_min(1), rounding_mode="floor")  # (B, n): the landmark it belongs to
    number = torch.arange(landmarks, device=exists.device)
    member = (run[:, None, :] == number[:, None]) & exists[:, None, :]  # (B, l, n)
    average = member.to(dtype) / member.sum(-1, keepdim=True).clamp_min(1)
    return average[:, None], number < runs


def _pseudo_inverse(a: Series, iterations: int) -> Series:
    """Moore–Penrose inverse of (J, B, h, l, l) by the iteration of Razavi et al. (2014).

    Z ← Z (13 I − A Z (15 I − A Z (7 I − A Z))) / 4, from Z = Aᵀ / (‖A‖₁ ‖A‖_∞).

    The iteration converges with third order from this start. Norms are taken for each sample and head; the published
    code takes the maximum over the batch, so that samples would change each other's answers. They are detached: a
    constant scale of the start changes how fast the iteration converges, not its limit.
    """
    rows = a.value.detach().abs().sum(-1).amax(-1)  # ‖A‖_∞ (B, h)
    columns = a.value.detach().abs().sum(-2).amax(-1)  # ‖A‖₁ (B, h)
    scale = (rows * columns).clamp_min(torch.finfo(rows.dtype).tiny)[..., None, None]
    z = a.map(lambda c: c.transpose(-1, -2) / scale)
    eye = torch.eye(a.coefs.shape[-1], device=a.coefs.device, dtype=a.coefs.dtype)

    def minus(amount: float, x: Series) -> Series:
        """Amount · I − x."""
        return series.shift(x.map(torch.neg), amount * eye)

    for _ in range(iterations):
        az = a @ z
        z = (z @ minus(13, az @ minus(15, az @ minus(7, az)))).map(lambda c: c / 4)
    return z
