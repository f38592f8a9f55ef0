"""`PatchLayout`: how patches tile a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from cstformer.errors import CSTError


@dataclass(frozen=True)
class PatchLayout:
    """How patches of size `patch` tile frames of size `frame`; the last row and column may extend past the frame.

    Pixel i has its centre at coordinate i, so a patch of 8 rows that starts at 0 has its centre at 3.5.

    >>> layout = PatchLayout(frame=(5, 4), patch=(2, 4), channels=1)
    >>> layout.padded, layout.grid, layout.c, layout.centres.tolist()
    ((6, 4), (3, 1), 8, [[0.5, 1.5], [2.5, 1.5], [4.5, 1.5]])
    """

    frame: tuple[int, int]
    """Height and width of a frame in pixels."""
    patch: tuple[int, int]
    """Height and width of a patch in pixels."""
    channels: int = 1
    """Values per pixel."""
    periodic: bool = False
    """Whether a frame continues at its opposite edge; it must then be a whole number of patches."""

    def __post_init__(self) -> None:
        for name in ("frame", "patch"):
            size = _pair(name, getattr(self, name))
            object.__setattr__(self, name, size)
        if not is_count(self.channels):
            raise CSTError(f"channels must be a positive integer, got {self.channels!r}")
        if not isinstance(self.periodic, bool):
            raise CSTError(f"periodic must be True or False, got {self.periodic!r}")
        if self.periodic and self.padded != self.frame:
            raise CSTError(f"periodic frames {self.frame} must be whole patches; choose a patch that divides them")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return (-(-self.frame[0] // self.patch[0]), -(-self.frame[1] // self.patch[1]))

    @property
    def padded(self) -> tuple[int, int]:
        """Frame size rounded up to whole patches."""
        return (self.grid[0] * self.patch[0], self.grid[1] * self.patch[1])

    @property
    def c(self) -> int:
        """Values per token."""
        return self.patch[0] * self.patch[1] * self.channels

    @property
    def half(self) -> tuple[float, float]:
        """Rows and columns from the first pixel of a patch to its centre."""
        return (self.patch[0] - 1) / 2, (self.patch[1] - 1) / 2

    @property
    def centres(self) -> Float[np.ndarray, "patches 2"]:
        """Patch centres (row, col) in pixels, row by row."""
        row, col = (np.arange(g) * p + h for g, p, h in zip(self.grid, self.patch, self.half, strict=True))
        return np.stack(np.meshgrid(row, col, indexing="ij"), axis=-1).reshape(-1, 2)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        periodic = {"periodic": True} if self.periodic else {}
        return {"frame": list(self.frame), "patch": list(self.patch), "channels": self.channels, **periodic}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PatchLayout:
        """Inverse of `to_dict`."""
        if set(data) - {"periodic"} != {"frame", "patch", "channels"}:
            raise CSTError(f"a patch layout has frame, patch, channels and perhaps periodic, got {sorted(data)}")
        frame, patch = _pair("frame", data["frame"]), _pair("patch", data["patch"])
        return cls(frame, patch, data["channels"], data.get("periodic", False))


def is_count(number: object) -> bool:
    """Whether this is a positive integer (and not a bool)."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) > 0


def _pair(name: str, size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence | np.ndarray) or len(size) != 2 or not all(map(is_count, size)):
        raise CSTError(f"{name} must be two positive integers (height, width), got {size!r}")
    return int(size[0]), int(size[1])
