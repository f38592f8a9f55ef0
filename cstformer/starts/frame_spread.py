r"""How far the smoothed frames of a movie may be from the truth: `spread` in time for waves and for modes.

A wave or a mode with the posterior variance :math:`v_k(t)` in time adds :math:`U_k^2 v_k(t)` to the variance of each
pixel. Waves of one band and all phases spread theirs evenly: K of the H·W waves of a frame add :math:`v K / (H W)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from cstformer.data.layout import PatchLayout
from cstformer.errors import CSTError
from cstformer.starts.modes import FrameModes
from cstformer.starts.spread import Spread
from cstformer.starts.waves import Waves
from cstformer.taylor.derivatives import MultiIndex

Variances = Callable[[Tensor, MultiIndex], Tensor]


def frame_variances(
    smoother: Waves | FrameModes, times: Float[Tensor, "B T"], exists: Bool[Tensor, "B T"], layout: PatchLayout
) -> Variances:
    """From moments (B, u) and a multi-index to the variance of each pixel, (B, u, H, W, C), in float64."""
    height, width = layout.frame
    if isinstance(smoother, Waves):
        loud = smoother.loud
        kernel = dataclasses.replace(loud[0], channels=tuple(loud))
        pictures = smoother.shares(height, width)[:, None, None, None].expand(-1, height, width, layout.channels)
    else:
        kernel = smoother.kernel
        pictures = smoother.vectors.double().square() * smoother.scale.double().square()[:, None, None, None]
    pictures = pictures.to(times.device)
    spread = Spread(kernel, times[..., None], exists[..., None].expand(-1, -1, len(pictures)))

    def variances(moments: Float[Tensor, "B u"], index: MultiIndex) -> Float[Tensor, "B u H W C"]:
        if any(index[1:]):
            raise CSTError(f"frames have the sd of derivatives in time, not of {index}; ask without return_std")
        return torch.einsum("buk,khwc->buhwc", spread(moments[..., None], index[:1]), pictures)

    return variances
