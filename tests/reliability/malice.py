"""A payload whose execution leaves a trace, and the check that a reader refused it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cstformer import CSTError


class Malice:
    """An object that makes a folder `harm` in the working directory when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


def harmless(here: Path, *words: str, read: Callable[[], object]) -> None:
    """Assert that `read` raises one line with these words, and that nothing has run."""
    with pytest.raises(CSTError) as caught:
        read()
    assert not (here / "harm").exists()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
