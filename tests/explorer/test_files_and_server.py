"""Uploads are data only, addresses are anybody's, and beyond loopback nobody enters without the token."""

import json
import pickle
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from small_models import blob, fit_quickly, wave_model, waves

from cstformer import CST, CSTError, Samples, frames_to_samples
from cstformer.data.movie_writers import write_movie
from cstformer.explorer import files

pytest.importorskip("panel")

from cstformer.explorer import server as servers
from cstformer.explorer.exhibits import Exhibit, read_stimulus
from cstformer.explorer.page import APOLOGY, Dropper, Page


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path.read_bytes()


def csv(samples):
    return samples.to_frame().to_csv(index=False).encode()


@pytest.fixture(scope="module")
def film_model():
    samples = frames_to_samples(blob(), patch=(4, 3), window=5, stride=2, times=10 + 0.5 * np.arange(9), time_unit="s")
    return fit_quickly(CST.preset("smoke", steps=1), samples)


# --- Uploads ---


def test_an_uploaded_table_gives_its_samples():
    read = files.read_upload("mine.csv", csv(waves(3)), wave_model())
    assert read.equals(waves(3), tolerance=1e-12)


def test_an_uploaded_movie_is_cut_into_windows_of_the_training(film_model, tmp_path):
    content = npz(tmp_path / "movie.npz", movie=blob(), times=100 + 0.5 * np.arange(9))
    read = files.read_upload("movie.npz", content, film_model)
    assert len(read) == 3 and read.layout == film_model.layout_
    assert np.unique(read.coords[0, :, 0]).tolist() == [0, 0.5, 1, 1.5, 2] and read.origin[:, 0].tolist() == [
        100,
        101,
        102,
    ]


@pytest.mark.parametrize("suffix", ["tif", "nwb"])
def test_recordings_of_a_microscope_are_uploaded_too(film_model, tmp_path, suffix):
    pytest.importorskip("pynwb" if suffix == "nwb" else "tifffile")
    write_movie(tmp_path / f"a.{suffix}", blob(), 10 + 0.5 * np.arange(9))
    read = files.read_upload(f"a.{suffix}", (tmp_path / f"a.{suffix}").read_bytes(), film_model)
    content = npz(tmp_path / "movie.npz", movie=blob(), times=10 + 0.5 * np.arange(9))
    assert read.equals(files.read_upload("movie.npz", content, film_model), tolerance=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.exe", b"MZ", r"a\.exe cannot be read here; upload one of \.npz"),
        ("../../etc/passwd", b"root", "passwd cannot be read here"),
        ("a.npz", b"PK nothing", r"^cannot read a\.npz as"),
        ("a.csv", b"t,y\n0,one\n", r"^a\.csv: column 'y' holds text, such as 'one'"),
        ("a.csv", b"", r"^a\.csv is empty"),
        ("a.tif", b"II", r"^cannot read a\.tif"),
        ("a.nwb", b"no hdf", r"^cannot read a\.nwb"),
        (
            "a.csv",
            b"t,y\n0,1\n1,2\n",
            r"a\.csv: the data have Samples.*1 samples of 2 points.* the model was trained on coordinates t and values",
        ),
    ],
)
def test_bad_uploads_are_refused_in_one_line(name, content, reason):
    with pytest.raises(CSTError, match=reason) as caught:
        files.read_upload(name, content, wave_model())
    assert "/tmp" not in str(caught.value) and "\n" not in str(caught.value)


def test_uploads_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "exploded", "!"))

    objects = np.array([Bomb()], dtype=object)
    np.savez(tmp_path / "a.npz", coords=objects, values=objects)
    for name, content in (("a.npz", (tmp_path / "a.npz").read_bytes()), ("a.npy", pickle.dumps(Bomb()))):
        with pytest.raises(CSTError):
            files.read_upload(name, content, wave_model())
    assert not (tmp_path / "exploded").exists()


