"""Fixtures of the reliability tests."""

import pickle

import pytest
from malice import Malice


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory in which the payload has been shown to run."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Malice()))
    (tmp_path / "harm").rmdir()
    return tmp_path
