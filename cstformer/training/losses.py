r"""The Sobolev loss.

.. math:: L^p = \operatorname{mean}_{\text{real}} |y - \text{data}|^p
          + \mu \sum_{1 \le |q| \le k} \operatorname{mean}_{\text{dummy}} |D^q y|^p

averaged over observed channels; for p = ∞ the means become maxima. Optionally the final 1/p root is taken,
once per batch. Coordinates live in [0,1]^d and values are standardised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cstformer.taylor.derivatives import DerivativePlan
from cstformer.taylor.series import Series
from cstformer.training import sharing

Weights = Sequence[float] | None
"""A weight for each channel; None if all count the same."""


def data_term(
    y: Tensor, data: Tensor, observed: Tensor, p: float, weights: Weights = None, cells: Tensor | None = None
) -> Tensor:
    """Mean of |y − data|^p over observed cells (..., c), or their maximum for p = ∞.

    With weights w of the channels it is the weighted mean Σ w |y − data|^p / Σ w over observed cells; for p = ∞ the
    maximum of w |y − data|, where the largest weight counts as 1. A patch (..., pixels · channels) repeats the weights
    for each of its pixels. ``cells``, of the shape of y, are further weights, of single cells.

    >>> y, data = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 4.0])
    >>> data_term(y, data, torch.tensor([True, False]), p=2.0)
    tensor(4.)
    >>> data_term(y, data, torch.tensor([True, True]), p=2.0, weights=[1, 2])
    tensor(2.)
    >>> data_term(y, data, torch.tensor([True, True]), p=2.0, cells=torch.tensor([0.0, 3.0]))
    tensor(1.)
    """
    if weights is None and cells is None:
        return _norm_power((y - data)[observed], p)
    w = torch.ones_like(y)
    if weights is not None:
        channel = y.new_tensor(weights) / max(weights)  # equal weights are 1, so that they change no digit
        w = channel.repeat(y.shape[-1] // len(channel)).expand_as(y)
    w = (w if cells is None else w * cells)[observed]
    error = (y - data)[observed]
    if math.isinf(p):
        return sharing.maximum(w * error.abs())
    return sharing.mean(w * _power(error, p)) / sharing.mean(w).clamp_min(torch.finfo(w.dtype).tiny)


def sobolev_term(y: Series, plan: DerivativePlan, p: float) -> Tensor:
    """Σ over the plan's multi-indices of the mean of |D^q y|^p at the dummy points."""
    terms = [_norm_power(plan.partial(y, index), p) for index in plan.weights]
    return torch.stack(terms).sum() if terms else y.coefs.new_zeros(())


def combine(data: Tensor, sobolev: Tensor, mu: float, p: float, root: bool) -> Tensor:
    """Data term + μ · Sobolev term, with the final root if asked for."""
    loss = data + mu * sobolev
    if root and not math.isinf(p):
        return loss.clamp_min(torch.finfo(loss.dtype).tiny) ** (1 / p)
    return loss


def _norm_power(x: Tensor, p: float) -> Tensor:
    if math.isinf(p):
        return sharing.maximum(x.abs())
    return sharing.mean(_power(x, p))


def _power(x: Tensor, p: float) -> Tensor:
    return x.square() if p == 2 else x.abs().pow(p)
