"""A realistic result, with figures drawn from real spirals and cheap stand-ins for the models."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from cstformer.datasets.spirals import make_spirals, regular_indices
from cstformer.report import curves
from cstformer.report.style import save_figure


@dataclass(frozen=True)
class Story:
    """Curves, fits and errors as the spirals experiment would hand them over."""

    fine_times: np.ndarray
    fits: dict[str, np.ndarray]
    observed: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    truth: np.ndarray
    errors: dict[str, np.ndarray]

    def only(self, curve):
        """The arguments of one curve, or of a slice of curves."""
        fits = {name: y[curve] for name, y in self.fits.items()}
        points = [(t, y[curve]) for t, y in (self.observed, self.test)]
        return self.fine_times, fits, points[0], points[1]


@pytest.fixture(scope="session")
def story() -> Story:
    spirals = make_spirals(12, seed=3)
    seen = regular_indices()
    unseen = np.setdiff1d(np.arange(100), seen)
    fine = np.linspace(0, 1, 400)
    truth = spirals.clean_at(fine)
    spline = CubicSpline(spirals.times[seen], spirals.values[:, seen], axis=1)(fine)
    steps = np.round(fine * 30) / 30
    stepped = CubicSpline(fine, truth, axis=1)(steps)
    fits = {"CST": truth + 0.25 * (spline - truth), "Transformer": stepped, "cubic": spline}
    near = np.abs(fine[:, None] - spirals.times[unseen]).argmin(axis=0)
    errors = {
        name: np.linalg.norm(y[:, near] - spirals.values[:, unseen], axis=-1).mean(axis=1) for name, y in fits.items()
    }
    points = [(spirals.times[i], spirals.values[:, i]) for i in (seen, unseen)]
    return Story(fine, fits, points[0], points[1], truth, errors)


def make_row(model, condition, error, roughness, paper=None, parameters=None, seconds=None):
    metrics = {
        "error": {"mean": error[0], "std": error[1], "n": 150},
        "roughness": {"mean": roughness, "std": roughness / 5, "n": 150},
    }
    return {
        "model": model,
        "condition": condition,
        "metrics": metrics,
        "parameters": parameters,
        "train_seconds": seconds,
        "paper": paper,
    }


@pytest.fixture
def result() -> dict:
    clean, noisy = "clean, regular", "noise=0.1,unseen"
    return {
        "experiment": "spirals",
        "preset": "default",
        "seed": 0,
        "settings": {"model": {"width": 64, "layers": 4}, "order": 2, "p": 2, "mu": 1e-6},
        "versions": {"cstformer": "0.1.0", "torch": "2.9.0"},
        "machine": {"cpu": "two cores", "memory": "8 GB"},
        "seconds": 723.4,
        "table": [
            make_row("CST", clean, (0.029812, 0.004071), 1.12, 0.03859, 147_000, 118.2),
            make_row("Transformer", clean, (0.0441, 0.0075), 340.0, 0.04329, 818_000, 300.0),
            make_row("linear", clean, (0.0487, 0.0048), 2500.0),
            make_row("cubic", clean, (0.0376, 0.0035), 1.3),
            make_row("truth", clean, (0.0274, 0.0012), 1.0),
            make_row("CST", noisy, (0.0743, 0.012), 1.4),
            make_row("linear", noisy, (0.1068, 0.019), 9000.0),
        ],
        "tests": [
            {
                "name": "CST vs Transformer",
                "condition": clean,
                "statistic": 12.0,
                "p_value": 3.1e-26,
                "effect": 0.93,
                "n": 150,
            },
            {
                "name": "CST vs cubic",
                "condition": clean,
                "statistic": 3311.5,
                "p_value": 0.00342,
                "effect": 0.41,
                "n": 150,
            },
        ],
        "figures": [],
        "notes": ["Mean Euclidean error, in the units of the data."],
        "command": "cst run spirals --preset default --seed 0",
    }


@pytest.fixture
def run_dir(tmp_path, result, story):
    """A run's folder with two figures."""
    (tmp_path / "figures").mkdir()
    one = save_figure(curves.error_distributions(story.errors), tmp_path / "figures" / "errors.png")
    two = save_figure(curves.error_against_roughness(result["table"][:5]), tmp_path / "figures" / "rough.png")
    result["figures"] = [
        {"file": f"figures/{one.name}", "title": "Errors", "caption": "Each point is one curve."},
        {"file": f"figures/{two.name}", "title": "Smoothness", "caption": "Lower left is better."},
    ]
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path
