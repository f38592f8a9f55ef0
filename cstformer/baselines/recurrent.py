r"""Recurrent rivals: LSTM and ConvLSTM, which forecast from a few frames, and ConvGRU, which rewrites each frame.

The paper predicts recursively, one regular step at a time. Here the time from each given frame to the asked one is
an input, so that one step reaches any time and every sample may have its own grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from cstformer.baselines.sequences import Forecaster, Reconstructor, SequenceBaseline, TimeSeries, windows
from cstformer.errors import CSTError
from cstformer.training.settings import setting

TENTHS = 10.0  # times are fed in tenths of the domain: a gap between frames is then about as large as a value
LATENT_GRID = 8  # a picture of hidden units is averaged on so many rows and columns for `latent`


class ConvLSTMCell(nn.Module):
    r"""LSTM whose products are convolutions (Shi et al. 2015, without peepholes), one for all four gates.

    .. math:: i, f, o, g = W * [x, h] + b, \quad c' = σ(f)\, c + σ(i) \tanh g, \quad h' = σ(o) \tanh c'
    """

    def __init__(self, inputs: int, hidden: int, kernel: int):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inputs + hidden, 4 * hidden, kernel, padding=kernel // 2)

    def forward(
        self, x: Float[Tensor, "N inputs H W"], state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """New hidden units and memory, (N, hidden, H, W) each."""
        h, c = state or (x.new_zeros(len(x), self.hidden, *x.shape[2:]),) * 2
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvGRUCell(nn.Module):
    r"""GRU whose products are convolutions (Ballas et al. 2016).

    .. math:: r, z = σ(W * [x, h] + b), \quad h' = (1 - z)\, h + z \tanh(V * [x, r h] + a)
    """

    def __init__(self, inputs: int, hidden: int, kernel: int):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inputs + hidden, 2 * hidden, kernel, padding=kernel // 2)
        self.candidate = nn.Conv2d(inputs + hidden, hidden, kernel, padding=kernel // 2)

    def forward(self, x: Float[Tensor, "N inputs H W"], h: Tensor | None = None) -> Float[Tensor, "N hidden H W"]:
        """New hidden units."""
        h = x.new_zeros(len(x), self.hidden, *x.shape[2:]) if h is None else h
        r, z = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        return (1 - z) * h + z * torch.tanh(self.candidate(torch.cat([x, r * h], 1)))


class LSTMNetwork(Forecaster):
    """One LSTM layer over the values of each frame, and one linear layer back to a frame."""

    def __init__(self, shape: tuple[int, ...], hidden: int, window: int, mask: bool, skip: bool):
        super().__init__()
        self.shape, self.window, self.mask, self.skip = shape, window, mask, skip
        numbers = int(torch.Size(shape).numel())
        self.lstm = nn.LSTM(numbers * (1 + mask) + 1, hidden, batch_first=True)
        # Thousands of pixels that move together would saturate every gate, at the start and at each step of AdamW:
        # frames are divided by the root of their size, and the weights begin accordingly larger.
        self.scale = numbers**-0.5
        nn.init.uniform_(self.lstm.get_parameter("weight_ih_l0").data[:, :-1], -1, 1)
        self.back = _started_at_zero(nn.Linear(hidden, numbers), skip)

    def _state(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N hidden"]:
        parts = [past.values.flatten(2)] + ([past.observed.flatten(2).to(past.values)] if self.mask else [])
        frames = self.scale * torch.cat(parts, -1)
        return self.lstm(torch.cat([frames, TENTHS * ahead[..., None]], -1))[0][:, -1]

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N ..."]:
        """From the state after the last frame of the window."""
        y = self.back(self._state(past, ahead)).unflatten(1, self.shape)
        return past.values[:, -1] + y if self.skip else y

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B hidden"]:
        """State of the layer after all frames, at the time of the last."""
        return self._state(*windows(frames, frames.times[:, -1:], frames.times.shape[1]))


class ConvLSTMNetwork(Forecaster):
    """Two cells read the window, two cells that begin in their states write the answer, a convolution ends it."""

    def __init__(self, channels: int, hidden: int, kernel: int, window: int, mask: bool, skip: bool):
        super().__init__()
        self.window, self.mask, self.skip = window, mask, skip
        inputs = [channels * (1 + mask) + 1, hidden, hidden, hidden]
        self.cells = nn.ModuleList(ConvLSTMCell(n, hidden, kernel) for n in inputs)
        self.back = _started_at_zero(nn.Conv2d(hidden, channels, 3, padding=1), skip)

    def _read(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> tuple[tuple[Tensor, Tensor], ...]:
        first = second = None
        for x in past.channels(self.mask, TENTHS * ahead).movedim(-1, 2).unbind(1):
            first = self.cells[0](x, first)
            second = self.cells[1](first[0], second)
        assert first is not None and second is not None
        return first, second

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N H W C"]:
        """One step of the writing cells."""
        first, second = self._read(past, ahead)
        third = self.cells[2](second[0], first)
        fourth = self.cells[3](third[0], second)
        y = self.back(fourth[0]).movedim(1, -1)
        return past.values[:, -1] + y if self.skip else y

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B hidden rows cols"]:
        """Hidden units of the second cell after all frames, averaged on a coarse grid that keeps the place."""
        _, (h, _) = self._read(*windows(frames, frames.times[:, -1:], frames.times.shape[1]))
        return F.adaptive_avg_pool2d(h, (min(LATENT_GRID, h.shape[2]), min(LATENT_GRID, h.shape[3])))


class ConvGRUNetwork(Reconstructor):
    """Four cells, two that read and two that write, run along the frames; one frame in, one frame out at each.

    Their hidden units are h, 2h, 2h and 4h, their kernels k, k + 2, k and k + 2.
    """

    def __init__(self, channels: int, hidden: int, kernel: int, between: str, mask: bool, skip: bool):
        super().__init__()
        self.between, self.mask, self.skip = between, mask, skip
        sizes = [channels * (1 + mask) + 1, hidden, 2 * hidden, 2 * hidden, 4 * hidden]
        self.cells = nn.ModuleList(ConvGRUCell(sizes[i], sizes[i + 1], kernel + 2 * (i % 2)) for i in range(4))
        self.back = _started_at_zero(nn.Conv2d(4 * hidden, channels, 1), skip)

    def reconstruct(self, frames: TimeSeries) -> Float[Tensor, "B T H W C"]:
        """Each frame from itself and all before it; the time since the frame before is an input."""
        states: list[Tensor | None] = [None] * 4
        out = []
        for x in frames.channels(self.mask, TENTHS * frames.gaps).movedim(-1, 2).unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = x = cell(x, states[i])
            out.append(self.back(x))
        y = torch.stack(out, 1).movedim(2, -1)
        return frames.values + y if self.skip else y


def _started_at_zero(layer: nn.Linear | nn.Conv2d, yes: bool) -> nn.Linear | nn.Conv2d:
    """Begin with copying, where the layer gives changes to a frame."""
    if yes:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


@dataclass(kw_only=True, eq=False, repr=False)
class LSTM(SequenceBaseline):
    """One LSTM layer that forecasts from the last frames; curves, or frames as one long vector."""

    name: ClassVar[str] = "lstm"
    label: ClassVar[str] = "LSTM"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"hidden": 24, "noise": 0.0, "steps": 30, "batch": 8},
        "paper": {"hidden": 240, "mask": False, "skip": False, "noise": 0.1},
    }

    hidden: int = setting(128, "hidden units", low=1)
    window: int = setting(5, "given frames that an answer is made from", low=1)
    skip: bool = setting(True, "the network gives the change to the last frame, not the frame")

    def _network(self, d: int, c: int) -> LSTMNetwork:
        return LSTMNetwork(self.frame_shape(c), self.hidden, self.window, self.mask, self.skip)


@dataclass(kw_only=True, eq=False, repr=False)
class _Convolutional(SequenceBaseline):
    """What the two convolutional models share."""

    frames_only: ClassVar[bool] = True

    hidden: int = setting(8, "hidden units of a cell", low=1)
    kernel: int = setting(3, "width of the convolutions in pixels, odd", low=1)
    skip: bool = setting(True, "the network gives the change to a given frame, not the frame")
    batch: int = setting(8, "samples per step", low=1)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.kernel % 2 == 0:
            raise CSTError(f"kernel={self.kernel}: must be odd, e.g. {self.kernel + 1}")


@dataclass(kw_only=True, eq=False, repr=False)
class ConvLSTM(_Convolutional):
    """Four ConvLSTM cells, two that read the last frames and two that forecast."""

    name: ClassVar[str] = "convlstm"
    label: ClassVar[str] = "ConvLSTM"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"hidden": 4, "noise": 0.0, "steps": 30},
        "paper": {"hidden": 256, "mask": False, "skip": False, "noise": 0.1},
    }

    window: int = setting(5, "given frames that an answer is made from", low=1)
    targets: int = setting(2, "random frames of a sample that a step asks for; 0: all", low=0)

    def _network(self, d: int, c: int) -> ConvLSTMNetwork:
        channels = self.frame_shape(c)[-1]
        return ConvLSTMNetwork(channels, self.hidden, self.kernel, self.window, self.mask, self.skip)


@dataclass(kw_only=True, eq=False, repr=False)
class ConvGRU(_Convolutional):
    """ConvGRU encoder and decoder: hidden units h, 2h | 2h, 4h and kernels k, k + 2 | k, k + 2."""

    name: ClassVar[str] = "convgru"
    label: ClassVar[str] = "ConvGRU"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"hidden": 2, "noise": 0.0, "steps": 30},
        "paper": {"hidden": 64, "kernel": 9, "mask": False, "skip": False, "noise": 0.1, "hide": 0.0},
    }

    hidden: int = setting(4, "hidden units of the first cell; the others have 2, 2 and 4 times as many", low=1)
    kernel: int = setting(3, "width of the outer convolutions in pixels, odd; the inner ones are wider by 2", low=1)
    between: str = setting("linear", "interpolation in time of the output", ("linear", "cubic"))

    def _network(self, d: int, c: int) -> ConvGRUNetwork:
        channels = self.frame_shape(c)[-1]
        return ConvGRUNetwork(channels, self.hidden, self.kernel, self.between, self.mask, self.skip)
