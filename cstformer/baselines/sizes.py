"""The models of the paper's four parameter tables, at the paper's sizes.

`SIZES` lists for every experiment and row the model, its settings and its data. The experiments take their sizes from
here, and `cst models` counts the parameters. The settings of a row are changes to the model's preset ``paper``. Complex
weights count as two numbers each.

Where the paper's description does not lead to its printed count, a note says why; see also `vision_transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from cstformer.baselines import BASELINES
from cstformer.data.layout import PatchLayout
from cstformer.models.cst import CST
from cstformer.models.model import Model
from cstformer.models.neural import NeuralModel
from cstformer.network.architecture import parameter_count
from cstformer.starts.kinds import unfitted_kind

KITTI = PatchLayout((128, 160), (16, 32), channels=3)
VORTICITY = PatchLayout((64, 64), (8, 8))
CORTEX = PatchLayout((184, 208), (23, 16))

_TABLE = "without the 10 unused embeddings of the published code"
_NYSTROM = "Nyström attention projected twice, as in the published code"
_POOLED = "decoded per token; the printed count needs one pooled vector and a layer from it to the whole clip"
_CLOCK = "also reads the time between frames"
_CHANNELS = "also reads times and masks"


@dataclass(frozen=True)
class Size:
    """One row of a parameter table."""

    key: str
    """Name in `BASELINES`, or ``cst``."""
    paper: str
    """Printed count, e.g. ``818 K``."""
    data: PatchLayout | int
    """Layout of movies, or number of channels of curves."""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Changes to the preset ``paper``."""
    note: str = ""

    @property
    def published(self) -> float:
        """The paper's count as a number.

        >>> Size("cst", "818 K", 2).published
        818000.0
        """
        number, unit = self.paper.split()
        return float(number) * {"K": 1e3, "M": 1e6}[unit]

    def model(self, **changes: Any) -> Model:
        """Make the model, not fitted, with these changes to its settings."""
        kind: Any = CST if self.key == "cst" else BASELINES[self.key]
        return kind.preset("paper", **{**self.settings, **changes})

    def network(self) -> nn.Module:
        """Make the network on the meta device, which holds shapes but no numbers."""
        model = self.model()
        assert isinstance(model, NeuralModel)
        layout = self.data if isinstance(self.data, PatchLayout) else None
        d, c = (3, self.data.c) if isinstance(self.data, PatchLayout) else (1, self.data)
        model.kind_ = unfitted_kind(d, c, layout)
        with torch.device("meta"):
            return model._network(d, c)

    def count(self) -> int:
        """Number of trainable parameters.

        >>> SIZES["spirals"]["CST"].count()
        817696
        """
        return parameter_count(self.network())


# The 500 dummy points of the paper's spirals would take more memory than frames leave.
_DUMMIES = {"dummies": 50}
_BASE = {"width": 768, "layers": 12, "heads": 12, "attention_kind": "nystrom", "projections": 2} | _DUMMIES
_SMALL = {"width": 384, "layers": 6, "heads": 6, "attention_kind": "nystrom", "projections": 2} | _DUMMIES
_VIVIT = {"dim": 768, "head_width": 128, "feedforward": 2048, "tubelet_rows": 23, "tubelet_cols": 16}

SIZES: dict[str, dict[str, Size]] = {
    "spirals": {
        "CST": Size("cst", "818 K", 2, note=_TABLE),
        "Transformer": Size("transformer", "818 K", 2, note=_TABLE),
    },
    "video": {
        "ConvGRU": Size("convgru", "53.6 M", KITTI, note="kernels 9 and 11 inferred from the count; " + _CLOCK),
        "3D-ViT": Size("vit3d", "214.6 M", KITTI, note=_POOLED),
        "ViViT": Size("vivit", "224.7 M", KITTI, note=_POOLED),
        "CST": Size("cst", "93.3 M", KITTI, _BASE, _NYSTROM + "; the printed count is that of the calcium model"),
    },
    "navier-stokes": {
        "FNO2D": Size("fno2d", "926 K", VORTICITY, note=_CHANNELS),
        "FNO3D": Size("fno3d", "6.56 M", VORTICITY, note=_CHANNELS),
        "CST": Size(
            "cst", "818 K", VORTICITY, _DUMMIES, "8 × 8 patches; the printed count fits tokens of 2 to 17 values"
        ),
    },
    "calcium": {
        "LSTM": Size("lstm", "46.2 M", CORTEX, note=_CLOCK),
        "ConvLSTM": Size("convlstm", "16.5 M", CORTEX, note=_CLOCK),
        "LatentODE": Size("latent-ode", "2.5 M", CORTEX, note=_CLOCK),
        "LFADS": Size("lfads", "80.0 M", CORTEX, note=_CLOCK),
        "ViViT": Size("vivit", "528.9 M", CORTEX, _VIVIT, _POOLED),
        "CST-small": Size("cst", "19.1 M", CORTEX, _SMALL, _NYSTROM),
        "CST-base": Size("cst", "93.3 M", CORTEX, _BASE, _NYSTROM),
    },
}
"""Size by experiment and row of its parameter table."""
