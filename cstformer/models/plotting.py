"""A picture of what a model answers: its curve through the points of a context, beside a rival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from cstformer.data.checks import check_context, extrapolation
from cstformer.data.samples import Samples
from cstformer.report.sample_plots import MOST_SAMPLES, Picture, check_curves, plot_samples, time_grid

if TYPE_CHECKING:
    from cstformer.models.model import Model


def plot_model(
    model: Model,
    context: Samples,
    rivals: Sequence[Model] | None = None,
    level: float | None = None,
    hidden: Samples | None = None,
    channels: Sequence[str] | None = None,
) -> Picture:
    """Draw the curve of a model, see `Model.plot`."""
    context = check_curves(check_context(context))[:MOST_SAMPLES]
    hidden = None if hidden is None else hidden[:MOST_SAMPLES]
    at = time_grid(*(part for part in (context, hidden) if part is not None))
    with extrapolation():  # a picture shows all points of the context
        curves = {model.label: model.predict(context, at)}
        if rivals is None and model.kernel_ is not None:
            curves["Gaussian process"] = _process(model, context, at)
        curves |= {rival.label: rival.predict(context, at) for rival in rivals or ()}
        if level is None and (calibration := getattr(model, "calibration_", None)) is not None:
            level = calibration.usual_level
        interval = getattr(model, "interval", None)  # of CST; rivals have none
        band = None if interval is None or level is None else interval(context, at, level)
    return plot_samples(context, curves, at, band, f"{level or 0:.0%} interval of {model.label}", hidden, channels)


def _process(model: Model, context: Samples, at: np.ndarray) -> np.ndarray:
    """Posterior mean, in the user's units, of the Gaussian process that was fitted to the training data."""

    def mean(context: Samples, queries: np.ndarray, _: object) -> list[np.ndarray]:
        batch = model.kind_.batch(context, torch.float64, torch.device("cpu"))
        scaled = torch.as_tensor(model.scaling_.coords(queries))
        return [model.scaling_.values(model.kind_.posterior_mean(batch)(scaled).numpy())]

    return model._in_windows(*model._inputs(context, at), [(0,)], mean)[0]
