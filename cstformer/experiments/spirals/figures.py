"""Figures of the spirals experiment: the paper's 2, 6, 7, 8, 9 and 10, and error against roughness.

Those called the paper's draw its models, trained as it says; the default CST has figures of its own or stands beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.figures import PlannedFigure, learning_figure
from cstformer.experiments.spirals.rows import BERT, BERT_AUGMENTED, CST_DEFAULT, CST_PAPER, Config
from cstformer.experiments.spirals.task import CLEAN, NOISY, SpiralTask, spiral_task
from cstformer.report import curves

# Rows whose smoothness is compared: of the ablations, only the one that changes it.
_ROUGH = (CST_DEFAULT, CST_PAPER, BERT, "linear", "cubic", "GP", "CST with linear start")

Errors = dict[tuple[str, str], np.ndarray]
Fits = dict[tuple[str, str], np.ndarray]
"""Predictions on the fine grid, by row and condition."""
Curves = int | list[int]


def planned_figures(
    config: Config,
    seed: int,
    results: dict[Cell, CellResult],
    errors: Errors,
    table: list[dict[str, Any]],
    tests: list[dict[str, Any]],
) -> Iterator[PlannedFigure]:
    """Every figure whose rows have been computed."""
    fits = {(cell.model, cell.condition): result.arrays["fine"] for cell, result in results.items()}
    yield from _clean_figures(spiral_task(config.curves, CLEAN, seed), fits, errors, tests)
    yield from _noisy_figures(spiral_task(config.curves, NOISY, seed), fits, errors, tests)
    for condition, file in ((CLEAN, "roughness_clean.png"), (NOISY, "roughness_noisy.png")):
        rows = [row for row in table if row["condition"] == condition and row["model"] in _ROUGH]
        if len(rows) > 1:
            yield PlannedFigure(
                file,
                f"Error and roughness ({condition})",
                "Lower and further left is better; a roughness of 1 is that of the noise-free curve.",
                partial(curves.error_against_roughness, rows),
            )
    yield from learning_figure(
        {c.condition: r.facts["history"] for c, r in results.items() if c.model == CST_DEFAULT},
        "Validation loss in the model's units, at hidden points of held-out training curves. The dot marks the step "
        "whose weights are kept. The noise in the data sets a floor that no model can pass.",
    )


def _clean_figures(
    task: SpiralTask, fits: Fits, errors: Errors, tests: list[dict[str, Any]]
) -> Iterator[PlannedFigure]:
    """The paper's Figures 2, 6, 7 and 9."""
    p_values = [test for test in tests if test["condition"] == CLEAN]
    pair, own = (_present(fits, CLEAN, names) for names in ([CST_PAPER, BERT], [CST_DEFAULT, BERT]))
    one, several = _typical(errors, CLEAN, 1)[0], _typical(errors, CLEAN, 4)
    points = _observed(task, one), _test_points(task, one)
    if len(pair) == 2:
        yield PlannedFigure(
            "figure2_overview.png",
            "Spirals: CST and the Transformer between the observed points",
            f"Paper's Figure 2, with its models and their training. {_OVERVIEW}",
            partial(_overview, task, errors, pair, one, p_values),
        )
        yield PlannedFigure(
            "figure7_more_spirals.png",
            "More spirals",
            "Paper's Figure 7. Four test curves, one from each quarter of CST's errors, lowest to highest.",
            partial(
                curves.more_spirals,
                task.fine,
                _of(pair, several),
                _observed(task, several),
                _test_points(task, several),
                truth=task.clean_fine[several],
            ),
        )
    if len(own) == 2:
        yield PlannedFigure(
            "overview.png",
            "Spirals: the default CST and the Transformer",
            f"As the paper's Figure 2, with the default CST. {_OVERVIEW}",
            partial(_overview, task, errors, own, one, p_values),
        )
    yield PlannedFigure(
        "figure6_example.png",
        "A spiral",
        "Paper's Figure 6. One test curve: ten observed points, the unseen points, the noise-free curve.",
        partial(curves.example_spiral, task.fine, {}, *points, truth=task.clean_fine[one]),
    )
    four = _present(fits, CLEAN, [CST_DEFAULT, CST_PAPER, BERT, BERT_AUGMENTED])
    if len(four) > 2:
        yield PlannedFigure(
            "figure9_augmentation.png",
            "Gaussian augmentation",
            "Paper's Figure 9. Error of each test curve on clean data; the Transformer with and without "
            "the augmentation.",
            partial(curves.error_distributions, _errors(errors, CLEAN, four), p_values),
        )


def _noisy_figures(
    task: SpiralTask, fits: Fits, errors: Errors, tests: list[dict[str, Any]]
) -> Iterator[PlannedFigure]:
    """The paper's Figures 8 and 10."""
    several = _typical(errors, CLEAN, 4)
    chosen = _present(fits, NOISY, [CST_PAPER, "linear", "cubic", CST_DEFAULT, "GP"])
    if len(chosen) < 2:
        return
    yield PlannedFigure(
        "figure8_noisy.png",
        "Noisy spirals",
        "Paper's Figure 8. Fits of points observed with noise N(0, 0.1), over the noise-free curve.",
        partial(
            curves.noisy_spirals,
            task.fine,
            _of({name: chosen[name] for name in list(chosen)[:4]}, several),
            _observed(task, several),
            task.clean_fine[several],
        ),
    )
    yield PlannedFigure(
        "figure10_noisy_errors.png",
        "Errors on noisy spirals",
        "Paper's Figure 10. Error of each test curve at its unseen points, against the file's values.",
        partial(
            curves.error_distributions,
            _errors(errors, NOISY, chosen),
            [test for test in tests if test["condition"] == NOISY],
        ),
    )


_OVERVIEW = (
    "A: a test curve of median error in the plane, predicted at 1000 coordinates. B: its components against time. C: a "
    "closer look. D: error of each test curve at its unseen points."
)


def _overview(task: SpiralTask, errors: Errors, pair: Any, one: int, p_values: list[dict[str, Any]]) -> Any:
    return curves.spiral_overview(
        task.fine,
        _of(pair, one),
        _observed(task, one),
        _test_points(task, one),
        _errors(errors, CLEAN, pair),
        truth=task.clean_fine[one],
        p_values=p_values,
    )


def _present(fits: Fits, condition: str, names: list[str]) -> dict[str, np.ndarray]:
    return {name: fits[name, condition] for name in names if (name, condition) in fits}


def _typical(errors: Errors, condition: str, count: int) -> list[int]:
    """Test curves spread evenly over the ranks of CST's error, or of the first row's if CST has none."""
    key = (CST_DEFAULT, condition) if (CST_DEFAULT, condition) in errors else next(iter(errors))
    order = np.argsort(errors[key])
    return [int(order[int((k + 0.5) / count * len(order))]) for k in range(count)]


def _of(fits: dict[str, np.ndarray], which: Curves) -> dict[str, np.ndarray]:
    return {name: y[which] for name, y in fits.items()}


def _observed(task: SpiralTask, which: Curves) -> tuple[np.ndarray, np.ndarray]:
    return task.test.coords[which, :, 0], task.test.values[which]


def _test_points(task: SpiralTask, which: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Unseen points; all curves have the same number of them."""
    index = np.nonzero(task.unseen)[1].reshape(len(task.unseen), -1)[which]
    return task.times[index], np.take_along_axis(task.values[which], index[..., None], -2)


def _errors(errors: Errors, condition: str, fits: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: errors[name, condition] for name in fits}
