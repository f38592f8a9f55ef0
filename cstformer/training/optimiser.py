"""How weights move: AdamW for all of them, or Muon for the matrices inside the blocks and AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

MOMENTUM = 0.95
_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan (2024): brings singular values from (0, 1] near 1 in five rounds


def make_optimiser(
    network: nn.Module, name: str, learning_rate: float, weight_decay: float, fused: bool = True
) -> torch.optim.AdamW:
    """Optimiser of a network; ``muon`` is for networks with ``blocks`` of linear layers."""
    options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay, "fused": fused}
    if name != "muon":
        return torch.optim.AdamW(network.parameters(), **options)
    modules = network.named_modules()
    matrices = [m.weight for name, m in modules if name.startswith("blocks.") and isinstance(m, nn.Linear)]
    mine = {id(p) for p in matrices}
    return Muon(matrices, [p for p in network.parameters() if id(p) not in mine], **options)


class Muon(torch.optim.AdamW):
    """AdamW, but matrices take steps whose singular values are all alike.

    With M = U S Vᵀ the running mean of a matrix' gradients, its step is a multiple of U Vᵀ (Jordan, 2024): directions
    of small gradient move as fast as those of large ones. Steps are scaled to the size of AdamW's, 0.2 an entry (Liu
    et al., 2025), so both share one learning rate.
    """

    def __init__(self, matrices: Sequence[Tensor], others: Iterable[Tensor], **options):
        super().__init__([{"params": list(matrices)}, {"params": list(others)}], **options)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One step of all weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        directions: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for p in group["params"]:
            if p.grad is not None:
                mean = self.state[p].setdefault("momentum", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - MOMENTUM)
                directions.setdefault(p.shape, []).append((p, p.grad.lerp(mean, MOMENTUM)))  # Nesterov's look ahead
                p.grad = None  # so that AdamW leaves it alone
        for shape, pairs in directions.items():
            size = 0.2 * math.sqrt(max(shape)) * group["lr"]
            for (p, _), step in zip(pairs, orthogonal(torch.stack([u for _, u in pairs])), strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step, alpha=size)
        super().step()
        return loss


def orthogonal(x: Float[Tensor, "k rows cols"]) -> Float[Tensor, "k rows cols"]:
    """Roughly U Vᵀ of each matrix U S Vᵀ: singular values between 0.68 and 1.14 unless they were below 1e-3 of ‖x‖.

    >>> x = torch.diag(torch.tensor([3.0, 0.1]))[None]
    >>> [round(s, 1) for s in orthogonal(x).diagonal(dim1=1, dim2=2)[0].tolist()]
    [0.7, 1.1]
    """
    a, b, c = _QUINTIC
    if x.shape[1] > x.shape[2]:
        return orthogonal(x.mT).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-30)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x
