from __future__ import annotations

import itertools
import threading
from unittest.mock import patch

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from PIL import Image

from cstformer.errors import CSTError
from cstformer.report import curves, style

# Style ------------------------------------------------------------------------------------------------------


def test_the_colours_that_readers_know_do_not_change():
    assert style.colour_of("CST") == "#D55E00"
    assert style.colour_of("Transformer") == "#0072B2"
    assert style.colour_of("cubic spline") == style.colour_of("spline") == style.colour_of("cubic")
    assert style.colour_of("unheard of") == style.colour_of("unheard of")


def test_colours_are_distinct_and_stay_distinct_for_colour_blind_readers():
    assert len(set(style.COLOURS.values())) == len(style.COLOURS)
    assert not set(style.COLOURS.values()) & set(style.FALLBACK)
    # Deuteranopia (Machado et al. 2009, severity 1.0), on the systems that share a figure of curves.
    simulate = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    together = ("CST", "Transformer", "linear", "cubic", "GP", "truth", "observed")
    seen = np.array([simulate @ to_rgb(style.COLOURS[name]) for name in together])
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(len(seen))
    assert distance.min() > 0.12


def test_variants_and_strangers_in_one_figure_get_colours_of_their_own():
    names = [
        "Transformer, σ=0",
        "Transformer, σ=0.1",
        "Transformer",
        "CST",
        "CST (paper)",
        "new a",
        "new b",
        "new c",
    ]
    colours = style.colours_of(names)
    assert list(colours) == names
    assert len(set(colours.values())) == len(names)
    assert colours["Transformer"] == style.COLOURS["Transformer"]  # not taken by a variant that came first


def test_style_leaves_no_trace(story):
    before = dict(matplotlib.rcParams)
    figure = curves.error_distributions(story.errors)
    assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].yaxis.label.get_fontsize() == style.STYLE["axes.labelsize"]
    assert not figure.axes[0].spines["top"].get_visible()


def test_figures_can_be_made_outside_of_the_main_thread(story, tmp_path):
    made = []
    thread = threading.Thread(
        target=lambda: made.append(style.save_figure(curves.error_distributions(story.errors), tmp_path / "a.png"))
    )
    thread.start()
    thread.join()
    assert made == [tmp_path / "a.png"]


