"""Figures of the spirals experiment: the paper's 2, 6, 7, 8, 9 and 10, and error against roughness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cstformer.experiments.base import Cell, CellResult
from cstformer.experiments.spirals import experiment as experiment
from cstformer.experiments.spirals.experiment import (
    BERT,
    BERT_AUGMENTED,
    CLEAN,
    CST_DEFAULT,
    CST_PAPER,
    NOISY,
    SpiralTask,
)
from cstformer.report import curves
from cstformer.report.style import save_figure

# Systems whose smoothness is compared; of the ablations, those that touch it.
_ROUGH = (CST_DEFAULT, CST_PAPER, BERT, "linear", "cubic", "GP", "CST with linear start")

Errors = dict[tuple[str, str], np.ndarray]
Curves = int | list[int]


def draw(
    config,
    seed: int,
    results: dict[Cell, CellResult],
    errors: Errors,
    table: list[dict],
    tests: list[dict],
    out: Path,
) -> list[dict[str, str]]:
    """Draw every figure whose rows are there; their entries in `result.json`."""
    p_values = {name: [t for t in tests if t["condition"] == name] for name in (CLEAN, NOISY)}
    fits = {(cell.model, cell.condition): result.arrays["fine"] for cell, result in results.items()}
    made: list[dict[str, str]] = []

    def add(file: str, title: str, caption: str, figure) -> None:
        save_figure(figure, out / file)
        made.append({"file": file, "title": title, "caption": caption})

    clean = experiment.spiral_task(config.curves, CLEAN, seed)
    pair = _present(fits, CLEAN, [CST_DEFAULT, BERT])
    one, several = _typical(errors, CLEAN, 1), _typical(errors, CLEAN, 4)
    if len(pair) == 2:
        add(
            "figure2_overview.png",
            "Spirals: CST and the Transformer between the observed points",
            "Paper's Figure 2. A: a test curve of median error in the plane, asked at 1000 coordinates. B: its "
            "components against time. C: a closer look. D: error of each test curve at its unseen points.",
            curves.spiral_overview(
                clean.fine,
                _of(pair, one[0]),
                _observed(clean, one[0]),
                _test_points(clean, one[0]),
                _errors(errors, CLEAN, pair),
                truth=clean.clean_fine[one[0]],
                p_values=p_values[CLEAN],
            ),
        )
        add(
            "figure7_more_spirals.png",
            "More spirals",
            "Paper's Figure 7. Four test curves from the best to the worst quarter of CST's errors.",
            curves.more_spirals(
                clean.fine,
                _of(pair, several),
                _observed(clean, several),
                _test_points(clean, several),
                truth=clean.clean_fine[several],
            ),
        )
    add(
        "figure6_example.png",
        "A spiral",
        "Paper's Figure 6. One test curve: ten observed points, the unseen points, the noise-free curve.",
        curves.example_spiral(
            clean.fine,
            {},
            _observed(clean, one[0]),
            _test_points(clean, one[0]),
            truth=clean.clean_fine[one[0]],
        ),
    )
    names = [CST_DEFAULT, CST_PAPER, BERT, BERT_AUGMENTED]
    if len(_present(fits, CLEAN, names)) > 2:
        add(
            "figure9_augmentation.png",
            "Gaussian augmentation is not what makes CST good",
            "Paper's Figure 9. Error of each test curve on clean data; the Transformer with and without "
            "the augmentation.",
            curves.error_distributions(_errors(errors, CLEAN, _present(fits, CLEAN, names)), p_values[CLEAN]),
        )
    names = [CST_DEFAULT, "linear", "cubic", "GP"]
    chosen = _present(fits, NOISY, names)
    if len(chosen) > 1:
        noisy = experiment.spiral_task(config.curves, NOISY, seed)
        add(
            "figure8_noisy.png",
            "Noisy spirals",
            "Paper's Figure 8. Fits of points observed with noise N(0, 0.1), over the noise-free curve.",
            curves.noisy_spirals(
                noisy.fine,
                _of({k: chosen[k] for k in list(chosen)[:3]}, several),
                _observed(noisy, several),
                noisy.clean_fine[several],
            ),
        )
        add(
            "figure10_noisy_errors.png",
            "Errors on noisy spirals",
            "Paper's Figure 10. Error of each test curve at its unseen points, against the file's values.",
            curves.error_distributions(_errors(errors, NOISY, chosen), p_values[NOISY]),
        )
    for condition, file in ((CLEAN, "roughness_clean.png"), (NOISY, "roughness_noisy.png")):
        rows = [r for r in table if r["condition"] == condition and r["model"] in _ROUGH]
        if len(rows) > 1:
            add(
                file,
                f"Error and roughness ({condition})",
                "Down and left is better; a roughness of 1 is as smooth as the noise-free curve.",
                curves.error_against_roughness(rows),
            )
    histories = {c.condition: r.facts["history"] for c, r in results.items() if c.model == CST_DEFAULT}
    if histories:
        add(
            "learning_curves.png",
            "CST during training",
            "Validation loss in the model's units, at hidden real points of held-out training curves; the dot is the "
            "moment whose weights are kept. Noise in the data is a floor that no model can pass.",
            curves.learning_curves(histories),
        )
    return made


def _present(fits: dict[tuple[str, str], np.ndarray], condition: str, names: list[str]) -> dict[str, np.ndarray]:
    return {name: fits[name, condition] for name in names if (name, condition) in fits}


def _typical(errors: Errors, condition: str, count: int) -> list[int]:
    """Test curves spread evenly over the ranks of CST's error (or of whatever row there is)."""
    key = (CST_DEFAULT, condition) if (CST_DEFAULT, condition) in errors else next(iter(errors))
    order = np.argsort(errors[key])
    return [int(order[int((k + 0.5) / count * len(order))]) for k in range(count)]


def _of(fits: dict[str, np.ndarray], which: Curves) -> dict[str, np.ndarray]:
    return {name: y[which] for name, y in fits.items()}


def _observed(task: SpiralTask, which: Curves) -> tuple[np.ndarray, np.ndarray]:
    return task.test.coords[which, :, 0], task.test.values[which]


def _test_points(task: SpiralTask, which: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Unseen points; every curve has equally many of them."""
    index = np.nonzero(task.unseen)[1].reshape(len(task.unseen), -1)[which]
    return task.times[index], np.take_along_axis(task.values[which], index[..., None], -2)


def _errors(errors: Errors, condition: str, fits: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: errors[name, condition] for name in fits}