def test_uploads_have_a_size(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "MAX_UPLOAD", 1000)
    with pytest.raises(CSTError, match="more than the 0 MB allowed"):
        files.read_upload("a.csv", bytes(1001), wave_model())
    monkeypatch.setattr(files, "MAX_UPLOAD", 10**6)
    monkeypatch.setattr(files, "MAX_ARRAYS", 10**5)
    np.savez_compressed(tmp_path / "a.npz", coords=np.zeros((1, 10**5)), values=np.zeros((1, 10**5, 2)))
    with pytest.raises(CSTError, match="declares 2,400,000 bytes"):
        files.read_upload("a.npz", (tmp_path / "a.npz").read_bytes(), wave_model())


def test_a_place_for_files_holds_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr("cstformer.explorer.page.MAX_UPLOAD", 100)
    drop, refused = Dropper(), []
    drop.refuse = refused.append

    def send(chunk, size):
        data = {"name": "a.csv", "chunk": chunk, "total_chunks": 9, "type": "text/csv", "data": bytes(size)}
        drop._process_event(type("Event", (), {"event_name": "upload_event", "data": data}))

    send(1, 60)
    send(2, 60)
    assert len(refused) == 1 and not drop._file_buffer and not drop.value


# --- Exhibits ---


def test_a_model_with_a_file_of_samples(tmp_path):
    wave_model().save(tmp_path / "model")
    waves(3).save(tmp_path / "curves.csv")
    exhibit = Exhibit.from_file(tmp_path / "model", tmp_path / "curves.csv")
    assert len(exhibit.samples) == 3 and exhibit.stimulus is None
    assert Exhibit.from_file(tmp_path / "model", None).samples is None
    with pytest.raises(CSTError, match="nowhere does not exist") as caught:
        _ = Exhibit.from_file(tmp_path / "nowhere", None).model
    assert str(tmp_path) not in str(caught.value)


