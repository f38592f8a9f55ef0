"""Fixtures of the tests of training."""

import pytest
from toy_training import Clock

from cstformer.training import loop


@pytest.fixture
def clock(monkeypatch):
    """A clock for the loop that only the test moves."""
    fake = Clock()
    monkeypatch.setattr(loop, "time", fake)
    return fake
