"""Files and folders are replaced whole or not at all."""

import errno
import itertools
import shutil
import threading
from pathlib import Path

import pytest

from cstformer.errors import CSTError
from cstformer.system import atomic
from cstformer.system.atomic import atomic_path, scratch_folder


def test_atomic_path_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with (
        pytest.raises(CSTError, match=r"cannot write .*x.txt: No space left on device"),
        atomic_path(path) as tmp,
    ):
        tmp.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as tmp:
        tmp.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with atomic_path(path) as tmp:
        assert tmp.suffix == ".txt"
        tmp.write_text("new")
    assert path.read_text() == "new"
    with (
        pytest.raises(CSTError, match=r"folder .* does not exist; make it first"),
        atomic_path(tmp_path / "no" / "x"),
    ):
        pass
    with pytest.raises(CSTError, match="cannot write"), atomic_path(path):
        pass  # nothing was written


def test_atomic_path_replaces_directories(tmp_path):
    path = tmp_path / "model"
    for text in ("old", "new"):
        with atomic_path(path) as tmp:
            tmp.mkdir()
            (tmp / text).write_text(text)
    assert [f.name for f in path.iterdir()] == ["new"] and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(CSTError, match="it is a folder, not a file"), atomic_path(path) as tmp:
        tmp.write_text("file")
    assert (path / "new").exists()


@pytest.mark.parametrize("guard", [scratch_folder, atomic_path])
def test_a_failure_is_told_and_cleared_while_threads_still_write(tmp_path, guard, monkeypatch):
    """A thread of a Zarr store makes its folder again when it is gone; here three times."""
    late, remove = iter(range(3)), shutil.rmtree

    def remove_and_lose(path, **options):
        remove(path, **options)
        for number in itertools.islice(late, 1):
            path.mkdir()
            (path / f"{number}").write_bytes(b"chunk")

    monkeypatch.setattr(shutil, "rmtree", remove_and_lose)
    with pytest.raises((CSTError, OSError), match="No space left on device"), guard(tmp_path / "a.zarr") as folder:
        folder.mkdir(exist_ok=True)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert next(late, None) is None
    assert not list(tmp_path.iterdir())


def write_folder(path: Path, number: int) -> None:
    with atomic_path(path) as temporary:
        temporary.mkdir()
        (temporary / "number").write_text(str(number))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_is_replaced_and_nothing_is_left(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    for number in range(3):
        write_folder(tmp_path / "a", number)
        assert (tmp_path / "a/number").read_text() == str(number)
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_a_folder_is_never_absent_while_it_is_replaced(tmp_path):
    write_folder(tmp_path / "a", 0)
    if not atomic._exchange(tmp_path / "a", tmp_path / "a"):
        pytest.skip("this file system cannot exchange two folders in one step")
    done, absent = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            absent.append(not (tmp_path / "a").exists())

    watcher = threading.Thread(target=look)
    watcher.start()
    for number in range(200):
        write_folder(tmp_path / "a", number)
    done.set()
    watcher.join()
    assert len(absent) > 200
    assert not any(absent)
