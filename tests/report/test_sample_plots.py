"""Pictures in one line: what is drawn is what the samples and the models say."""

import io

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from small_models import blob, fit_quickly, refused, wave_model, waves

from cstformer import CST, Samples, frames_to_samples
from cstformer.baselines import CubicSpline
from cstformer.models.scoring import hide_part
from cstformer.report.sample_plots import MOST_SAMPLES, time_grid


def line(figure, panel, label):
    found = [one for one in figure.axes[panel].lines if one.get_label() == label]
    assert len(found) == 1
    return found[0]


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []


def test_samples_draw_their_observed_points():
    samples = waves()
    values = samples.values.copy()
    values[1, 2:4, 0] = np.nan
    samples = samples.replace(values=values)
    figure = samples.plot()
    assert len(figure.axes) == 2 * MOST_SAMPLES and not figure.legends
    drawn = line(figure, 1, "observed points")  # the first channel of sample 1
    np.testing.assert_array_equal(drawn.get_xdata(), np.delete(samples.coords[1, :, 0], [2, 3]))
    np.testing.assert_array_equal(drawn.get_ydata(), np.delete(samples.values[1, :, 0], [2, 3]))
    assert figure.axes[0].get_ylabel() == "y0 [mV]" and figure.axes[-1].get_xlabel() == "t [s]"
    assert figure.axes[1].get_title() == "sample 1"


def test_a_model_draws_its_curve_beside_the_gaussian_process():
    model, samples = wave_model(), waves()
    figure = model.plot(samples)
    at = time_grid(samples[:MOST_SAMPLES])
    assert labels(figure)[:2] == ["CST", "Gaussian process"]
    curve = line(figure, 2, "CST")
    np.testing.assert_array_equal(curve.get_xdata(), at[2, :, 0])
    np.testing.assert_allclose(curve.get_ydata(), model.predict(samples[:4], at)[2, :, 0])
    # The posterior mean by linear algebra: K(at, t) (K(t, t) + σ² I)⁻¹ z.
    t, z = model.scaling_.coords(samples.coords[0])[:, 0], (samples.values[0] - model.scaling_.mean) / model.scaling_.sd
    kernel = model.kernel_
    where = model.scaling_.coords(at[0])[:, 0]

    def covariance(a, b):
        squared = ((a[:, None] - b) / kernel.lengthscales[0]) ** 2
        return kernel.amplitude**2 * np.exp(-squared / 2) + kernel.offset**2

    weights = np.linalg.solve(covariance(t, t) + kernel.noise**2 * np.eye(len(t)), z)
    expected = covariance(where, t) @ weights * model.scaling_.sd + model.scaling_.mean
    np.testing.assert_allclose(line(figure, 0, "Gaussian process").get_ydata(), expected[:, 0], rtol=1e-6)


def test_rivals_hidden_points_and_channels():
    context, hidden = hide_part(waves())
    spline = CubicSpline().fit(context)
    figure = wave_model().plot(context, rivals=[spline], hidden=hidden, channels=["y1"])
    assert len(figure.axes) == MOST_SAMPLES
    assert set(labels(figure)) >= {"CST", "Cubic spline", "observed points", "hidden points"}
    seen = hidden.observed[0, :, 1]
    np.testing.assert_array_equal(line(figure, 0, "hidden points").get_ydata(), hidden.values[0, seen, 1])
    low, high = figure.axes[0].get_ylim()
    shown = hidden.values[:MOST_SAMPLES, :, 1][hidden.observed[:MOST_SAMPLES, :, 1]]
    assert low < shown.min() and shown.max() < high
    refused(lambda: waves().plot(["speed"]), "channels=['speed']", "y0, y1")


def test_the_band_is_the_interval():
    samples = waves(80, channels=1)
    model = fit_quickly(CST.preset("smoke", steps=1, validation=0.3), samples)
    figure = model.plot(samples, level=0.8)
    assert "80% interval of CST" in labels(figure)
    (band,) = figure.axes[1].collections
    at = time_grid(samples[:MOST_SAMPLES])
    low, high = model.interval(samples[:MOST_SAMPLES], at, 0.8)
    corners = band.get_paths()[0].vertices[:, 1]
    assert corners.min() == pytest.approx(low[1].min()) and corners.max() == pytest.approx(high[1].max())
    assert "90% interval of CST" not in labels(wave_model().plot(waves()))  # one held-out sample says too little
    some = fit_quickly(CST.preset("smoke", steps=1, validation=0.1), samples)  # eight samples allow 88 %
    assert "88% interval of CST" in labels(some.plot(samples))
    refused(lambda: model.plot(samples, level=90), "level must lie between 0 and 1, got 90")


def test_a_wild_rival_does_not_flatten_the_points():
    t = np.array([0.0, 0.1, 0.12, 1.0])
    jump = Samples(t, [[0.0, 0.0, 1.0, 1.0]])  # a cubic spline through these overshoots tenfold
    spline = CubicSpline().fit(jump)
    assert np.abs(spline.predict(jump, time_grid(jump))).max() > 5
    model = fit_quickly(CST.preset("smoke", steps=1), Samples(t, np.tile(jump.values, (6, 1, 1))))
    figure = model.plot(jump, rivals=[spline])
    low, high = figure.axes[0].get_ylim()
    assert -2 < low <= 0 and 1 <= high < 3


def test_a_model_of_windows_draws_whole_recordings():
    recording = waves(1, points=60)
    windows = recording.windows(1.0, 0.5)
    model = fit_quickly(CST.preset("smoke", steps=1), windows)
    figure = model.plot(recording)
    curve = line(figure, 0, "CST")
    assert curve.get_xdata()[-1] == recording.coords[0, -1, 0]
    process = line(figure, 0, "Gaussian process").get_ydata()
    assert np.isfinite(process).all() and np.abs(process - curve.get_ydata()).max() < 10  # the amplitude of the waves


def test_dates_are_dates():
    day = Samples([0.0, 6.0], [[2.0, 3.0]], units={"t": "hours since 2024-05-01T00:00:00"}, origin=[[24.0]])
    drawn = line(day.plot(), 0, "observed points").get_xdata()
    assert drawn.astype(str).tolist() == ["2024-05-02T00:00:00.000000", "2024-05-02T06:00:00.000000"]
    assert day.plot().axes[0].get_xlabel() == "t"


def test_many_points_are_small_and_faint():
    few = line(Samples(np.arange(50.0), np.zeros((1, 50))).plot(), 0, "observed points")
    many = line(Samples(np.arange(4000.0), np.zeros((1, 4000))).plot(), 0, "observed points")
    assert many.get_markersize() < few.get_markersize() / 2 and many.get_alpha() < few.get_alpha() / 3


def test_notebooks_show_the_figure_without_pyplot_or_global_settings():
    before = dict(matplotlib.rcParams)
    picture = imread(io.BytesIO(waves().plot()._repr_png_()), format="png")
    assert picture.shape[0] > 100 and picture.std() > 0
    assert dict(matplotlib.rcParams) == before


def test_movies_are_refused_with_a_hint():
    movie = frames_to_samples(blob(), (5, 5))
    with pytest.raises(ValueError, match="cst explore"):
        movie.plot()
