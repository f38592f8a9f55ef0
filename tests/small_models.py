"""Small samples and small fitted models that several test files share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import cstformer.starts.frames
import cstformer.starts.points
from cstformer import CST, CSTError, Samples
from cstformer.starts.gaussian_process import Kernel


def known_kernel(coords: torch.Tensor, *_: Any) -> Kernel:
    """Stand in for `fit_kernel`, which takes a second, in tests about something else."""
    return Kernel((0.3,) * coords.shape[-1], 1.0, 0.5, 0.1)


@contextmanager
def patched_kernel(fit_kernel: Callable[..., Kernel] = known_kernel) -> Iterator[None]:
    """Replace `fit_kernel` for both kinds of data, points and frames; all channels share it."""
    with (
        mock.patch.object(cstformer.starts.points, "fit_kernel", lambda *a, smoothness: fit_kernel(*a)),
        mock.patch.object(cstformer.starts.points, "fit_channels", lambda kernel, *_: kernel),
        mock.patch.object(cstformer.starts.frames, "fit_kernel", fit_kernel),
    ):
        yield


def waves(count: int = 6, points: int = 7, channels: int = 2, seed: int = 0) -> Samples:
    """Sines on irregular times of their own in [2, 5], in units that are nobody's default."""
    rng = np.random.default_rng(seed)
    t = 2 + 3 * (np.arange(points) + 0.8 * rng.random((count, points))) / points
    phase = rng.random((count, 1, channels))
    y = 40 + 10 * np.sin(2 * np.pi * (t[..., None] / 3 + phase)) + rng.normal(size=(count, points, channels))
    names = {"t": "s", "y0": "mV"}
    return Samples(t, y, coord_names=["t"], value_names=[f"y{i}" for i in range(channels)], units=names)


def blob(frames: int = 9, height: int = 10, width: int = 9, channels: int | None = None) -> np.ndarray:
    """A Gaussian blob of height 50 on a ground of 100 that moves to the lower right: (T, H, W[, C])."""
    t, r, c = np.meshgrid(np.arange(frames), np.arange(height), np.arange(width), indexing="ij")
    movie = 100 + 50 * np.exp(-((r - 2 - 0.5 * t) ** 2 + (c - 2 - 0.4 * t) ** 2) / 8)
    return movie if channels is None else movie[..., None] * np.arange(1, channels + 1)


def fit_quickly(model: Any, samples: Samples, **options: Any) -> Any:
    """Fit without searching for the kernel."""
    with patched_kernel():
        return model.fit(samples, **options)


def shaken(model: CST, seed: int = 0) -> CST:
    """The model with noise on its weights, so that no part of it is idle as at the start of a training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.network_.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter))
    return model


def linear_model(samples: Samples) -> CST:
    """A model that answers with its linear start, so that the right answer is known."""
    model = fit_quickly(CST.preset("smoke", steps=1, start="linear", precision="float64"), samples)
    with torch.no_grad():
        model.network_.readout.skip.weight.copy_(torch.eye(samples.c))
        model.network_.readout.decode.weight.zero_()
        model.network_.readout.decode.bias.zero_()
    return model


@functools.cache
def _shaken_model(settings: tuple[tuple[str, Any], ...]) -> CST:
    return shaken(fit_quickly(CST.preset("smoke", steps=1, **dict(settings)), waves()))


def wave_model(**settings: Any) -> CST:
    """A model of `waves()` whose weights are all at work; float64 unless said otherwise."""
    return copy.deepcopy(_shaken_model(tuple(sorted({"precision": "float64", **settings}.items()))))


def named_waves() -> Samples:
    """Three samples of `waves` with names and ids of their own."""
    return waves(3).replace(sample_ids=["a", "b", "7"])


def refused(call: Callable[[], Any], *words: str) -> None:
    """Check that a call is refused in one line that has these words."""
    with pytest.raises(CSTError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
