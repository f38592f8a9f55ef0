"""Exhibits of the explorer: trained models, each with samples to show."""

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
"""Times (T,) on the clock of a recording, and the stimulus at each, e.g. its contrast in per cent."""


@dataclass(frozen=True)
class Exhibit:
    """A model on disk and samples for it; both are read when they are first shown."""

    label: str
    folder: Path
    find_samples: Callable[[CST], Samples | None]
    find_stimulus: Callable[[], Stimulus | None] = lambda: None

    @cached_property
    def model(self) -> CST:
        """The trained model."""
        try:
            return CST.load(self.folder)
        except CSTError as error:  # do not show paths of this machine to visitors
            raise CSTError(str(error).replace(str(self.folder), self.label)) from error

    @cached_property
    def samples(self) -> Samples | None:
        """Samples to show; None if there are none."""
        return self.find_samples(self.model)

    @cached_property
    def stimulus(self) -> Stimulus | None:
        """What the animal saw; None if it is not known."""
        return self.find_stimulus()

    @classmethod
    def of(
        cls, label: str, folder: Path, context: Callable[[], Samples | None], stimulus: Callable[[], Stimulus | None]
    ) -> Exhibit:
        """A model of an experiment's run, which provides its samples."""
        return cls(label, folder, lambda model: context(), stimulus)

    @classmethod
    def from_file(cls, folder: Path, data: Path | None, **columns: Any) -> Exhibit:
        """A model that ``cst fit`` saved, with samples or a movie from a file; ``columns`` as in `Samples.load`."""
        if data is None:
            return cls(folder.name, folder, lambda model: None)
        return cls(folder.name, folder, lambda model: read_samples(data, model, **columns), lambda: read_stimulus(data))


def read_stimulus(path: Path) -> Stimulus | None:
    """Time and contrast of each frame of a preprocessed recording; None if the file does not have them."""
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