def test_save_figure_writes_both_formats_and_nothing_else(tmp_path):
    def make():
        figure, axes = style.new_figure(1, 2, size=(4, 2))
        axes[0, 0].plot([0, 1])
        return figure

    figure = make()
    assert style.save_figure(figure, tmp_path / "a.png", svg=True) == tmp_path / "a.png"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.png", "a.svg"]
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (600, 300)  # 150 dpi
    first = (tmp_path / "a.png").read_bytes()
    style.save_figure(make(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == first
    with pytest.raises(CSTError, match=r"saved as \.png"):
        style.save_figure(figure, tmp_path / "a.pdf")
    with pytest.raises(CSTError, match="does not exist"):
        style.save_figure(figure, tmp_path / "nowhere" / "a.png")


# Curves -----------------------------------------------------------------------------------------------------


def lines_of_colour(ax, colour):
    return [line for line in ax.get_lines() if to_hex(line.get_color()).upper() == colour]


def labels_of(figure):
    return {(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes}


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def overlaps(figure):
    """Pairs of texts that cover each other, among those really drawn (not ticks beyond the limits)."""
    boxes, draw = [], Text.draw

    def record(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            boxes.append((self.get_text(), self.get_window_extent(renderer)))
        return draw(self, renderer, *args, **kwargs)

    figure.draw_without_rendering()
    with patch.object(Text, "draw", record):
        figure.draw_without_rendering()
    assert boxes
    pairs = itertools.combinations(boxes, 2)
    return [(a, b) for (a, one), (b, two) in pairs if one.shrunk(0.95, 0.85).overlaps(two.shrunk(0.95, 0.85))]


def test_overview_has_the_four_panels_of_figure_2(story):
    times, fits, observed, test = story.only(slice(0, 2))
    fits = {name: fits[name] for name in ("CST", "Transformer")}
    errors = {name: story.errors[name] for name in fits}
    figure = curves.spiral_overview(
        times, fits, observed, test, errors, truth=story.truth[:2], p_values={("CST", "Transformer"): 1e-7}
    )
    assert {ax.get_title(loc="left") for ax in figure.axes} >= {"A", "B", "C", "D"}
    assert labels_of(figure) >= {
        ("component 1", "component 2"),
        ("time t", "component 2"),
        ("time t", "its slope"),
    }
    assert legend_of(figure) == ["CST", "Transformer", "noise-free curve", "observed points", "unseen points"]
    assert any(text.get_text() == "P < 0.0001" for ax in figure.axes for text in ax.texts)
    plane = next(ax for ax in figure.axes if ax.get_title(loc="left") == "A")
    (first, _second) = lines_of_colour(plane, "#D55E00")
    np.testing.assert_array_equal(first.get_xydata(), fits["CST"][0])
    assert not overlaps(figure)


def test_overview_zooms_where_it_is_told_or_where_the_fits_differ_most(story):
    times, fits, observed, test = story.only(0)
    bent = fits["CST"].copy()
    bent[:, 1] += 0.8 * np.exp(-(((times - 0.7) / 0.03) ** 2))
    fits = {"CST": fits["CST"], "Transformer": bent}
    errors = {name: story.errors[name] for name in fits}

    def closer(**options):
        figure = curves.spiral_overview(times, fits, observed, test, errors, **options)
        return next(ax for ax in figure.axes if ax.get_title(loc="left") == "C")

    assert closer().get_ylabel() == "component 2"
    assert closer().get_xlim()[0] < 0.7 < closer().get_xlim()[1]
    assert closer(zoom=(0.1, 0.2)).get_xlim() == (0.1, 0.2)
    with pytest.raises(CSTError, match="zoom must lie within"):
        closer(zoom=(0.5, 2.0))


def test_overview_draws_the_derivatives_it_is_given(story):
    times, fits, observed, test = story.only(0)
    fits = {"CST": fits["CST"]}
    slope = np.full((len(times), 2), 7.0)
    figure = curves.spiral_overview(
        times, fits, observed, test, {"CST": story.errors["CST"]}, derivatives={"CST": slope}
    )
    ax = next(ax for ax in figure.axes if ax.get_ylabel() == "its slope")
    np.testing.assert_array_equal(lines_of_colour(ax, "#D55E00")[0].get_ydata(), slope[:, 0])


def test_example_spiral_shows_data_with_or_without_fits(story):
    times, fits, observed, test = story.only(1)
    bare = curves.example_spiral(times, {}, observed, test, truth=story.truth[1])
    assert legend_of(bare) == ["noise-free curve", "observed points", "unseen points"]
    assert {("component 1", "component 2"), ("time t", "component 2")} <= labels_of(bare)
    points = lines_of_colour(bare.axes[0], "#000000")[0]
    np.testing.assert_array_equal(points.get_xydata(), observed[1])
    full = curves.example_spiral(times, fits, observed, title="One curve")
    assert legend_of(full) == ["CST", "Transformer", "cubic", "observed points"]
    assert full.legends[0].get_title().get_text() == "One curve"
    assert not overlaps(full)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_more_and_noisy_spirals_are_grids_of_systems_and_curves(story, count):
    times, fits, observed, test = story.only(slice(0, count))
    more = curves.more_spirals(times, fits, observed, test)
    noisy = curves.noisy_spirals(times, fits, observed, story.truth[:count])
    for figure in (more, noisy):
        assert len(figure.axes) == len(fits) * count
        assert figure.axes[0].get_ylabel() == "component 2"
        assert figure.axes[-1].get_xlabel() == "component 1"
        for ax in figure.axes:  # the same scale on both axes: a circle is a circle
            assert np.isclose(np.ptp(ax.get_xlim()), np.ptp(ax.get_ylim()))
        assert not overlaps(figure)
    assert len(lines_of_colour(noisy.axes[0], "#B5B5B5")) == 1
    assert not lines_of_colour(more.axes[0], "#B5B5B5")
    # Each row shows its own system only.
    assert lines_of_colour(more.axes[0], "#D55E00") and not lines_of_colour(more.axes[0], "#0072B2")


def test_irregular_times_differ_from_curve_to_curve(story):
    times, fits, (t, y), test = story.only(slice(0, 2))
    own = np.stack([t, t**2])
    figure = curves.example_spiral(times, fits, (own, y), test)
    np.testing.assert_array_equal(lines_of_colour(figure.axes[1], "#000000")[0].get_xdata(), t)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"fits": {"CST": np.zeros((5, 2))}}, "the times of fine_times must be"),
        (lambda a: a | {"fits": {"CST": np.zeros((400, 3))}}, r"fits\['CST'\] must be"),
        (lambda a: a | {"truth": np.zeros((399, 2))}, "truth has 399 points"),
        (lambda a: a | {"observed": (np.zeros(9), np.zeros((10, 2)))}, "the times of observed must be"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(story, change, message):
    times, fits, observed, test = story.only(0)
    arguments = {
        "fine_times": times,
        "fits": fits,
        "observed": observed,
        "test": test,
        "truth": story.truth[0],
    }
    with pytest.raises(CSTError, match=message):
        curves.example_spiral(**change(arguments))


def test_too_many_curves_or_none_are_refused(story):
    times, fits, observed, test = story.only(slice(0, 9))
    with pytest.raises(CSTError, match="at most 8"):
        curves.more_spirals(times, fits, observed, test)
    with pytest.raises(CSTError, match="fits is empty"):
        curves.more_spirals(times, {}, observed, test)


def test_error_distributions_show_every_curve_the_mean_and_p(story):
    figure = curves.error_distributions(
        story.errors,
        [
            {"name": "CST vs Transformer", "condition": "clean", "p_value": 3e-9},
            {"name": "paired Wilcoxon: cst vs cubic", "condition": "clean", "p_value": 0.0123},
            {"name": "CST vs cubic", "condition": "noisy", "p_value": 0.9},
            {"name": "CST vs absent", "condition": "clean", "p_value": 0.5},
        ],
        condition="clean",
        title="Errors",
    )
    ax = figure.axes[0]
    assert sorted(text.get_text() for text in ax.texts) == ["P < 0.0001", "P = 0.012"]
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks[0] == f"CST\nmean {story.errors['CST'].mean():.4f}"
    cloud = lines_of_colour(ax, "#D55E00")[0]
    np.testing.assert_array_equal(np.sort(cloud.get_ydata()), np.sort(story.errors["CST"]))
    assert ax.get_ylabel() == "mean error at unseen points"
    assert figure.get_suptitle() == "Errors"
    # Brackets stand above the data.
    top = max(e.max() for e in story.errors.values())
    lowest_bracket = min(
        line.get_ydata().max()
        for line in ax.get_lines()
        if line.get_transform() != ax.transData and len(line.get_xdata()) == 4
    )
    assert ax.transAxes.inverted().transform(ax.transData.transform((0, top)))[1] < lowest_bracket
    assert not overlaps(figure)


def test_error_distributions_take_few_equal_and_distant_errors(story):
    figure = curves.error_distributions({"CST": [0.02], "linear": [0.02, 0.02, 0.02, 0.02, 0.02, 0.02]})
    assert figure.axes[0].get_yscale() == "linear"
    far = curves.error_distributions({"CST": story.errors["CST"], "FNO3D": 40 * story.errors["CST"]})
    assert far.axes[0].get_yscale() == "log"
    with pytest.raises(CSTError, match="at least one finite number"):
        curves.error_distributions({"CST": [np.nan]})
    with pytest.raises(CSTError, match="'absent'"):
        curves.error_distributions({"CST": [1.0]}, {("CST", "absent"): 0.1})


def test_error_against_roughness_labels_every_model_once_and_apart(result):
    rows = result["table"]
    crowd = [dict(row, model=f"CST variant {i}") for i, row in enumerate([rows[0]] * 4)]
    figure = curves.error_against_roughness(rows[:5] + crowd, condition="clean, regular")
    ax = figure.axes[0]
    texts = [text.get_text() for text in ax.texts]
    expected = [row["model"] for row in rows[:5] + crowd]
    assert sorted(texts) == sorted(expected)
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "mean error at unseen points",
        "roughness (1 = noise-free curve)",
    )
    offsets = np.asarray(ax.collections[0].get_offsets())
    np.testing.assert_allclose(offsets[0], [0.029812, 1.12])
    plain = curves.error_against_roughness(rows, condition="clean, regular")
    assert not overlaps(plain)
    with pytest.raises(CSTError, match="no row has both metrics"):
        curves.error_against_roughness(rows, roughness="bumpiness")


def test_learning_curves_are_logarithmic_and_mark_the_best():
    history = [(0, 1.0), (100, 0.1), (200, 0.3), (300, float("nan"))]
    figure = curves.learning_curves({"CST": history, "Transformer": [(0, 0.5), (300, 0.4)], "empty": []})
    ax = figure.axes[0]
    assert ax.get_yscale() == "log"
    assert legend_of(figure) == ["CST", "Transformer"]
    line, best = lines_of_colour(ax, "#D55E00")
    np.testing.assert_array_equal(line.get_xydata(), history[:3])
    np.testing.assert_array_equal(best.get_xydata(), [(100, 0.1)])
    assert ax.get_xlabel() == "training step" and ax.get_ylabel()
    with pytest.raises(CSTError, match="positive finite score"):
        curves.learning_curves({"CST": [(0, -1.0)]})
