"""Fourier neural operators (Li et al. 2021), FNO2D and FNO3D, built from the layers of neuraloperator.

FNO2D is a forecaster: it maps a window of earlier frames, and the time from each of them to the query, to one frame.
FNO3D maps a whole movie to a movie, with Fourier modes along time too. Its time axis needs a regular grid:

- ``resample="index"`` puts frame i at grid point i and gives its time as a channel. Irregular sampling then looks like
  distorted dynamics, which is how the paper explains the failure of FNO3D.
- ``resample="regular"`` first resamples the frames linearly onto a regular grid over the time domain. This is the
  fairer choice, and the default.

With ``skip`` both predict the change to a context frame (FNO2D to the last of the window, FNO3D to each) and start at
zero change, so that training starts from copying. The published operators have no skip.

Rows and columns are channels as well, from 0 to 1. Fourier layers treat the frame as periodic.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cstformer.baselines.sequences import Forecaster, Reconstructor, SequenceBaseline, TimeSeries, between
from cstformer.errors import CSTError
from cstformer.training.settings import setting


class ComplexWeight(nn.Module):
    """A complex tensor stored as pairs of real numbers.

    It is counted (two numbers per weight), averaged, saved and cast as any other parameter. Casting a complex parameter
    to float32 would drop its imaginary part.
    """

    def __init__(self, tensor: Tensor):
        super().__init__()
        self.pairs = nn.Parameter(torch.view_as_real(tensor.detach()).clone())

    def __getitem__(self, index: Any) -> Tensor:
        return torch.view_as_complex(self.pairs)[index]


class FourierOperator(nn.Module):
    """Maps functions on a grid to functions on the same grid: lift, Fourier layers, project.

    Parameters
    ----------
    inputs, outputs : number of channels; a channel per grid axis, its coordinate from 0 to 1, is added to the inputs
    axes : number of grid axes
    modes : Fourier modes on either side of 0 along each axis
    hidden : channels of the Fourier layers
    layers : number of Fourier layers
    projection : hidden channels of the projection
    mixing : whether a small network mixes the channels after each layer, as in the paper's FNO3D
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        axes: int,
        modes: int,
        hidden: int,
        layers: int,
        projection: int,
        mixing: bool,
    ):
        super().__init__()
        with warnings.catch_warnings():  # importing neuraloperator changes the filters of the whole process
            try:
                from neuralop.models import FNO
            except ImportError:
                raise CSTError('FNO needs neuraloperator; pip install "cstformer[rivals]"') from None
        whole = FNO(
            # neuraloperator counts the modes on both sides of 0, and halves those of the last axis itself.
            n_modes=(2 * modes,) * (axes - 1) + (2 * modes - 1,),
            in_channels=inputs + axes,
            out_channels=outputs,
            hidden_channels=hidden,
            n_layers=layers,
            lifting_channel_ratio=0,
            projection_channel_ratio=(projection + 0.5) / hidden,  # neuraloperator rounds the product down
            use_channel_mlp=mixing,
            channel_mlp_expansion=1.0,
            positional_embedding=None,
        )
        for convolution in whole.fno_blocks.convs:
            convolution.weight = ComplexWeight(convolution.weight.to_tensor())
        # Keep the parts only: the state of the whole module holds more than tensors.
        self.lift, self.blocks, self.project = whole.lifting, whole.fno_blocks, whole.projection
        self.layers = layers

    def forward(self, x: Float[Tensor, "B inputs *grid"]) -> Float[Tensor, "B outputs *grid"]:
        """Map a batch of functions."""
        sizes = x.shape[2:]
        # neuraloperator misplaces the modes of axes of odd size, except the last: pad them by their edge.
        odd = [n % 2 for n in sizes[:-1]] + [0]
        if any(odd):
            x = F.pad(x, [width for one in reversed(odd) for width in (0, one)], mode="replicate")
        coordinates = torch.meshgrid(
            *(torch.linspace(0, 1, n, device=x.device).to(x) for n in x.shape[2:]), indexing="ij"
        )
        x = self.lift(torch.cat([x, torch.stack(coordinates).expand(len(x), *(-1,) * (x.ndim - 1))], 1))
        for i in range(self.layers):
            x = self.blocks(x, i)
        return self.project(x)[(..., *(slice(n) for n in sizes))]

    def begin_at_zero(self) -> None:
        """Zero the last layer, so that the untrained operator returns 0."""
        nn.init.zeros_(self.project.fcs[-1].weight)
        nn.init.zeros_(self.project.fcs[-1].bias)


