"""Versions of the software that a result depends on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that numbers depend on."""
    names = ("cstformer", "torch", "lightning", "numpy", "scipy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