def test_the_stimulus_of_a_recording_is_found(tmp_path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(tmp_path / "clean.zarr", mode="w")
    group.create_array("time", data=np.arange(3.0))
    assert read_stimulus(tmp_path / "clean.zarr") is None
    group.create_array("contrast", data=np.array([0.0, 50.0, 0.0]))
    times, contrast = read_stimulus(tmp_path / "clean.zarr")
    assert times.tolist() == [0, 1, 2] and contrast.tolist() == [0, 50, 0]


# --- The page without a browser ---


@pytest.fixture
def exhibits(tmp_path):
    wave_model().save(tmp_path / "model")
    return [Exhibit("waves", tmp_path / "model", lambda model: waves())]


def test_a_view_is_its_address(exhibits):
    page = Page(exhibits, {"sample": "3", "t": "2.5", "value": "y1", "noise": "0.2", "gaps": "2", "with": "cubic"})
    view = page.shown
    assert (view.time.value, view.channel.value, view.noise.value, view.removed.value) == (2.5, "y1", 0.2, 2)
    assert view.others.value == ["cubic"] and view.keep.sum() == 5
    assert page.address.value == "?sample=3&t=2.5&value=y1&noise=0.2&gaps=2&with=cubic"
    page.sample.value = "4"
    assert page.address.value == "?sample=4&t=2.5&value=y1&noise=0.2&gaps=2&with=cubic"


def test_the_interval_is_drawn_unless_it_is_switched_off(tmp_path):
    t, rng = np.linspace(0, 1, 7), np.random.default_rng(0)
    samples = Samples(t, np.sin(6 * (t + rng.uniform(size=(30, 1)))) + 0.1 * rng.normal(size=(30, 7)))
    model = CST.preset("smoke", steps=3, validation=0.2).fit(samples)  # six held-out samples: enough for 80 %
    model.save(tmp_path / "model")
    page = Page([Exhibit("sines", tmp_path / "model", lambda model: samples)], {"sample": "3"})
    view = page.shown
    assert view.area.visible and view.band.label == "80 % interval of CST"
    low, high = model.interval(samples[3], view.times, 0.8)
    np.testing.assert_allclose(view.source.data["low"], low[0, :, 0])
    np.testing.assert_allclose(view.source.data["high"], high[0, :, 0])
    view.band.value = False
    assert not view.area.visible and "band=0" in page.address.value


def test_without_a_calibration_there_is_no_interval(exhibits):
    view = Page(exhibits, {}).shown
    assert view.band.disabled and not view.area.visible and np.isnan(view.source.data["low"]).all()


@pytest.mark.parametrize(
    "query",
    [{"sample": "99"}, {"t": "nan"}, {"t": "1e400"}, {"noise": "-3"}, {"gaps": "1000"}, {"without": "0,-1,x,5"}],
)
def test_addresses_may_be_anything(exhibits, query):
    page = Page(exhibits, {"model": "../..", **query})
    assert page.shown is not None and not page.message.visible


def test_what_cannot_be_done_is_said_and_undone(exhibits):
    page = Page(exhibits, {"without": "0,1,2,3"})
    page.shown.dots.selected.indices = [4]
    assert page.shown.keep.sum() == 2
    page.shown.dots.selected.indices = [5]
    assert "two points at least" in page.message.object and page.message.visible
    assert page.shown.keep.sum() == 2 and page.shown.clicked == {0, 1, 2, 3, 4}
    page.shown.restore.clicks += 1
    assert page.shown.keep.all() and not page.message.visible


def test_errors_of_ours_do_not_show_their_insides(exhibits, monkeypatch, caplog):
    page = Page(exhibits, {})
    monkeypatch.setattr(page.shown, "reader", None)
    page.shown.time.value = 3.0
    assert APOLOGY in page.message.object and "NoneType" not in page.message.object
    assert "NoneType" in caplog.text


def test_a_message_is_text(exhibits):
    page = Page(exhibits, {})
    page.say("<script>")
    assert "<script>" not in page.message.object and "&lt;script&gt;" in page.message.object


def test_an_upload_is_shown_and_a_bad_one_is_not(exhibits):
    page = Page(exhibits, {})
    page.drop.value = {"mine.csv": csv(waves(2, seed=5)).decode()}
    assert page.sample.value == "uploaded: 0" and page.shown.sample.equals(waves(2, seed=5)[0], tolerance=1e-12)
    page.drop.value = {"mine.csv": "t,y\n"}
    assert page.message.visible and page.sample.value == "uploaded: 0"


def test_downloads_can_be_read_back(exhibits, tmp_path):
    pytest.importorskip("netCDF4")
    page = Page(exhibits, {"noise": "0.1"})
    for suffix, write in (("csv", files.as_csv), ("nc", files.as_netcdf)):
        path = tmp_path / f"view.{suffix}"
        path.write_bytes(page._download(write).getvalue())
        read = Samples.load(path)
        np.testing.assert_allclose(read.values[0, :, :2], page.shown.found["CST"][0], rtol=1e-12)
        assert read.coord_names == ("t",) and read.units["y0_t"] == "mV/s"


def test_a_page_of_frames_follows_its_slider(film_model, tmp_path):
    film_model.save(tmp_path / "model")
    samples = frames_to_samples(blob(), (4, 3), 5, 2, times=10 + 0.5 * np.arange(9), time_unit="s")
    stimulus = (10 + 0.25 * np.arange(20), np.full(20, 50.0))
    page = Page([Exhibit("film", tmp_path / "model", lambda m: samples, lambda: stimulus)], {"t": "0.25", "row": "2"})
    view = page.shown
    assert len(view.trace.plots) == 2 and not page.message.visible
    before = view.value.source.data["image"][0].copy()
    view.time.value = 1.75
    after = view.value.source.data["image"][0]
    assert np.abs(after - before).max() > 1 and "t = 1.750 s" in view.value.plot.title.text
    assert "t = 1.500 s" in view.seen.plot.title.text or "t = 2.000 s" in view.seen.plot.title.text
    view.zoom.value = "2×"
    assert view.value.source.data["image"][0].shape == (19, 17)
    view._tap(type("Tap", (), {"x": 7.2, "y": 3.9}))
    assert (view.row.value, view.col.value) == (4, 7) and "row=4&col=7" in page.address.value
    assert page.shown.prediction().coords[0, -1].tolist() == [1.75, 9.0, 8.0]


# --- The server ---


def fetch(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_beyond_loopback_a_token_is_made():
    server, url = servers.make_server(lambda: None, address="0.0.0.0", port=0)
    try:
        assert len(url.split("?token=")[1]) >= 32
    finally:
        server.stop()
    server, url = servers.make_server(lambda: None, port=0)
    try:
        assert url == f"http://127.0.0.1:{server.port}/"
        names = {f"{name}:{server.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        assert server._tornado.websocket_origins == names
        with pytest.raises(CSTError, match="cannot listen on 127"):
            servers.make_server(lambda: None, port=server.port)
    finally:
        server.stop()
    with pytest.raises(CSTError, match="16 characters"):
        servers.make_server(lambda: None, token="short")


@pytest.mark.parametrize("given", ["", "wrong", "secret-of-sixteen-characters-", "ä"])
def test_the_gate_compares_tokens(given):
    gate = servers.TokenGate("secret-of-sixteen-characters")
    handler = Handler(given, None)
    assert gate.get_user(handler) is None and handler.cookies == {}
    assert gate.get_user(Handler(None, given)) is None


class Handler:
    """As much of a request as the gate looks at."""

    def __init__(self, argument, cookie):
        self.argument, self.cookie, self.cookies = argument, cookie, {}
        self.request = type("Request", (), {"headers": {}})

    def get_query_argument(self, name, default):
        return default if self.argument is None else self.argument

    def get_cookie(self, name):
        return self.cookie

    def set_cookie(self, name, value, **options):
        self.cookies[name] = (value, options)


def test_the_gate_opens_for_the_token_and_then_for_its_cookie():
    gate = servers.TokenGate("secret of sixteen characters")
    handler = Handler("secret of sixteen characters", None)
    assert gate.get_user(handler)
    value, options = handler.cookies[servers.COOKIE]
    assert options == {"httponly": True, "samesite": "Strict"}
    assert gate.get_user(Handler(None, value))


def test_runs_show_their_models(tmp_path):
    from cstformer.experiments.finished import trained_models
    from cstformer.experiments.spirals.experiment import EXPERIMENT

    run = tmp_path / "all" / "spirals"
    cell = next(cell for cell in EXPERIMENT.cells(EXPERIMENT.presets["smoke"]) if cell.model == "CST")
    (run / "cells").mkdir(parents=True)
    wave_model().save(run / "cells" / cell.slug / "model")
    about = {"experiment": "spirals", "preset": "smoke", "seed": 0, "config": {"curves": 1}}
    (run / "run.json").write_text(json.dumps(about))
    for folder in (run, run.parent):
        (found,) = trained_models(folder, ["spirals"])
        assert found.label == "CST · clean, regular" and found.folder == run / "cells" / cell.slug / "model"
        assert found.context() is None  # made with other settings than ours
    with pytest.raises(CSTError, match="'spirals', which this version does not know"):
        trained_models(run, ["video"])
    outside = tmp_path / "elsewhere"
    (run / "cells" / cell.slug / "model").rename(outside)
    (run / "cells" / cell.slug / "model").symlink_to(outside)
    with pytest.raises(CSTError, match="no trained model"):
        trained_models(run, ["spirals"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere"], "nowhere does not exist; give a directory written by `cst fit`"),
        (["model", "--data", "nothing.csv"], "cannot read nothing.csv: there is no such file"),
        (["model", "--token", "short"], "--token must have at least 16 characters"),
        (["model", "--address", "not.an.address.invalid"], "cannot listen on not.an.address.invalid"),
        (["model", "--port", "99999"], "cannot listen on 127.0.0.1, port 99999"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, reason, tmp_path, monkeypatch, capsys):
    from cstformer import cli

    monkeypatch.chdir(tmp_path)
    wave_model().save(tmp_path / "model")
    assert cli.main(["explore", *arguments, "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert reason in said and len(said.splitlines()) == 1
