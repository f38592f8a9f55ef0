"""Which kind of data samples are."""

from __future__ import annotations

from typing import Any

import numpy as np

from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.starts.frames import Frames
from cstformer.starts.kind import DataKind
from cstformer.starts.points import Points


def kind_of(samples: Samples, scaling: str = "linear") -> DataKind:
    """Measure samples and return their kind: `Frames` for patches of frames, else `Points`.

    ``scaling`` says which channels of points are robust (`Scaling.of`); those of frames are always linear.
    """
    return Points.of(samples, scaling) if samples.layout is None else Frames.of(samples, scaling)


def unfitted_kind(d: int, c: int, layout: PatchLayout | None = None) -> DataKind:
    """A kind whose units are those of the model, for networks that are only counted."""
    scaling = Scaling(np.zeros(d), np.ones(d), np.zeros(c), np.ones(c))
    return Points(scaling) if layout is None else Frames(scaling, layout)


def kind_from(about: dict[str, Any]) -> DataKind:
    """Inverse of `DataKind.describe`."""
    return (Points if about["layout"] is None else Frames).from_description(about)
