"""The command in this process, a command that must fail, and small files for them."""

import warnings

import numpy as np
import pytest
from small_models import patched_kernel, wave_model, waves

from cstformer.cli import main


@pytest.fixture
def cst(capsys):
    """Run the command: exit code, standard output, standard error."""

    def run(*arguments) -> tuple[int, str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                code = main([str(a) for a in arguments])
            except SystemExit as end:
                code = end.code
        return (code, *capsys.readouterr())

    with patched_kernel():
        yield run


@pytest.fixture
def refused(cst):
    """Run a command that must fail: exit code 2, nothing on stdout, one line with these words on stderr."""

    def run(arguments, *words: str) -> None:
        code, out, err = cst(*arguments)
        assert code == 2, (code, out, err)
        assert out == ""
        assert err.startswith("cst: error: ")
        assert len(err.splitlines()) == 1, err
        for word in words:
            assert word in err, err

    return run


@pytest.fixture
def curves(tmp_path):
    """A table of ragged series with an empty cell and units."""
    table = waves(6).to_frame()
    table["sample"] = [f"cell {i}" for i in table["sample"]]
    table.loc[3, "y1"] = np.nan
    table = table.drop(index=[5, 12, 13])
    path = tmp_path / "curves.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def model(tmp_path):
    wave_model().save(tmp_path / "model")
    return tmp_path / "model"
