"""What there is to explore: trained models and samples to show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.explorer.files import read_samples
from cstformer.models.cst import CST
from cstformer.system.files import readable
from cstformer.system.zarr_files import open_zarr

Stimulus = tuple[np.ndarray, np.ndarray]
"""Times (T,) of a recording's clock, and what was shown then, e.g. the contrast in per cent."""


@dataclass(frozen=True)
class Exhibit:
    """A model on disk and samples for it; both are read when somebody looks."""

    label: str
    folder: Path
    find_samples: Callable[[CST], Samples | None]
    find_stimulus: Callable[[], Stimulus | None] = lambda: None

    @cached_property
    def model(self) -> CST:
        """The trained model."""
        try:
            return CST.load(self.folder)
        except CSTError as error:  # whoever looks from elsewhere need not know where it lies
            raise CSTError(str(error).replace(str(self.folder), self.label)) from error

    @cached_property
    def samples(self) -> Samples | None:
        """Samples to show; None where nobody has any."""
        return self.find_samples(self.model)

    @cached_property
    def stimulus(self) -> Stimulus | None:
        """What the animal saw, where it is known."""
        return self.find_stimulus()

    @classmethod
    def of(
        cls, label: str, folder: Path, context: Callable[[], Samples | None], stimulus: Callable[[], Stimulus | None]
    ) -> Exhibit:
        """A model of a run, which knows its samples."""
        return cls(label, folder, lambda model: context(), stimulus)

    @classmethod
    def from_file(cls, folder: Path, data: Path | None) -> Exhibit:
        """A model of ``cst fit``, with the samples or the movie of a file."""
        if data is None:
            return cls(folder.name, folder, lambda model: None)
        return cls(folder.name, folder, lambda model: read_samples(data, model), lambda: read_stimulus(data))


def read_stimulus(path: Path) -> Stimulus | None:
    """Time and contrast of each frame of a preprocessed recording, where it has them."""
    if path.suffix != ".zarr":
        return None
    import zarr

    with readable(path, "a recording"):
        group = open_zarr(path)
        if not isinstance(group, zarr.Group) or not {"time", "contrast"} <= set(group.array_keys()):
            return None
        arrays: dict[str, Any] = dict(group.arrays())
        time, contrast = (np.asarray(arrays[name][...], dtype=float) for name in ("time", "contrast"))
        return time, contrast
