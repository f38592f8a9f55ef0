"""Measurements of a model of flows: errors of value and slope, roughness, and the field between the pixels."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.ndimage
from jaxtyping import Bool, Float

from cstformer.data.fine_frames import Ask, fine_frames
from cstformer.data.samples import Samples
from cstformer.experiments.metrics import roughness
from cstformer.experiments.navier_stokes.task import Flows, FlowTask, closer_truth, zoomed_truth
from cstformer.models.cst import CST

FRAMES_PER_PASS = 20  # as many as a test asks for; in the joint pattern the answer depends on this number
FLOWS_PER_PASS = 25
SHOWN = (0.2, 0.5, 0.8)  # times of the fields that are kept for the figures, as shares of the time span

ZOOMED, TILED = "CST asked between the pixels", "the same, patches side by side"
FOURIER, BICUBIC = "CST's frame, Fourier up-sampling", "CST's frame, bicubic up-sampling"

Arrays = dict[str, np.ndarray]
Row = tuple[str, str]
"""A row of a table and its condition."""


def ask_frames(
    model: Any, context: Samples, times: np.ndarray, flows: Flows, overlap: int, derivative: bool = False
) -> Float[np.ndarray, "N T H W"]:
    """Frames of each flow at any times, or (for CST) their time derivatives.

    Patches overlap for CST in pattern ``context``; other models know the patches of the grid only.
    """
    overlap = overlap if isinstance(model, CST) and model.pattern == "context" else 1
    made = []
    for first in range(0, len(context), FLOWS_PER_PASS):
        some = context[first : first + FLOWS_PER_PASS]
        ask: Ask = functools.partial(model.predict, some)
        if derivative:
            ask = functools.partial(model.derivative, some, index=(1, 0, 0))
        pieces = np.array_split(times, -(-len(times) // FRAMES_PER_PASS))
        frames = [fine_frames(ask, flows.layout, piece, overlap=overlap)[..., 0] for piece in pieces]
        made.append(np.concatenate(frames, 1).astype(np.float32))
    return np.concatenate(made)


def squared_error(y: Float[np.ndarray, "N T H W"], truth: Float[np.ndarray, "N T H W"]) -> Float[np.ndarray, "N T"]:
    """Mean over the pixels of each frame."""
    return np.square(y.astype(np.float64) - truth).mean((2, 3))


def frame_errors(model: Any, task: FlowTask, flows: Flows, overlap: int) -> Arrays:
    """Error of each test flow at each time of the frames."""
    return {"mse": squared_error(ask_frames(model, task.test, flows.times, flows, overlap), task.truth)}


def mean_at(error: Float[np.ndarray, "N T"], where: Bool[np.ndarray, "N T"]) -> Float[np.ndarray, " N"]:
    """Mean over the chosen times of each flow."""
    return np.where(where, error, 0.0).sum(1) / where.sum(1)


def closer_look(model: Any, task: FlowTask, flows: Flows, overlap: int, count: int) -> Arrays:
    """Measure the first test flows on a fine grid of times: errors of value and slope, roughness, fields to draw.

    The slope of CST is its own derivative; that of other models is taken by differences on the fine grid.
    """
    truth, slope_truth = closer_truth(flows, count)
    context, times = task.test[:count], flows.fine_times
    y = ask_frames(model, context, times, flows, overlap)
    if isinstance(model, CST):
        slope = ask_frames(model, context, times, flows, overlap, derivative=True)
    else:
        slope = np.gradient(y, times, axis=1).astype(np.float32)
    shown = shown_times(flows)
    return {
        "fine": squared_error(y, truth),
        "slope": squared_error(slope, slope_truth),
        "roughness": roughness(y.reshape(*y.shape[:2], -1), truth.reshape(*truth.shape[:2], -1)),
        "fields": y[:, shown],
        "slopes": slope[:, shown],
    }


def shown_times(flows: Flows) -> np.ndarray:
    """Indices of the fine times whose fields are kept; they lie halfway between two frames."""
    count, between = len(flows.times) - 1, (len(flows.fine_times) - 1) // (len(flows.times) - 1)
    return np.array([int(share * count) * between + between // 2 for share in SHOWN])


def zoomed_fields(model: CST, task: FlowTask, flows: Flows, overlap: int, count: int, zoom: int) -> dict[str, Arrays]:
    """Compare fields between the pixels, by CST and by up-sampling of its frame, with the solver on the fine grid."""
    time = float(flows.fine_times[shown_times(flows)[1]])
    truth, context = zoomed_truth(flows, count, time, zoom), task.test[:count]
    frame = ask_frames(model, context, np.array([time]), flows, overlap)[:, 0]
    ask, layout = functools.partial(model.predict, context), flows.layout
    fields = {
        ZOOMED: fine_frames(ask, layout, [time], zoom=zoom, overlap=overlap)[:, 0, ..., 0],
        TILED: fine_frames(ask, layout, [time], zoom=zoom, overlap=1)[:, 0, ..., 0],
        FOURIER: fourier_upsampled(frame, zoom),
        BICUBIC: np.stack([bicubic_upsampled(w, zoom) for w in frame]),
        "solver (truth)": truth,
    }
    return {
        name: {
            "mse": np.square(w.astype(np.float64) - truth).mean((1, 2)),
            "seams": seams(w, zoom * flows.patch),
            "field": w[: min(4, count)].astype(np.float32),
        }
        for name, w in fields.items()
    }


def seams(fields: Float[np.ndarray, "N H W"], border: int) -> Float[np.ndarray, " N"]:
    """Mean squared second difference across the borders of patches of ``border`` points, divided by that elsewhere.

    >>> field = np.tile(np.sin(2 * np.pi * np.arange(64) / 64), (1, 64, 1))
    >>> step = field + (np.arange(64) // 8 % 2)
    >>> bool(seams(field, 8)[0] < 1.2), bool(seams(step, 8)[0] > 10)
    (True, True)
    """
    at_borders = elsewhere = 0.0
    for axis in (1, 2):
        second = np.square(np.roll(fields, -1, axis) - 2 * fields + np.roll(fields, 1, axis), dtype=np.float64)
        place = np.arange(fields.shape[axis]) % border
        across = (place == 0) | (place == border - 1)
        at_borders = at_borders + second.compress(across, axis).mean((1, 2))
        elsewhere = elsewhere + second.compress(~across, axis).mean((1, 2))
    return np.asarray(at_borders / elsewhere)


def fourier_upsampled(fields: Float[np.ndarray, "N H W"], zoom: int) -> Float[np.ndarray, "N _ _"]:
    """Trigonometric interpolation of periodic fields onto a grid ``zoom`` times as fine.

    >>> x = np.arange(8) / 8
    >>> fine = fourier_upsampled(np.cos(2 * np.pi * x)[None, :, None].repeat(8, 2), 2)
    >>> bool(np.allclose(fine[0, :, 3], np.cos(2 * np.pi * np.arange(16) / 16)))
    True
    """
    size = fields.shape[1]
    waves = np.fft.fftshift(np.fft.fft2(fields.astype(np.float64)), (1, 2))
    waves[:, 0], waves[:, :, 0] = 0, 0  # the Nyquist frequency: its phase is unknown on the coarse grid
    more = (zoom - 1) * size
    waves = np.pad(waves, ((0, 0), *((more // 2, more - more // 2),) * 2))
    return np.fft.ifft2(np.fft.ifftshift(waves, (1, 2))).real * zoom**2


def bicubic_upsampled(field: Float[np.ndarray, "H W"], zoom: int) -> Float[np.ndarray, "_ _"]:
    """Cubic spline of a periodic field along rows and columns, on a grid ``zoom`` times as fine."""
    row, col = (np.arange(zoom * n) / zoom for n in field.shape)
    return scipy.ndimage.map_coordinates(
        field.astype(np.float64), np.meshgrid(row, col, indexing="ij"), order=3, mode="grid-wrap"
    )
