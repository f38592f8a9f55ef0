"""One thread, run-time checks of the annotated shapes and types of the mathematical core, and a browser."""

import os
import shutil
import sys
import types

import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

torch.set_num_threads(1)

# Only the core: elsewhere tests hand over wrong types on purpose, to read the package's own errors.
CORE = (
    "network",
    "starts.gaussian_process",
    "starts.curves",
    "taylor.kernels",
    "taylor.recurrences",
    "taylor.series",
    "training.losses",
    "training.objective",
    "training.sampling",
)
# beartype as mypy understands annotations: an int is welcome where a float is. The import hook takes the
# checker by its dotted name, hence the small module.
checker = types.ModuleType("cstformer_type_checker")
checker.check = beartype(conf=BeartypeConf(is_pep484_tower=True))
sys.modules[checker.__name__] = checker
install_import_hook([f"cstformer.{name}" for name in CORE], f"{checker.__name__}.check")


@pytest.fixture(scope="session")
def browser():
    """A browser as people have it."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: install it, or name it in the variable CHROMIUM")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()
