r"""Recurrent rivals: LSTM and ConvLSTM, which forecast from a few frames, and ConvGRU, which reconstructs each frame.

The paper predicts recursively, one regular step at a time. Here the time from each context frame to the query is an
input, so that one step reaches any time and every sample may have its own times.
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

TENTHS = 10.0  # times enter in tenths of the domain, so that gaps between frames are about as large as values
LATENT_GRID = 8  # rows and columns to which `latent` averages a map of hidden units


class ConvLSTMCell(nn.Module):
    r"""Convolutional LSTM cell (Shi et al. 2015, without peepholes); one convolution computes all four gates.

    .. math:: i, f, o, g = W * [x, h] + b, \quad c' = σ(f)\, c + σ(i) \tanh g, \quad h' = σ(o) \tanh c'
    """

    def __init__(self, inputs: int, hidden: int, kernel: int):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inputs + hidden, 4 * hidden, kernel, padding=kernel // 2)

    def forward(
        self, x: Float[Tensor, "N inputs H W"], state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Next hidden state and memory, (N, hidden, H, W) each."""
        h, c = state or (x.new_zeros(len(x), self.hidden, *x.shape[2:]),) * 2
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvGRUCell(nn.Module):
    r"""Convolutional GRU cell (Ballas et al. 2016).

    .. math:: r, z = σ(W * [x, h] + b), \quad h' = (1 - z)\, h + z \tanh(V * [x, r h] + a)
    """

    def __init__(self, inputs: int, hidden: int, kernel: int):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inputs + hidden, 2 * hidden, kernel, padding=kernel // 2)
        self.candidate = nn.Conv2d(inputs + hidden, hidden, kernel, padding=kernel // 2)

    def forward(self, x: Float[Tensor, "N inputs H W"], h: Tensor | None = None) -> Float[Tensor, "N hidden H W"]:
        """Next hidden state."""
        h = x.new_zeros(len(x), self.hidden, *x.shape[2:]) if h is None else h
        r, z = torch.sigmoid(self.gates(torch.cat([x, h], 1))).chunk(2, 1)
        return (1 - z) * h + z * torch.tanh(self.candidate(torch.cat([x, r * h], 1)))


class LSTMNetwork(Forecaster):
    """An LSTM layer that reads flattened frames, and a linear layer back to a frame."""

    def __init__(self, shape: tuple[int, ...], hidden: int, window: int, mask: bool, skip: bool):
        super().__init__()
        self.shape, self.window, self.mask, self.skip = shape, window, mask, skip
        numbers = int(torch.Size(shape).numel())
        self.lstm = nn.LSTM(numbers * (1 + mask) + 1, hidden, batch_first=True)
        # Thousands of correlated pixels would saturate every gate, at the start and after each step of AdamW. Frames
        # are therefore divided by the root of their size, and the initial weights are larger accordingly.
        self.scale = numbers**-0.5
        nn.init.uniform_(self.lstm.get_parameter("weight_ih_l0").data[:, :-1], -1, 1)
        self.back = _zeroed(nn.Linear(hidden, numbers), skip)

    def _state(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N hidden"]:
        parts = [past.values.flatten(2)] + ([past.observed.flatten(2).to(past.values)] if self.mask else [])
        frames = self.scale * torch.cat(parts, -1)
        return self.lstm(torch.cat([frames, TENTHS * ahead[..., None]], -1))[0][:, -1]

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N ..."]:
        """Predict from the state after the last frame of the window."""
        y = self.back(self._state(past, ahead)).unflatten(1, self.shape)
        return past.values[:, -1] + y if self.skip else y

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B hidden"]:
        """Hidden state after all frames, with the last frame as the query."""
        return self._state(*windows(frames, frames.times[:, -1:], frames.times.shape[1]))


class ConvLSTMNetwork(Forecaster):
    """Two encoder cells read the window; two decoder cells start from their states and predict the frame."""

    def __init__(self, channels: int, hidden: int, kernel: int, window: int, mask: bool, skip: bool):
        super().__init__()
        self.window, self.mask, self.skip = window, mask, skip
        inputs = [channels * (1 + mask) + 1, hidden, hidden, hidden]
        self.cells = nn.ModuleList(ConvLSTMCell(n, hidden, kernel) for n in inputs)
        self.back = _zeroed(nn.Conv2d(hidden, channels, 3, padding=1), skip)

    def _read(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> tuple[tuple[Tensor, Tensor], ...]:
        """Hidden state and memory (N, hidden, H, W) of both encoder cells after the window."""
        first = second = None
        for x in past.channels(self.mask, TENTHS * ahead).movedim(-1, 2).unbind(1):
            first = self.cells[0](x, first)
            second = self.cells[1](first[0], second)
        assert first is not None and second is not None
        return first, second

    def forecast(self, past: TimeSeries, ahead: Float[Tensor, "N window"]) -> Float[Tensor, "N H W C"]:
        """One step of the decoder cells."""
        first, second = self._read(past, ahead)
        third = self.cells[2](second[0], first)
        fourth = self.cells[3](third[0], second)
        y = self.back(fourth[0]).movedim(1, -1)
        return past.values[:, -1] + y if self.skip else y

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B hidden rows cols"]:
        """Hidden state of the second cell after all frames, averaged to a coarse grid."""
        _, (h, _) = self._read(*windows(frames, frames.times[:, -1:], frames.times.shape[1]))
        return F.adaptive_avg_pool2d(h, (min(LATENT_GRID, h.shape[2]), min(LATENT_GRID, h.shape[3])))


class ConvGRUNetwork(Reconstructor):
    """Four cells, two of an encoder and two of a decoder, run along the frames and return a frame for each.

    They have h, 2h, 2h and 4h hidden units and kernels of k, k + 2, k and k + 2 pixels.
    """

    def __init__(self, channels: int, hidden: int, kernel: int, between: str, mask: bool, skip: bool):
        super().__init__()
        self.between, self.mask, self.skip = between, mask, skip
        sizes = [channels * (1 + mask) + 1, hidden, 2 * hidden, 2 * hidden, 4 * hidden]
        self.cells = nn.ModuleList(ConvGRUCell(sizes[i], sizes[i + 1], kernel + 2 * (i % 2)) for i in range(4))
        self.back = _zeroed(nn.Conv2d(4 * hidden, channels, 1), skip)

    def reconstruct(self, frames: TimeSeries) -> Float[Tensor, "B T H W C"]:
        """Reconstruct each frame from itself and the earlier ones; the time since the previous frame is an input."""
        states: list[Tensor | None] = [None] * 4
        out = []
        for x in frames.channels(self.mask, TENTHS * frames.gaps).movedim(-1, 2).unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = x = cell(x, states[i])
            out.append(self.back(x))
        y = torch.stack(out, 1).movedim(2, -1)
        return frames.values + y if self.skip else y


def _zeroed(layer: nn.Linear | nn.Conv2d, skip: bool) -> nn.Linear | nn.Conv2d:
    """Zero a last layer that predicts the change to a frame, so that the untrained network copies."""
    if skip:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


@dataclass(kw_only=True, eq=False, repr=False)
class LSTM(SequenceBaseline):
    """One LSTM layer that forecasts from the last frames; frames of movies are flattened."""

    name: ClassVar[str] = "lstm"
    label: ClassVar[str] = "LSTM"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"hidden": 24, "noise": 0.0, "steps": 30, "batch": 8},
        "paper": {"hidden": 240, "mask": False, "skip": False, "noise": 0.1},
    }

    hidden: int = setting(128, "hidden units", low=1)
    window: int = setting(5, "context frames that a prediction is made from", low=1)
    skip: bool = setting(True, "predict the change to the last frame, starting at zero change")

    def _network(self, d: int, c: int) -> LSTMNetwork:
        return LSTMNetwork(self.frame_shape(c), self.hidden, self.window, self.mask, self.skip)


@dataclass(kw_only=True, eq=False, repr=False)
class _Convolutional(SequenceBaseline):
    """Settings of the convolutional models."""

    frames_only: ClassVar[bool] = True

    hidden: int = setting(8, "hidden units of a cell", low=1)
    kernel: int = setting(3, "width of the convolutions in pixels, odd", low=1)
    skip: bool = setting(True, "predict the change to a context frame, starting at zero change")
    batch: int = setting(8, "samples per step", low=1)

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.kernel % 2 == 0:
            raise CSTError(f"kernel={self.kernel}: must be odd, e.g. {self.kernel + 1}")


@dataclass(kw_only=True, eq=False, repr=False)
class ConvLSTM(_Convolutional):
    """Four ConvLSTM cells: an encoder of two reads the last frames, a decoder of two forecasts."""

    name: ClassVar[str] = "convlstm"
    label: ClassVar[str] = "ConvLSTM"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"hidden": 4, "noise": 0.0, "steps": 30},
        "paper": {"hidden": 256, "mask": False, "skip": False, "noise": 0.1},
    }

    window: int = setting(5, "context frames that a prediction is made from", low=1)
    targets: int = setting(2, "random frames of a sample in the loss of a step; 0: all", low=0)

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
