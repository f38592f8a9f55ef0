"""Figures of the attention experiment: the paper's 3, 11 and 12."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cstformer.experiments.attention.experiment import CONTEXT, GIVEN, LINEAR, METHODS, NORMALISED, TRUTH, UPSAMPLED
from cstformer.experiments.base import Cell, CellResult
from cstformer.report.curves import error_distributions
from cstformer.report.maps import attention_maps
from cstformer.report.style import save_figure


def draw(results: dict[Cell, CellResult], tests: list[dict[str, Any]], out: Path) -> list[dict[str, str]]:
    """Draw all of them for every system; their entries in `result.json`."""
    made: list[dict[str, str]] = []

    def add(file: str, title: str, caption: str, figure: Any) -> None:
        save_figure(figure, out / file)
        made.append({"file": file, "title": title, "caption": caption})

    for cell, result in results.items():
        system, arrays = cell.condition, result.arrays
        slug, layer = cell.slug.removeprefix("cst-"), arrays[f"map {TRUTH}"].shape[1] - 1
        best = LINEAR if system == CONTEXT else NORMALISED
        ticks = {name: (arrays["rows"], arrays["columns"]) for name in (TRUTH, UPSAMPLED, LINEAR, NORMALISED)}
        ticks[GIVEN] = (arrays["given"], arrays["given"])

        def maps(curve: int, layer: int, names: tuple[str, ...], arrays: Any = arrays) -> dict[str, np.ndarray]:
            return {name: arrays[f"map {name}"][curve, layer] for name in names}

        add(
            f"figure3_{slug}.png",
            f"Attention of one test curve ({system})",
            "Paper's Figure 3. Last layer, average of its heads: the map of a model that is told the values at the new "
            "coordinates, the map of the given points alone, CST's up-sampling, which is told coordinates only, and "
            "linear interpolation of the small map.",
            attention_maps([maps(0, layer, (TRUTH, GIVEN, UPSAMPLED, best))], ticks),
        )
        curves = range(len(arrays[f"map {TRUTH}"]))
        add(
            f"figure11_{slug}.png",
            f"Attention of more curves ({system})",
            "Paper's Figure 11. Last layer, average of its heads; each row is a test curve.",
            attention_maps(
                [maps(i, layer, (TRUTH, UPSAMPLED, best)) for i in curves],
                ticks,
                names=[f"curve {i + 1}" for i in curves],
            ),
        )
        condition = f"{system}, all layers"
        errors = {name: arrays[f"average {name}"].mean(1) for name in METHODS if f"average {name}" in arrays}
        add(
            f"figure12_{slug}.png",
            f"Error of up-sampled attention ({system})",
            "Paper's Figure 12. L2 norm over the entries that involve new coordinates, mean over layers of the maps "
            "averaged over heads; every point is a test curve.",
            error_distributions(errors, [t for t in tests if t["condition"] == condition], ylabel="error of the map"),
        )
    return made
