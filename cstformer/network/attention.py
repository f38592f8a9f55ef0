r"""Exact and Nyström softmax attention on Taylor series; both honour masks.

Heads are split already: queries (J, B, h, m, f), keys and values (J, B, h, n, f). ``mask`` (B, n) is True where a
key exists. A series of order 0 is the plain pass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.taylor import series
from cstformer.taylor.attention import softmax_sums
from cstformer.taylor.series import Series, constant

_FUSE_FROM = 2**14  # queries × keys from which torch's fused kernel (plain pass only) is faster


def exact_attention(q: Series, k: Series, v: Series, mask: Tensor) -> Series:
    """softmax(q kᵀ / √f) v, exact."""
    if q.order == k.order == v.order == 0 and q.coefs.shape[-2] * k.coefs.shape[-2] > _FUSE_FROM:
        # A sample without any key reads zeros: let it read something, then forget it.
        some = mask.any(-1)[:, None, None, None]
        f, more = v.coefs.shape[-1], k.coefs.shape[-1] - v.coefs.shape[-1]
        value = F.pad(v.value, (0, more)) if more else v.value  # the fused kernel wants them equally long
        y = F.scaled_dot_product_attention(q.value, k.value, value, mask[:, None, None, :] | ~some)
        return constant(y[..., :f] * some)
    if max(q.order, k.order, v.order) == 0:
        return plain_attention(q, k, v, mask)
    sums = softmax_sums(q.map(lambda c: c / math.sqrt(c.shape[-1])), k, v, mask)
    nobody = (~mask.any(-1)).to(sums.coefs)[:, None, None, None]
    return series.divide(sums.map(lambda c: c[..., :-1]), series.shift(sums.map(lambda c: c[..., -1:]), nobody))


def plain_attention(q: Series, k: Series, v: Series, mask: Tensor) -> Series:
    """`exact_attention` step by step."""
    weights, total = _softmax_parts(q, k, mask[:, None, None, :])
    return series.divide(weights @ v, total)


def exact_map(q: Series, k: Series, mask: Tensor) -> Tensor:
    """The attention map itself, (B, h, m, n); rows sum to one."""
    weights, total = _softmax_parts(constant(q.value), constant(k.value), mask[:, None, None, :])
    return (weights.coefs / total.coefs)[0]


def nystrom_attention(q: Series, k: Series, v: Series, mask: Tensor, landmarks: int, iterations: int) -> Series:
    r"""Nyström approximation of self-attention in O(n) time and memory (Xiong et al., 2021).

    .. math:: \mathrm{softmax}(q \tilde k^T)\; \mathrm{softmax}(\tilde q \tilde k^T)^+\;
              \mathrm{softmax}(\tilde q k^T)\, v

    Landmarks :math:`\tilde q, \tilde k` are means over equal runs of the *existing* tokens, so nothing is padded
    and masked tokens change nothing; a sample with fewer tokens than landmarks uses one landmark per token.
    The m×n map is never formed.
    """
    left, core, right = _nystrom_factors(q, k, mask, landmarks, iterations)
    return left @ (core @ (right @ v))


def nystrom_map(q: Series, k: Series, mask: Tensor, landmarks: int, iterations: int) -> Tensor:
    """The map that Nyström attention stands for, (B, h, n, n); formed only when somebody asks to see it."""
    left, core, right = _nystrom_factors(constant(q.value), constant(k.value), mask, landmarks, iterations)
    return (left @ (core @ right)).value


def _softmax_parts(q: Series, k: Series, mask: Tensor) -> tuple[Series, Series]:
    """Unnormalised softmax weights (J, B, h, m, n) and their sums (J, B, h, m, 1)."""
    scale = 1 / math.sqrt(q.coefs.shape[-1])
    logits = q.map(lambda c: c * scale) @ k.map(lambda c: c.transpose(-1, -2))
    value = logits.value.masked_fill(~mask, -math.inf).unsqueeze(0)
    return _exponentials(_joined(value, logits))


def _exponentials(logits: Series) -> tuple[Series, Series]:
    """Exponentials over the last axis and their sums; keys that do not exist have the logit −inf."""
    # A shift by a constant leaves the softmax unchanged; rows without any key become zeros, not NaN.
    top = logits.value.detach().amax(-1, keepdim=True)
    nobody = top.isneginf()
    weights = series.exp(_joined(logits.at(0) - top.masked_fill(nobody, 0), logits))
    return weights, series.shift(weights.map(lambda c: c.sum(-1, keepdim=True)), nobody.to(top))


def softmax(logits: Series) -> Series:
    """Softmax over the last axis; keys that do not exist have the logit −inf.

    >>> softmax(constant(torch.tensor([0.0, 0.0, -math.inf]))).value.tolist()
    [0.5, 0.5, 0.0]
    """
    if logits.order == 0:
        return logits.map(lambda c: c.softmax(-1))
    return series.divide(*_exponentials(logits))


def _nystrom_factors(
    q: Series, k: Series, mask: Tensor, landmarks: int, iterations: int
) -> tuple[Series, Series, Series]:
    average, exists = _landmark_means(mask, landmarks, q.coefs.dtype)  # (B, 1, l, n), (B, l)
    q_mean, k_mean = constant(average) @ q, constant(average) @ k
    left = _normalised(q, k_mean, exists)
    middle = _normalised(q_mean, k_mean, exists)
    middle = middle.map(lambda c: c * exists[:, None, :, None])  # no row for a landmark that does not exist
    right = _normalised(q_mean, k, mask)
    return left, _pseudo_inverse(middle, iterations), right


def _normalised(q: Series, k: Series, mask: Tensor) -> Series:
    return series.divide(*_softmax_parts(q, k, mask[:, None, None, :]))


def _joined(value: Tensor, rest: Series) -> Series:
    """The series with another value (1, ...)."""
    return Series(torch.cat([value, rest.coefs[1:]]) if rest.order else value, rest.order, rest.directions)


def _landmark_means(mask: Tensor, landmarks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Averaging matrix (B, 1, l, n) over equal runs of existing tokens, and which landmarks exist (B, l)."""
    count = mask.sum(-1, keepdim=True)
    runs = count.clamp(max=landmarks)
    rank = mask.cumsum(-1) - 1
    run = torch.div(rank * runs, count.clamp_min(1), rounding_mode="floor")
    number = torch.arange(landmarks, device=mask.device)
    member = (run[:, None, :] == number[:, None]) & mask[:, None, :]
    average = member.to(dtype) / member.sum(-1, keepdim=True).clamp_min(1)
    return average[:, None], number < runs


def _pseudo_inverse(a: Series, iterations: int) -> Series:
    """Moore–Penrose inverse by the iteration of Razavi et al. (2014), each sample and head scaled on its own.

    Z ← Z (13 I − A Z (15 I − A Z (7 I − A Z))) / 4, from Z = Aᵀ / (‖A‖₁ ‖A‖_∞).
    """
    rows = a.value.detach().abs().sum(-1).amax(-1)
    columns = a.value.detach().abs().sum(-2).amax(-1)
    scale = (rows * columns).clamp_min(torch.finfo(rows.dtype).tiny)[..., None, None]
    z = a.map(lambda c: c.transpose(-1, -2) / scale)
    eye = torch.eye(a.coefs.shape[-1], device=a.coefs.device, dtype=a.coefs.dtype)

    def minus(amount: float, x: Series) -> Series:
        return series.shift(x.map(torch.neg), amount * eye)

    for _ in range(iterations):
        az = a @ z
        z = (z @ minus(13, az @ minus(15, az @ minus(7, az)))).map(lambda c: c / 4)
    return z
