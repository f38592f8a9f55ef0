"""The calcium experiment: its data, its decoder, its numbers, and runs that were interrupted."""

import dataclasses
import os

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsRegressor
from stopped_runs import Stopped, stop_and_go_on

from cstformer.baselines import BASELINES
from cstformer.data.patches import samples_to_frames
from cstformer.data.samples import Samples
from cstformer.datasets.calcium.recording import contrast_label
from cstformer.experiments import base
from cstformer.experiments.calcium import decoding, rows, task, waves
from cstformer.experiments.calcium import experiment as calcium
from cstformer.experiments.calcium import recording as real
from cstformer.experiments.calcium.measures import (
    ALL_FRAMES,
    ANSWER,
    BETWEEN,
    CHOSEN,
    LATENT,
    RECONSTRUCTION,
    _features,
)
from cstformer.models.cst import CST
from cstformer.report.results_page import write_results_md
from cstformer.report.tables import load_result

pytest.importorskip("dask")
pytest.importorskip("zarr")

CONFIG = dataclasses.replace(calcium.EXPERIMENT.presets["smoke"], training=1, scored=1, segments=30, rings=(4, 2))
DATA = os.environ.get("CST_DATA", "")
ROWS = [
    *("cst", rows.FOR_DECODING, "lstm", "raw data", "linear", "modes-gp", "blind-spot", rows.BLURRED_START, rows.BLUR),
    *(rows.MAIN, waves.FINITE),
]


