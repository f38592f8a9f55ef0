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


def test_a_long_series_opens_with_a_part_of_it_and_a_closer_look_shows_more():
    shown = view(2000)
    t = shown.sample.coords[0, shown.sample.point_observed[0], 0]
    visible = (t >= shown.view.start) & (t <= shown.view.end)
    assert 190 < visible.sum() < 220 and shown.view.start < shown.time.value < shown.view.end
    middle = float(shown.time.value)
    shown.look(middle - 0.01, middle + 0.01)  # as the wheel does
    assert (shown.times[0], shown.times[-1]) == (middle - 0.01, middle + 0.01)
    expected = shown.reader.partials(shown.times[:, None], ((0,),))[0][0, :, 0]
    assert shown.source.data["CST0"] == pytest.approx(expected) and shown.prediction().n == len(shown.times)
    shown.time.value = shown.time.start  # the view follows the slider
    assert shown.view.start <= shown.time.start <= shown.view.end and shown.times[0] == shown.time.start
    few = view(10)
    assert (few.times[0], few.times[-1]) == few.whole


def test_the_wheel_zooms_in_time():
    for plot in view(10).plots:
        tool = plot.toolbar.active_scroll
        assert isinstance(tool, WheelZoomTool) and tool.dimensions == "width"