class FrameForecaster(Forecaster):
    """Network of FNO2D. Its input channels are the frames of a window, their masks, and the time since each frame."""

    def __init__(self, channels: int, window: int, mask: bool, skip: bool = False, **sizes: Any):
        super().__init__()
        self.window, self.mask, self.skip = window, mask, skip
        self.operator = FourierOperator(window * (channels * (2 if mask else 1) + 1), channels, axes=2, **sizes)
        if skip:
            self.operator.begin_at_zero()

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N H W C"]:
        """Predict the frame that is ``ahead`` of each frame of the window by this time."""
        x = past.channels(self.mask, ahead)  # (N, window, H, W, channels)
        y = self.operator(x.permute(0, 1, 4, 2, 3).flatten(1, 2)).permute(0, 2, 3, 1)
        return past.values[:, -1] + y if self.skip else y


class MovieOperator(Reconstructor):
    """Network of FNO3D. It maps all frames and their times, on a time grid of ``slots`` points, to frames.

    The last ``padding`` grid points stay empty, so that the periodic layers do not connect the end of the movie with
    its beginning.
    """

    def __init__(
        self, channels: int, mask: bool, resample: str, slots: int, padding: int, skip: bool = False, **sizes: Any
    ):
        super().__init__()
        self.mask, self.resample, self.slots, self.padding, self.skip = mask, resample, slots, padding, skip
        self.operator = FourierOperator(channels * (2 if mask else 1) + 1, channels, axes=3, **sizes)
        if skip:
            self.operator.begin_at_zero()

    def reconstruct(self, frames: TimeSeries) -> Float[Tensor, "B T H W C"]:
        """Put frame i at grid point i and its time into a channel, then apply the operator."""
        count, places = frames.times.shape[1], self.slots - self.padding
        if count > places:
            raise CSTError(
                f"FNO3D has slots - padding = {places} places in time, got {count} frames; "
                f"set slots={count + self.padding} or more before fitting, or give fewer frames"
            )
        x = frames.channels(self.mask, frames.times * frames.exists).permute(0, 4, 2, 3, 1)  # (B, channels, H, W, T)
        y = self.operator(F.pad(x, (0, self.slots - count)))
        y = y[..., :count].permute(0, 4, 2, 3, 1)
        return frames.values + y if self.skip else y

    def forward(self, frames: TimeSeries, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M H W C"]:
        """Reconstruct at the times of the frames, or on the regular grid, and interpolate linearly in time."""
        if self.resample == "regular":
            frames = self.regular(frames)
        return super().forward(frames, at)

    def regular(self, frames: TimeSeries) -> TimeSeries:
        """Resample the observed values linearly onto a regular grid over [0, 1].

        Interpolating the mask too gives the weight of the observed values; dividing by it ignores the others.
        """
        grid = torch.linspace(0, 1, self.slots - self.padding, device=frames.times.device).to(frames.times)
        grid = grid.expand(len(frames), -1)
        share = between("linear", frames, frames.observed.to(frames.values), grid)
        values = between("linear", frames, frames.values, grid) / share.clamp_min(1e-6)
        observed = share > 1e-6
        return TimeSeries(grid, values * observed, observed, torch.ones_like(grid, dtype=torch.bool))


@dataclass(kw_only=True, eq=False, repr=False)
class _FourierOperator(SequenceBaseline):
    """Settings of both operators. Complex weights count as two numbers each, as in the paper's table."""

    frames_only: ClassVar[bool] = True

    hidden: int = setting(20, "channels of the Fourier layers (their width)", low=1)
    layers: int = setting(4, "Fourier layers", low=1)
    skip: bool = setting(True, "predict the change to a context frame, starting at zero change")

    def _operator(self, mixing: bool) -> dict[str, Any]:
        names = ("modes", "hidden", "layers", "projection")
        return {name: getattr(self, name) for name in names} | {"mixing": mixing}


@dataclass(kw_only=True, eq=False, repr=False)
class FNO2D(_FourierOperator):
    """Fourier operator that forecasts one frame from a window of earlier ones."""

    name: ClassVar[str] = "fno2d"
    needs: ClassVar[tuple[str, ...]] = ("neuralop",)
    label: ClassVar[str] = "FNO2D"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {
            "modes": 4,
            "hidden": 8,
            "layers": 2,
            "projection": 16,
            "window": 3,
            "noise": 0.0,
            "steps": 30,
            "batch": 8,
        },
        "paper": {
            "skip": False,
            "window": 10,
            "targets": 0,
            "noise": 0.1,
            "hide": 0.0,
            "learning_rate": 1e-3,
            "weight_decay": 1e-4,
        },
    }

    modes: int = setting(12, "Fourier modes on either side of 0, along rows and columns", low=1)
    projection: int = setting(128, "hidden channels of the projection", low=1)
    window: int = setting(4, "earlier frames that a prediction is made from", low=1)
    targets: int = setting(4, "random frames of a sample in the loss of a step; 0: all", low=0)

    def _network(self, d: int, c: int) -> FrameForecaster:
        return FrameForecaster(
            self.frame_shape(c)[-1], self.window, self.mask, self.skip, **self._operator(mixing=False)
        )