class Recorded(Stopped, calcium.CalciumExperiment):
    presets = {"smoke": CONFIG}  # noqa: RUF012


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A folder as CST_DATA names it, with a small recording: a spot that goes round."""
    folder = tmp_path_factory.mktemp("data")
    path = folder / real.FILE
    path.parent.mkdir()
    row, col = np.meshgrid(np.arange(24.0), np.arange(28.0), indexing="ij")
    t = np.arange(42.0)
    spot = [np.exp(-((row - 12 - 5 * np.sin(k / 4)) ** 2 + (col - 14 - 5 * np.cos(k / 4)) ** 2) / 30) for k in t]
    frames = np.stack(spot) + 0.01 * np.random.default_rng(0).standard_normal((42, 24, 28))
    frames[:, 0, 0] = 1.0  # a dead pixel
    mask = np.hypot(row - 12, col - 14) < 9
    np.savez(path, jrgeco_dff=frames.astype(np.float16), mask_greencam=mask, t_s=t)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CST_DATA", str(folder))
        real.load_cortex.cache_clear()
        yield folder
    real.load_cortex.cache_clear()


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, data_folder):
    """A smoke run of some rows that was stopped in the middle and given again."""
    return stop_and_go_on(Recorded, tmp_path_factory.mktemp("runs") / "smoke", ROWS)


@pytest.fixture(scope="module")
def animals(smoke):
    return calcium._animals(CONFIG, 0, smoke[1])


def test_an_interrupted_run_goes_on(smoke):
    _, out, before, after = smoke
    assert len(before) == 3 and not set(before) & set(after)
    wanted = {calcium.EXPERIMENT.row_name(name) for name in ROWS}
    assert {*before, *after} == {cell for cell in calcium.EXPERIMENT.cells(CONFIG) if cell.model in wanted}
    assert len(list((out / "animals").glob("*.zarr"))) == CONFIG.training + CONFIG.scored


def test_every_row_and_condition(smoke):
    result, out, *_ = smoke
    found = {}
    for row in result["table"]:
        found.setdefault(row["condition"], set()).add(row["model"])
    frames = {*CONFIG.rows, "LSTM", "raw data", "linear", rows.MODES_GP, "DeepInterpolation"}
    kinds = ("", ", last frame", ", received")
    maps = [f"{layer}{kind}" for layer in ("layer 1", "layer 2", "all layers") for kind in kinds]
    ways = {row: {f"{row}, {way}" for way in (ANSWER, *maps)} for row in CONFIG.rows}
    ways["raw data"] = {f"raw data, {way}" for way in (ANSWER, ALL_FRAMES)}
    splits = (decoding.BLOCKED, decoding.RANDOM)
    assert found == {
        RECONSTRUCTION: frames,
        BETWEEN: frames,
        **{f"decoding, {split}": frames for split in splits},
        **{f"decoding, {split}, all ways for {row}": ways[row] for split in splits for row in ways},
        "recording, frames in between": {rows.BLURRED_START, rows.BLUR, "linear"},
        rows.RINGS: {"CST", waves.FINITE},
    }
    files = {figure["file"] for figure in result["figures"]}
    assert files == {
        *(f"{kind}_{row}.png" for kind in ("stimulus", "contrast") for row in ("cst_for_frames", "cst_for_decoding")),
        *("decoding.png", "between.png", "recording.png"),
        *("speed_recording.png", "speed_ring.png", "speed_errors.png", "learning_curves.png"),
    }
    assert all((out / file).stat().st_size > 5000 for file in files)
    text = write_results_md([load_result(out)], out / "RESULTS.md").read_text()
    assert "decoding, blocked split (n = 1)" in text


def test_numbers_follow_from_the_stored_arrays(smoke):
    result, out, *_ = smoke

    def stored(name):
        arrays = np.load(out / "cells" / base.Cell(name, rows.SIMULATED).slug / "arrays.npz")
        return arrays[f"{decoding.BLOCKED} {CHOSEN}"]

    table = {(row["model"], row["condition"]): row for row in result["table"]}
    mine = stored(rows.FOR_DECODING)
    row = table[rows.FOR_DECODING, "decoding, blocked split"]
    assert row["metrics"]["MSE"]["mean"] == pytest.approx(mine[:, 0].mean())
    assert row["metrics"]["R²"]["mean"] == pytest.approx(mine[:, 1].mean())
    assert result["tests"] == []  # one animal is not enough
    decoded = next(entry for entry in result["main"] if "stimulus" in entry["question"])
    assert decoded["CST"]["mean"] == table[rows.FOR_DECODING, "decoding, random split"]["metrics"]["R²"]["mean"]
    assert table["raw data", "decoding, random split"]["paper"] == 0.595
    chosen = next(note for note in result["notes"] if note.startswith("Chosen: ")).removeprefix("Chosen: ")
    way = next(part for part in chosen.split("; ") if rows.FOR_DECODING in part).split("'")[1]
    of_way = table[f"{rows.FOR_DECODING}, {way}", f"decoding, blocked split, all ways for {rows.FOR_DECODING}"]
    assert of_way["metrics"] == row["metrics"]


def test_training_animals_are_not_scored(animals):
    assert list(animals.test) == [1]
    assert animals.simulation(0).seed == 0 and animals.simulation(1).seed == task.FRESH


def test_every_row_is_decoded_from_what_it_offers(animals):
    animal = task.load_animal(animals, 1)
    context = task.segments(animals, animal, np.array([430, 450, 480]))
    raw = _features(BASELINES["copy"]().fit(context), True, context)
    last = context.coords[0, :, 0] == context.coords[0, :, 0].max()
    np.testing.assert_allclose(raw[ANSWER], context.values[:, last & context.point_observed[0]])
    np.testing.assert_array_equal(raw[ALL_FRAMES], context.values)
    network = BASELINES["lstm"].preset("smoke", steps=1).fit(context)
    assert list(_features(network, False, context)) == [ANSWER, LATENT]


def test_the_explorer_gets_segments_and_the_stimulus(smoke):
    _, out, *_ = smoke
    context = calcium.EXPERIMENT.context(rows.SIMULATED, CONFIG, 0, out)
    clock, label = calcium.EXPERIMENT.stimulus(rows.SIMULATED, CONFIG, 0, out)
    assert len(context) == CONFIG.shown and clock[0] <= context.origin[0, 0] <= clock[-1]
    assert len(label) == len(clock) and set(np.unique(label)) <= set(contrast_label([0, 2, 5, 10, 20, 50, 100]))
    assert calcium.EXPERIMENT.stimulus(rows.RINGS, CONFIG, 0, out) is None


def test_segments_are_the_frames_of_the_recording(animals):
    animal = task.load_animal(animals, 1)
    assert animal.first_test == 420 and len(animal.clock) == 600  # a minute at 10 Hz
    starts = np.array([430, 500])
    some = task.segments(animals, animal, starts)
    frames = samples_to_frames(some)[..., 0]
    np.testing.assert_allclose(frames, animal.frames[starts[:, None] + np.arange(animals.window)])
    np.testing.assert_allclose(some.origin[:, 0], animal.clock[starts])
    train = task.training_samples(animals)
    assert train.origin[:, 0].max() + 0.5 <= animal.clock[animal.first_test] and len(train) == 21
    with pytest.raises(task.CSTError, match="begin them inside"):
        task.segments(animals, animal, np.array([599]))


def test_the_cleaned_frames_follow_the_truth(animals):
    """Averaged over the many pixels of the cortex, the cleaned signal follows the truth."""
    animal = task.load_animal(animals, 0)
    starts = task.shown_starts(animals, animal, 30)
    times = animal.clock[: animals.window]
    truth = task.true_frames(animals, 0, starts, times)[..., animal.mask].mean(-1).ravel()
    index = starts[:, None] + np.arange(animals.window)
    seen = (animal.sd * animal.frames[index])[..., animal.mask].mean(-1).ravel()
    assert np.corrcoef(seen, truth)[0, 1] > 0.6
    slope = np.polyfit(truth, seen, 1)[0]
    assert 0.4 < slope < 1.6


def test_scores_of_movies_worked_by_hand():
    truth = np.array([[0.0, 2.0], [4.0, 6.0]])
    scores = task.movie_scores(truth + np.array([[1.0, 0.0], [0.0, 0.0]]), truth)
    assert scores["R²"] == pytest.approx(1 - 1 / 20)
    assert scores["R² of a frame"] == pytest.approx(1 - 0.25)  # the median of 1 − 1/2 and 1
    assert scores["R² of a pixel"] == pytest.approx(1 - 1 / 16)  # the mean of 1 − 1/8 and 1


def test_components_from_inner_products_are_those_of_pca():
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 200)) @ random.standard_normal((200, 200)) + 3
    split = decoding.random_splits(60, seed=1)[0]
    train, test = decoding.component_scores(decoding.inner_products(x), split)
    pca = PCA(10, svd_solver="full").fit(x[split[0]])
    for mine, theirs in ((train, pca.transform(x[split[0]])), (test, pca.transform(x[split[1]]))):
        np.testing.assert_allclose(np.abs(mine), np.abs(theirs), rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


def test_the_decoder_is_pca_and_nearest_neighbours():
    random = np.random.default_rng(1)
    x, y = random.standard_normal((50, 30)), random.standard_normal(50)
    splits = decoding.random_splits(50, seed=2)
    errors = []
    for train, test in splits:
        pca = PCA(10, svd_solver="full").fit(x[train])
        nearest = KNeighborsRegressor(3).fit(pca.transform(x[train]), y[train])
        errors.append(np.square(nearest.predict(pca.transform(x[test])) - y[test]).mean())
    assert decoding.decode(decoding.inner_products(x), y, splits)[0] == pytest.approx(np.mean(errors), rel=1e-3)


def test_a_label_that_is_in_the_features_is_decoded_and_noise_is_not():
    random = np.random.default_rng(2)
    label = contrast_label(random.choice([0, 10, 100], 200))
    features = np.outer(label, random.standard_normal(40)) + 0.05 * random.standard_normal((200, 40))
    splits = decoding.random_splits(200, seed=0)
    assert decoding.decode(decoding.inner_products(features), label, splits)[1] > 0.95
    assert decoding.decode(decoding.inner_products(random.standard_normal((200, 40))), label, splits)[1] < 0.1


def test_blocked_splits_share_no_frame_where_random_ones_do():
    starts = np.sort(np.random.default_rng(0).permutation(800)[:300])
    for train, test in decoding.blocked_splits(starts, 10, 140, seed=0):
        assert np.abs(np.subtract.outer(starts[train], starts[test])).min() >= 10
        assert 0.5 < len(train) / (len(train) + len(test)) < 0.85
    near = [np.abs(np.subtract.outer(starts[a], starts[b])).min() for a, b in decoding.random_splits(300, 0)]
    assert max(near) < 10


def test_attention_is_summed_up_as_it_says():
    t = np.linspace(0, 1, 3)
    frames = np.random.default_rng(0).standard_normal((4, 3, 4, 6, 1))
    frames[:, :, :2, :3] = np.nan  # the first patch has no cortex
    context = task.frames_to_samples(frames, (2, 3), times=t)
    model = CST.preset("smoke", steps=1, order=0, hide=0.0, noise=0.0).fit(context)
    found = decoding.segment_attention(model, context)
    at = decoding.last_frame(context)
    assert len(at) == 3
    maps = model.attention(context, at)
    real_ones = maps.maps[..., maps.exists[0]] * 9
    assert maps.exists[0].sum() == 9
    np.testing.assert_allclose(found.ways["layer 2"], real_ones[:, 1].mean(1), rtol=2e-3)
    np.testing.assert_allclose(found.ways["layer 1, received"], real_ones[:, 0].mean(2), rtol=1e-5)
    last = maps.columns[0, maps.exists[0], 0] == 1
    np.testing.assert_allclose(found.ways["all layers, last frame"], real_ones.mean((1, 2))[..., last], rtol=2e-3)
    assert np.isnan(found.received[:, 0, 0]).all() and np.isfinite(found.received[:, [0, 1, 1], [1, 0, 1]]).all()
    np.testing.assert_allclose(found.received[:, [0, 1, 1], [1, 0, 1]], real_ones.mean((1, 2, 3))[:, last], rtol=1e-5)


def test_the_recording_is_scored_inside_the_mask(data_folder):
    cortex = real.load_cortex(0)
    assert cortex.clean.shape[1:] == (24, 25) and np.isfinite(cortex.clean).all()
    inside = cortex.clean[:, cortex.mask]
    np.testing.assert_allclose(inside.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(inside.std(0), 1, atol=1e-6)
    assert (cortex.noisy - cortex.clean).std() == pytest.approx(0.3, rel=0.02)
    assert cortex.given.tolist() == list(range(0, 42, 3)) and cortex.between.max() == 38
    perfect = cortex.clean[cortex.between].copy()
    perfect[:, ~cortex.mask] += 100
    assert (real.between_scores(cortex, perfect)["all"] == 1).all()
    train = real.given_samples(cortex, cortex.noisy[cortex.given])
    assert (train.origin[:, 0] + train.coords[..., 0].max(1)).max() < 0.7 * 42


def test_interpolation_of_the_recording_and_of_its_windows_agree(data_folder):
    cortex = real.load_cortex(0)
    frames = cortex.noisy[cortex.given]
    model = BASELINES["linear"]().fit(real.given_samples(cortex, frames))
    with np.errstate(all="ignore"):
        windows = real.ask_model(model, cortex, frames, overlap=1)
    np.testing.assert_allclose(windows, real.interpolated(cortex, "linear"), atol=1e-6)
    middle = (frames[0] * 2 + frames[1]) / 3
    np.testing.assert_allclose(real.interpolated(cortex, "linear")[0], middle, atol=1e-9)


def test_rings_move_with_their_velocity():
    rings = waves.make_rings(20, 0.0, 0)
    for i in range(20):
        velocity, steep = rings.truth(i)
        speed = np.hypot(*velocity)[steep]
        np.testing.assert_allclose(speed, rings.speed[i])
        assert 3 <= waves.PIXEL_MM * rings.speed[i] <= 12
    slow = int(np.argmin(rings.speed / rings.width))
    found = waves.classical_velocity(waves.FINITE, rings.frames[slow])
    errors = waves.ring_errors(rings, np.stack([found] * 20))
    assert errors["speed"][slow] < 0.1 and errors["direction"][slow] < 3
    flow = waves.classical_velocity(waves.FLOW, rings.frames[slow])
    assert waves.ring_errors(rings, np.stack([flow] * 20))["direction"][slow] < 20


def test_presets_make_models_that_accept_their_settings(monkeypatch):
    monkeypatch.setattr(real, "recording_file", lambda: real.FILE)
    for preset in calcium.EXPERIMENT.presets.values():
        cells = calcium.EXPERIMENT.cells(preset)
        assert len(cells) == len(set(cells))
        for cell in cells:
            if cell.model in (*waves.METHODS, rows.BLUR):
                continue
            model = rows.make_model(cell.model, preset, seed=3)
            getattr(model, "_check_settings", lambda: None)()
            assert model.seed == 3
    trained = [c for c in calcium.EXPERIMENT.cells(rows.Config()) if c.model.startswith("CST")]
    assert len(trained) + len(rows.RIVALS) == 12  # twelve trainings, those on animals with several seeds
    assert rows.make_model(rows.WIDE_LFADS, rows.Config(), 0).factors == 100
    assert rows.make_model("LFADS", rows.Config(), 0).factors == 40
    assert calcium.EXPERIMENT.row_name("lfads") == "LFADS"
    paper = rows.make_model(rows.BASE, calcium.EXPERIMENT.presets["paper"], 0)
    assert (paper.width, paper.layers, paper.heads, paper.attention_kind) == (768, 12, 12, "nystrom")


def test_without_the_recording_its_rows_are_left_out(monkeypatch, tmp_path):
    for value in ("", str(tmp_path)):
        monkeypatch.setenv("CST_DATA", value)
        assert all(cell.condition != rows.RECORDING for cell in calcium.EXPERIMENT.cells(CONFIG))
    assert any("left out" in note for note in calcium._notes(CONFIG, {}))
    real.load_cortex.cache_clear()
    with pytest.raises(task.CSTError, match="set CST_DATA"):
        real.load_cortex(0)


@pytest.mark.long
def test_the_whole_smoke_run(tmp_path, data_folder):
    result = base.run_experiment(calcium.EXPERIMENT, "smoke", tmp_path / "run", quiet=True, jobs=2)
    names = {row["model"] for row in result["table"] if row["condition"] == "decoding, blocked split"}
    assert names == {*rows.Config().rows, *rows.RIVALS, *rows.CLASSICAL}
    table = {row["model"] for row in result["table"] if row["condition"] == rows.RINGS}
    assert table == {"CST", *waves.METHODS}


@pytest.mark.long
def test_the_real_recording_has_the_known_scores(monkeypatch):
    monkeypatch.setenv("CST_DATA", DATA)  # other tests have a folder of their own
    if real.recording_file() is None:
        pytest.skip(f"CST_DATA names no folder with {real.FILE}")
    real.load_cortex.cache_clear()
    cortex = real.load_cortex(0)
    for kind, known in (("linear", 0.931), ("cubic", 0.906), ("blur", 0.977)):
        scores = real.between_scores(cortex, real.interpolated(cortex, kind))
        assert scores["all"][0] == pytest.approx(known, abs=0.0015)
    assert isinstance(real.given_samples(cortex, cortex.blurred()), Samples)
