"""The picture of an evaluation: one held-out sample, and the errors of all models at the hidden points of all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from cstformer.data.samples import Samples
from cstformer.report.distributions import draw_distributions
from cstformer.report.layout import legend_above
from cstformer.report.sample_plots import PlotTimes, draw_panel, label_of
from cstformer.report.style import PAGE_WIDTH, new_figure, panel_letter, styled


@styled
def plot_evaluation(
    errors: Mapping[str, Float[np.ndarray, " N"]],
    context: Samples,
    hidden: Samples,
    curves: Mapping[str, Float[np.ndarray, "1 m c"]],
    at: Float[np.ndarray, "1 m 1"],
) -> Figure:
    """Draw the errors of each model, and the curves of some of them for one sample.

    Parameters
    ----------
    errors : mean squared error of each held-out sample by model, in units of the training variance
    context, hidden : one held-out sample without its hidden points, and these points; the first channel is drawn
    curves, at : values of models for this sample, and where; without curves, only the errors are drawn
    """
    fig, axes = new_figure(2 if curves else 1, 1, (PAGE_WIDTH, 5.6 if curves else 3.4))
    if curves:
        ax = axes[0, 0]
        draw_panel(ax, context, 0, 0, PlotTimes(context), curves, at, hidden=hidden)
        ax.set_title(f"held-out sample {context.sample_ids[0]}")
        ax.set_xlabel(label_of(context, context.coord_names[0]))
        ax.set_ylabel(label_of(context, context.value_names[0]))
        legend_above(fig, *ax.get_legend_handles_labels())
        panel_letter(ax, "A")
        panel_letter(axes[1, 0], "B")
    draw_distributions(axes[-1, 0], {name: np.sqrt(error) for name, error in errors.items()}, None, None)
    axes[-1, 0].set_title("error of each held-out sample at its hidden points")
    axes[-1, 0].set_ylabel("RMSE [sd of the training values]")
    return fig
