"""Frames that are written as they come: the same bits from memory, after a kill, by workers; and little memory."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr
from processes import FORKS, starved, wait_for
from small_models import blob, fit_quickly, refused

from cstformer import CST, CSTError, frames_to_samples, load_movie
from cstformer.models import movie_answers, streaming
from cstformer.models.streaming import MovieQuestion, answer_movie, unfinished

AT = np.arange(0, 11.1, 0.5)
FRAME = (8, 7)
BLOCK = 4  # frames


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    samples = frames_to_samples(blob(12, *FRAME), (4, 4), 4, 1)
    fit_quickly(CST.preset("smoke", steps=1), samples).save(path)
    return path


@pytest.fixture
def movie(tmp_path):
    zarr.create_array(tmp_path / "movie.zarr", data=blob(12, *FRAME).astype(np.float32), chunks=(5, *FRAME))
    return tmp_path / "movie.zarr"


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(movie_answers, "BLOCK_BYTES", BLOCK * 8 * 56)


def ask(model, movie, **changes) -> MovieQuestion:
    return MovieQuestion(
        **{"model": str(model), "context": str(movie), "at": AT.tolist(), "index": (0, 0, 0)} | changes
    )


def frames(path):
    return load_movie(path)[0]


@pytest.mark.parametrize("suffix", ["zarr", "tif"])
def test_the_same_bits_as_in_memory(model, movie, tmp_path, small_blocks, suffix):
    out, question = tmp_path / f"out.{suffix}", ask(model, movie)
    assert answer_movie(question, out) == (23, *FRAME)
    answer, times = load_movie(out)
    expected = question.answers().in_memory(AT)[0]
    np.testing.assert_array_equal(answer, expected.astype(np.float32))
    np.testing.assert_array_equal(times, AT)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["movie.zarr", out.name]
    if suffix == "tif":
        with tifffile.TiffFile(out) as file:
            assert file.is_imagej and file.imagej_metadata["finterval"] == 0.5


def test_blocks_are_no_more_than_rounding_in_the_pattern_context(model, movie, small_blocks, monkeypatch):
    blocks = ask(model, movie).answers().in_memory(AT)
    monkeypatch.setattr(movie_answers, "BLOCK_BYTES", 2**26)
    np.testing.assert_allclose(ask(model, movie).answers().in_memory(AT), blocks, rtol=1e-5)


def _answer_slowly(question: MovieQuestion, out: Path) -> None:
    movie_answers.BLOCK_BYTES = BLOCK * 8 * 56
    write = streaming.write_frames
    streaming.write_frames = lambda *a: (time.sleep(0.2), write(*a))
    answer_movie(question, out)


@pytest.mark.parametrize("suffix", ["zarr", "tif"])
def test_a_killed_answer_goes_on_to_the_same_bits(model, movie, tmp_path, small_blocks, monkeypatch, suffix):
    answer_movie(ask(model, movie), tmp_path / f"whole.{suffix}")
    out = tmp_path / f"out.{suffix}"
    done = unfinished(out) / streaming.DONE
    process = FORKS.Process(target=_answer_slowly, args=(ask(model, movie), out))
    process.start()
    wait_for(lambda: (done / "1").exists(), process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not out.exists()
    before = {int(f.name) for f in done.iterdir()}
    written, write = [], streaming.write_frames
    monkeypatch.setattr(streaming, "write_frames", lambda *a: (written.append(a[1] // BLOCK), write(*a)))
    answer_movie(ask(model, movie), out)
    assert {0, 1} <= before and sorted(written) == sorted(set(range(6)) - before)
    np.testing.assert_array_equal(frames(out), frames(tmp_path / f"whole.{suffix}"))
    assert not unfinished(out).exists()


def test_workers_write_the_same_bits(model, movie, tmp_path, small_blocks):
    distributed = pytest.importorskip("distributed")
    answer_movie(ask(model, movie), tmp_path / "here.zarr")
    options = {"processes": False, "dashboard_address": ":0", "protocol": "inproc://"}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        answer_movie(ask(model, movie), tmp_path / "there.zarr", scheduler=cluster.scheduler_address)
    np.testing.assert_array_equal(frames(tmp_path / "there.zarr"), frames(tmp_path / "here.zarr"))


@pytest.mark.long
def test_one_of_two_workers_is_killed(model, tmp_path, small_blocks):
    distributed = pytest.importorskip("distributed")
    zarr.create_array(tmp_path / "movie.zarr", data=blob(400, *FRAME).astype(np.float32), chunks=(5, *FRAME))
    question = ask(model, tmp_path / "movie.zarr", at=np.arange(0, 399, 0.5).tolist())
    out = tmp_path / "there.zarr"
    answer_movie(question, tmp_path / "here.zarr")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:

        def kill() -> None:
            while not (unfinished(out) / streaming.DONE / "5").exists():
                time.sleep(0.01)
            os.kill(cluster.workers[0].process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        answer_movie(question, out, scheduler=cluster.scheduler_address)
        killer.join()
    np.testing.assert_array_equal(frames(out), frames(tmp_path / "here.zarr"))


def test_another_question_does_not_continue(model, movie, tmp_path, small_blocks, monkeypatch):
    out = tmp_path / "out.zarr"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "write_frames", stop)
        with pytest.raises(KeyboardInterrupt):
            answer_movie(ask(model, movie), out)
    other = ask(model, movie, at=[1.0, 2.0])
    refused(lambda: answer_movie(other, out), "unfinished work on another question", "--overwrite")
    zarr.open_array(movie, mode="r+")[0, 0, 0] = 7
    refused(lambda: answer_movie(ask(model, movie), out), "the recording or the model has changed")
    assert answer_movie(other, out, overwrite=True) == (2, *FRAME)
    unfinished(tmp_path / "b.zarr").mkdir()
    refused(lambda: answer_movie(other, tmp_path / "b.zarr"), "a folder with other data")


def test_times_outside_are_refused_before_any_work(model, movie, tmp_path):
    question = ask(model, movie, at=[1.0, 500.0])
    refused(lambda: answer_movie(question, tmp_path / "out.zarr"), "outside the training domain")
    assert [f.name for f in tmp_path.iterdir()] == ["movie.zarr"]


def _answer(question: MovieQuestion, out: Path) -> None:
    movie_answers.BLOCK_BYTES = 2**22
    answer_movie(question, out)


def wide_movie(folder: Path, count: int) -> MovieQuestion:
    """Ask a movie of 256 kB a frame at three times its frame rate."""
    frames = np.zeros((6, 256, 256))
    frames[:, 100:200] = np.arange(6)[:, None, None]
    model = CST.preset("smoke", steps=1, start="linear")
    fit_quickly(model, frames_to_samples(frames, (32, 32), 3, 1)).save(folder / "model")
    movie = zarr.create_array(folder / "movie.zarr", shape=(count, 256, 256), chunks=(8, 256, 256), dtype="f4")
    movie[::20] = 1.0
    return ask(folder / "model", folder / "movie.zarr", at=np.linspace(0, count - 1, 3 * count).tolist())


def test_memory_does_not_grow_with_the_movie(tmp_path):
    """150 frames are 79 MB in memory, and take no more than 30 frames."""
    question = wide_movie(tmp_path, 50)
    few = replace(question, at=question.at[:30])
    taken = []
    for name, asked in (("few", few), ("all", question)):
        outcome, why, grown = starved(2**30, _answer, asked, tmp_path / f"{name}.zarr")
        assert outcome == "done", why
        taken.append(grown)
    assert taken[1] - taken[0] < 20 * 2**20
    with pytest.raises(CSTError, match=r"the answer has .* bytes, more than the free memory; .*zarr"):
        question.answers().in_memory([1.0] * 10**6)
