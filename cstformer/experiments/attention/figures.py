"""Figures of the attention experiment: the paper's 3, 11 and 12."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cstformer.experiments.attention.maps import CONTEXT, GIVEN, LINEAR, METHODS, NORMALISED, TRUTH, UPSAMPLED
from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.figures import PlannedFigure
from cstformer.report.curves import error_distributions
from cstformer.report.maps import attention_maps


def planned_figures(results: dict[Cell, CellResult], tests: list[dict[str, Any]]) -> Iterator[PlannedFigure]:
    """Three figures for each system."""
    for cell, result in results.items():
        system, arrays = cell.condition, result.arrays
        slug, curves = cell.slug.removeprefix("cst-"), range(len(arrays[f"map {TRUTH}"]))
        best = LINEAR if system == CONTEXT else NORMALISED
        ticks = {name: (arrays["rows"], arrays["columns"]) for name in (TRUTH, UPSAMPLED, LINEAR, NORMALISED)}
        ticks[GIVEN] = (arrays["given"], arrays["given"])
        yield PlannedFigure(
            f"figure3_{slug}.png",
            f"Attention of one test curve ({system})",
            "Paper's Figure 3. Last layer, average of its heads. From the left: the map of a model that is told the "
            "values at the new coordinates; the map of the given points alone; CST's up-sampling, which is told the "
            "coordinates only; linear interpolation of the small map.",
            partial(attention_maps, [_last_layer(arrays, 0, (TRUTH, GIVEN, UPSAMPLED, best))], ticks),
        )
        yield PlannedFigure(
            f"figure11_{slug}.png",
            f"Attention of more curves ({system})",
            "Paper's Figure 11. Last layer, average of its heads; each row is a test curve.",
            partial(
                attention_maps,
                [_last_layer(arrays, i, (TRUTH, UPSAMPLED, best)) for i in curves],
                ticks,
                names=[f"curve {i + 1}" for i in curves],
            ),
        )
        yield PlannedFigure(
            f"figure12_{slug}.png",
            f"Error of up-sampled attention ({system})",
            "Paper's Figure 12. L2 norm over the entries that involve new coordinates, of maps averaged over heads; "
            "mean over layers. Every point is a test curve.",
            partial(
                error_distributions,
                {name: arrays[f"average {name}"].mean(1) for name in METHODS if f"average {name}" in arrays},
                [test for test in tests if test["condition"] == f"{system}, all layers"],
                ylabel="error of the map",
            ),
        )


def _last_layer(arrays: dict[str, np.ndarray], curve: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {name: arrays[f"map {name}"][curve, -1] for name in names}
