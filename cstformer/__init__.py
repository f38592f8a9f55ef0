"""Continuous Spatiotemporal Transformer: continuous dynamics from noisy, sparse, irregular samples.

>>> import cstformer as cst
>>> cst.Samples([0.0, 1.0], [[1.0, 2.0], [3.0, 4.0]])
Samples(2 samples of 2 points, coordinates t, values value)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cstformer.data.layout import PatchLayout
    from cstformer.data.lazy import LazyFrames
    from cstformer.data.modes import Modes
    from cstformer.data.movie_files import load_movie
    from cstformer.data.patches import frame_queries, frames_to_samples, samples_to_frames
    from cstformer.data.samples import Samples
    from cstformer.data.table_files import TextFormat
    from cstformer.errors import CSTError, CSTWarning
    from cstformer.models.cst import CST, AttentionMaps

__version__ = "0.2.0"

# Names are imported when first used: `cst --help` and reading a file should not wait for torch.
_HOMES = {
    "CST": "models.cst",
    "AttentionMaps": "models.cst",
    "CSTError": "errors",
    "CSTWarning": "errors",
    "Samples": "data.samples",
    "PatchLayout": "data.layout",
    "frames_to_samples": "data.patches",
    "samples_to_frames": "data.patches",
    "frame_queries": "data.patches",
    "load_movie": "data.movie_files",
    "LazyFrames": "data.lazy",
    "Modes": "data.modes",
    "TextFormat": "data.table_files",
}
__all__ = [
    "CST",
    "AttentionMaps",
    "CSTError",
    "CSTWarning",
    "LazyFrames",
    "Modes",
    "PatchLayout",
    "Samples",
    "TextFormat",
    "frame_queries",
    "frames_to_samples",
    "load_movie",
    "samples_to_frames",
]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"cstformer.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cstformer' has no attribute {name!r}")