@dataclass(kw_only=True, eq=False, repr=False)
class FNO3D(_FourierOperator):
    """Fourier operator that maps a movie to a movie, time included."""

    name: ClassVar[str] = "fno3d"
    needs: ClassVar[tuple[str, ...]] = ("neuralop",)
    label: ClassVar[str] = "FNO3D"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {
            "modes": 4,
            "hidden": 8,
            "layers": 2,
            "projection": 16,
            "slots": 12,
            "noise": 0.0,
            "steps": 30,
            "batch": 8,
        },
        # 10 frames and 6 empty grid points, as in the published code.
        "paper": {
            "skip": False,
            "hidden": 20,
            "projection": 80,
            "resample": "index",
            "padding": 6,
            "noise": 0.1,
            "hide": 0.0,
            "learning_rate": 1e-3,
            "weight_decay": 1e-4,
        },
    }

    hidden: int = setting(12, "channels of the Fourier layers (their width)", low=1)
    modes: int = setting(8, "Fourier modes on either side of 0, along rows, columns and time", low=1)
    projection: int = setting(32, "hidden channels of the projection", low=1)
    resample: str = setting(
        "regular", "resample frames onto the time grid (regular), or place them by number (index)", ("regular", "index")
    )
    slots: int = setting(16, "grid points in time, the empty ones included", low=2)
    padding: int = setting(4, "grid points in time that stay empty", low=0)
    batch: int = setting(4, "samples per step", low=1)

    def _network(self, d: int, c: int) -> MovieOperator:
        sizes = self._operator(mixing=True)
        return MovieOperator(
            self.frame_shape(c)[-1], self.mask, self.resample, self.slots, self.padding, self.skip, **sizes
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.slots - self.padding < 2:
            raise CSTError(
                f"slots={self.slots} leaves {self.slots - self.padding} for frames beside padding="
                f"{self.padding}; choose at least {self.padding + 2}"
            )
