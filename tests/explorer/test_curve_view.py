"""The view of curves, without a browser: what is drawn of long series, and what the wheel does."""

import pytest
from small_models import wave_model, waves

pytest.importorskip("panel")

from bokeh.models import WheelZoomTool

from cstformer.explorer.curve_view import CurveView


def view(points):
    return CurveView(wave_model(), waves(1, points=points), {}, lambda act: act)


def markers(shown):
    (found,) = [r for r in shown.plots[0].renderers if getattr(r.glyph, "fill_color", None) == "fill"]
    return found.glyph


def test_points_of_a_long_series_do_not_hide_the_curve():
    few, many = markers(view(10)), markers(view(2000))
    assert (few.size, few.fill_alpha) == (9.0, 1.0)
    assert many.size < 4 and many.fill_alpha < 0.3


def test_the_ranges_follow_the_curve_of_cst_and_the_points():
    shown = view(10)
    for order, plot in enumerate(shown.plots):
        ranged = plot.y_range.renderers
        assert shown.glyphs[order]["CST"] in ranged
        assert shown.glyphs[order]["cubic"] not in ranged and shown.glyphs[order]["linear"] not in ranged
    assert shown.area in shown.plots[0].y_range.renderers and len(shown.plots[0].y_range.renderers) == 3


def test_the_wheel_zooms_in_time():
    for plot in view(10).plots:
        tool = plot.toolbar.active_scroll
        assert isinstance(tool, WheelZoomTool) and tool.dimensions == "width"
