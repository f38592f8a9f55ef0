"""Everything that fixes the shape of the network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from cstformer.starts.pixel_view import PixelView


@dataclass(frozen=True)
class Architecture:
    """Sizes and choices of the network; the fields mean what they mean in `Settings`."""

    d: int
    c: int
    width: int = 64
    layers: int = 4
    heads: int = 4
    feedforward: int = 128
    pattern: str = "context"
    attention_kind: str = "exact"
    landmarks: int = 32
    projections: int = 1
    iterations: int = 6
    norm: str = "pre"
    encoding: str = "fourier"
    features: int = 32
    frequency: float = 1.0
    readout: str = "skip"
    dropout: float = 0.0
    near: bool = False
    """Whether heads look near a place (`Nearness`)."""
    split_context: bool = False
    """Whether context tokens carry the initial value at their own place and, apart from it, the residual."""
    bounded: bool = False
    """Whether initial values end with the share of a change that is allowed; the readout is then bounded."""
    view: PixelView | None = None
    """What initial values hold, if they are more than the c channels; the readout is then gated."""

    covariates: int = 0
    """Features of covariates, the same at every coordinate of a sample."""
    calendar: tuple[float, ...] = ()
    """Rates of the calendar features, in radians per unit of the time axis; see `Calendar`."""
    time_axis: int = 0
    """The axis of the calendar."""

    @property
    def initial_size(self) -> int:
        """Numbers of an initial value."""
        return self.c + self.bounded if self.view is None else self.view.size


def parameter_count(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
